"""Explains why a turn does not run, in the same way for all interfaces.

The first turn of a session waits for a worker from the moment it became due: at its submit, at the end of the turn
before, after its delay, after a lost worker, or after a person's decision.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from api_client.contract.catalogue import collect_declarations
from api_client.contract.clock_time import format_clock_time
from api_client.contract.counters import clean_label
from api_client.contract.open_enum import OpenEnum
from api_client.contract.store_refusals import StoreRefusal
from api_client.contract.tasks import RUN_QUEUE, all_tasks, find_queue
from api_client.contract.turn import TurnState
from api_client.contract.word_tables import load_word_table
from api_client.contract.worker_reports import HEARD_SECONDS, WorkerReport

#: A turn is stuck after this wait, if a slot is free and the workers of its queue took nothing for
#: ``STILL_SECONDS``.
STUCK_SECONDS, STILL_SECONDS = 300.0, 30.0
#: Times nearer than this are given in seconds.
_SOON_SECONDS = 100.0
_OWN_WORDS = collect_declarations("WAIT_REASONS")
_WORDS = load_word_table(__file__) | _OWN_WORDS
FIELDS = (
    "state", "created_at", "session_id", "token", "next", "not_before", "announced", "announced_at", "suspended_at",
    "since", "worker", "held_since", "held_back", "lease_until", "decide_by", "stop", "model", "stage_model", "owner",
    "key", "probes", "lacks", "most", "weight",
)  # fmt: skip
_NUMBERS = {"not_before", "since", "held_since", "lease_until", "decide_by", "most", "weight"}
_TEXTS = ("session_id", "worker", "held_back", "stop", "owner", "key", "probes", "lacks")
#: The wait for the next announcement doubles at most this often (reap.lua).
_DOUBLINGS = 6


class Reason(OpenEnum):
    """The kinds of reasons why a turn is not running. Monitors add reasons of their own.

    Some reasons hold back no stored turn, but keep new turns from being accepted.
    """

    STORE = "store"
    PERSON = "person"
    SESSION = "session"
    DELAY = "delay"
    OWNER = "owner"
    SERVICE = "service"
    LOST = "lost"
    NO_WORKER = "no_worker"
    UNFIT = "unfit"
    SICK = "sick"
    QUIET = "quiet"
    STALLED = "stalled"
    SLOT = "slot"
    STUCK = "stuck"
    NEXT = "next"


#: All reasons, as lists of equally serious ones show them.
REASONS = tuple(dict.fromkeys([Reason.STORE, Reason.PERSON, Reason.SESSION, *map(Reason, _OWN_WORDS), *Reason]))
#: Reasons of turns that only need a worker to take them.
FOR_A_WORKER = frozenset(
    {Reason.STORE, Reason.NO_WORKER, Reason.SICK, Reason.QUIET, Reason.STALLED, Reason.SLOT, Reason.STUCK, Reason.NEXT}
)
#: Reasons for which no worker at all takes a turn: a chat shows them instead of the place in the queue.
NOBODY_CAN = FOR_A_WORKER - {Reason.SLOT, Reason.STUCK, Reason.NEXT} | {Reason.UNFIT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The reason why a turn is not running, with details. Times are in seconds since the epoch.

    ``subject`` is such as a model or a worker; ``said`` is for operators; ``until`` is the end of the wait or the next
    try, 0 if unknown; ``before`` is the turn that must end first.
    """

    reason: Reason
    at: float = 0.0
    subject: str = ""
    said: str = ""
    until: float = 0.0
    before: str = ""

    def words(self, locale: str = "en", *, public: bool = False) -> str:
        """Describe the reason in one clause. ``public`` omits details that only operators should see."""
        entry = _WORDS[self.reason]
        when = self._format_time(entry.get("when", ""), locale)
        text = str(entry.get(locale, entry["en"])).format(subject=self.subject, when=when)
        more = "" if public else self.before or self.said
        return f"{text}: {more}" if more else text

    def _format_time(self, kind: str, locale: str) -> str:
        if not kind or self.until <= self.at:
            return ""
        soon, later = _WORDS[kind].get(locale, _WORDS[kind]["en"])
        left = max(0.0, self.until - self.at)
        words = str(soon if left < _SOON_SECONDS else later)
        return " " + words.format(seconds=round(left), time=format_clock_time(self.until, self.at))

    @property
    def advice(self) -> str:
        """Return a sentence that tells operators what to do so that the turn can run."""
        return str(_WORDS[self.reason]["fix"]).format(subject=self.subject)

    @property
    def severity(self) -> str:
        """Return how serious this reason is for the installation: ``ok``, ``warning`` or ``wrong``."""
        return str(_WORDS[self.reason]["is"])

    @property
    def is_alert(self) -> bool:
        """Return True if this reason is an alert as soon as any turn waits because of it."""
        return bool(_WORDS[self.reason].get("alerts"))

    def to_dict(self, *, public: bool = False) -> dict[str, Any]:
        """Return the reason as a JSON-ready dict. ``public`` omits details that only operators should see."""
        more = {} if public else {"subject": self.subject, "said": self.said}
        words = self.words(public=public)
        return {"reason": self.reason.value, "words": words, "until": self.until, "before": self.before, **more}


