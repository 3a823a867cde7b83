"""Compare model calls by their texts, to find calls that repeat or continue an earlier call."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_NAMES = frozenset({"text", "content", "parts", "delta", "message", "choices", "output", "candidates", "content_block"})
_NAMES |= {"partial_json", "arguments", "function", "function_call", "tool_calls"}
_OPENINGS, _MESSAGES = ("system", "instructions", "systemInstruction"), ("messages", "input", "contents")
#: Event types that hold reasoning, or repeat earlier text.
_NO_TEXT = re.compile(r"reasoning|\.done$")
#: Phrases with which agents ask a model to continue after its output limit.
_ASKS_ON = re.compile(
    r"resume directly|where (?:you|it) (?:left off|stopped|was cut)|(?:cut|left|broken) off|token limit|truncated"
    r"|unterbrochen|abgebrochen|user (?:please |bitte )?(?:continue|go on|resume|weiter|mach weiter|fahre fort)[.! ]*$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class CallRequest:
    """The parts of a model request that show whether another request repeats or continues it.

    Attributes:
        pieces: hashes of the texts in the last message.
        last: the last message, if a user wrote it.
        end: the last text of the last user message, even after a tool result.
    """

    opening: int = 0
    messages: tuple[int, ...] = ()
    pieces: tuple[int, ...] = ()
    last: str = ""
    end: str = ""
    text: str = ""

    def repeats_request(self, earlier: CallRequest) -> bool:
        """Return whether this request repeats an earlier request, or asks the model to continue its answer."""
        if not earlier.messages:
            return False
        if earlier.pieces and self.pieces[: len(earlier.pieces)] == earlier.pieces != self.pieces:
            return bool(_ASKS_ON.search(self.end))  # Claude asks to continue in the message that holds a tool's result
        if earlier.messages[-1] not in self.messages:
            return False
        if self.messages[-1] == earlier.messages[-1]:  # messages in between may have been dropped to save context
            return (self.opening, self.messages[0]) == (earlier.opening, earlier.messages[0])
        return not self.last or bool(_ASKS_ON.search(self.last))


def parse_request(body: bytes) -> CallRequest:
    """Parse the body of a model request. An unreadable body gives an empty request."""
    try:
        asked: Any = json.loads(body)
        opening = " ".join(text for name in _OPENINGS for text in find_texts(asked.get(name)))
        found: Any = next((asked[name] for name in _MESSAGES if asked.get(name)), ())
        each = [{"role": "user", "content": found}] if isinstance(found, str) else list(found)
        said = [f"{message.get('role')} {' '.join(find_texts(message))}" for message in each]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return CallRequest()
    plain = bool(each) and each[-1].get("role") == "user" and b"tool_result" not in json.dumps(each[-1]).encode()
    pieces = [*find_texts(each[-1])] if each and each[-1].get("role") == "user" else []
    end = f"user {pieces[-1]}" if pieces else ""
    hashes = tuple(map(hash, said)), tuple(map(hash, pieces))
    return CallRequest(hash(opening), *hashes, said[-1] if plain else "", end, " ".join(said))


def extract_answer(body: bytes, *, streamed: bool) -> str:
    """Return a response's text, including tool calls but without the model's reasoning."""
    pieces: list[str] = []
    for event in re.findall(rb"^data:(.*)$", body, re.MULTILINE) if streamed else [body]:
        with contextlib.suppress(ValueError, RecursionError):
            pieces += find_texts(json.loads(event))
    return "".join(pieces)


def find_texts(value: object) -> Iterator[str]:
    """Yield the texts in a part of the JSON of a request or response."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from find_texts(each)
    elif isinstance(value, dict) and not value.get("thought") and not _NO_TEXT.search(str(value.get("type"))):
        for name, each in value.items():
            if name in _NAMES:
                yield from find_texts(each)
