"""Watches an installation as a whole: monitors find troubles, and reporters report them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from api_client.contract.errors import StoreUnavailable
from api_client.store.module_log import ModuleLog
from api_client.workers.monitor import Monitor, TroubleReporter

log = ModuleLog(__name__)


class TroubleWatcher:
    """Runs all monitors periodically and passes the problems that they find to the reporters."""

    def __init__(self, monitors: Sequence[Monitor], reporters: Sequence[TroubleReporter]) -> None:
        self._monitors, self._reporters = monitors, reporters

    async def run(self) -> None:
        """Look for problems repeatedly until the task is cancelled."""
        away = False
        while True:
            await asyncio.sleep(Monitor.look_seconds)
            try:
                await self.find_and_report()
                away = False
            except StoreUnavailable as error:
                if not away:  # once, however long it lasts
                    log.warning("watcher.store_away", error=str(error))
                away = True
            except Exception:
                log.exception("watcher.look_failed")

    async def find_and_report(self) -> None:
        """Look for problems once and report them, unless another relay has just done so."""
        for reporter in self._reporters:
            for monitor in self._monitors:
                if await reporter.claim_search(monitor.name, monitor.look_seconds):
                    for trouble in await monitor.find_troubles():
                        await reporter.report_trouble(trouble)
