"""feedback.md: the faults of a phase's output, for the agent that continues (ADR-025).

One file in the phase's folder: there while feedback waits, gone otherwise. It is replaced as a whole, never written
in place, and nothing here follows a link that an agent may have put there.
"""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path

import structlog

from api_client.contract.word_tables import table_beside
from worker.files.safe_io import made, opened, read, replace

log = structlog.get_logger()

#: Longest feedback that is written, in characters.
MAX_MESSAGE = 200_000

_WORDS = table_beside(__file__)


class FeedbackChannel:
    """Feedback for the agent of one phase. Safe to use again after a crash: the file is there whole, or not at all."""

    FEEDBACK_FILE = "feedback.md"
    #: Where feedback goes that nobody answered any more, below the phase's folder.
    ARCHIVE = "logs"

    def __init__(self, session_dir: Path, max_attempts: int = 3, locale: str = "en") -> None:
        self.session_dir = session_dir
        self.max_attempts = max_attempts
        self.locale = "de" if locale.lower().startswith("de") else "en"

    @property
    def feedback_path(self) -> Path:
        """Return where the feedback lies."""
        return self.session_dir / self.FEEDBACK_FILE

    def write(self, message: str, attempt: int, max_attempts: int | None = None) -> str:
        """Put the feedback there, in place of what was there before; returns the text.

        Attempts count from 1; ``max_attempts`` is the channel's for None.

        Raises:
            ValueError: there is no such attempt. OSError: it cannot be written; what was there before is still there.
        """
        text = self.text(message, attempt, max_attempts)
        with opened(self.session_dir) as folder:
            replace(self.FEEDBACK_FILE, text.encode("utf-8", "replace"), folder)
        return text

    async def send(self, message: str, attempt: int, max_attempts: int | None = None) -> bool:
        """As ``write``; False, and logged, when it could not be written, so that nobody waits for an answer to it.

        Raises:
            ValueError: there is no such attempt.
        """
        try:
            self.write(message, attempt, max_attempts)
        except OSError as error:
            log.error("feedback.not_written", path=str(self.feedback_path), reason=str(error))
            return False
        return True

    def text(self, message: str, attempt: int, max_attempts: int | None = None) -> str:
        """Return what the file holds. Raises ``ValueError``: there is no such attempt."""
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

    def clear(self) -> None:
        """Take the feedback away; does nothing when there is none.

        Raises:
            OSError: there is something that cannot be removed.
        """
        with contextlib.suppress(FileNotFoundError), opened(self.session_dir) as folder:
            os.unlink(self.FEEDBACK_FILE, dir_fd=folder)

    def has_pending_feedback(self) -> bool:
        """True while there is feedback."""
        return self.read() is not None

    def read(self) -> str | None:
        """The feedback; None when there is none, or something else in its place."""
        try:
            with opened(self.session_dir) as folder:
                return read(self.FEEDBACK_FILE, folder, 8 * MAX_MESSAGE).decode("utf-8", "replace")
        except OSError:
            return None

    def archive(self, name: str = "") -> Path | None:
        """Move the feedback to ``logs/`` after the last attempt failed; None when there is none.

        ``name`` lacks its ending; empty, it is made of the time. Raises ``OSError``: it cannot be moved, and stays.
        """
        kept = f"{name or datetime.now(UTC).strftime('feedback-%Y%m%dT%H%M%S%fZ')}.md"
        try:
            with opened(self.session_dir) as folder, made(folder, self.ARCHIVE) as archive:
                os.rename(self.FEEDBACK_FILE, kept, src_dir_fd=folder, dst_dir_fd=archive)
        except FileNotFoundError:
            return None
        return self.session_dir / self.ARCHIVE / kept
