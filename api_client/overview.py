"""The overview of an operator: what runs, which turns wait, how turns ended, and why they were repeated.

The overview page and ``turns top`` show the same ``Overview``.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias

from api_client.budgets import DAY_SECONDS, Spent
from api_client.client import TurnsClient
from api_client.contract.issues import StoreUnavailable
from api_client.contract.keys import Keys
from api_client.contract.notices import Notice
from api_client.contract.turn import Turn, TurnState
from api_client.figures.metrics import SPANS, Account, Figures
from api_client.index import LOOK_AT_MOST, UNFINISHED, Search, line_of
from api_client.pauses import BREAKER, Pause
from api_client.store.module_log import ModuleLog
from api_client.workers.fleet import Alert, Fleet, OwnerLine
from api_client.workers.reason import STUCK_SECONDS, Reason, Waiting
from api_client.workers.reports import Standing

if TYPE_CHECKING:
    from api_client.client import TurnsClient


#: Finished turns the slowest are looked for among: the newest of the span.
SLOWEST_OF = 1000
#: States nobody works in: for a worker, and for a person.
_WAITING = {TurnState.QUEUED.value, TurnState.PARKED.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """An installation at one moment. Times in seconds since the epoch.

    Attributes:
        at: when. account: what became of every acknowledged turn. figures: of the span that is looked at.
        states: unfinished turns by state. working: those that somebody works on. waits: the others, by reason.
        could_run: turns that wait for a worker alone; oldest_waiting: since when the longest waiting of them; 0: none.
        cut: there are more unfinished turns than were looked at.
        longest: turns that are worked on, or whose worker is gone (``lost``), longest first.
        attempt_starts: since when the agent of each runs.
        slowest: the slowest of the span's newest ``SLOWEST_OF`` finished turns. latest: the last that finished.
        dead_count, dead: how many dead letters there are, and the newest.
        parked_count, parked: how many turns wait for a person, and those that wait longest.
        crashed: turns a worker died or froze with, the newest first, of those looked at.
        owners: those of most unfinished turns. fleet, alerts: the workers, and what keeps turns from going on.
    """

    at: float
    account: Account
    figures: Figures
    states: dict[str, int]
    working: int
    lost: frozenset[str]
    waits: tuple[Waiting, ...]
    could_run: int
    oldest_waiting: float
    cut: bool
    longest: tuple[Turn, ...]
    attempt_starts: dict[str, float]
    slowest: tuple[Turn, ...]
    latest: tuple[Turn, ...]
    dead_count: int
    dead: tuple[Turn, ...]
    parked_count: int
    parked: tuple[Turn, ...]
    crashed: tuple[Turn, ...]
    owners: tuple[OwnerLine, ...]
    fleet: Fleet
    alerts: tuple[Alert, ...]

    @property
    def retry_rate(self) -> float | None:
        """Turns that were asked again ÷ finished turns; None when none finished."""
        total = self.figures.whole.total
        return total.asked_again / total.turns if total.turns else None

    def to_dict(self) -> dict[str, Any]:
        """The overview as a JSON-ready mapping; turns without their texts."""
        lists = {name: getattr(self, name) for name in ("longest", "slowest", "latest", "dead", "parked", "crashed")}
        return {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "account": {**asdict(self.account), "lost": self.account.lost},
            "lost": sorted(self.lost),
            "waits": [each.to_dict() for each in self.waits],
            "retry_rate": self.retry_rate,
            "figures": self.figures.to_dict(),
            **{name: [line_of(turn) for turn in turns] for name, turns in lists.items()},
            "owners": [asdict(each) for each in self.owners],
            "fleet": asdict(self.fleet),
            "alerts": [each.to_dict() for each in self.alerts],
        }


async def overview(client: TurnsClient, span: str = "24h", *, rows: int = 10) -> Overview:
    """Read the overview of a span of ``figures.SPANS``; its lists have ``rows`` turns at most.

    Raises ``KeyError``: there is no such span. ``StoreUnavailable``: the store does not answer.
    """
    now, seconds = time.time(), SPANS[span][0]
    everything, lists = Search(), client.lists
    unfinished = await lists.unfinished(everything)
    standing = await client.workers.standing()
    working = [each for each in unfinished if each.status not in _WAITING]
    longest = await lists.read(each.turn_id for each in working[:rows])
    recent = await lists.newest_finished(everything, since=now - seconds, at_most=SLOWEST_OF)
    crashed = [each for each in (*reversed(unfinished), *recent) if each.strikes][:rows]
    dead_count, dead = await lists.dead(rows)
    parked_count, parked = await lists.parked(rows)
    states = Counter(each.status for each in unfinished)
    return Overview(
        at=now,
        account=await client.figures.account(),
        figures=await client.figures.over(span),
        states={state.value: states[state.value] for state in UNFINISHED},
        working=sum(each.turn_id not in standing.lost for each in working),
        lost=standing.lost,
        waits=standing.waits,
        could_run=len(standing.waiting),
        oldest_waiting=standing.waiting_since,
        cut=len(unfinished) >= LOOK_AT_MOST,
        longest=tuple(longest),
        attempt_starts=await lists.attempt_starts(longest),
        slowest=tuple(
            await lists.read(
                each.turn_id
                for each in sorted(recent, key=lambda each: each.finished_at - each.created_at, reverse=True)[:rows]
            )
        ),
        latest=tuple(await lists.read(each.turn_id for each in recent[:rows])),
        dead_count=dead_count,
        dead=tuple(dead),
        parked_count=parked_count,
        parked=tuple(parked),
        crashed=tuple(await lists.read(each.turn_id for each in crashed)),
        owners=standing.owners,
        fleet=standing.fleet,
        alerts=standing.alerts,
    )


# Looking after an installation as a whole: an open breaker, a budget near its end or spent, and turns that are stuck.
# Relays do this, since they have the figures; workers send what is found. Of several relays one looks at a time; each
# notice is put once, however often its reason is found.

Data: TypeAlias = dict[str, str | int | float]

log = ModuleLog(__name__)

#: Between two looks, in seconds; breakers stay open for longer. What is stuck takes a look at every unfinished turn.
_LOOK_SECONDS, _STUCK_LOOK_SECONDS = 5.0, 30.0


class TroubleWatcher:
    """Puts a notice into the outbox for each trouble of an installation, while a worker sends notices."""

    def __init__(self, client: TurnsClient, public_url: str) -> None:
        self._client = client
        self._url = public_url.rstrip("/")

    async def run(self) -> None:
        """Look again and again, until the task is cancelled."""
        away = False
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self.look()
                away = False
            except StoreUnavailable as error:
                if not away:  # once, however long it lasts
                    log.warning("watcher.store_away", error=str(error))
                away = True
            except Exception:
                log.exception("watcher.look_failed")

    async def look(self) -> None:
        """Look once, unless another relay has just done so.

        Raises ``StoreUnavailable``: the store does not answer; the next look finds the same.
        """
        client, found = self._client, list[Notice]()
        if not await client.notices.are_sent():
            return
        now = time.time()
        if await self._may_look("state", _LOOK_SECONDS):
            found += of_breakers(await client.pauses.in_force(), now, self._url)
            found += of_budgets(await client.spending.today(), now, self._url)
        if await self._may_look("stuck", _STUCK_LOOK_SECONDS):
            found += of_stuck(await client.workers.standing(), self._url)
        for notice in found:
            if await client.notices.put(notice):
                log.warning("notice.put", kind=notice.kind, subject=notice.subject)

    async def _may_look(self, what: str, seconds: float) -> bool:
        store = self._client.store
        key = Keys(store.namespace).notices_watched(what)
        return bool(await store.ask(store.redis.set(key, "1", nx=True, px=int(seconds * 900))))


def of_breakers(pauses: Iterable[Pause], now: float, url: str) -> Iterator[Notice]:
    """A notice for each open breaker and each service without credit: one, however often it is tried. Pure."""
    for each in pauses:
        if each.what == BREAKER:
            data: Data = {"model": each.name, "errors": each.errors, "since": each.since, "until": each.until}
            yield _notice("breaker.opened", f"{each.name} {each.since}", now, data, url, "/paused")
        elif each.spent:
            data = {"service": each.name, "since": each.since, "until": each.until}
            yield _notice("service.no_credit", f"{each.name} {each.since}", now, data, url, "/paused")


def of_budgets(spent: Iterable[Spent], now: float, url: str) -> Iterator[Notice]:
    """A notice for each budget that is near, and one for each that is spent: once a day. Pure."""
    for each in spent:
        if each.state != "ok":
            day = int(each.resets_at) - DAY_SECONDS
            data: Data = {"scope": each.scope, "spent_usd": each.spent_usd, "limit_usd": each.limit_usd}
            data["resets_at"] = each.resets_at
            yield _notice(f"budget.{each.state}", f"{each.scope} {day}", now, data, url, "/budgets")


def of_stuck(standing: Standing, url: str) -> Iterator[Notice]:
    """A notice when turns could run, have waited for five minutes, and something keeps them from it. Pure.

    One for the turn that waits longest: while it is the same, nothing new has happened.
    """
    waits = standing.at - standing.waiting_since if standing.waiting else 0.0
    # A breaker and a service without credit have their own, and for a warning nobody has to be called.
    causes = [a for a in standing.alerts if a.severity == "wrong" and a.check not in {Reason.BREAKER, Reason.CREDIT}]
    if not causes or not (standing.overdue or waits > STUCK_SECONDS):
        return
    cause = causes[0]
    turn_id = standing.waiting[0].turn_id if standing.waiting else ""
    subject = f"{cause.check} {turn_id or int(standing.at // 3600)}"
    data: Data = {
        "turns": len(standing.waiting) or standing.overdue,
        "seconds": round(waits),
        "cause": cause.check,
        "message": cause.message,
    }
    if turn_id:
        data["turn_id"] = turn_id
    yield _notice("queue.stuck", subject, standing.at, data, url, "/overview")


def _notice(kind: str, subject: str, at: float, data: Data, url: str, page: str) -> Notice:
    return Notice(kind=kind, subject=subject, at=at, data=data | ({"url": url + page} if url else {}))
