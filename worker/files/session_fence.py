"""Writing in a session's folder as its holder, and only as long as nobody held it later."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from worker.files.recent import Recent
from worker.files.safe_io import DIRECTORY, found, opened, replace

HELD = ".held"
#: A holder that is just awake may still put files into its folder while it is cleared away: so often it is tried.
_TRIES = 20
#: Of the places that this process made, whether nothing that was removed is in them. Nobody else writes there.
_holds_drafts_only = Recent[str, bool](most=256)


@dataclass(frozen=True, slots=True)
class Place:
    """A session's folder to write in, where no agent ever worked in files: the turn's token alone says who may.

    Attributes:
        path: the session's folder. session: the same, held open. new: it was made just now, and holds nothing.
        drafts: the folder in which files and folders lie until they are whole, held open.
    """

    path: Path
    session: int
    new: bool
    drafts: int

    def replace(self, name: str, content: bytes, folder: int, *, durable: bool) -> None:
        """Write a file in ``folder``, whole or not at all; see ``safe_io.replace``.

        Raises:
            OSError: it cannot be written; for a ``FencedPlace`` FileNotFoundError also when there was a later holder.
        """
        replace(name, content, folder, durable=durable, by_way_of=self.drafts)

    @contextlib.contextmanager
    def folder(self, name: str) -> Iterator[int]:
        """A folder to fill, held open, that becomes the session's folder ``name`` when the block ends.

        Nothing may be written in this place after it.

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
class FencedPlace(Place):
    """One holder's right to write in a session's folder; ``drafts`` is its own folder in ``.held/``."""

    _all: int
    _name: str
    _taken: bool

    def take(self) -> None:
        """End every earlier holder's right. To be called when the store has confirmed that we are the holder.

        Raises:
            OSError: another holder's folder cannot be removed.
        """
        if self._taken:
            return
        for name in os.listdir(self._all):  # noqa: PTH208 - a descriptor
            if name != self._name:
                _clear(name, self._all)

    @contextlib.contextmanager
    def folder(self, name: str) -> Iterator[int]:
        """As in any place. The holder's own folder becomes it where nothing else can be in it: it need not go then."""
        if not _holds_drafts_only.get(self._name):
            with super(FencedPlace, self).folder(name) as folder:
                yield folder
            return
        yield self.drafts
        os.rename(self._name, name, src_dir_fd=self._all, dst_dir_fd=self.session)

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
        _holds_drafts_only.put(self._name, False)
        with contextlib.suppress(FileNotFoundError):
            os.rename(name, f"removed.{os.urandom(4).hex()}", src_dir_fd=folder, dst_dir_fd=self.drafts)


@contextlib.contextmanager
def place(session: Path, token: str = "") -> Iterator[Place | None]:
    """A place in a session's folder, which is made when it is missing, for the last that is written there in a turn.

    Where the session never had a holder, the turn's token alone says who may write. Where it had, this is the place
    that ``fenced_writes`` kept for the token; None when that is gone, or never was.

    Raises:
        OSError: as ``fenced_writes``.
    """
    with _opened(session) as (root, new):
        held = None if new else found(HELD, root)
        if held is None:
            yield Place(session, root, new, root)
            return
        try:
            own = _kept(token, held)
            if own is None:
                yield None
            else:
                with _leaving(held, _name_of(token), own, stays=False):
                    yield FencedPlace(session, root, new, own, held, _name_of(token), _taken=True)
        finally:
            os.close(held)


@contextlib.contextmanager
def fenced_writes(session: Path, token: str = "", *, stays: bool = False) -> Iterator[FencedPlace]:
    """A holder's place in a session's folder, which is made when it is missing.

    This writes nothing and ends no other holder's right: that begins with ``take``, after the store was asked. By the
    claim's ``token`` a place is found again that was kept (``stays``, unless the block ends with an error), when nobody
    took the session since.

    Raises ``OSError``: it cannot be made; also when an agent put a link in its place.
    """
    with _opened(session) as (root, new):
        held, first = _held_in(root, new)
        try:
            name, own = _name_of(token), None if first else _kept(token, held)
            was_kept = own is not None
            if own is None:
                try:
                    os.mkdir(name, dir_fd=held)
                except FileExistsError:  # an agent put something there
                    name = _name_of("")
                    os.mkdir(name, dir_fd=held)
                own = os.open(name, DIRECTORY, dir_fd=held)
                _holds_drafts_only.put(name, True)
            with _leaving(held, name, own, stays=stays):
                yield FencedPlace(session, root, new, own, held, name, _taken=first or was_kept)
        finally:
            os.close(held)


def _name_of(token: str) -> str:
    """The name of the place for a token, which does not show it: agents may see the folder. A new one without token."""
    return hashlib.blake2b(token.encode(), digest_size=8).hexdigest() if token else f"{random.getrandbits(64):016x}"


def _kept(token: str, held: int) -> int | None:
    """The place that was kept for a token, opened; None when it is gone, or an agent put something else there."""
    try:
        return os.open(_name_of(token), DIRECTORY, dir_fd=held) if token else None
    except OSError:
        return None


def _held_in(root: int, new: bool) -> tuple[int, bool]:
    """The folder of the holders' places, opened, and whether we made it: then nobody held before."""
    if not new and (held := found(HELD, root)) is not None:
        return held, False
    first = True
    try:
        os.mkdir(HELD, dir_fd=root)
    except FileExistsError:
        first = False
    return os.open(HELD, DIRECTORY, dir_fd=root), first


@contextlib.contextmanager
def _leaving(held: int, name: str, own: int, *, stays: bool) -> Iterator[None]:
    """Close a place in the end, and remove it unless it ``stays``."""
    try:
        yield
    except BaseException:
        stays = False
        raise
    finally:
        os.close(own)
        if not stays:
            try:
                os.rmdir(name, dir_fd=held)  # empty, as a rule: cheaper than looking what is in it
            except FileNotFoundError:  # a later holder cleared it away, or it has become the session's output
                pass
            except OSError:
                shutil.rmtree(name, ignore_errors=True, dir_fd=held)


@contextlib.contextmanager
def _opened(session: Path) -> Iterator[tuple[int, bool]]:
    """A session's folder, opened, and whether it was made just now."""
    root, new = found(session), False
    if root is None:
        new = _make(session)
        root = os.open(session, DIRECTORY)
    try:
        yield root, new
    finally:
        os.close(root)


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
