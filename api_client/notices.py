"""Calling for help from this side: a notice goes into the outbox, and a worker sends it (docs/webhooks.md)."""

from __future__ import annotations

from api_client.contract.keys import Keys
from api_client.contract.values.notices import LUA, Notice
from api_client.store import Store


async def notify(store: Store, notice: Notice) -> bool:
    """Put a notice into the outbox; False when it was put before. It is sent at least once.

    Raises:
        StoreUnavailable: the store does not answer; putting it again later changes nothing.
    """
    keys = Keys(store.namespace)
    put = store.redis.register_script(LUA.read_text())
    names = [keys.notices_said, keys.notices, keys.notices_due]
    return bool(await store.ask(put(keys=names, args=list(notice.put_arguments()))))
