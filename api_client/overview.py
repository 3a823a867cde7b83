"""What an operator sees at a glance: what runs and since when, what waits, how turns ended, and why they were repeated.

The overview page and ``turns top`` show the same ``Overview``.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from api_client.contract.turn import Turn
from api_client.figures import SPANS, Figures
from api_client.lists import LOOK_AT_MOST, UNFINISHED, Found, Search

if TYPE_CHECKING:
    from api_client.client import TurnsClient

#: Finished turns the slowest are looked for among: the newest of the span.
SLOWEST_OF = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """An installation at one moment. Times in seconds since the epoch.

    Attributes:
        at: when. figures: of the span that is looked at.
        states: unfinished turns by state. oldest_waiting: since when the longest waiting queued one waits; 0: none.
        cut: there are more unfinished turns than were looked at.
        longest: turns that are worked on, longest first; attempt_starts: since when the agent of each runs.
        slowest: the slowest of the span's newest ``SLOWEST_OF`` finished turns. latest: the last that finished.
        dead_count, dead: how many dead letters there are, and the newest.
    """

    at: float
    figures: Figures
    states: dict[str, int]
    oldest_waiting: float
    cut: bool
    longest: tuple[Turn, ...]
    attempt_starts: dict[str, float]
    slowest: tuple[Turn, ...]
    latest: tuple[Turn, ...]
    dead_count: int
    dead: tuple[Turn, ...]

    @property
    def working(self) -> int:
        """Unfinished turns that are not waiting."""
        return sum(self.states.values()) - self.states["queued"]

    @property
    def retry_rate(self) -> float | None:
        """Turns that were asked again ÷ finished turns; None when none finished."""
        total = self.figures.whole.total
        return total.asked_again / total.turns if total.turns else None

    def to_dict(self) -> dict[str, Any]:
        """The overview as a JSON-ready mapping; turns without their texts."""
        lists = {name: getattr(self, name) for name in ("longest", "slowest", "latest", "dead")}
        return {
            "at": self.at,
            "states": self.states,
            "oldest_waiting": self.oldest_waiting,
            "cut": self.cut,
            "retry_rate": self.retry_rate,
            "figures": self.figures.to_dict(),
            **{name: [_line(turn) for turn in turns] for name, turns in lists.items()},
            "attempt_starts": self.attempt_starts,
            "dead_count": self.dead_count,
        }


async def overview(client: TurnsClient, span: str = "24h", *, rows: int = 10) -> Overview:
    """Read the overview of a span of ``figures.SPANS``; its lists have ``rows`` turns at most.

    Raises:
        KeyError: there is no such span. StoreUnavailable: the store does not answer.
    """
    now, seconds = time.time(), SPANS[span][0]
    everything, lists = Search(), client.lists
    unfinished = await lists.unfinished(everything)
    longest = await lists.read([each.turn_id for each in unfinished if each.status != "queued"][:rows])
    recent = await lists.newest_finished(everything, since=now - seconds, at_most=SLOWEST_OF)
    dead_count, dead = await lists.dead(rows)
    states = Counter(each.status for each in unfinished)
    return Overview(
        at=now,
        figures=await client.figures(span),
        states={state.value: states[state.value] for state in UNFINISHED},
        oldest_waiting=next((each.created_at / 1000 for each in unfinished if each.status == "queued"), 0.0),
        cut=len(unfinished) >= LOOK_AT_MOST,
        longest=tuple(longest),
        attempt_starts=await lists.attempt_starts(longest),
        slowest=tuple(await lists.read(each.turn_id for each in sorted(recent, key=_took, reverse=True)[:rows])),
        latest=tuple(await lists.read(each.turn_id for each in recent[:rows])),
        dead_count=dead_count,
        dead=tuple(dead),
    )


def _took(found: Found) -> int:
    return found.finished_at - found.created_at


def _line(turn: Turn) -> dict[str, Any]:
    return {
        "turn_id": turn.turn_id,
        "session_id": turn.request.session_id,
        "model": turn.request.model,
        "state": turn.state.value,
        "outcome": turn.outcome.value if turn.outcome else None,
        "attempt": turn.attempt,
        "max_attempts": turn.request.max_attempts,
        "created_at": turn.created_at,
        "finished_at": turn.finished_at,
        "worker": turn.worker,
    }
