"""The input of an agent or service as its runner really sent it, kept with the attempt. Pure.

Secrets are masked. Of a very long conversation the oldest messages are left out, and that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Characters kept of all texts together: the conversation is in the turn's request too.
MOST_CHARS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class SentInput:
    """One run's input.

    Attributes:
        system: instructions beside the messages: the session's CLAUDE.md, or the system message of a service.
        messages: role and content of each message, oldest first; of an image only its text and name.
        continues: what the agent knew already from the session it continued; empty for a fresh session.
    """

    system: str = ""
    messages: Sequence[Mapping[str, str]] = ()
    continues: str = ""

    def to_dict(self, redact: Callable[[str], str]) -> dict[str, Any]:
        """As it is stored: every text redacted, the newest messages first in line for the room there is."""
        left = MOST_CHARS
        kept: list[dict[str, str]] = []
        for message in reversed(self.messages):
            text = redact(message.get("content", ""))
            kept.append({"role": message.get("role", ""), "content": _end_of(text, left)})
            left -= min(left, len(text))
        stored: dict[str, Any] = {"system": _beginning_of(redact(self.system), MOST_CHARS), "messages": kept[::-1]}
        return stored | ({"continues": self.continues} if self.continues else {})


def _beginning_of(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}\n[{len(text) - most} characters are left out here]"


def _end_of(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"[{len(text) - most} characters are left out here]\n{text[len(text) - most :]}"
