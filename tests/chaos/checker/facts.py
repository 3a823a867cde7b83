"""A history as the checker reads it: what was asked, what the store holds, what readers saw, what broke.

Standard library only: the checker shares no code with what it judges.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Line = dict[str, Any]
FINISHED = "turn.finished"


class Problem(NamedTuple):
    """Something that must not be: which invariant, under which figure it is counted, and the evidence."""

    invariant: int
    figure: str
    text: str


@dataclass(slots=True)
class Submit:
    """One message of a user, over all its tries. Times in ns of the machine's clock; 0 for never."""

    key: str
    chat: str
    kind: str
    way: str
    answers: tuple[str, ...]
    first_try: int = 0
    accepted: int = 0
    turns: set[str] = field(default_factory=set)
    refused: bool = False
    unknown: int = 0


@dataclass(slots=True)
class TurnFacts:
    """A turn as the store holds it at the end. ``key`` is empty when no user sent it, ``phase`` when it is none."""

    turn: str
    record: dict[str, str]
    log: list[Line] = field(default_factory=list)
    attempts: dict[str, str] = field(default_factory=dict)
    key: str = ""
    session: str = ""
    phase: Line = field(default_factory=dict)
    directory: str = ""

    @property
    def finished(self) -> bool:
        """The record and the log both say so."""
        return self.record.get("state") == "finished" and any(event["kind"] == FINISHED for event in self.log)

    def number(self, name: str) -> int:
        """A number of the record."""
        return int(self.record.get(name) or 0)

    @property
    def outcome(self) -> str:
        """How it ended, by its log; empty when it has not."""
        end = self.last(FINISHED)
        return str(end["data"]["outcome"]) if end else ""

    def last(self, kind: str) -> Line | None:
        """The last event of a kind."""
        return next((event for event in reversed(self.log) if event["kind"] == kind), None)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that hit. Times in seconds since the epoch; ``end`` is 0 when it never ended.

    ``workers``: the names of the worker processes it hit, without their host.
    """

    name: str
    kind: str
    begin: float
    end: float
    workers: tuple[str, ...]


@dataclass(slots=True)
class Facts:
    """Everything a rule may ask for."""

    run: Line = field(default_factory=dict)
    submits: dict[str, Submit] = field(default_factory=dict)
    turns: dict[str, TurnFacts] = field(default_factory=dict)
    keys: list[Line] = field(default_factory=list)
    reads: dict[int, list[Line]] = field(default_factory=lambda: defaultdict(list))
    by: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    faults: list[Fault] = field(default_factory=list)

    def setting(self, name: str, default: float) -> float:
        """A number of the run's settings."""
        return float(self.run.get("settings", {}).get(name, default))

    @property
    def events(self) -> Iterable[tuple[TurnFacts, Line]]:
        """Every event of every log."""
        return ((turn, event) for turn in self.turns.values() for event in turn.log)

    def of_kind(self, kind: str) -> list[tuple[TurnFacts, Line]]:
        """Every event of one kind."""
        return [(turn, event) for turn, event in self.events if event["kind"] == kind]

    def counters(self, name: str) -> dict[str, int]:
        """The counters of the buckets whose name begins so (``metrics:total``, ``metrics:minute``), added up.

        With those that no reaper has put there yet.
        """
        total: dict[str, int] = defaultdict(int)
        for line in self.keys:
            rest = line["name"].partition(":")[2]
            if rest.startswith(name):
                for counter, value in line["value"].items():
                    total[counter] += int(value)
            elif rest == "metrics:pending":
                for entry in line["value"]:
                    for counted in entry.split("\n")[1:]:
                        counter, _, value = counted.rpartition("\t")
                        total[counter] += int(value)
        return dict(total)


def decided_by(event: Line) -> str:
    """Which decision a ``turn.decided`` tells: the name its client gave, else whoever decided."""
    return str(event["data"].get("for") or event["data"]["by"])


def digest(event: Line) -> str:
    """What all who saw the same event agree on (the same as the clients compute)."""
    said = [event["seq"], event["epoch"], event["kind"], event["data"]]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def gather(lines: Sequence[Line]) -> Facts:
    """Sort a history's lines."""
    facts = Facts()
    for line in lines:
        facts.by[line["f"]].append(line)
        if line["f"] == "submit":
            _submit(facts, line)
        elif line["f"] in {"read", "event"} and "reader" in line:
            facts.reads[line["reader"]].append(line)
        elif line["f"] == "key":
            facts.keys.append(line)
        elif line["f"] == "run":
            facts.run = line
    _faults(facts)
    _turns(facts)
    return facts


def _submit(facts: Facts, line: Line) -> None:
    known = facts.submits.get(line["key"])
    if known is None:
        answers = tuple(line["answers"])
        known = Submit(line["key"], line["chat"], line["kind"], line["way"], answers, first_try=line["t"])
        facts.submits[line["key"]] = known
    if line["type"] == "ok":
        known.accepted = known.accepted or line["t"]
        known.turns.add(line["turn"])
    elif line["type"] == "fail":
        known.refused = True
    elif line["type"] == "info":
        known.unknown += 1


def _faults(facts: Facts) -> None:
    ends = {line["name"]: line["wall"] for line in facts.by["fault"] if line["type"] == "ok"}
    missed = {line["name"] for line in facts.by["fault"] if line["type"] == "fail"}
    for line in facts.by["fault"]:
        if line["type"] == "invoke" and line["name"] not in missed:
            end, workers = ends.get(line["name"], 0.0), tuple(line.get("workers", ()))
            facts.faults.append(Fault(line["name"], line["kind"], line["wall"], end, workers))


def _turns(facts: Facts) -> None:
    texts = {line["name"]: line["value"] for line in facts.keys if line["name"].endswith(":texts")}
    for line in facts.keys:
        parts = line["name"].split(":")
        if len(parts) != 3 or parts[1] != "turn" or line["kind"] != "hash":
            continue
        turn = TurnFacts(parts[2], line["value"] | texts.get(f"{line['name']}:texts", {}))
        request = json.loads(turn.record.get("request") or "{}")
        prompt = (request.get("messages") or [{"content": ""}])[-1]["content"]
        turn.key = prompt[1 : prompt.find("]")] if prompt.startswith("[") else ""
        turn.session = request.get("session_id", "")
        data = request.get("work_data", {}) if request.get("work") == "phase" else {}
        turn.phase, turn.directory = data.get("definition") or {}, data.get("directory", "")
        facts.turns[turn.turn] = turn
    for line in facts.keys:
        parts = line["name"].split(":")
        if len(parts) == 4 and parts[1] == "turn" and parts[2] in facts.turns:
            turn = facts.turns[parts[2]]
            if parts[3] == "log":
                turn.log = [json.loads(entry) for entry in line["value"]]
            elif parts[3] == "attempts":
                turn.attempts = line["value"]
