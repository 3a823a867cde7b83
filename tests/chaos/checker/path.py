"""Invariants 5, 6, 7 and 11: each log is a legal path, each delivery and each attempt ends once, nobody comes late."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tests.chaos.checker.facts import FINISHED, Facts, Line, Problem, TurnFacts

#: Events only the delivery that runs may tell.
_OF_A_RUN = {"attempt.output", "attempt.reset", "attempt.tool", "attempt.note", "attempt.completed"}
#: Events that are a commit of the holder.
_COMMITS = {
    "attempt.completed",
    "attempt.accepted",
    "attempt.rejected",
    "turn.mended",
    "turn.retrying",
    "turn.fallback",
    "turn.escalated",
    "turn.suspended",
}
#: Events only the delivery that verifies a phase may tell.
_OF_A_CHECK = {"gate.checked", "verifier.started", "verifier.judged"}
_GIVEN_UP = {"cancelled", "expired", "dead"}

#: A turn on which somebody decided; what was decided is part of the state.
_DECIDED = {f"decided {kind}" for kind in ("approve", "edit", "retry", "reject")}

_AT_REST = {"queued", "ran", "failing", "fallback", *_DECIDED}
# kind of event -> states it may come in. ``run`` is the state while an agent runs; ``sealed`` follows it where a run
# that was judged at once was lost behind its seal.
_MAY_COME = {
    "turn.queued": {"new"},
    "attempt.started": {"queued"},
    **{kind: {"run"} for kind in _OF_A_RUN},
    "attempt.completed": {"run", "sealed"},
    **{kind: {"ran"} for kind in _OF_A_CHECK},
    "attempt.lost": {"run", "sealed", "ran", "failing", "fallback", *_DECIDED},
    "attempt.accepted": {"ran"},
    "attempt.rejected": {"ran"},
    "turn.retrying": {"failing", "decided retry"},
    "turn.fallback": {"failing"},
    "turn.mended": {"fallback"},
    "turn.escalated": {"failing"},
    "turn.suspended": {"escalated"},
    "turn.decided": {"suspended"},
    "turn.paused": _AT_REST,
    "turn.resumed": _AT_REST,
    "turn.stopping": {"run", "ran", "failing", "fallback", "queued", *_DECIDED},
}
_WITHOUT_ATTEMPT = {"turn.queued", "turn.stopping", "turn.fallback", "turn.mended", "turn.paused", "turn.resumed"}
#: The first stage of an escalation: the turn goes on with another model. The second suspends it.
_ANOTHER_MODEL = 1
#: outcome -> states it may follow.
_MAY_END = {
    "passed": {"accepted"},
    "passed_after_retry": {"accepted"},
    "passed_by_fallback": {"mended"},
    "passed_by_human": {"decided approve", "decided edit"},
    "failed": {"failing", "mended", "fallback", "decided reject"},
    "incomplete": {"failing"},
    "error": {"failing"},
}


class _Path:
    """One turn's log, walked through."""

    def __init__(self) -> None:
        self.state = "new"
        self.attempt, self.delivery = 1, 0
        self.running = 0

    def problem(self, event: Line) -> str:
        """What is wrong with the next event; the path goes on with it in any case."""
        kind, data = event["kind"], event["data"]
        if kind == FINISHED:
            wrong = self._end(data["outcome"])
        elif kind not in _MAY_COME:
            wrong = f"{kind} is no event of a turn"
        elif self.state not in _MAY_COME[kind]:
            wrong = f"{kind} while {self.state}"
        else:
            wrong = self._numbers(kind, data)
        self._move(kind, data)
        return wrong

    def _end(self, outcome: str) -> str:
        if outcome in _GIVEN_UP or self.state in _MAY_END.get(outcome, ()):
            return ""
        return f"{outcome} while {self.state}"

    def _numbers(self, kind: str, data: Line) -> str:
        if kind == "attempt.started":
            if data["delivery"] != self.delivery + 1:
                return f"delivery {data['delivery']} follows {self.delivery}"
            if data["attempt"] != self.attempt:
                return f"attempt {data['attempt']} starts where {self.attempt} must"
        elif kind == "turn.retrying":
            if data["attempt"] != self.attempt + (data["reason"] != "transient"):
                return f"attempt {data['attempt']} is announced after {self.attempt}"
        elif kind not in _WITHOUT_ATTEMPT and data["attempt"] != self.attempt:
            return f"{kind} of attempt {data['attempt']} in attempt {self.attempt}"
        return ""

    def _move(self, kind: str, data: Line) -> None:
        if kind == "attempt.started":
            self.attempt, self.delivery = data["attempt"], data["delivery"]
        if kind == "turn.retrying":
            self.attempt = data["attempt"]
        if kind == "turn.escalated" and data["stage"] == _ANOTHER_MODEL:
            self.attempt += 1
        if kind == "attempt.lost":
            # Lost while it was judged: judged again from where it was.
            if self.state == "run":
                self.state = "sealed" if data["during"] == "validating" else "queued"
            return
        after = {
            "turn.queued": "queued",
            "attempt.started": "run",
            "attempt.completed": "ran" if data.get("verdict") == "complete" else "failing",
            "attempt.accepted": "accepted",
            "attempt.rejected": "failing",
            "turn.retrying": "queued",
            "turn.fallback": "fallback",
            "turn.mended": "mended",
            "turn.escalated": "queued" if data.get("stage") == _ANOTHER_MODEL else "escalated",
            "turn.suspended": "suspended",
            "turn.decided": f"decided {data.get('kind')}",
            FINISHED: "ended",
        }
        self.state = after.get(kind, self.state)


