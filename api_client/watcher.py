"""Look after an installation as a whole: its monitors find troubles, and reporters tell somebody.

Relays do this, since they have the figures. Of several relays one looks at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from api_client.contract.errors import StoreUnavailable
from api_client.store.module_log import ModuleLog
from api_client.workers.monitor import Monitor, TroubleReporter

log = ModuleLog(__name__)


class TroubleWatcher:
    """Reports each trouble of an installation."""

    def __init__(self, monitors: Sequence[Monitor], reporters: Sequence[TroubleReporter]) -> None:
        self._monitors, self._reporters = monitors, reporters

    async def run(self) -> None:
        """Look again and again, until the task is cancelled."""
        away = False
        while True:
            await asyncio.sleep(Monitor.look_seconds)
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
        """Look once, where no other relay has just done so.

        Raises ``StoreUnavailable``: the store does not answer; the next look finds the same.
        """
        for reporter in self._reporters:
            for monitor in self._monitors:
                if await reporter.begin_look(monitor.name, monitor.look_seconds):
                    for trouble in await monitor.find_troubles():
                        await reporter.report(trouble)
