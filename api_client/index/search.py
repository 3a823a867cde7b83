"""A search for turns, and positions in the list of its results."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from api_client.contract.turn import Outcome, Turn, TurnState, check_turn_id

#: States of unfinished turns, in the order in which a turn passes them.
UNFINISHED = (TurnState.QUEUED, TurnState.RUNNING, TurnState.RAN, TurnState.VALIDATING, TurnState.SUSPENDED)
#: Words of a search for a status: states, outcomes, and groups of these.
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
    """A search for turns with filters that must all match, and the order of the results.

    ``statuses`` are keys of ``STATUSES``, of which one must match. ``lost`` selects turns with which a worker died or
    froze. ``since`` and ``until`` bound the finish time, or the submit time of unfinished turns, in seconds since the
    epoch. ``rule`` is a validator or issue code that an answer broke. ``text`` is part of the message, ignoring case.
    """

    owner: str = ""
    session_id: str = ""
    model: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    statuses: tuple[str, ...] = ()
    lost: bool = False
    since: float = 0.0
    until: float = 0.0
    rule: str = ""
    text: str = ""
    sort: str = "newest"

    @property
    def words(self) -> tuple[str, ...]:
        """Return the states and outcomes to search for. An empty tuple means all."""
        return tuple(dict.fromkeys(word for status in self.statuses for word in STATUSES[status]))

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return the parts of the list that can contain matches, in order: ``u`` for unfinished, ``f`` for finished."""
        unfinished, words = set(STATUSES["unfinished"]), set(self.words)
        found: list[Part] = []
        if not words or words & unfinished:
            found.append("u")
        if not words or words - unfinished:
            found.append("f")
        return tuple(found if self.sort == "newest" else reversed(found))

    @property
    def empty(self) -> bool:
        """Return True if the search has no filters, so that every turn matches."""
        return self == Search(sort=self.sort)

    def __str__(self) -> str:
        """Describe the search on one line."""
        filters = {
            "since": f"{self.since:.0f}" if self.since else "",
            "until": f"{self.until:.0f}" if self.until else "",
            "model": self.model,
            **self.labels,
            "session": self.session_id,
            "owner": self.owner,
            "rule": self.rule,
            "text": self.text,
            "lost": "1" if self.lost else "",
        }
        return " ".join([*self.statuses, *(f"{name}={value}" for name, value in filters.items() if value)])

    def contains_time(self, at: float) -> bool:
        """Return True if a time (seconds since the epoch) is within the period of the search."""
        return self.since <= at and not 0 < self.until <= at

    @property
    def stored_text(self) -> str:
        """Return the longest ASCII part of the text to search for, in lower case and escaped as in a JSON string."""
        parts = [json.dumps(part)[1:-1].lower() for part in re.findall(r"[ -~]+", self.text.casefold())]
        return max(parts, key=len, default="")

    def matches_text(self, turn: Turn) -> bool:
        """Return True if the turn's message contains the searched text, ignoring case."""
        return self.text.casefold() in turn.request.prompt.casefold()


#: Letters beside ASCII whose folded form has ASCII letters; the store replaces two of them, ß and ẞ, itself.
_FOLDED = "\u0130\u0149\u017f\u01f0\u1e96\u1e97\u1e98\u1e99\u1e9a\u212a\ufb00\ufb01\ufb02\ufb03\ufb04\ufb05\ufb06"


def find_folding_letters(text: str) -> list[str]:
    """Return the non-ASCII letters that equal a letter of ``text`` when case is ignored."""
    return [letter for letter in _FOLDED if {*letter.casefold()} & {*text}]


class Cursor(NamedTuple):
    """A position in a list of turns, after which the next page begins."""

    part: Part
    at: int
    turn_id: str

    def __str__(self) -> str:
        return f"{self.part}{self.at}.{self.turn_id}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Parse a cursor from its text form. Raises ``ValueError`` if the text is invalid."""
        part, (at, _, turn_id) = text[:1], text[1:].partition(".")
        if part not in {"u", "f"} or not (at.isascii() and at.isdecimal() and len(at) <= 15):
            raise ValueError(f"not a place in the list: {text[:80]!r}")
        check_turn_id(turn_id)
        return cls("u" if part == "u" else "f", int(at), turn_id)


def hide_turn(place: Cursor, found: Sequence[Turn], after: Cursor | None, *, oldest_first: bool) -> Cursor:
    """Return the position ``place`` without a finished turn's id, unless it is that of the last turn in ``found``.

    The page after it looks again at turns that finished in the same millisecond as the turn at ``place``. The position
    is ``after``, where this page began, if the page got no further than that millisecond.
    """
    if place.part == "u":
        return place  # only the caller's own turns are looked at
    if found and round(found[-1].finished_at * 1000) == place.at:
        return place._replace(turn_id=found[-1].turn_id)
    if after and (after.part, after.at) == (place.part, place.at):
        return after
    return place._replace(turn_id=f"turn-{('0' if oldest_first else 'f') * 32}")


_LUA = Path(__file__).with_name("lua")
_BATCH = 500
_FIRST = 100
#: Most unfinished records that one query looks at.
LOOK_AT_MOST = 20_000
#: Seconds to search for a page, which then ends early and says where to continue.
LOOK_SECONDS = 0.12
_TEXTS, _SCANNED = 100, 5_000
_FIELDS = (
    "id", "epoch", "state", "outcome", "request", "attempt", "delivery", "created_at", "finished_at", "deadline_at",
    "lease_until", "seq", "retries", "transients", "strikes", "stop", "step", "step_source", "worker", "next",
    "tokens_used", "cost_used", "error", "allowed", "suspended_at", "decide_by", "interruption",
)  # fmt: skip


class FoundTurn(NamedTuple):
    """A turn that matches a search, in summary. Times are in milliseconds since the epoch.

    ``strikes`` counts the workers lost with the turn.
    """

    turn_id: str
    status: str
    created_at: int
    finished_at: int
    strikes: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of a list of turns. ``next`` is the position of the next page, or None on the last page.

    A page that took too long ends before it is full.
    """

    turns: tuple[Turn, ...]
    next: Cursor | None
