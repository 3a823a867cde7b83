"""Names of the parts of an answer that a retry may request alone (surgical retry, docs/enforcement.md)."""

from __future__ import annotations

import re

from worker.enforcement.documents.titles import REQUIRED_SECTIONS

#: The section whose content is a list.
CRITERIA = REQUIRED_SECTIONS[-1]
STEP_MARKER = "step_marker"
YAML_HEADER = "yaml_header"
#: The header key whose value is a block of paths; every other value is one line.
FILES = "files"
_SECTION = "## "
_FENCE, _LINES = "fence:", "lines:"
_FENCE_NAME = re.compile(r"fence:([^:\s]{0,40}):(\d{1,4})")
_LINES_NAME = re.compile(r"lines:(\d{1,7})-(\d{1,7})")
_KEY = YAML_HEADER + "."


def section_part(title: str) -> str:
    """Return the part name that feedback uses for the section with this title."""
    return _SECTION + title


def section_title(part: str) -> str | None:
    """Return the title of the section that a part name denotes, or None if the part is not a section."""
    return part.removeprefix(_SECTION) if part.startswith(_SECTION) else None


def field_part(key: str) -> str:
    """Return the part name that feedback uses for a key of the YAML header."""
    return _KEY + key


def header_key(part: str) -> str | None:
    """Return the header key that a part name denotes, or None if the part is not a header key."""
    return part.removeprefix(_KEY) if part.startswith(_KEY) else None


def in_header(part: str) -> bool:
    """Return True if a part name denotes the YAML header or one of its keys."""
    return part == YAML_HEADER or part.startswith(_KEY)


def fence_part(language: str, number: int) -> str:
    """Return the part name that feedback uses for a code block, counted by language from 1."""
    return f"{_FENCE}{language.lower()}:{number}"


def parse_fence_part(part: str) -> tuple[str, int] | None:
    """Return the language and number of the code block that a part name denotes, or None for other parts."""
    found = _FENCE_NAME.fullmatch(part)
    return (found[1], int(found[2])) if found else None


def lines_part(first: int, last: int) -> str:
    """Return the name that feedback uses for the lines from ``first`` to ``last``, which are counted from 1."""
    return f"{_LINES}{first}-{last}"


def lines_range(part: str) -> tuple[int, int] | None:
    """Return the first and last line of the range that a part name denotes, or None for other parts."""
    found = _LINES_NAME.fullmatch(part)
    return (int(found[1]), int(found[2])) if found else None
