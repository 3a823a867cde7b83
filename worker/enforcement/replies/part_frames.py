"""Writes and reads frames: the ``<part id=…>`` tags that feedback asks an agent to put around parts of an answer."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from worker.enforcement.documents.outline import parse_outline

_TAG = re.compile(r"<part\s{1,4}id\s?=\s?[\"']?([0-9a-f]{6})(?:-(\d{1,2}))?[\"']?\s?>", re.IGNORECASE)
#: Ends a frame.
CLOSING_TAG = "</part>"
#: A closing tag as models write it, and marks of Markdown that they put around tags.
_CLOSING = r"(?:</part\b[^<>\n]{0,40}>|<part\s?/>)"
_MARKS = r"[ \t*_`]{0,9}"
_LONE_CLOSING = re.compile(rf"^{_MARKS}{_CLOSING}{_MARKS}$", re.IGNORECASE | re.MULTILINE)
_LAST_CLOSING = re.compile(rf"\n{_MARKS}{_CLOSING}\s*\Z", re.IGNORECASE)
_MARKS_BEHIND = re.compile(r"\A(?:\*\*|[*_`])(?=[ \t]*\n)")


@dataclass(frozen=True, slots=True)
class FramedText:
    """The text behind a tag ``<part id=…>``. ``closed`` is False if the closing tag ``</part>`` is missing."""

    text: str
    closed: bool


def derive_nonce(answer: str, attempt: int) -> str:
    """Return the id for the ``<part id=…>`` tags of a retry. A retry that runs again after a crash has the same id."""
    return hashlib.sha256(f"{attempt}\n{answer}".encode("utf-8", "surrogatepass")).hexdigest()[:6]


def opening_tag(nonce: str, number: int, count: int) -> str:
    return f'<part id="{nonce}-{number}">' if count > 1 else f'<part id="{nonce}">'


def find_framed_texts(reply: str, feedback: str) -> dict[int, FramedText]:
    """Return the texts between ``<part>`` tags in a reply, by tag number. Only tags with the id in ``feedback`` count.

    ``feedback`` is the prompt that asked the agent for the tags. A tag without a number has the number 1. If a number
    occurs twice, the last text counts.
    """
    asked = _TAG.findall(feedback)
    tags = [tag for tag in _TAG.finditer(reply) if tag[1].lower() == asked[-1][0].lower()] if asked else []
    before = [reply[reply.rfind("\n", 0, tag.start()) + 1 : tag.start()] for tag in tags]
    tags = [tag for tag, said in zip(tags, before, strict=True) if not said.strip(" \t*_`")] or tags
    ends = [*[tag.start() for tag in tags[1:]], len(reply)]
    return {
        int(tag[2] or 1): _cut_at_closing(_MARKS_BEHIND.sub("", reply[tag.end() : end]))
        for tag, end in zip(tags, ends, strict=bool(tags))
    }


def cut_last_tag(text: str) -> tuple[str, bool]:
    """Remove a ``</part>`` tag from the last line of a text. Return the text, and True if there was such a tag."""
    found = _LAST_CLOSING.search(text)
    return (text[: found.start()], True) if found else (text, False)


def _cut_at_closing(text: str) -> FramedText:
    lone = [tag.start() for tag in _LONE_CLOSING.finditer(text)]
    fences = parse_outline(text).fences if len(lone) > 1 else []
    in_code = [at for at in lone for line in [text.count("\n", 0, at)] if any(f.start < line < f.end for f in fences)]
    end = next((at for at in lone if at not in in_code), lone[0] if lone else text.lower().rfind(CLOSING_TAG))
    return FramedText(text[:end] if end >= 0 else text, end >= 0)
