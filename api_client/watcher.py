"""Looking after an installation as a whole: an open breaker, a budget near its end or spent.

Looking after an installation as a whole: an open breaker, a budget near its end or spent, and turns that are stuck.
Relays do this, since they have the figures; workers send what is found. Of several relays one looks at a time; each
notice is put once, however often its reason is found.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from api_client.budgets.budget import DAY_SECONDS, Spent
from api_client.client import TurnsClient
from api_client.contract.errors import StoreUnavailable
from api_client.contract.notices import Notice
from api_client.notice_keys import NoticeKeys
from api_client.pauses.pause import BREAKER, Pause
from api_client.store.module_log import ModuleLog
from api_client.workers.reason import STUCK_SECONDS, Reason
from api_client.workers.standing import InstallationState

if TYPE_CHECKING:
    from api_client.client import TurnsClient


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
        key = NoticeKeys(store.namespace).watched(what)
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


def of_stuck(standing: InstallationState, url: str) -> Iterator[Notice]:
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
