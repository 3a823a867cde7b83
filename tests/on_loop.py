"""Calls objects that belong to an event loop from a test's own thread, in one loop beside it."""

import asyncio
import functools
import inspect
import threading
import weakref
from collections.abc import Callable
from typing import Any

from api_client.contract.settings import Settings
from api_client.notifications.outbox import NotificationOutbox
from api_client.store import Store
from api_client.store.audit import AuditLog
from api_client.turns.record import ledger as product


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="tests", daemon=True).start()
    return loop


def done(make: Callable[[], Any]) -> Any:
    """Call ``make`` in that loop and return its result, awaiting a coroutine."""

    async def made() -> Any:
        found = make()
        return await found if inspect.isawaitable(found) else found

    return asyncio.run_coroutine_threadsafe(made(), _loop()).result()


class OnLoop:
    """Wraps an object of an event loop so that its methods block here."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.inner = done(make)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *values, **named: done(lambda: found(*values, **named))


def outbox_of(settings: Settings) -> OnLoop:
    """Return the outbox of notifications for use in this thread."""

    def made() -> NotificationOutbox:
        store = Store(settings)
        return NotificationOutbox(store, AuditLog(store))

    return OnLoop(made)


def _close(ledger: product.Ledger) -> None:
    asyncio.run_coroutine_threadsafe(ledger.close(), _loop())


class Ledger(OnLoop):
    """A worker's ledger for use in this thread, closed when nobody refers to it any more."""

    def __init__(self, settings: Settings, worker: str) -> None:
        super().__init__(lambda: product.Ledger(settings, worker))
        self.settings = settings
        weakref.finalize(self, _close, self.inner).atexit = False