class Obstacle(Protocol):
    """A condition that keeps turns from starting."""

    def explain_hold(self, row: UnfinishedTurn, at: float) -> Wait | None:
        """Return why a turn (``row``) has to wait, or None if this obstacle does not affect the turn."""


@dataclass(frozen=True, eq=False, kw_only=True)
class InstallationFacts:
    """The facts about an installation from which the reasons of waiting turns are derived.

    ``refusal`` says why the store accepts no writes. ``at_work`` has the taken slots of owners with a limit:
    ``OWNER|ID``.
    """

    at: float
    reports: Sequence[WorkerReport] = ()
    ended: frozenset[str] = frozenset()
    refusal: StoreRefusal | None = None
    obstacles: Sequence[Obstacle] = ()
    troubles: Sequence[Wait] = ()
    announce_seconds: float = 5.0
    at_work: frozenset[str] = frozenset()
    _checked: dict[tuple[str, str, str], Wait | float] = field(default_factory=dict)

    def is_gone(self, worker: str) -> bool:
        """Return True if a worker process has exited or has stopped reporting."""
        if worker in self.ended:
            return True
        return any(each.name == worker and self.at - each.at >= HEARD_SECONDS for each in self.reports)

    def check_workers(self, queue: str, model: str, lacks: str) -> Wait | float:
        """Return why no worker can take a turn of this kind. If one can, return when it last took a turn.

        ``lacks`` names the workers that cannot run the turn, with reasons. The time is in seconds since the epoch.
        """
        key = (queue, model, lacks)
        if key not in self._checked:
            self._checked[key] = self._check_workers(*key)
        return self._checked[key]

    def _check_workers(self, queue: str, model: str, lacks: str) -> Wait | float:
        left = [each for each in self.reports if self.at - each.at < HEARD_SECONDS and queue in each.queues]
        if not left:
            return self._make_wait(Reason.NO_WORKER)
        runs, lacking = queue == RUN_QUEUE, _read_lacks(lacks)
        whys = {each.name: (runs and each.explain_cannot_run(model)) or lacking.get(each.worker, "") for each in left}
        if all(whys.values()):
            said = "; ".join(f"{name}: {text}" for name, text in sorted(whys.items())[:4])
            return self._make_wait(Reason.UNFIT, f"model {model}", said)
        left = [each for each in left if not whys[each.name]]
        if all(each.sick for each in left):
            hosts = {each.host: str(each.sick) for each in left}
            said = "; ".join(f"{host}: {text}" for host, text in sorted(hosts.items()))
            return self._make_wait(Reason.SICK, ", ".join(sorted(hosts)), said)
        left = [each for each in left if not each.sick]
        for reason, out in ((Reason.QUIET, "quiet"), (Reason.STALLED, "stalled")):
            if all(getattr(each, out) for each in left):
                return self._make_wait(reason, left[0].name)
            left = [each for each in left if not getattr(each, out)]
        free = [each for each in left if each.free_slots(queue)]
        return max(each.took_at for each in free) if free else self._make_wait(Reason.SLOT)

    def _make_wait(self, reason: Reason, subject: str = "", said: str = "") -> Wait:
        return Wait(reason=reason, at=self.at, subject=subject, said=said)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedTurn:
    """The stored fields of an unfinished turn from which its reason for waiting is derived.

    Times are milliseconds of the store's clock; ``due`` is when a reaper looks at the turn. ``worker`` holds or last
    held the turn, ``runs`` is the label of the model that runs next, ``lacks`` names workers that gave the turn back.
    """

    turn_id: str
    due: float
    state: TurnState
    created_at: int
    session_id: str
    held: bool
    task: str
    not_before: int
    announced: int
    announced_at: int
    suspended_at: int
    since: int
    held_since: int
    worker: str
    held_back: str = ""
    lease_until: int = 0
    decide_by: int = 0
    stop: str = ""
    runs: str = ""
    owner: str = ""
    key: str = ""
    probes: str = ""
    lacks: str = ""
    most: int = 0
    weight: int = 0


