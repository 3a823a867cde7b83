"""Writes and reads the ``<part id=…>`` tags that an agent must put around parts of an answer that it sends again."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from worker.enforcement.documents.outline import lines_in_spans, parse_outline

_TAG = re.compile(r"<part\s{1,4}id\s?=\s?[\"']?([0-9a-f]{6})(?:-(\d{1,2}))?[\"']?\s?>", re.IGNORECASE)
CLOSING_TAG = "</part>"
#: A closing tag as models write it, and marks of Markdown that they put around tags.
_CLOSING = r"(?:</part\b[^<>\n]{0,40}>|<part\s?/>)"
_MARKS = r"[ \t*_`]{0,9}"
_LONE_CLOSING = re.compile(rf"^{_MARKS}{_CLOSING}{_MARKS}$", re.IGNORECASE | re.MULTILINE)
_LAST_CLOSING = re.compile(rf"\n{_MARKS}{_CLOSING}\s*\Z", re.IGNORECASE)
_MARKS_BEHIND = re.compile(r"\A(?:\*\*|[*_`])(?=[ \t]*\n)")


@dataclass(frozen=True, slots=True)
class ReplyText:
    """A text in an agent's reply. ``closed`` is True if its end is marked, for example by the tag ``</part>``."""

    text: str
    closed: bool


def make_tag_id(answer: str, attempt: int) -> str:
    """Return an id for ``<part id=…>`` tags, derived from an answer and the number of the attempt to repair it."""
    return hashlib.sha256(f"{attempt}\n{answer}".encode("utf-8", "surrogatepass")).hexdigest()[:6]


def format_opening_tag(tag_id: str, number: int, count: int) -> str:
    return f'<part id="{tag_id}-{number}">' if count > 1 else f'<part id="{tag_id}">'


def find_tagged_texts(reply: str, prompt: str) -> dict[int, ReplyText]:
    """Return the texts that the agent put between numbered ``<part>`` tags, by number.

    Only tags with the id that the prompt gave count. A tag without a number has the number 1. If a number occurs twice,
    the last text counts.
    """
    requested = _TAG.findall(prompt)
    tags = [tag for tag in _TAG.finditer(reply) if tag[1].lower() == requested[-1][0].lower()] if requested else []
    before = [reply[reply.rfind("\n", 0, tag.start()) + 1 : tag.start()] for tag in tags]
    tags = [tag for tag, said in zip(tags, before, strict=True) if not said.strip(" \t*_`")] or tags
    ends = [*[tag.start() for tag in tags[1:]], len(reply)]
    return {
        int(tag[2] or 1): _cut_at_closing(_MARKS_BEHIND.sub("", reply[tag.end() : end]))
        for tag, end in zip(tags, ends, strict=bool(tags))
    }


def cut_closing_tag(text: str) -> ReplyText:
    """Remove the tag ``</part>`` from the last line of a text, and record in the result whether there was one."""
    found = _LAST_CLOSING.search(text)
    return ReplyText(text[: found.start()], closed=True) if found else ReplyText(text, closed=False)


def _cut_at_closing(text: str) -> ReplyText:
    lone = [tag.start() for tag in _LONE_CLOSING.finditer(text)]
    in_code = lines_in_spans(parse_outline(text).fenced) if len(lone) > 1 else set()
    line, past, end = 0, 0, lone[0] if lone else text.lower().rfind(CLOSING_TAG)
    for at in lone:
        line, past = line + text.count("\n", past, at), at
        if line not in in_code:
            end = at
            break
    return ReplyText(text[:end] if end >= 0 else text, end >= 0)
