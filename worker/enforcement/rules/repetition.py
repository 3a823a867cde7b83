"""Rule: the answer does not repeat itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from api_client.contract.issue import ValidationIssue
from worker.enforcement.documents.repetition import MIN_WORDS, MOST_PERCENT, measure_repetition
from worker.enforcement.rules.codes import rule_issue
from worker.enforcement.rules.rule import Rule, option


@dataclass(frozen=True, kw_only=True)
class RepetitionRule(Rule):
    """Rejects answers in which the model repeats words, sentences or paragraphs in a loop."""

    kind: ClassVar[str] = "repetition"
    bounded: ClassVar[bool] = True

    most_percent: int = option(MOST_PERCENT, "So much of the answer may repeat what it has said already, in per cent.")
    min_words: int = option(MIN_WORDS, "Shorter answers are not looked at, in words.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.most_percent <= 99:
            raise ValueError(f"most_percent must be 1 to 99, not {self.most_percent}")
        if self.min_words < 0:
            raise ValueError("min_words must not be negative")

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """Return an issue (ANSWER_REPEATS), with the line of the longest repetition, if too much is repeated."""
        found = measure_repetition(response)
        if not found.exceeds(self.most_percent, self.min_words):
            return []
        percent = round(100 * found.share)
        return [rule_issue("ANSWER_REPEATS", self.find_locale(context), line=found.line, percent=percent)]