def read_row(turn_id: str, due: float, values: Sequence[bytes | None]) -> UnfinishedTurn | None:
    """Decode the stored fields of an unfinished turn. Return None for a finished, missing or damaged turn."""
    texts = dict(zip(FIELDS, ((value or b"").decode("utf-8", "replace") for value in values), strict=True))
    try:
        state = TurnState(texts["state"])
        numbers: dict[str, Any] = {
            name: int(texts[name] or 0) for name in FIELDS if name.endswith("_at") or name in _NUMBERS
        }
        announced = int(texts["announced"] or 1)
    except ValueError:
        return None
    if state is TurnState.FINISHED:
        return None
    return UnfinishedTurn(
        turn_id=turn_id,
        due=due,
        state=state,
        held=bool(texts["token"]),
        task=texts["next"].partition("/")[0],
        announced=announced,
        runs=clean_label(texts["stage_model"]) if texts["stage_model"] else texts["model"],
        **numbers,
        **dict[str, Any]((name, texts[name]) for name in _TEXTS),
    )


def _waits_since(head: UnfinishedTurn, facts: InstallationFacts) -> float:
    """Return the time at which ``head``, a session's first turn, became due to run, in seconds since the epoch."""
    if head.announced == 0:  # postponed, because its announcement still waits: the time of the announcement was noted
        since = float(head.announced_at)
    else:
        doubled = min(head.announced, _DOUBLINGS + 1)
        delays = 2**doubled - 1 + 2**_DOUBLINGS * max(0, head.announced - doubled)
        since = head.due - facts.announce_seconds * 1000 * delays
    since = max(since, float(head.not_before), float(head.created_at)) / 1000
    return since if since <= facts.at else max(head.not_before, head.created_at) / 1000


def _read_lacks(text: str) -> dict[str, str]:
    with suppress(ValueError, AttributeError):
        return {str(name): str(why) for name, why in json.loads(text or "{}").items()}
    return {}


