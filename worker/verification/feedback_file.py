"""The feedback for a phase's agent, which is kept in feedback.md (ADR-025)."""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path

import structlog

from api_client.contract.word_tables import load_word_table
from worker.files.safe_io import ensure_folder, open_folder, read_file, replace_file

log = structlog.get_logger()

MAX_MESSAGE = 200_000

_WORDS = load_word_table(__file__)


class FeedbackChannel:
    """Stores the feedback for a phase's agent in a file that is written atomically."""

    FEEDBACK_FILE = "feedback.md"
    #: Subfolder of the phase's folder for feedback of phases that failed for good.
    ARCHIVE = "logs"

    def __init__(self, session_dir: Path, max_attempts: int = 3, locale: str = "en") -> None:
        self.session_dir = session_dir
        self.max_attempts = max_attempts
        self.locale = "de" if locale.lower().startswith("de") else "en"

    @property
    def feedback_path(self) -> Path:
        return self.session_dir / self.FEEDBACK_FILE

    def write(self, message: str, attempt: int, max_attempts: int | None = None) -> str:
        """Write the feedback to the file, replacing earlier feedback, and return the file's text.

        Raises ``ValueError`` if ``attempt``, counted from 1, exceeds the limit.
        """
        text = self.text(message, attempt, max_attempts)
        with open_folder(self.session_dir) as folder:
            replace_file(self.FEEDBACK_FILE, text.encode("utf-8", "replace"), folder)
        return text

    async def send(self, message: str, attempt: int, max_attempts: int | None = None) -> bool:
        """Write the feedback to the file. If that fails, log the reason and return False.

        Raises ``ValueError`` as ``write``.
        """
        try:
            self.write(message, attempt, max_attempts)
        except OSError as error:
            log.error("feedback.not_written", path=str(self.feedback_path), reason=str(error))
            return False
        return True

    def text(self, message: str, attempt: int, max_attempts: int | None = None) -> str:
        """Return the text of the feedback file for a message and an attempt. Raises ``ValueError`` as ``write``."""
        last = self.max_attempts if max_attempts is None else max_attempts
        if not 1 <= attempt <= last:
            raise ValueError(f"attempt {attempt} of {last}: attempts count from 1 to their maximum")
        return str(_WORDS["feedback"][self.locale]).format(
            attempt=attempt,
            max_attempts=last,
            time=datetime.now(UTC).astimezone().isoformat(timespec="seconds"),
            message=message.strip()[:MAX_MESSAGE] or "-",
            next=_WORDS["last" if attempt == last else "again"][self.locale],
        )

    def remove_feedback(self) -> None:
        with contextlib.suppress(FileNotFoundError), open_folder(self.session_dir) as folder:
            os.unlink(self.FEEDBACK_FILE, dir_fd=folder)

    def has_pending_feedback(self) -> bool:
        return self.read() is not None

    def read(self) -> str | None:
        """Return the text of the feedback file, or None if there is no readable file."""
        try:
            with open_folder(self.session_dir) as folder:
                return read_file(self.FEEDBACK_FILE, folder, 8 * MAX_MESSAGE).decode("utf-8", "replace")
        except OSError:
            return None

    def archive(self, name: str = "") -> Path | None:
        """Move the feedback file to the folder ``logs/`` and return its new path, or None if there is no file.

        ``name`` is the file name without extension; the default is the current time.
        """
        kept = f"{name or datetime.now(UTC).strftime('feedback-%Y%m%dT%H%M%S%fZ')}.md"
        try:
            with open_folder(self.session_dir) as folder, ensure_folder(folder, self.ARCHIVE) as archive:
                os.rename(self.FEEDBACK_FILE, kept, src_dir_fd=folder, dst_dir_fd=archive)
        except FileNotFoundError:
            return None
        return self.session_dir / self.ARCHIVE / kept