def legal_path(facts: Facts) -> Iterator[Problem]:
    """5: the state machine accepts each log; a commit that comes out of turn is a late one, see 7."""
    for turn in facts.turns.values():
        path = _Path()
        for event in turn.log:
            wrong = path.problem(event)
            if wrong and event["kind"] in _COMMITS | _OF_A_RUN | _OF_A_CHECK:
                yield Problem(7, "late_commits_accepted", f"{turn.turn}, event {event['seq']}: {wrong}")
            elif wrong:
                yield Problem(5, "illegal_steps", f"{turn.turn}, event {event['seq']}: {wrong}")


def one_commit(facts: Facts) -> Iterator[Problem]:
    """6: one judgement per attempt, one end per delivery, one claim per token, one execution per delivery."""
    for turn in facts.turns.values():
        judged = Counter(
            event["data"]["attempt"] for event in turn.log if event["kind"] in {"attempt.accepted", "attempt.rejected"}
        )
        for attempt, count in judged.items():
            if count > 1:
                yield Problem(6, "committed_twice", f"{turn.turn}: attempt {attempt} was judged {count} times")
        tokens = turn.record.get("tokens", "").split()
        if len(set(tokens)) != len(tokens):
            yield Problem(6, "committed_twice", f"{turn.turn}: a token was good for two claims")
        starts = [event for event in turn.log if event["kind"] == "attempt.started"]
        if turn.number("delivery") != len(starts):
            yield Problem(
                6, "committed_twice", f"{turn.turn}: {len(starts)} starts, {turn.number('delivery')} deliveries"
            )
    executions = Counter(
        (line["turn"], line["attempt"], line["delivery"]) for line in facts.by["execution"] if line["event"] == "start"
    )
    for run, count in executions.items():
        if count > 1:
            yield Problem(6, "executed_twice", f"delivery {run} was executed {count} times")


def no_overlap(facts: Facts) -> Iterator[Problem]:
    """7, in real time: two agents of one turn never run at once for longer than the time a kill may take."""
    grace = facts.setting("kill_grace_seconds", 5.0) + 1.0
    spans: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    seen: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)  # between which times it ran
    for line in facts.by["execution"]:
        seen[line["turn"], line["delivery"]].append((line["t"] / 1e9, line["t"] / 1e9))
    for line in facts.by["alive"]:
        noted = line["t"] / 1e9
        looked = noted - (line["wall"] - line["looked"]) if "looked" in line else noted
        for mark in line["marks"]:
            turn_id, delivery = mark.partition(".")[0], mark.rpartition(".")[2]
            if delivery.isdecimal() and (turn_id, int(delivery)) in seen:  # else another installation's
                seen[turn_id, int(delivery)].append((looked, noted))
    for (turn_id, number), times in seen.items():
        spans[turn_id].append((min(noted for _, noted in times), max(looked for looked, _ in times), number))
    for turn_id, runs in spans.items():
        for (_, end, first), (start, _, second) in pairwise(sorted(runs)):
            if end - start > grace:
                text = f"{turn_id}: deliveries {first} and {second} ran at once for {end - start:.1f} s"
                yield Problem(7, "agents_overlap", text)


def whole_log(facts: Facts) -> Iterator[Problem]:
    """11: numbers 1 to n in one epoch; record and relay say what the log says; only unfinished turns are waited for."""
    for turn in facts.turns.values():
        numbers = [event["seq"] for event in turn.log]
        yield from _sequence(turn, numbers)
        if len({event["epoch"] for event in turn.log} | {turn.record.get("epoch")}) > 1:
            yield Problem(11, "epochs", f"{turn.turn}: more than one epoch")
        end = turn.last(FINISHED)
        if end and any(
            str(end["data"][name]) != turn.record.get(field, "0")  # a turn that nobody claimed has neither number
            for name, field in (("outcome", "outcome"), ("attempts", "attempt"), ("deliveries", "delivery"))
        ):
            yield Problem(11, "fold_differs", f"{turn.turn}: its record is not what its log says")
    unfinished = {turn.turn for turn in facts.turns.values() if not turn.finished}
    for line in facts.keys:
        kind = line["name"].split(":")[1]
        if kind in {"due", "session", "inbox"} and line["name"].startswith("{"):
            strangers = set(line["value"]) - unfinished
            if strangers:
                yield Problem(11, "left_waiting", f"{line['name']} still names {sorted(strangers)[:3]}")
    for line in facts.by["final"]:
        found = facts.turns.get(line["turn"])
        if line["type"] == "ok" and found and line.get("outcome") != found.record.get("outcome"):
            yield Problem(11, "fold_differs", f"{line['turn']}: a relay says {line.get('outcome')}")


def _sequence(turn: TurnFacts, numbers: list[int]) -> Iterator[Problem]:
    for before, number in pairwise([0, *numbers]):
        if number > before + 1:
            yield Problem(11, "seq_gaps", f"{turn.turn}: {number} follows {before} in its log")
        elif number <= before:
            yield Problem(11, "seq_duplicates", f"{turn.turn}: {number} follows {before} in its log")
