"""Write access to a session's folder for its current holder. A later holder fences it off: it ends the access."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from worker.files.folder_trees import move_entry, remove_tree
from worker.files.recent_entries import RecentEntries
from worker.files.safe_io import DIRECTORY, open_folder, replace_file, try_open_folder

HELD = ".held"
#: Attempts to clear a folder while an earlier holder still writes to it.
_TRIES = 20
#: Name of a holder's folder that this process created -> True while it holds no removed files.
_holds_drafts_only = RecentEntries[str, bool](most=256)


@dataclass(frozen=True, slots=True)
class SessionFolder:
    """A session's folder that is open for writing, for turns whose agents used no files.

    Attributes:
        new: True if the folder was just created and is empty.
        drafts: descriptor of the folder for incomplete files and folders.
    """

    path: Path
    session: int
    new: bool
    drafts: int

    def replace_file(self, name: str, content: bytes, folder: int, *, durable: bool) -> None:
        """Write or replace a file in ``folder`` atomically.

        Raises ``OSError``; ``FileNotFoundError`` says that a later holder fenced this folder off.
        """
        replace_file(name, content, folder, durable=durable, by_way_of=self.drafts)

    @contextlib.contextmanager
    def create_folder(self, name: str) -> Iterator[int]:
        """Yield a new folder, which becomes the session's folder ``name`` at the end of the block.

        Nothing else may be written afterwards. Raises ``OSError``; ENOTEMPTY: ``name`` exists and is not empty.
        """
        draft = f".{name}.{random.getrandbits(64):x}"
        os.mkdir(draft, dir_fd=self.drafts)
        try:
            with open_folder(draft, self.drafts) as folder:
                yield folder
            os.rename(draft, name, src_dir_fd=self.drafts, dst_dir_fd=self.session)
        except BaseException:
            remove_tree(draft, ignore_errors=True, dir_fd=self.drafts)
            raise

    def remove_entry(self, name: str, folder: int) -> None:
        """Remove a file from ``folder`` if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


@dataclass(frozen=True, slots=True)
class FencedSessionFolder(SessionFolder):
    """A session's folder in which a worker may write until another worker takes over the session and fences it off."""

    _all: int
    _name: str
    _taken: bool

    def revoke_earlier_holders(self) -> None:
        """Remove the write access of all workers that held the session earlier.

        Call this after the store has confirmed the new holder.
        """
        if self._taken:
            return
        for name in os.listdir(self._all):  # noqa: PTH208 - a descriptor
            if name != self._name:
                _remove_holder(name, self._all)

    @contextlib.contextmanager
    def create_folder(self, name: str) -> Iterator[int]:
        if not _holds_drafts_only.get(self._name):
            with super(FencedSessionFolder, self).create_folder(name) as folder:
                yield folder
            return
        yield self.drafts
        os.rename(self._name, name, src_dir_fd=self._all, dst_dir_fd=self.session)

    def replace_folder(self, name: str, fill: Callable[[Path], None]) -> None:
        """Replace the session's folder ``name`` by a new folder, filled by ``fill``.

        A crash may leave neither the old nor the new folder; publishing again repairs this. Raises as ``replace_file``.
        """
        fresh = f"folder.{os.urandom(4).hex()}"
        fill(self.path / HELD / self._name / fresh)
        self.remove_entry(name, self.session)
        os.rename(fresh, name, src_dir_fd=self.drafts, dst_dir_fd=self.session)

    def remove_entry(self, name: str, folder: int) -> None:
        """Remove a file or folder from ``folder`` if it exists and no later holder has taken the session over."""
        _holds_drafts_only.put(self._name, False)
        with contextlib.suppress(FileNotFoundError):
            move_entry(name, folder, self.drafts, f"removed.{os.urandom(4).hex()}")


