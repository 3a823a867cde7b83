"""Rule: the answer is neither too short nor too long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from api_client.contract.issue import ValidationIssue
from worker.enforcement.documents.placeholders import remove_placeholders
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.rules.codes import rule_issue
from worker.enforcement.rules.rule import Rule, option
from worker.enforcement.validators.codes import choose_text


@dataclass(frozen=True, kw_only=True)
class LengthRule(Rule):
    """Limits the number of characters and words in an answer. Placeholders do not count towards a minimum."""

    kind: ClassVar[str] = "length"
    bounded: ClassVar[bool] = True

    min_chars: int = option(0, "The fewest characters that are accepted.")
    max_chars: int = option(0, "The most characters that are accepted; 0 for no bound.")
    min_words: int = option(0, "The fewest words that are accepted.")
    max_words: int = option(0, "The most words that are accepted; 0 for no bound.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for least, most in (("min_chars", "max_chars"), ("min_words", "max_words")):
            bounds = getattr(self, least), getattr(self, most)
            if min(bounds) < 0:
                raise ValueError(f"{least} and {most} must not be negative")
            if bounds[1] and bounds[0] > bounds[1]:
                raise ValueError(f"{least} is above {most}")

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """Return an issue (ANSWER_TOO_SHORT or ANSWER_OVER_LENGTH) for each limit that the answer violates."""
        locale, text = self.find_locale(context), strip_marker(response).strip()
        filled = text if not (self.min_chars or self.min_words) else remove_placeholders(text)
        characters, said = choose_text(locale, "Zeichen", "characters"), choose_text(locale, "Wörter", "words")
        counts = [(len(filled), len(text), self.min_chars, self.max_chars, characters)]
        if self.min_words or self.max_words:
            counts.append((len(filled.split()), len(text.split()), self.min_words, self.max_words, said))
        issues = []
        for written, count, least, most, unit in counts:
            if written < least:
                issues.append(rule_issue("ANSWER_TOO_SHORT", locale, count=written, bound=least, unit=unit))
            elif most and count > most:
                issues.append(rule_issue("ANSWER_OVER_LENGTH", locale, count=count, bound=most, unit=unit))
        return issues
