"""The parts of a session's folder that a run needs (docs/sessions.md).

    projects/sessions/<session_id>/output/                   the accepted answer: response.md, ADR-*.md, .done
    projects/sessions/<session_id>/attempts/<turn>-<n>-<delivery>/  files of one delivery, in its own output/

Agents write in these folders, so links are not followed and file types are checked.
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
from api_client.contract.failpoints import pass_failpoint
from api_client.contract.session_paths import delivery_name, repaired_name
from worker.files.safe_io import (
    DIRECTORY,
    SHORT_OF,
    ensure_folder,
    open_folder,
    read_file,
    try_open_folder,
    write_new_file,
)
from worker.files.session_fence import FencedSessionFolder, SessionFolder

log = structlog.get_logger(__name__)

#: Largest file taken from an agent in bytes, and most files.
MAX_FILE = 2 * 2**20
MAX_FILES = 50

RESPONSE = "response.md"
DONE = ".done"

_ANSWER_FILE = re.compile(r"response\.md|ADR-[A-Za-z0-9._-]{1,100}\.md", re.ASCII)


class DeliveryTakenError(HelixError):
    """Raised when a delivery's folder exists already, because another worker has started the delivery."""

    code = "delivery_taken"

    def __init__(self, directory: Path) -> None:
        super().__init__(f"delivery {directory.name} was started before: {directory}")
        self.directory = directory


def create_delivery_folder(holder: FencedSessionFolder, turn_id: str, attempt: int, delivery: int) -> Path:
    """Create the folder in which the agent works on one attempt, and return its path.

    Removes the ``.done`` of an earlier answer (ADR-036, Phase 4).

    Raises:
        DeliveryTakenError: the folder exists, so the delivery was started before.
        OSError: the folder cannot be created, or an agent put a link in its place.
    """
    name = delivery_name(turn_id, attempt, delivery)
    directory = holder.path.joinpath("attempts", name)
    with ensure_folder(holder.session, "attempts", missing=holder.new) as attempts:
        try:
            os.mkdir(name, dir_fd=attempts)
        except FileExistsError:
            raise DeliveryTakenError(directory) from None
        os.mkdir(f"{name}/output", dir_fd=attempts)
    if not holder.new:
        withdraw_answer(holder)
    return directory


def has_answer(session: Path) -> bool:
    """Return True if a session's folder contains an accepted answer to the latest message."""
    return os.path.lexists(f"{session}/output/{DONE}")


def withdraw_answer(holder: SessionFolder) -> None:
    """Remove the ``.done`` file that marks the session's answer as accepted. The answer itself is kept."""
    with contextlib.suppress(FileNotFoundError), open_folder("output", holder.session) as output:
        holder.remove_entry(DONE, output)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFiles:
    """The files that an agent wrote as its answer, and the refused files with the reasons."""

    files: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


def read_answer_files(directory: Path | str) -> WrittenFiles:
    """Return the answer files that an agent wrote, and the reasons why other files were refused.

    At most ``MAX_FILES`` regular files of at most ``MAX_FILE`` bytes are read. Raises ``OSError`` if the machine lacks
    resources (``SHORT_OF``).
    """
    files: dict[str, str] = {}
    refused: dict[str, str] = {}
    try:
        with open_folder(directory) as own, open_folder("output", own) as output:
            names = sorted(filter(_ANSWER_FILE.fullmatch, os.listdir(output)))  # noqa: PTH208 - a descriptor
            for name in names[:MAX_FILES]:
                try:
                    files[name] = read_file(name, output, MAX_FILE).decode("utf-8", "replace")
                except OSError as error:
                    if error.errno in SHORT_OF:
                        raise
                    refused[f"output/{name}"] = _explain_refusal(error)
            if surplus := names[MAX_FILES:]:
                refused["output"] = f"{len(surplus)} files too many, from {surplus[0]} on"
    except FileNotFoundError:
        return WrittenFiles()
    except OSError as error:
        if error.errno in SHORT_OF:
            raise  # a problem of this machine, not of the agent's files
        refused["output"] = _explain_refusal(error)
    for name, reason in refused.items():
        log.warning("agent.file_refused", directory=str(directory), file=name, reason=reason)
    return WrittenFiles(files=files, refused=refused)


def read_accepted_files(directory: Path) -> dict[str, str]:
    """Return the texts of an answer's files by name, without files that were refused."""
    return dict(read_answer_files(directory).files)


def _explain_refusal(error: OSError) -> str:
    return "a link" if error.errno in {errno.ELOOP, errno.ENOTDIR} else error.strerror or str(error)


def keep_repaired_files(holder: SessionFolder, delivery: str, files: Mapping[str, str]) -> None:
    """Save the repaired files of an accepted answer beside the delivery's folder, which the agent may still change."""
    with (
        ensure_folder(holder.session, "attempts") as attempts,
        ensure_folder(attempts, repaired_name(delivery)) as folder,
    ):
        for name, content in files.items():
            holder.replace_file(name, content.encode("utf-8", "replace"), folder, durable=False)


def publish_answer(
    holder: SessionFolder, text: str, *, attempt_id: str, files: Mapping[str, str] | None = None, durable: bool = False
) -> None:
    """Write an accepted answer and its files to ``output/``, then mark the answer as complete with ``.done``.

    ``.done`` contains the attempt id. Idempotent. ``durable`` syncs to disk, which costs milliseconds.

    Raises:
        ValueError: a file name is not allowed in an answer.
        OSError: a file cannot be written, or an agent put a link in the folder's place.
        FileNotFoundError: another worker has taken the session over.
    """
    texts = {name: content.encode("utf-8", "replace") for name, content in {**(files or {}), RESPONSE: text}.items()}
    for name in texts:
        if not _ANSWER_FILE.fullmatch(name):
            raise ValueError(f"an answer has no file {name!r}")
    done = json.dumps({"attempt_id": attempt_id}).encode() + b"\n"
    output = None if holder.new else try_open_folder("output", holder.session)
    if output is None:
        if _publish_first(holder, {**texts, DONE: done}, durable):
            return
        output = os.open("output", DIRECTORY, dir_fd=holder.session)
    try:
        for name, content in texts.items():
            pass_failpoint("answer.sealed")
            holder.replace_file(name, content, output, durable=durable)
        if durable:
            os.fsync(output)
        holder.replace_file(DONE, done, output, durable=durable)
        if durable:
            os.fsync(output)
    finally:
        os.close(output)


def _publish_first(holder: SessionFolder, files: Mapping[str, bytes], durable: bool) -> bool:
    """Create the session's first ``output/`` folder with these files. Return False if the folder already exists."""
    try:
        with holder.create_folder("output") as output:
            for name, content in files.items():
                pass_failpoint("answer.sealed")
                write_new_file(name, content, output, durable=durable)
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
    """Return True if the session's folder contains an accepted answer to the latest message.

    ``attempt_id`` limits this to the answer of one delivery.
    """
    try:
        with open_folder(session) as root, open_folder("output", root) as output:
            done = json.loads(read_file(DONE, output, MAX_FILE))
    except (OSError, ValueError):
        return False
    accepted = done.get("attempt_id") if isinstance(done, dict) else None
    return bool(accepted) and attempt_id in {"", accepted}
