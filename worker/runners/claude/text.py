"""The answer made of the CLI's messages, and the proof that nothing of it is missing. Pure.

The same text comes twice: on standard output while it is written (``cli_stream``), and in the CLI's own transcript
(``cli_transcript``). Both join it by the rules here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The CLI's own messages, such as "API Error: ...": not an answer.
SYNTHETIC = "<synthetic>"
PARAGRAPH = "\n\n"
#: What both its language and ours call white space.
_WHITE = "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
_WHITE += "\u2028\u2029\u202f\u205f\u3000\ufeff"
#: What the CLI says to a model whose message was cut in mid-sentence: the next message goes on right there.
_CUT = "Resume directly"
#: Why a model stopped, where its answer is whole; empty: the CLI does not say.
_WHOLE = frozenset({"", "end_turn", "stop_sequence"})


def cleaned(text: object) -> str:
    """A text that can be stored: a lone surrogate can be written in JSON, but in no file, message or key."""
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) else ""


def blocks(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The blocks of a message; a plain text is one block."""
    message = record.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def gap_after(record: Mapping[str, Any]) -> str:
    """Return what is between the text before a ``user`` message and the text after it.

    A blank line after a tool's result, a hook's words or a new message; nothing where the model was cut off and asked
    to go on.
    """
    said = [cleaned(block.get("text")) for block in blocks(record) if block.get("type") == "text"]
    cut = bool(said) and all(_CUT in text for text in said)
    return "" if cut else PARAGRAPH


def trimmed(text: str) -> str:
    """A text without the white space around it, as the CLI trims it; Python alone would leave a byte order mark."""
    return text.strip(_WHITE)


def ends_with(text: str, last: str) -> bool:
    """Return whether an answer ends with its last message. The CLI trims the message it tells its hooks."""
    return trimmed(text).endswith(trimmed(last))


def cut_short(stop_reason: object) -> str:
    """Return why the model stopped before its answer was whole; empty when it did not."""
    reason = str(stop_reason or "")
    return "" if reason in _WHOLE else reason


def longest(*known: str) -> str:
    """The longest of the texts known of an answer that is not whole: each is in order, and they are never mixed."""
    return max(known, key=lambda text: len(trimmed(text)))
