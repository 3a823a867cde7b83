"""A rule: every answer links to at least one source."""

from collections.abc import Mapping
from typing import Any

from worker.enforcement import ResponseValidator, ValidationIssue


class CitesSource(ResponseValidator):
    """Rejects an answer without a link."""

    name = "cites_source"

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        if "](http" in response:
            return []
        return [ValidationIssue("MISSING_SOURCE", "The answer names no source", "Add at least one link")]
