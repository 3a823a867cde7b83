"""The input that a runner sent to its agent, stored with the attempt; secrets are masked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Most characters stored of all texts together; the turn's request holds the conversation too.
MOST_CHARS = 65_536
#: What a run continues whose agent remembers the user's message too.
WHOLE_SESSION = "message"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentInput:
    """The input that a run sent to its agent, kept so that users can inspect it.

    Attributes:
        system: instructions besides the messages: the session's CLAUDE.md, or a service's system message.
        messages: role and content of each message, oldest first; images as text and name.
        continues: what the agent remembers of an earlier session: nothing, ``history``, or also the ``message``.
    """

    system: str = ""
    messages: Sequence[Mapping[str, str]] = ()
    continues: str = ""

    def to_dict(self, redact: Callable[[str], str]) -> dict[str, Any]:
        """Return the input as JSON-ready data, with secrets masked. If it is too long, older messages are cut."""
        left = MOST_CHARS
        kept: list[dict[str, str]] = []
        for message in reversed(self.messages):
            text = redact(message.get("content", ""))
            kept.append({"role": message.get("role", ""), "content": _cut_beginning(text, left)})
            left -= min(left, len(text))
        system = redact(self.system)
        if len(system) > MOST_CHARS:
            system = f"{system[:MOST_CHARS]}\n[{len(system) - MOST_CHARS} characters are left out here]"
        stored: dict[str, Any] = {"system": system, "messages": kept[::-1]}
        return stored | ({"continues": self.continues} if self.continues else {})


def _cut_beginning(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"[{len(text) - most} characters are left out here]\n{text[len(text) - most :]}"
