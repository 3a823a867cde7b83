"""The operators' overview: running turns, waiting turns, results, and reasons for retries."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass, fields
from typing import Any

from api_client.client import TurnsClient
from api_client.contract.turn import Turn, TurnState
from api_client.figures.figure_reader import TurnBalance
from api_client.figures.figures import SPANS, Figures
from api_client.index.search import LOOK_AT_MOST, UNFINISHED, Search
from api_client.index.turn_row import build_turn_row
from api_client.workers.fleet import Alert, Fleet, OwnerRow
from api_client.workers.reason import WaitingGroup

SLOWEST_OF = 1000
#: States in which no worker works: the turn waits for a worker or a person.
_WAITING = {TurnState.QUEUED.value, TurnState.SUSPENDED.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The data of the operators' overview page: turns, workers, statistics and alerts at one moment.

    Times are seconds since the epoch. ``waits`` has the turns that do not run, by reason; ``could_run`` counts those
    that only need a worker, the first since ``oldest_waiting``. ``cut`` says that more unfinished turns exist than were
    read. ``longest`` are turns in progress, ``crashed`` turns with which a worker died or froze.
    """

    at: float
    account: TurnBalance
    figures: Figures
    states: dict[str, int]
    working: int
    lost: frozenset[str]
    waits: tuple[WaitingGroup, ...]
    could_run: int
    oldest_waiting: float
    cut: bool
    longest: tuple[Turn, ...]
    attempt_starts: dict[str, float]
    slowest: tuple[Turn, ...]
    latest: tuple[Turn, ...]
    dead_count: int
    dead: tuple[Turn, ...]
    suspended_count: int
    suspended: tuple[Turn, ...]
    crashed: tuple[Turn, ...]
    owners: tuple[OwnerRow, ...]
    fleet: Fleet
    alerts: tuple[Alert, ...]

    @property
    def retry_rate(self) -> float | None:
        """Return the share of finished turns whose agent was asked again, or None without finished turns."""
        total = self.figures.whole.total
        return total.asked_again / total.turns if total.turns else None

    def to_dict(self) -> dict[str, Any]:
        """Return the overview as a JSON-ready dict. Of a user's message, it contains only the beginning."""
        lists = {name: getattr(self, name) for name in ("longest", "slowest", "latest", "dead", "suspended", "crashed")}
        return {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "account": {**asdict(self.account), "lost": self.account.lost},
            "lost": sorted(self.lost),
            "waits": [each.to_dict() for each in self.waits],
            "retry_rate": self.retry_rate,
            "figures": self.figures.to_dict(),
            **{name: [build_turn_row(turn) for turn in turns] for name, turns in lists.items()},
            "owners": [asdict(each) for each in self.owners],
            "fleet": asdict(self.fleet),
            "alerts": [each.to_dict() for each in self.alerts],
        }


async def read_overview(client: TurnsClient, span: str = "24h", *, rows: int = 10) -> Overview:
    """Read the data of the overview page for a period. Each list has at most ``rows`` turns.

    Raises ``KeyError`` if ``span`` is not a key of ``SPANS``.
    """
    now, seconds = time.time(), SPANS[span][0]
    everything, lists = Search(), client.lists
    unfinished = await lists.list_unfinished(everything)
    installation = await client.workers.read_state()
    working = [each for each in unfinished if each.status not in _WAITING]
    longest = await lists.read_turns(each.turn_id for each in working[:rows])
    recent = await lists.list_newest_finished(everything, since=now - seconds, at_most=SLOWEST_OF)
    crashed = [each for each in (*reversed(unfinished), *recent) if each.strikes][:rows]
    dead_count, dead = await lists.read_dead(rows)
    suspended_count, suspended = await lists.read_suspended(rows)
    states = Counter(each.status for each in unfinished)
    return Overview(
        at=now,
        account=await client.figures.read_balance(),
        figures=await client.figures.read_span(span),
        states={state.value: states[state.value] for state in UNFINISHED},
        working=sum(each.turn_id not in installation.lost for each in working),
        lost=installation.lost,
        waits=installation.waits,
        could_run=len(installation.waiting),
        oldest_waiting=installation.waiting_since,
        cut=len(unfinished) >= LOOK_AT_MOST,
        longest=tuple(longest),
        attempt_starts=await lists.read_attempt_starts(longest),
        slowest=tuple(
            await lists.read_turns(
                each.turn_id
                for each in sorted(recent, key=lambda each: each.finished_at - each.created_at, reverse=True)[:rows]
            )
        ),
        latest=tuple(await lists.read_turns(each.turn_id for each in recent[:rows])),
        dead_count=dead_count,
        dead=tuple(dead),
        suspended_count=suspended_count,
        suspended=tuple(suspended),
        crashed=tuple(await lists.read_turns(each.turn_id for each in crashed)),
        owners=installation.owners,
        fleet=installation.fleet,
        alerts=installation.alerts,
    )
