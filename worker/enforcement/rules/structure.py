"""Rule: the answer has the sections of a template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from api_client.contract.issue import ValidationIssue
from worker.enforcement.documents.content import is_filled
from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.outline import Heading
from worker.enforcement.documents.part import section_part
from worker.enforcement.documents.titles import plain_title, section_key
from worker.enforcement.rules.codes import rule_issue
from worker.enforcement.rules.rule import Rule, option

#: ``|`` separates alternative names of a section.
PRESETS: Mapping[str, tuple[str, ...]] = {
    "adr-madr": ("Context and Problem Statement|Kontext und Problemstellung", "Considered Options|Optionen",
                 "Decision Outcome|Entscheidung"),
    "adr-nygard": ("Status", "Context|Kontext", "Decision|Entscheidung", "Consequences|Konsequenzen"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StructureRule(Rule):
    """Requires that an answer has the sections of a template, whatever the formatting of the headings."""

    kind: ClassVar[str] = "structure"
    bounded: ClassVar[bool] = True

    preset: str = option("", "A template by name: adr-madr or adr-nygard.")
    sections: tuple[str, ...] = option((), "Headings that must be there; `Context|Kontext` names one section twice.")
    level: int = option(2, "The level of these headings; 0 for any.")
    filled: bool = option(True, "A section must have content besides its heading.")
    ordered: bool = option(False, "The sections must be in the template's order.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.preset and self.preset not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, not {self.preset!r}")
        if not (self.preset or self.sections):
            raise ValueError("preset or sections must name at least one section")
        if not 0 <= self.level <= 6:
            raise ValueError(f"level must be 0 to 6, not {self.level}")
        if not all(name.strip() for section in self.wanted for name in section.split("|")):
            raise ValueError("sections holds an empty name")

    @property
    def wanted(self) -> tuple[str, ...]:
        """Return the names of the required sections: first those of the preset, then those of the option."""
        return (*PRESETS.get(self.preset, ()), *self.sections)

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """Return an issue for each section that is missing or empty, and for the first section out of order.

        The codes are MISSING_SECTION, EMPTY_SECTION and SECTION_ORDER.
        """
        locale, out = self.find_locale(context), parse_document(response).out
        issues, places = [], []
        ends = out.section_ends()
        for section in self.wanted:
            names = {section_key(name) for name in section.split("|")}
            found = [
                (heading, end)
                for heading, end in zip(out.headings, ends, strict=True)
                if heading.top
                and (not self.level or heading.level == self.level)
                and section_key(heading.title) in names
            ]
            shown = f"{'#' * (self.level or 2)} {section.partition('|')[0]}"
            # Code inserts a missing section at level 2; for another level the agent is asked.
            part = section_part(section.partition("|")[0]) if found or self.level in (0, 2) else ""
            if not found:
                issues.append(rule_issue("MISSING_SECTION", locale, part=part, section=shown))
                continue
            first = found[0][0]
            places.append(first)
            state = "status" in names
            if self.filled and not any(is_filled(out, one.line + 1, end, state=state) for one, end in found):
                issues.append(rule_issue("EMPTY_SECTION", locale, line=first.line + 1, part=part, section=shown))
        if self.ordered:
            issues += self._check_order(places, locale)
        return issues

    def _check_order(self, places: list[Heading], locale: str) -> list[ValidationIssue]:
        for before, here in pairwise(places):
            if here.line < before.line:
                order = " → ".join(section.partition("|")[0] for section in self.wanted)
                values = {"section": plain_title(before.title), "order": order}
                return [rule_issue("SECTION_ORDER", locale, line=before.line + 1, **values)]
        return []