def explain_wait(row: UnfinishedTurn, head: str, facts: InstallationFacts) -> Wait | None:
    """Return why a turn is not running, or None if a worker works on it. ``head`` is the session's first turn."""
    at = facts.at
    if row.held:
        if facts.refusal is None and (facts.is_gone(row.worker) or 0 < row.lease_until <= at * 1000):
            left = row.lease_until / 1000 if row.lease_until > at * 1000 else 0.0
            return Wait(reason=Reason.LOST, at=at, subject=row.worker, until=left)
        return None
    if row.state is TurnState.SUSPENDED:
        return Wait(reason=Reason.PERSON, at=at, until=row.decide_by / 1000)
    if head not in {"", row.turn_id}:
        return Wait(reason=Reason.SESSION, at=at, before=head)
    if facts.refusal:
        return Wait(reason=Reason.STORE, at=at, said=f"{facts.refusal.message} ({facts.refusal.word})")
    held_up = (each.explain_hold(row, at) for each in facts.obstacles)
    if found_one := next(filter(None, held_up), None):
        return found_one
    if row.not_before > at * 1000 and not row.held_back:
        return Wait(reason=Reason.DELAY, at=at, until=row.not_before / 1000)
    if row.most and row.state is TurnState.QUEUED and f"{row.owner}|{row.turn_id}" not in facts.at_work:
        taken = sum(place.startswith(f"{row.owner}|") for place in facts.at_work)
        if taken >= row.most:
            return Wait(reason=Reason.OWNER, at=at, subject=str(row.most))
    queue = _row_queue(row)
    found = facts.check_workers(queue, row.runs, row.lacks)
    if isinstance(found, Wait):
        return found
    waits_in_vain = at - _waits_since(row, facts) > STUCK_SECONDS and at - found > STILL_SECONDS
    return Wait(reason=Reason.STUCK if waits_in_vain else Reason.NEXT, at=at)


def _row_queue(row: UnfinishedTurn) -> str:
    return find_queue(row.task) if row.task in all_tasks() else RUN_QUEUE


def find_first_turns(rows: Iterable[UnfinishedTurn]) -> dict[str, str]:
    """Return the id of each session's first unfinished turn: the running turn, or the next to run."""
    found: dict[str, tuple[tuple[bool, int, float], str]] = {}
    for each in rows:
        begun = each.held or bool(each.held_since) or each.state is not TurnState.QUEUED
        place = (not begun, each.created_at, each.due)
        if each.session_id not in found or place < found[each.session_id][0]:
            found[each.session_id] = place, each.turn_id
    return {session: turn_id for session, (_, turn_id) in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingGroup:
    """Turns that wait for the same reason. ``turn_id`` is the turn that has waited longest.

    ``queue`` is the queue of the worker that they need. ``since`` is in seconds since the epoch.
    """

    wait: Wait
    turn_id: str
    queue: str
    since: float
    count: int = 1

    def to_dict(self) -> dict[str, Any]:
        more = {"count": self.count, "since": self.since, "turn_id": self.turn_id, "fix": self.wait.advice}
        return {**self.wait.to_dict(), **more}


def list_waiting(rows: Sequence[UnfinishedTurn], facts: InstallationFacts) -> list[WaitingGroup]:
    """Return an entry for each turn that is not running, longest waiting first."""
    first, found = find_first_turns(rows), list[WaitingGroup]()
    for row in rows:
        if wait := explain_wait(row, first[row.session_id], facts):
            since = row.suspended_at / 1000 or min(_waits_since(row, facts), facts.at)
            if wait.reason not in FOR_A_WORKER | {Reason.UNFIT, Reason.PERSON}:
                since = row.created_at / 1000
            queue = _row_queue(row)
            found.append(WaitingGroup(wait=wait, turn_id=row.turn_id, queue=queue, since=since))
    return sorted(found, key=lambda each: each.since)


def group_by_reason(waiting: Iterable[WaitingGroup]) -> list[WaitingGroup]:
    """Merge waiting turns with the same reason into groups, most serious reasons first."""
    groups: dict[tuple[Reason, str, str], WaitingGroup] = {}
    for each in waiting:
        key = (each.wait.reason, each.wait.subject, each.wait.said)
        if known := groups.get(key):
            groups[key] = replace(known, count=known.count + each.count)
        else:
            groups[key] = replace(each, wait=replace(each.wait, before=""))
    return sorted(groups.values(), key=lambda each: (_BADNESS[each.wait.severity], REASONS.index(each.wait.reason)))


_BADNESS = {"wrong": 0, "warning": 1, "ok": 2}


def is_notified(reason: str) -> bool:
    """Return True if a separate monitor sends notifications about this reason."""
    return bool(_WORDS.get(reason, {}).get("notified"))
