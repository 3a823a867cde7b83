"""The step of an answer: what the agent says about where the conversation is. Observability, never control.

Source: ADR-034 Phases 1 and 3, ADR-036 Phase 2. The step comes from the answer alone, never from a user's words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from api_client.contract.marker import UNKNOWN, Marker, Span, answer_text, spans_of
from worker.enforcement.documents.document import parse

#: ``marker``: the agent wrote it; ``inferred``: the fallback read it from the answer; ``unknown``: nothing shows it.
StepSource = Literal["marker", "inferred", "unknown"]

_CODE_AND_LINKS = re.compile(r"`[^`\n]*`|<[^<>\n]*>|https?://[^\s)>\]]+|www\.[^\s)>\]]+")
_QUESTION = re.compile(r"\w[\"'»«“”’*_)\]]{0,4}\?[\"'»«“”’*_)\]]{0,4}(?=\s|$)")
_CONSTRAINTS = re.compile(r"\b(?:constraints?|rahmenbedingung(?:en)?|randbedingung(?:en)?)\b", re.IGNORECASE)
_FINAL_STATUS = frozenset({"accepted", "approved", "implemented", "final", "akzeptiert", "angenommen", "umgesetzt"})
#: How much of an answer's end is searched for a question, and how much of an answer for words, in characters.
_TAIL, _HEAD = 300, 20_000


def extract_step(text: str) -> str | None:
    """The step an answer names: the last marker outside code and quotes, in lower case.

    Returns:
        One of the six steps; None when there is no marker or it names another word.
    """
    found = parse(text).markers
    return found[-1].step if found else None


#: ADR-034's name for the same.
extract_step_from_response = extract_step


def step_of(text: str) -> tuple[str, Literal["marker", "unknown"]]:
    """The step of an answer and where it comes from: ``("unknown", "unknown")`` when the agent named none."""
    step = extract_step(text)
    return (step, "marker") if step else (UNKNOWN, "unknown")


def marker_spans(text: str) -> tuple[Span, ...]:
    """Return where the markers stand that count, as readers of the answer need it (``contract/marker.py``)."""
    return spans_of(text, parse(text).markers)


def strip_marker(text: str) -> str:
    """The text for display: without the step markers at its end and the blanks before them."""
    return answer_text(text, marker_spans(text))


def infer_step(text: str) -> str:
    """Infer the step from the answer, by structure rather than by words (ADR-038's heuristics, repaired).

    An ADR with a final status: finalize; any ADR: generate; a question at the end: what; constraint words:
    constraints. Otherwise ``unknown``: a guess would look like a fact (ADR-036).
    """
    adrs = [adr for adr in parse(text).adrs if adr.header]
    if adrs:
        statuses = [status.value for adr in adrs if adr.root and (status := adr.root.get("status"))]
        final = statuses and all(status.strip().lower() in _FINAL_STATUS for status in statuses)
        return "finalize" if final else "generate"
    # What a reader would call its sentences: without code, markers and links.
    out = parse(text).out
    prose = _CODE_AND_LINKS.sub(" ", out.without(out.fenced, out.indented)).rstrip()
    if _QUESTION.search(prose[-_TAIL:]):
        return "what"
    return "constraints" if _CONSTRAINTS.search(prose[:_HEAD]) else UNKNOWN


def trailing_marker(text: str) -> Marker | None:
    """The marker that counts: the last one outside code and quotes."""
    found = parse(text).markers
    return found[-1] if found else None


def extract_state_from_messages(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Basic facts of a conversation (ADR-034 Phase 1): the first user message and the number of messages.

    No step, no triggers: whatever a user writes, also a marker, names no step. A message's content may be a text or
    a list of parts; only its text parts count.
    """
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
