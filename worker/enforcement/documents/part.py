"""Names of the parts of an answer that can be asked for and spliced in alone (surgical retry, docs/enforcement.md)."""

from __future__ import annotations

from worker.enforcement.codes import words
from worker.enforcement.documents.titles import REQUIRED_SECTIONS

__all__ = [
    "CRITERIA",
    "FILES",
    "REQUIRED_SECTIONS",
    "STEP_MARKER",
    "YAML_HEADER",
    "describe",
    "field_part",
    "header_key",
    "in_header",
    "section_part",
    "section_title",
]

#: The section whose content is a list.
CRITERIA = REQUIRED_SECTIONS[-1]
STEP_MARKER = "step_marker"
YAML_HEADER = "yaml_header"
#: The header's key whose value is a block of paths; every other key is a line.
FILES = "files"
_SECTION = "## "
_KEY = YAML_HEADER + "."


def section_part(title: str) -> str:
    """The name of a section of an ADR."""
    return _SECTION + title


def section_title(part: str) -> str | None:
    """The title of the section a part names; None for another part."""
    return part.removeprefix(_SECTION) if part.startswith(_SECTION) else None


def field_part(key: str) -> str:
    """The name of one key of an ADR's YAML header, with its value."""
    return _KEY + key


def header_key(part: str) -> str | None:
    """The key of the header that a part names; None for another part, also for the whole header."""
    return part.removeprefix(_KEY) if part.startswith(_KEY) else None


def in_header(part: str) -> bool:
    """True for the YAML header and for its keys."""
    return part == YAML_HEADER or part.startswith(_KEY)


def describe(part: str, locale: str) -> str:
    """A part in words for the agent."""
    if part == STEP_MARKER:
        return words(locale, "den STEP-Marker", "the STEP marker")
    if part == YAML_HEADER:
        return words(
            locale, "den vollständigen YAML-Header (mit den --- Zeilen)", "the whole YAML header (with its --- lines)"
        )
    key = header_key(part)
    if key == FILES:
        return words(locale, "den ganzen Block 'files' des YAML-Headers", "the whole block 'files' of the YAML header")
    if key:
        return words(locale, f"die Zeile '{key}' des YAML-Headers", f"the line '{key}' of the YAML header")
    return words(locale, f"die Section '{part}'", f"the section '{part}'")
