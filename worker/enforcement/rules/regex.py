"""Rule: the answer matches some regular expressions and does not match others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from api_client.contract.issue import ValidationIssue
from worker.enforcement.rules.codes import rule_issue
from worker.enforcement.rules.rule import Rule, option

#: A pattern for one value as the whole answer: anchored at both ends, without label or wildcard.
_VALUE = re.compile(r"(?:\(\?[a-z]+\))?(?:\^|\\A)(?:(?!\.[*+]|: |\n)(?:\\.|[^\\]))*(?:\$|\\Z)\Z")


@dataclass(frozen=True, kw_only=True)
class RegexRule(Rule):
    """Requires that an answer matches certain regular expressions, and that it does not match certain others.

    Not ``bounded``, because a pattern such as ``(a+)+$`` may take exponential time.
    """

    kind: ClassVar[str] = "regex"

    must: tuple[str, ...] = option((), "Patterns that the answer must match somewhere.")
    must_not: tuple[str, ...] = option((), "Patterns that must match nowhere in the answer.")
    describe: str = option("", "What the patterns mean, in words for the agent; else it reads the pattern itself.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.must or self.must_not):
            raise ValueError("must or must_not needs at least one pattern")
        for pattern in (*self.must, *self.must_not):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"the pattern {pattern!r} is not valid: {error}") from None

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """Return an issue for each required pattern without a match and each forbidden pattern with a match.

        The codes are PATTERN_MISSING and PATTERN_FOUND.
        """
        locale = self.find_locale(context)
        issues = [
            replace(
                rule_issue("PATTERN_MISSING", locale, pattern=self.describe or pattern),
                shortens=_VALUE.match(pattern) is not None,
            )
            for pattern in self.must
            if not re.search(pattern, response, re.MULTILINE)
        ]
        for pattern in self.must_not:
            if found := re.search(pattern, response, re.MULTILINE):
                line = response.count("\n", 0, found.start()) + 1
                issues.append(rule_issue("PATTERN_FOUND", locale, line=line, pattern=self.describe or pattern))
        return issues
