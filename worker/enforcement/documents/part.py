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
    """Return the part name of the section with this title."""
    return _SECTION + title


def section_title(part: str) -> str | None:
    """Return the title in a section's part name, or None if the part is not a section."""
    return part.removeprefix(_SECTION) if part.startswith(_SECTION) else None


def field_part(key: str) -> str:
    """Return the part name of a key in the YAML header."""
    return _KEY + key


def header_key(part: str) -> str | None:
    """Return the key that a part name refers to, or None if the part is not a single header key."""
    return part.removeprefix(_KEY) if part.startswith(_KEY) else None


def in_header(part: str) -> bool:
    """Return True if the part is the YAML header or one of its keys."""
    return part == YAML_HEADER or part.startswith(_KEY)


def fence_part(language: str, number: int) -> str:
    """Return the part name of a fenced code block, given its language and its position among blocks of that language.

    Positions count from 1.
    """
    return f"{_FENCE}{language.lower()}:{number}"


def parse_fence_part(part: str) -> tuple[str, int] | None:
    """Return the language and position in a code block's part name, or None if the part is not a code block."""
    found = _FENCE_NAME.fullmatch(part)
    return (found[1], int(found[2])) if found else None


def lines_part(first: int, last: int) -> str:
    """Return the part name of a range of lines, both included and counted from 1."""
    return f"{_LINES}{first}-{last}"


def lines_range(part: str) -> tuple[int, int] | None:
    """Return the first and last line in a part name, or None if the part is not a range of lines."""
    found = _LINES_NAME.fullmatch(part)
    return (int(found[1]), int(found[2])) if found else None
