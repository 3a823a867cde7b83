"""Finds and removes unneeded objects, for ``turns data gc``.

Needed are the objects of a session's current snapshot, and those that belonged to one or were uploaded in the grace
period.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator

from api_client.contract.session_files import ClearedFiles, SessionFilesGone
from api_client.store import Store
from api_client.turns.sessions import session_files_key
from worker.plugins.object_store.objects import ObjectStoreClient, StoredObject, load_snapshot
from worker.plugins.object_store.snapshots import Snapshot

#: Script that forgets a session, unless the session was used meanwhile.
_FORGET = """
if redis.call('EXISTS', KEYS[2]) == 0 and redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
  redis.call('HDEL', KEYS[1], ARGV[1])
end
"""


def find_unneeded(
    found: Iterable[StoredObject], current: Snapshot, *, now: float, grace: float
) -> Iterator[StoredObject]:
    """Yield the objects of a session that no snapshot needs any longer. All times are in seconds."""
    manifest, pointer = current.manifest, current.pointer
    needed = manifest.packs | {name for name, since in manifest.retired.items() if now - since < grace}
    for each in found:
        if each.name not in needed and not (pointer and each.name == pointer.name) and now - each.at > grace:
            yield each


async def clear_objects(
    store: Store, objects: ObjectStoreClient, *, now: float, session_seconds: float, dry_run: bool
) -> ClearedFiles:
    """Delete objects that no session needs, and return their number and size. With ``dry_run``, only count them.

    Sessions without a new snapshot for ``session_seconds`` are forgotten (0: never). Raises ``SessionFilesAway`` or
    ``StoreUnavailable``.
    """
    cleared = ClearedFiles(0, 0, [])
    grace = store.settings.files_grace_seconds
    found: dict[str, list[StoredObject]] = defaultdict(list)
    # Listed before reading the pointers, so that new objects are missing or within their grace period.
    for each in await asyncio.to_thread(lambda: list(objects.list_objects())):
        found[each.name.partition("/")[0]].append(each)
    times = {each.name: each.at for each_of in found.values() for each in each_of}
    pointers: dict[str, str] = {}
    keys = store.keys
    for name, stored in (await store.read_hash(session_files_key(store))).items():
        session, text = name.decode(), stored.decode()
        pointers[session] = text
        old = session_seconds and now - times.get(text.partition(" ")[0], now) > session_seconds
        if old and not dry_run:
            await store.send_command(
                "EVAL", _FORGET, 2, session_files_key(store), keys.session_named(session), session, text
            )
    if found and not pointers:
        cleared.problems.append("the store knows no session of the object store: is it the right one? Nothing removed")
        return cleared
    for session, each_of in found.items():
        newest = pointers.get(session, "").partition(" ")[0]
        if all(each.name == newest or now - each.at <= grace for each in each_of):
            continue
        try:
            current = await asyncio.to_thread(load_snapshot, objects, pointers.get(session, ""))
        except SessionFilesGone as error:
            cleared.problems.append(str(error))
            continue
        for each in find_unneeded(each_of, current, now=now, grace=grace):
            if not dry_run:
                await asyncio.to_thread(objects.remove_object, each.name)
            cleared.objects += 1
            cleared.size += each.size
    return cleared
