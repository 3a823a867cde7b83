"""Writing in a session's folder as its holder, and only as long as nobody held it later.

A worker may freeze between any two lines, and wake up when another one has its turn, or the session's next turn. A lock
would not do: a process that freezes with it keeps everybody out. So each holder makes its own folder in ``.held/`` and
then asks the store whether the turn is still its own; if so it clears away everybody else's. All it writes passes
through its folder by a rename, and what it removes goes there by a rename. Once the folder is gone each of these fails,
so a holder that wakes up late changes nothing. Between the attempts of a turn it stays, under a name that follows from
the claim's token: as long as it is there nobody held later, and nothing has to be made, asked or cleared away again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import re
import shutil
import stat
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from api_client.contract.failpoints import reach
from api_client.contract.issues import HelixError
from api_client.contract.keys import delivery_name, repaired_name
from worker.files.safe_io import DIRECTORY, SHORT_OF, found, made, opened, read, replace, write

# The memory of a process for its last folders. Used by many threads at once.

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A mapping of at most ``most`` keys: the one that was put longest ago goes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[K, V] = {}
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """Return what was put last for a key; None when nothing was, or it has gone."""
        return self._kept.get(key)

    def put(self, key: K, value: V) -> None:
        """Remember."""
        with self._lock:
            self._kept.pop(key, None)
            self._kept[key] = value
            while len(self._kept) > self._most:
                del self._kept[next(iter(self._kept))]


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


# The folders of a session, as far as a run needs them (docs/sessions.md).
#
#     projects/sessions/<session_id>/output/                   the accepted answer: response.md, ADR-*.md, .done
#     projects/sessions/<session_id>/attempts/<turn>-<n>-<delivery>/  what one delivery wrote, in its own output/
#
# Agents write in these folders, so nothing here follows a symbolic link or believes that a file is a file.

log = structlog.get_logger(__name__)

#: Largest file taken from an agent, in bytes, and how many.
MAX_FILE = 2 * 2**20
MAX_FILES = 50

RESPONSE = "response.md"
DONE = ".done"

_ANSWER_FILE = re.compile(r"response\.md|ADR-[A-Za-z0-9._-]{1,100}\.md", re.ASCII)


class DeliveryTaken(HelixError):
    """The delivery has its folder already: somebody carries it out, or did. Nobody may start it again."""

    code = "delivery_taken"

    def __init__(self, directory: Path) -> None:
        super().__init__(f"delivery {directory.name} was started before: {directory}")
        self.directory = directory


def delivery_directory(holder: FencedPlace, turn_id: str, attempt: int, delivery: int) -> Path:
    """Make the folder of one delivery in the holder's session, with its ``output/``, and return it.

    That the folder can be made once is what keeps a delivery from being started twice. The session's ``.done`` of an
    earlier answer goes (ADR-036, phase 4).

    Raises:
        DeliveryTaken: the folder exists. ValueError: the turn id is not a plain name.
        OSError: it cannot be made; also when an agent put a link in its place.
    """
    name = delivery_name(turn_id, attempt, delivery)
    directory = holder.path.joinpath("attempts", name)
    with made(holder.session, "attempts", missing=holder.new) as attempts:
        try:
            os.mkdir(name, dir_fd=attempts)
        except FileExistsError:
            raise DeliveryTaken(directory) from None
        os.mkdir(f"{name}/output", dir_fd=attempts)
    if not holder.new:
        take_answer_back(holder)
    return directory


def has_answer(session: Path) -> bool:
    """Return whether the session's folder says that its last message has its accepted answer."""
    return os.path.lexists(f"{session}/output/{DONE}")


def take_answer_back(holder: Place) -> None:
    """Take away the mark that the session's last message has its accepted answer; the answer itself stays.

    Raises:
        OSError: it cannot be moved.
    """
    with contextlib.suppress(FileNotFoundError), opened("output", holder.session) as output:
        holder.remove(DONE, output)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Files of an agent in its ``output/`` as its answer.

    Attributes:
        files: response.md and ADR-*.md by name. Bytes that are not UTF-8 become U+FFFD.
        refused: why one of them is not taken, by its path in the delivery's folder; also of ``output`` itself.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