@contextlib.contextmanager
def open_for_publishing(session: Path, token: str = "") -> Iterator[SessionFolder | None]:
    """Open a session's folder to publish a turn's result. Create the folder if it is missing.

    Yields the folder that ``open_fenced`` kept for the token, None if that folder is gone, or an unfenced folder if the
    session never had a holder.
    """
    with _open_session(session) as (root, new):
        held = None if new else try_open_folder(HELD, root)
        if held is None:
            yield SessionFolder(session, root, new, root)
            return
        try:
            name = _holder_name(token)
            own = _open_kept(name, held)
            if own is None:
                yield None
            else:
                with _close_holder(held, name, own, stays=False):
                    yield FencedSessionFolder(session, root, new, own, held, name, _taken=True)
        finally:
            os.close(held)


@contextlib.contextmanager
def open_fenced(session: Path, token: str = "", *, keep: bool = False) -> Iterator[FencedSessionFolder]:
    """Open a session's folder, or create it, for a new holder, who can then exclude (fence off) earlier holders.

    No other holder is revoked until ``revoke_earlier_holders``. A folder kept for the same token is found again. With
    ``keep`` the holder's own folder is kept after the block, unless the block fails. Raises ``OSError`` if the folder
    cannot be created, or an agent put a link in its place.
    """
    with _open_session(session) as (root, new):
        held, first = _open_holders(root, new)
        try:
            name = _holder_name(token)
            own = None if first else _open_kept(name, held)
            was_kept = own is not None
            if own is None:
                try:
                    os.mkdir(name, dir_fd=held)
                except FileExistsError:  # an agent created this entry
                    name = _holder_name("")
                    os.mkdir(name, dir_fd=held)
                own = os.open(name, DIRECTORY, dir_fd=held)
                _holds_drafts_only.put(name, True)
            with _close_holder(held, name, own, stays=keep):
                yield FencedSessionFolder(session, root, new, own, held, name, _taken=first or was_kept)
        finally:
            os.close(held)


def _holder_name(token: str) -> str:
    return hashlib.blake2b(token.encode(), digest_size=8).hexdigest() if token else f"{random.getrandbits(64):016x}"


def _open_kept(name: str, held: int) -> int | None:
    try:
        return os.open(name, DIRECTORY, dir_fd=held)
    except OSError:
        return None


def _open_holders(root: int, new: bool) -> tuple[int, bool]:
    if not new and (held := try_open_folder(HELD, root)) is not None:
        return held, False
    first = True
    try:
        os.mkdir(HELD, dir_fd=root)
    except FileExistsError:
        first = False
    return os.open(HELD, DIRECTORY, dir_fd=root), first


@contextlib.contextmanager
def _close_holder(held: int, name: str, own: int, *, stays: bool) -> Iterator[None]:
    try:
        yield
    except BaseException:
        stays = False
        raise
    finally:
        os.close(own)
        if not stays:
            try:
                os.rmdir(name, dir_fd=held)  # usually empty, and cheaper than a look inside
            except FileNotFoundError:  # a later holder removed the folder, or the folder became the session's output
                pass
            except OSError:
                remove_tree(name, ignore_errors=True, dir_fd=held)


@contextlib.contextmanager
def _open_session(session: Path) -> Iterator[tuple[int, bool]]:
    root, new = try_open_folder(session), False
    if root is None:
        new = _make_session(session)
        root = os.open(session, DIRECTORY)
    try:
        yield root, new
    finally:
        os.close(root)


def _make_session(session: Path) -> bool:
    try:
        try:
            os.mkdir(session)  # noqa: PTH102 - one call, and no second one to see what is there
        except FileNotFoundError:
            session.parent.mkdir(parents=True, exist_ok=True)
            os.mkdir(session)  # noqa: PTH102
    except FileExistsError:
        return False
    return True


def _remove_holder(name: str, held: int) -> None:
    for tries_left in reversed(range(_TRIES)):
        try:
            if stat.S_ISDIR(os.stat(name, dir_fd=held, follow_symlinks=False).st_mode):
                remove_tree(name, dir_fd=held)
            else:
                os.unlink(name, dir_fd=held)
        except OSError:
            if name not in os.listdir(held):
                return
            if not tries_left:
                raise
        else:
            return
