"""Names of the parts of an answer that can be asked for and spliced in alone (surgical retry, docs/enforcement.md)."""

from __future__ import annotations

from worker.enforcement.codes import words

#: The sections every ADR has, in their order (ADR-038 section 3).
REQUIRED_SECTIONS = ("Kontext", "Entscheidung", "Akzeptanzkriterien")

STEP_MARKER = "step_marker"
YAML_HEADER = "yaml_header"
_SECTION = "## "


def section_part(title: str) -> str:
    """The name of a level 2 section of an ADR."""
    return _SECTION + title


def section_title(part: str) -> str | None:
    """The title of the section a part names; None for another part."""
    return part.removeprefix(_SECTION) if part.startswith(_SECTION) else None


def describe(part: str, locale: str) -> str:
    """A part in words for the agent."""
    if part == STEP_MARKER:
        return words(locale, "den STEP-Marker", "the STEP marker")
    if part == YAML_HEADER:
        return words(
            locale, "den vollständigen YAML-Header (mit den --- Zeilen)", "the whole YAML header (with its --- lines)"
        )
    return words(locale, f"die Section '{part}'", f"the section '{part}'")
