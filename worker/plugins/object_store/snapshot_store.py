"""Snapshots of sessions' folders, which workers restore before a turn and upload before each transition.

The stored transition makes a snapshot the current one, so only a holder's snapshot can become current.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from api_client.contract.failpoints import pass_failpoint
from api_client.contract.keys import session_digest
from api_client.contract.session_files import SessionFilesAway, SessionFilesGone
from api_client.contract.session_paths import session_directory
from api_client.contract.settings import Settings
from api_client.contract.work import find_work
from api_client.turns.record.ledger import Ledger
from worker.files.recent_entries import RecentEntries
from worker.files.safe_io import open_folder
from worker.files.session_fence import open_fenced
from worker.plugins.object_store.folder import pack_folder, restore_folder
from worker.plugins.object_store.objects import SHORT_PATIENCE, ObjectStoreClient, load_snapshot
from worker.plugins.object_store.snapshots import Snapshot
from worker.turns.leases.lease import Lease
from worker.turns.loops.threads import Threads

log = structlog.get_logger()

#: Attempts to restore, because a late holder may remove restored files.
_TRIES = 3
#: Seconds before an unavailable object store is asked again: the first and the longest wait.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 5.0


class SnapshotStore:
    """Keeps the files of sessions as snapshots in an object store, so that workers need no shared folder."""

    def __init__(self, settings: Settings, ledger: Ledger, threads: Threads) -> None:
        self._settings, self._ledger, self._threads = settings, ledger, threads
        self._objects = ObjectStoreClient(settings)
        #: Snapshots by pointer that this process has made or read.
        self._read: RecentEntries[str, Snapshot] = RecentEntries(most=64)
        self._short = ObjectStoreClient(settings, SHORT_PATIENCE)
        self._away = False

    async def restore_files(self, lease: Lease) -> None:
        """Download the session's files that this machine lacks. Raises what ``SessionFiles.restore_files`` raises."""
        if lease.continued or not find_work(lease.claim.turn.request).in_session:
            return
        with self._note_outage():
            await self._threads.do_transfer(self._download_files, lease, await self._ledger.find_snapshot(lease.claim))

    def _download_files(self, lease: Lease, text: str) -> None:
        snapshot = self._read.get(text) or load_snapshot(self._objects, text)
        folder = session_directory(self._settings.sessions_dir, lease.claim.turn.request.session_id)
        tries_left = _TRIES
        while text:
            try:
                with open_fenced(folder, lease.claim.token, keep=True) as holder:
                    if lease.lapsed:
                        self._threads.run_in_loop(lease.confirm_holder(self._ledger))
                    holder.revoke_earlier_holders()
                    fetched = restore_folder(holder, snapshot.manifest, self._objects)
                break
            except FileNotFoundError:
                lease.record_renewal(self._threads.run_in_loop(self._ledger.confirm_lease(lease.claim)))
                tries_left -= 1
                if not tries_left:
                    raise
        if text and fetched:
            log.info("session.restored", files=fetched, snapshot=text.partition(" ")[0])
        self._read.put(text, snapshot)
        lease.stored = snapshot
        pass_failpoint("files.restored")

    async def save_files(self, lease: Lease, *, bounded: bool = True) -> str:
        """Upload changed files and return a snapshot reference. If ``bounded``, limits of size and waiting time apply.

        Raises the errors of ``SessionFiles.save_files``.
        """
        if lease.stored is None:  # the work is outside a session, or the local folder is not the session's
            return ""
        most_bytes = self._settings.files_max_bytes if bounded else 0
        while True:
            if bounded:
                await self._await_store(lease)
            try:
                with self._note_outage():
                    await self._threads.do_transfer(self._upload_files, lease, lease.stored, most_bytes)
                return str(lease.stored.pointer or "")
            except SessionFilesAway:
                if not bounded or lease.reason:
                    raise

    async def _await_store(self, lease: Lease) -> None:
        """Wait until the object store is available. Raises ``SessionFilesAway`` if the turn must not wait."""
        wait = _FIRST_WAIT
        while why := await self._threads.do_transfer(self.find_trouble):
            log.warning("session.waits", error=why[:200], reason=lease.reason)
            if lease.reason:
                raise SessionFilesAway(why)
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    @contextmanager
    def _note_outage(self) -> Iterator[None]:
        try:
            yield
        except SessionFilesAway:
            self._away = True
            raise

    def find_trouble(self) -> str:
        """Return why the object store is unavailable, or "". Test it only if a transfer failed before."""
        if self._away:
            try:
                self._short.probe_store()
            except (SessionFilesAway, SessionFilesGone) as error:
                return str(error)
            self._away = False
        return ""

    def _upload_files(self, lease: Lease, base: Snapshot, most_bytes: int) -> None:
        turn, token = lease.claim.turn, hashlib.sha256(lease.claim.token.encode()).hexdigest()[:16]
        folder = session_directory(self._settings.sessions_dir, turn.request.session_id)
        name = f"{session_digest(turn.request.session_id)}/{turn.turn_id}.{token}.{secrets.token_hex(4)}"
        grace = self._settings.files_grace_seconds
        try:
            with open_folder(folder) as session:
                made = pack_folder(folder, session, name, base, most_bytes=most_bytes, grace=grace)
        except FileNotFoundError:  # no agent of the session worked on this machine
            return
        if made is None:
            return
        snapshot, content = made
        self._objects.put_object(name, content)
        pass_failpoint("files.uploaded")
        lease.stored = snapshot
        self._read.put(str(snapshot.pointer), snapshot)
