"""The folders of a session, as far as a run needs them (docs/sessions.md).

    projects/sessions/<session_id>/output/                   the accepted answer: response.md, ADR-*.md, .done
    projects/sessions/<session_id>/attempts/<turn>-<n>-<delivery>/  what one delivery wrote, in its own output/

Agents write in these folders, so nothing here follows a symbolic link or believes that a file is a file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from api_client.contract.errors import HelixError
from api_client.contract.failpoints import reach
from api_client.contract.session_paths import delivery_name, repaired_name
from worker.files.safe_io import DIRECTORY, SHORT_OF, found, made, opened, read, write
from worker.files.session_fence import FencedPlace, Place

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
    earlier answer goes (ADR-036, Phase 4).

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
class WrittenFiles:
    """Files of an agent in its ``output/`` as its answer.

    Attributes:
        files: response.md and ADR-*.md by name. Bytes that are not UTF-8 become U+FFFD.
        refused: why one of them is not taken, by its path in the delivery's folder; also of ``output`` itself.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


def written(directory: Path | str) -> WrittenFiles:
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
        return WrittenFiles()  # it wrote nothing
    except OSError as error:
        if error.errno in SHORT_OF:
            raise  # not what the agent wrote is wrong, but this machine
        refused["output"] = _why_refused(error)
    for name, reason in refused.items():
        log.warning("agent.file_refused", directory=str(directory), file=name, reason=reason)
    return WrittenFiles(files=files, refused=refused)


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
    """True when the session's last message has its accepted answer: ``output/.done`` is there (ADR-036, Phase 3).

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
