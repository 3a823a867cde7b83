"""A search in the list of turns, and a place in it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from api_client.contract.turn import Outcome, Turn, TurnState, check_turn_id

#: The states of unfinished turns, in the order a turn goes through them.
UNFINISHED = (TurnState.QUEUED, TurnState.RUNNING, TurnState.RAN, TurnState.VALIDATING, TurnState.SUSPENDED)
#: What a search may ask for by one word: states of unfinished turns, outcomes, and groups of these.
STATUSES: dict[str, tuple[str, ...]] = {
    "unfinished": tuple(state.value for state in UNFINISHED),
    "finished": tuple(outcome.value for outcome in Outcome),
    "success": tuple(outcome.value for outcome in Outcome if outcome.success),
    "unsuccessful": tuple(outcome.value for outcome in Outcome if not outcome.success),
    **{state.value: (state.value,) for state in UNFINISHED},
    **{outcome.value: (outcome.value,) for outcome in Outcome},
}
SORTS = ("newest", "oldest")
Part = Literal["u", "f"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Which turns are asked for, and in which order; an empty field asks for all. All fields must match.

    Attributes:
        owner: only this owner's. session_id, model, flow: only of this session, this model, this version.
        statuses: keys of ``STATUSES``; a turn has one of them.
        lost: only turns a worker died or froze with.
        since, until: finished, or else submitted, at or after ``since`` and before ``until``; seconds since the
            epoch, 0 for no bound.
        rule: an answer was judged to break this rule (an issue names it as validator or code).
        text: part of the message, in any case of letters.
        sort: a word of ``SORTS``, by when a turn finished, and of unfinished ones when it was submitted.
    """

    owner: str = ""
    session_id: str = ""
    model: str = ""
    flow: str = ""
    statuses: tuple[str, ...] = ()
    lost: bool = False
    since: float = 0.0
    until: float = 0.0
    rule: str = ""
    text: str = ""
    sort: str = "newest"

    @property
    def words(self) -> tuple[str, ...]:
        """The states and outcomes asked for; empty for all."""
        return tuple(dict.fromkeys(word for status in self.statuses for word in STATUSES[status]))

    @property
    def parts(self) -> tuple[Part, ...]:
        """Which parts of the list can match, in order: unfinished turns (u), finished ones (f)."""
        unfinished, words = set(STATUSES["unfinished"]), set(self.words)
        found: list[Part] = []
        if not words or words & unfinished:
            found.append("u")
        if not words or words - unfinished:
            found.append("f")
        return tuple(found if self.sort == "newest" else reversed(found))

    @property
    def empty(self) -> bool:
        """Return whether every turn matches."""
        return self == Search(sort=self.sort)

    def __str__(self) -> str:
        """The search in words, as the record of an order has it."""
        filters = {
            "since": f"{self.since:.0f}" if self.since else "",
            "until": f"{self.until:.0f}" if self.until else "",
            "model": self.model,
            "flow": self.flow,
            "session": self.session_id,
            "owner": self.owner,
            "rule": self.rule,
            "text": self.text,
            "lost": "1" if self.lost else "",
        }
        return " ".join([*self.statuses, *(f"{name}={value}" for name, value in filters.items() if value)])

    def in_time(self, at: float) -> bool:
        """Return whether a moment (seconds since the epoch) is within the bounds."""
        return self.since <= at and not 0 < self.until <= at

    def says(self, turn: Turn) -> bool:
        """Return whether the turn's message has the text."""
        return self.text.casefold() in turn.request.prompt.casefold()


class Cursor(NamedTuple):
    """A place in a list: the part (``Search.parts``), a turn's time in ms, and its id."""

    part: Part
    at: int
    turn_id: str

    def __str__(self) -> str:
        return f"{self.part}{self.at}.{self.turn_id}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Read what ``str`` wrote. Raises ``ValueError``: this is not a place."""
        part, (at, _, turn_id) = text[:1], text[1:].partition(".")
        if part not in {"u", "f"} or not (at.isascii() and at.isdecimal() and len(at) <= 15):
            raise ValueError(f"not a place in the list: {text[:80]!r}")
        check_turn_id(turn_id)
        return cls("u" if part == "u" else "f", int(at), turn_id)


_LUA = Path(__file__).with_name("lua")
#: Records one command looks at.
_BATCH = 500
#: Finished turns looked at first: a page is often full with these.
_FIRST = 100
#: Unfinished records one question looks at, at most.
LOOK_AT_MOST = 20_000
#: A page of a list searches for this long, in seconds; then it ends, and says where to continue.
LOOK_SECONDS = 0.12
#: Whole records read at once, and members of a set that are scanned at once.
_TEXTS, _SCANNED = 100, 5_000
#: What a list needs of a record.
_FIELDS = (
    "id", "epoch", "state", "outcome", "request", "attempt", "delivery", "created_at", "finished_at", "deadline_at",
    "lease_until", "seq", "retries", "transients", "strikes", "stop", "step", "step_source", "worker", "next",
    "tokens_used", "cost_used", "replay_of", "error", "allowed", "suspended_at", "decide_by", "interruption",
    "flow", "policy",
)  # fmt: skip


class FoundTurn(NamedTuple):
    """A turn that matches, with what lists sort by. Times in milliseconds, 0 when not yet; strikes: workers lost."""

    turn_id: str
    status: str
    created_at: int
    finished_at: int
    strikes: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some turns of a list, in its order. ``next`` is where to go on; None when there are no more.

    A page that took too long ends before it is full, and says where to go on.
    """

    turns: tuple[Turn, ...]
    next: Cursor | None
