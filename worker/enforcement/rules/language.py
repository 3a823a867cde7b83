"""Rule: the answer is written in a given language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from api_client.contract.issue import ValidationIssue
from worker.enforcement.documents.function_words import FUNCTION_WORDS, count_function_words, most_frequent_language
from worker.enforcement.rules.codes import rule_issue
from worker.enforcement.rules.rule import Rule, option

_TAGS = ("de", "en", "es", "fr", "it", "nl")
_NAMES = {
    "de": dict(
        zip(_TAGS, ("Deutsch", "Englisch", "Spanisch", "Französisch", "Italienisch", "Niederländisch"), strict=True)
    ),
    "en": dict(zip(_TAGS, ("German", "English", "Spanish", "French", "Italian", "Dutch"), strict=True)),
}
_CLEARLY = 1.5


@dataclass(frozen=True, kw_only=True)
class LanguageRule(Rule):
    """Requires that an answer is written in a certain language. Code is ignored, and short texts are accepted."""

    kind: ClassVar[str] = "language"
    bounded: ClassVar[bool] = True

    expect: str = option("de", "The language: de, en, es, fr, it or nl.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expect not in FUNCTION_WORDS:
            raise ValueError(f"expect must be one of {', '.join(FUNCTION_WORDS)}, not {self.expect!r}")

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """Return an issue if the answer is clearly in another language (WRONG_LANGUAGE)."""
        counts = count_function_words(response)
        found = most_frequent_language(counts)
        if found in ("", self.expect) or counts[found] < _CLEARLY * counts[self.expect]:
            return []
        locale = self.find_locale(context)
        names = _NAMES.get(locale, _NAMES["en"])
        return [rule_issue("WRONG_LANGUAGE", locale, wanted=names[self.expect], found=names[found])]