def written(directory: Path | str) -> Written:
    """Return what the agent of a delivery wrote: regular files only, one name each, of at most ``MAX_FILE`` bytes.

    At most ``MAX_FILES`` are read, in the order of their names; what is refused is reported, and logged.

    Raises:
        OSError: this machine is short of something (``SHORT_OF``), so that nothing can be said about the files.
    """
    files: dict[str, str] = {}
    refused: dict[str, str] = {}
    try:
        with opened(directory) as own, opened("output", own) as output:
            names = sorted(filter(_ANSWER_FILE.fullmatch, os.listdir(output)))  # noqa: PTH208 - a descriptor
            for name in names[:MAX_FILES]:
                try:
                    files[name] = read(name, output, MAX_FILE).decode("utf-8", "replace")
                except OSError as error:
                    if error.errno in SHORT_OF:
                        raise
                    refused[f"output/{name}"] = _why_refused(error)
            if surplus := names[MAX_FILES:]:
                refused["output"] = f"{len(surplus)} files too many, from {surplus[0]} on"
    except FileNotFoundError:
        return Written()  # it wrote nothing
    except OSError as error:
        if error.errno in SHORT_OF:
            raise  # not what the agent wrote is wrong, but this machine
        refused["output"] = _why_refused(error)
    for name, reason in refused.items():
        log.warning("agent.file_refused", directory=str(directory), file=name, reason=reason)
    return Written(files=files, refused=refused)


def written_files(directory: Path) -> dict[str, str]:
    """The files of ``written``, by name."""
    return dict(written(directory).files)


def _why_refused(error: OSError) -> str:
    return "a link" if error.errno in {errno.ELOOP, errno.ENOTDIR} else error.strerror or str(error)


def keep_repaired(holder: Place, delivery: str, files: Mapping[str, str]) -> None:
    """Keep files of an accepted answer that its own attempt did not write so, beside the delivery's folder.

    The session's ``output/`` shows the last turn's answer only; from here they can be fetched later. In the delivery's
    own folder its agent may have put something in their place.

    Raises:
        OSError: as ``publish``.
    """
    with made(holder.session, "attempts") as attempts, made(attempts, repaired_name(delivery)) as folder:
        for name, content in files.items():
            holder.replace(name, content.encode("utf-8", "replace"), folder, durable=False)


def publish(
    holder: Place, text: str, *, attempt_id: str, files: Mapping[str, str] | None = None, durable: bool = False
) -> None:
    """Make an accepted answer the session's: ``output/response.md``, the ADRs, and last ``.done`` with the attempt id.

    Each file appears whole or not at all, also after a crash; ``durable`` (``HELIX_DURABILITY=power``, costs
    milliseconds) waits for the disk, so that a loss of power changes nothing either. Publishing the same again changes
    nothing. ``files`` are further ones by name; response.md holds ``text``, whatever they say.

    Raises:
        ValueError: an answer has no file of this name.
        OSError: they cannot be written; also when an agent put a link in the folder's place. FileNotFoundError when
            there was a later holder: nothing more is written.
    """
    texts = {name: content.encode("utf-8", "replace") for name, content in {**(files or {}), RESPONSE: text}.items()}
    for name in texts:
        if not _ANSWER_FILE.fullmatch(name):
            raise ValueError(f"an answer has no file {name!r}")
    done = json.dumps({"attempt_id": attempt_id}).encode() + b"\n"
    output = None if holder.new else found("output", holder.session)
    if output is None:
        if _published_whole(holder, {**texts, DONE: done}, durable):
            return
        output = os.open("output", DIRECTORY, dir_fd=holder.session)
    try:
        for name, content in texts.items():
            reach("answer.sealed")
            holder.replace(name, content, output, durable=durable)
        if durable:
            os.fsync(output)
        holder.replace(DONE, done, output, durable=durable)
        if durable:
            os.fsync(output)
    finally:
        os.close(output)


def _published_whole(holder: Place, files: Mapping[str, bytes], durable: bool) -> bool:
    """Put a session's first ``output/`` there by one rename; False when it has one by now. Raises as ``publish``."""
    try:
        with holder.folder("output") as output:
            for name, content in files.items():
                reach("answer.sealed")
                write(name, content, output, durable=durable)
            if durable:
                os.fsync(output)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        return False
    if durable:
        os.fsync(holder.session)
    return True


def check_session_done(session: Path, attempt_id: str = "") -> bool:
    """True when the session's last message has its accepted answer: ``output/.done`` is there (ADR-036, phase 3).

    The worker writes ``.done`` after the verdict and takes it away when an attempt starts, so it is there exactly while
    ``output/`` holds an accepted answer and no attempt runs. With an ``attempt_id`` only this delivery's answer counts.
    """
    try:
        with opened(session) as root, opened("output", root) as output:
            done = json.loads(read(DONE, output, MAX_FILE))
    except (OSError, ValueError):
        return False
    accepted = done.get("attempt_id") if isinstance(done, dict) else None
    return bool(accepted) and attempt_id in {"", accepted}
