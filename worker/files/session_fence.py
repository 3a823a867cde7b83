"""Writing in a session's folder as its holder, and only as long as nobody held it later.

A worker may freeze between any two lines, and wake up when another one has its turn, or the session's next turn. A lock
would not do: a process that freezes with it keeps everybody out. So each holder makes its own folder in ``.held/`` and
then asks the store whether the turn is still its own; if so it clears away everybody else's. All it writes passes
through its folder by a rename, and what it removes goes there by a rename. Once the folder is gone each of these fails,
so a holder that wakes up late changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from worker.files.safe_io import DIRECTORY, made, opened, replace

HELD = ".held"
#: A holder that is just awake may still put files into its folder while it is cleared away: so often it is tried.
_TRIES = 20


@dataclass(frozen=True, slots=True)
class Place:
    """A session's folder to write in, where no agent ever worked in files: the turn's token alone says who may.

    Attributes:
        path: the session's folder. session: the same, held open.
        new: it was made just now, and holds nothing.
        drafts: the folder in which files and folders lie until they are whole, held open.
    """

    path: Path
    session: int
    new: bool
    drafts: int

    def replace(self, name: str, content: bytes, folder: int, *, durable: bool) -> None:
        """Write a file in ``folder``, whole or not at all; see ``safe_io.replace``.

        Raises:
            OSError: it cannot be written; for a ``Holding`` FileNotFoundError also when there was a later holder.
        """
        replace(name, content, folder, durable=durable, by_way_of=self.drafts)

    @contextlib.contextmanager
    def folder(self, name: str) -> Iterator[int]:
        """A folder to fill, held open, that becomes the session's folder ``name`` when the block ends.

        Raises:
            OSError: as ``replace``; ENOTEMPTY when there is one that is not empty. What was written is removed.
        """
        draft = f".{name}.{random.getrandbits(64):x}"
        os.mkdir(draft, dir_fd=self.drafts)
        try:
            with opened(draft, self.drafts) as folder:
                yield folder
            os.rename(draft, name, src_dir_fd=self.drafts, dst_dir_fd=self.session)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True, dir_fd=self.drafts)
            raise

    def remove(self, name: str, folder: int) -> None:
        """Remove a file from ``folder``; what is not there is left alone. Raises ``OSError``: it cannot be removed."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


@dataclass(frozen=True, slots=True)
class Holding(Place):
    """One holder's right to write in a session's folder; ``drafts`` is its own folder in ``.held/``."""

    _all: int
    _name: str

    def take(self) -> None:
        """End every earlier holder's right. To be called when the store has confirmed that we are the holder.

        Raises:
            OSError: another holder's folder cannot be removed.
        """
        for name in os.listdir(self._all):  # noqa: PTH208 - a descriptor
            if name != self._name:
                _clear(name, self._all)

    def put_folder(self, name: str, fill: Callable[[Path], None]) -> None:
        """Put our folder in place of the session's folder ``name``; what was in that goes.

        A crash may leave none of the two; who publishes again repairs that.

        Raises:
            OSError: as ``fill``, or it cannot be moved; FileNotFoundError also when there was a later holder.
        """
        fresh = f"folder.{os.urandom(4).hex()}"
        fill(self.path / HELD / self._name / fresh)
        self.remove(name, self.session)
        os.rename(fresh, name, src_dir_fd=self.drafts, dst_dir_fd=self.session)

    def remove(self, name: str, folder: int) -> None:
        """Take a file or folder out of ``folder``; what is not there is left alone, and so is all after a later holder.

        Raises:
            OSError: it cannot be moved.
        """
        with contextlib.suppress(FileNotFoundError):
            os.rename(name, f"removed.{os.urandom(4).hex()}", src_dir_fd=folder, dst_dir_fd=self.drafts)


@contextlib.contextmanager
def place(session: Path) -> Iterator[Place | None]:
    """A place in a session's folder, which is made when it is missing; None where it ever had a holder.

    Raises:
        OSError: as ``holding``.
    """
    new = False
    try:
        root = os.open(session, DIRECTORY)
    except FileNotFoundError:
        new = _make(session)
        root = os.open(session, DIRECTORY)
    try:
        yield None if not new and _was_held(root) else Place(session, root, new, root)
    finally:
        os.close(root)


@contextlib.contextmanager
def holding(session: Path) -> Iterator[Holding]:
    """A holder's place in a session's folder, which is made when it is missing.

    This writes nothing and ends no other holder's right: that begins with ``take``, after the store was asked.

    Raises:
        OSError: it cannot be made; also when an agent put a link in its place.
    """
    new = _make(session)
    name = os.urandom(8).hex()
    with opened(session) as root, made(root, HELD) as held:
        try:
            with made(held, name) as own:
                yield Holding(session, root, new, own, held, name)
        finally:
            try:
                os.rmdir(name, dir_fd=held)  # empty, as a rule: cheaper than looking what is in it
            except OSError:
                shutil.rmtree(name, ignore_errors=True, dir_fd=held)


def _make(session: Path) -> bool:
    """Make a session's folder; whether it was missing."""
    try:
        try:
            os.mkdir(session)  # noqa: PTH102 - one call, and no second one to see what is there
        except FileNotFoundError:
            session.parent.mkdir(parents=True, exist_ok=True)
            os.mkdir(session)  # noqa: PTH102
    except FileExistsError:
        return False
    return True


def _was_held(root: int) -> bool:
    try:
        os.stat(HELD, dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _clear(name: str, held: int) -> None:
    for tries_left in reversed(range(_TRIES)):
        try:
            if stat.S_ISDIR(os.stat(name, dir_fd=held, follow_symlinks=False).st_mode):
                shutil.rmtree(name, dir_fd=held)
            else:
                os.unlink(name, dir_fd=held)
        except OSError:
            # Gone, or its holder is just awake and puts something in or takes something out.
            if name not in os.listdir(held):
                return
            if not tries_left:
                raise
        else:
            return
