"""Whether an ADR in a ```markdown fence is only shown: a header alone, or a template with place holders."""

from __future__ import annotations

import re

from worker.enforcement.documents.adr import Adr
from worker.enforcement.documents.content import content

#: What stands where a text is to be filled in: ``<Titel>``, ``[Beschreibung]``, ``{{ name }}``, ``...``, ``NNN``.
_PLACE = (
    r"(?:<[^<>]{1,120}>|\[[^\[\]]{1,120}\]|\([^()]{1,120}\)|\{\{?[^{}]{1,120}\}?\}"
    r"|\*[^*]{1,120}\*|_[^_]{1,120}_|\.{3}|…|[Xx]{2,8}|[Nn]{3,8}|TODO|TBD|\?{1,8})"
)
_LINE = re.compile(rf"[ \t]*(?:(?:[-*+]|\d{{1,9}}[.)])[ \t]+)?(?:\[[ xX]\][ \t]+)?{_PLACE}[.:]?[ \t\r]*$")
_FIELD = re.compile(rf"[ \t]*[\w-]{{1,40}}[ \t]*:[ \t]+[\"']?(?:ADR-)?{_PLACE}[\"']?[ \t\r]*(?:#.*)?$")
_TITLE = re.compile(rf"ADR-\d+[ \t]*[:–—-][ \t]*{_PLACE}$")


def is_excerpt(adr: Adr) -> bool:
    """True for an ADR in a fence that decides nothing.

    That is one without a section and without content, as a header that is shown; or one whose content is all place
    holders. An ADR outside of fences, and one with a single line of real content, is never an excerpt.
    """
    if not adr.fenced:
        return False
    body = adr.header_lines[1] if adr.header else adr.start
    filled = False
    for _, line in content(adr.out, body, adr.end):
        if not _LINE.match(line):
            return False
        filled = True
    return filled or not adr.sections or _has_place_holder(adr)


def _has_place_holder(adr: Adr) -> bool:
    titles = (h.title for h in adr.out.headings if adr.start <= h.line < adr.end and h.level == 1)
    return any(_FIELD.match(line) for line in adr.yaml_text.split("\n")) or any(_TITLE.match(t) for t in titles)
