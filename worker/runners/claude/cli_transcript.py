"""Reads the answer of one run from the CLI's transcript, when standard output was incomplete."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.files.safe_io import open_folder, read_file
from worker.runners.claude.answer_text import SYNTHETIC, clean_text, content_blocks, ends_with, gap_after, trim_text
from worker.runners.event_reader import MAX_ANSWER

MAX_TRANSCRIPT = 256 * 2**20


class UnreadableTranscript(Exception):
    """Raised when a transcript does not contain the run's answer, or is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """The answer of one run, as found in a transcript. ``last`` is the last message of the answer."""

    text: str = ""
    last: str = ""
    stop_reason: str = ""

    def lacks_message(self, message: str) -> bool:
        """Return True if the answer lacks the last message that the CLI passed to the Stop hook."""
        return not ends_with(self.text, message) or bool(trim_text(message)) is not bool(trim_text(self.last))


def read_transcript(transcript: str, session: str, home: Path) -> bytes:
    """Return the content of an agent session's transcript, whose path must be inside ``home``. Raises ``OSError``."""
    source = Path(transcript)
    if source.name != f"{session}.jsonl":
        raise OSError("the transcript is not this run's")
    if not source.resolve().is_relative_to(home.resolve()):
        raise OSError("the transcript is not in the run's own HOME")
    with open_folder(source.parent) as folder:
        return read_file(source.name, folder, MAX_TRANSCRIPT)


def extract_run(content: bytes, session: str, prompt: bytes, before: bytes = b"") -> RecordedRun:
    """Return the agent's answer to ``prompt`` from a transcript, ignoring entries of the earlier transcript ``before``.

    ``session`` is the agent session's id. Raises ``UnreadableTranscript`` if the prompt is missing, or the answer is
    too long.
    """
    asked = prompt.decode("utf-8", "replace").strip()
    pieces: list[str] | None = None
    gap = last = stop_reason = message = ""
    for record in _read_records(content, session):
        kind = record["type"]
        texts = (clean_text(block.get("text")) for block in content_blocks(record) if block.get("type") == "text")
        if kind == "user" and not record.get("isMeta") and "\n".join(texts).strip() == asked:
            new = str(record.get("uuid") or "").encode() not in before if before else True
            pieces, gap, last, stop_reason, message = [] if new else None, "", "", "", ""
        elif pieces is None:
            continue
        elif kind == "user":
            gap = gap or gap_after(record)
        else:
            stop_reason = str(record["message"].get("stop_reason") or "")
            last = last if message == record["message"].get("id") else ""
            message = record["message"].get("id")
            for block in content_blocks(record):
                if block.get("type") == "text":
                    last = clean_text(block.get("text"))
                    pieces += [gap if pieces else "", last] if last else []
                    gap = "" if last else gap
    if pieces is None:
        raise UnreadableTranscript("the transcript does not hold this run's prompt")
    text = "".join(pieces)
    if len(text) > MAX_ANSWER:
        raise UnreadableTranscript(f"its answer is longer than {MAX_ANSWER} characters")
    return RecordedRun(text=text, last=last, stop_reason=stop_reason)


def _read_records(content: bytes, session: str) -> Iterator[dict[str, Any]]:
    """Yield the messages of user and model in order, without the messages of subagents."""
    for number, line in enumerate(filter(bytes.strip, content.split(b"\n")), 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise UnreadableTranscript(f"line {number} of the transcript is torn") from None
        if not isinstance(record, dict) or record.get("type") not in {"user", "assistant"} or record.get("isSidechain"):
            continue
        message = record.get("message")
        if record.get("sessionId") == session and isinstance(message, dict) and message.get("model") != SYNTHETIC:
            yield record
