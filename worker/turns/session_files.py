"""Where a session's files lie between turns: in a folder that all workers share, or in an object store.

With an object store each worker has its own HELIX_ROOT. Who claims a turn first makes the session's folder
that of its current snapshot; before a move is stored, what changed is uploaded under a name that nobody else uses,
and the move itself says that this is the current snapshot from now on. So a snapshot is current if and only if its
uploader held the turn, and what happens between two lines leaves at most an object that nobody needs.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import structlog

from api_client.contract.failpoints import reach
from api_client.contract.keys import session_digest
from api_client.contract.session_paths import session_directory
from api_client.contract.settings import Settings
from api_client.contract.work import find_work
from api_client.snapshots import Snapshot
from api_client.snapshots.objects import SHORT_PATIENCE, FilesLost, FilesUnavailable, Objects, snapshot_at
from api_client.turns.record.ledger import Ledger
from worker.files.recent import Recent
from worker.files.safe_io import opened
from worker.files.session_fence import fenced_writes
from worker.files.snapshots import bring, packed
from worker.turns.leases.lease import Lease
from worker.turns.loops.threads import Threads

log = structlog.get_logger()

#: A late holder may take away files that were just brought: so often it is tried again.
_TRIES = 3
#: Seconds until an object store that was away is asked again: the first time, and the longest.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 5.0


class SessionFiles(Protocol):
    """What a worker does with a session's files when it takes a turn, and before it stores a move."""

    async def restore(self, lease: Lease) -> None:
        """Make the session's folder what it was when the session's last move was stored.

        Raises:
            Fenced: another worker has the turn. OSError: the folder cannot be written.
            FilesUnavailable, FilesLost: the object store does not have the files.
        """
        ...

    async def save(self, lease: Lease, *, bounded: bool = True) -> str:
        """Keep what the folder holds now. Returns the snapshot to store with the move; empty: there is none.

        What a turn goes on with (``bounded``) is paid for: it is kept until the object store is back, as long as this
        worker may hold the turn.

        Raises:
            SessionTooLarge: of files, or ``bounded`` of bytes. OSError, FilesUnavailable: as ``restore``.
        """
        ...

    def trouble(self) -> str:
        """Say why no session can be brought or kept now; or empty. Blocks where there was trouble before."""
        ...


class SharedFolder:
    """HELIX_ROOT is one folder for all workers: whatever is written there is everybody's at once."""

    async def restore(self, _lease: Lease) -> None:
        """Nothing to bring."""

    async def save(self, _lease: Lease, *, bounded: bool = True) -> str:
        """Nothing to send."""
        return ""

    def trouble(self) -> str:
        """None: the host looks at the folder itself."""
        return ""


class SnapshotStore:
    """Snapshots in an object store. Work beside sessions stays on the workers that have its folder."""

    def __init__(self, settings: Settings, ledger: Ledger, threads: Threads, objects: Objects) -> None:
        self._settings, self._ledger, self._threads, self._objects = settings, ledger, threads, objects
        #: Snapshots that this process made or read: their next reader finds them here.
        self._read: Recent[str, Snapshot] = Recent(most=64)
        self._short = Objects(settings, SHORT_PATIENCE)
        self._away = False

    async def restore(self, lease: Lease) -> None:
        """Bring what this host has not. Raises as ``SessionFiles``."""
        if lease.continued or not find_work(lease.claim.turn.request).in_session:
            return
        with self._noting():
            await self._threads.transfers(self._restore, lease, await self._ledger.files(lease.claim))

    def _restore(self, lease: Lease, text: str) -> None:
        snapshot = self._read.get(text) or snapshot_at(self._objects, text)
        folder = session_directory(self._settings.sessions_dir, lease.claim.turn.request.session_id)
        tries_left = _TRIES
        while text:
            try:
                with fenced_writes(folder, lease.claim.token, stays=True) as holder:
                    if lease.lapsed:
                        self._threads.asked(lease.confirm(self._ledger))
                    holder.take()
                    fetched = bring(holder, snapshot.manifest, self._objects)
                break
            except FileNotFoundError:
                lease.acknowledge(self._threads.asked(self._ledger.confirm(lease.claim)))
                tries_left -= 1
                if not tries_left:
                    raise
        if text and fetched:
            log.info("session.restored", files=fetched, snapshot=text.partition(" ")[0])
        self._read.put(text, snapshot)
        lease.snapshot = snapshot
        reach("files.restored")

    async def save(self, lease: Lease, *, bounded: bool = True) -> str:
        """Upload what changed. Raises as ``SessionFiles``."""
        if lease.snapshot is None:  # work beside sessions, or what lies here is not the session
            return ""
        most_bytes = self._settings.files_max_bytes if bounded else 0
        while True:
            if bounded:
                await self._await_store(lease)
            try:
                with self._noting():
                    await self._threads.transfers(self._save, lease, lease.snapshot, most_bytes)
                return str(lease.snapshot.pointer or "")
            except FilesUnavailable:
                if not bounded or lease.reason:
                    raise

    async def _await_store(self, lease: Lease) -> None:
        """Wait until a store that was away takes objects again. Raises ``FilesUnavailable``: the turn may not wait."""
        wait = _FIRST_WAIT
        while why := await self._threads.transfers(self.trouble):
            log.warning("session.waits", error=why[:200], reason=lease.reason)
            if lease.reason:
                raise FilesUnavailable(why)
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except FilesUnavailable:
            self._away = True
            raise

    def trouble(self) -> str:
        """As ``SessionFiles``: asks the store only once it was away, until it takes an object again."""
        if self._away:
            try:
                self._short.probe()
            except (FilesUnavailable, FilesLost) as error:
                return str(error)
            self._away = False
        return ""

    def _save(self, lease: Lease, base: Snapshot, most_bytes: int) -> None:
        turn, token = lease.claim.turn, hashlib.sha256(lease.claim.token.encode()).hexdigest()[:16]
        folder = session_directory(self._settings.sessions_dir, turn.request.session_id)
        name = f"{session_digest(turn.request.session_id)}/{turn.turn_id}.{token}.{secrets.token_hex(4)}"
        grace = self._settings.files_grace_seconds
        try:
            with opened(folder) as session:
                made = packed(folder, session, name, base, most_bytes=most_bytes, grace=grace)
        except FileNotFoundError:  # no agent of the session ever worked here
            return
        if made is None:
            return
        snapshot, content = made
        self._objects.put(name, content)
        reach("files.uploaded")
        lease.snapshot = snapshot
        self._read.put(str(snapshot.pointer), snapshot)


def session_files(settings: Settings, ledger: Ledger, threads: Threads) -> SessionFiles:
    """Where these settings keep sessions' files. Raises ``SettingsError``: it cannot be set up so."""
    return SnapshotStore(settings, ledger, threads, Objects(settings)) if settings.files else SharedFolder()
