"""The step of an answer: where the agent says the conversation is (ADR-034 Phases 1 and 3, ADR-036 Phase 2)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from api_client.contract.step_marker import UNKNOWN, Marker, Span, find_marker_spans, strip_own_marker
from worker.enforcement.documents.document import parse_document

StepSource = Literal["marker", "inferred", "unknown"]

_CODE_AND_LINKS = re.compile(r"`[^`\n]*`|<[^<>\n]*>|https?://[^\s)>\]]+|www\.[^\s)>\]]+")
_QUESTION = re.compile(r"\w[\"'»«“”’*_)\]]{0,4}\?[\"'»«“”’*_)\]]{0,4}(?=\s|$)")
_CONSTRAINTS = re.compile(r"\b(?:constraints?|rahmenbedingung(?:en)?|randbedingung(?:en)?)\b", re.IGNORECASE)
_FINAL_STATUS = frozenset({"accepted", "approved", "implemented", "final", "akzeptiert", "angenommen", "umgesetzt"})
#: Characters searched for a question at the end and for words at the start.
_TAIL, _HEAD = 300, 20_000


def extract_step(text: str) -> str | None:
    """Return the step of the conversation that an answer names in its last valid marker, in lower case, or None."""
    found = parse_document(text).markers
    return found[-1].step if found else None


#: ADR-034's name for ``extract_step``.
extract_step_from_response = extract_step


def step_of(text: str) -> tuple[str, Literal["marker", "unknown"]]:
    """Return the step of the conversation that an answer names, and where the name was found."""
    step = extract_step(text)
    return (step, "marker") if step else (UNKNOWN, "unknown")


def marker_spans(text: str) -> tuple[Span, ...]:
    """Return the character ranges of the step markers in a text, except markers in code or quotes."""
    return find_marker_spans(text, parse_document(text).markers)


def strip_marker(text: str) -> str:
    """Return the answer without the step markers at its end, as shown to users."""
    return strip_own_marker(text, marker_spans(text))


def infer_step(text: str) -> str:
    """Return the step of the conversation that the structure of an answer suggests, or ``unknown`` (ADR-036).

    An ADR with a final status means finalize, any other ADR generate, a final question what, words for constraints
    constraints.
    """
    adrs = [adr for adr in parse_document(text).adrs if adr.header]
    if adrs:
        statuses = [status.value for adr in adrs if adr.root and (status := adr.root.find_value("status"))]
        final = statuses and all(status.strip().lower() in _FINAL_STATUS for status in statuses)
        return "finalize" if final else "generate"
    out = parse_document(text).out
    prose = _CODE_AND_LINKS.sub(" ", out.text_without(out.fenced, out.indented)).rstrip()
    if _QUESTION.search(prose[-_TAIL:]):
        return "what"
    return "constraints" if _CONSTRAINTS.search(prose[:_HEAD]) else UNKNOWN


def trailing_marker(text: str) -> Marker | None:
    """Return the last step marker outside code and quotes, or None if there is none."""
    found = parse_document(text).markers
    return found[-1] if found else None


def extract_state_from_messages(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a dict with the text of the first user message and the number of messages (ADR-034 Phase 1)."""
    users = (_text_of(message.get("content")) for message in messages if message.get("role") == "user")
    return {"original_request": next(users, ""), "message_count": len(messages)}


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        return ""
    texts = (
        part if isinstance(part, str) else part.get("text") for part in content if isinstance(part, (str, Mapping))
    )
    return "\n".join(text for text in texts if isinstance(text, str))
