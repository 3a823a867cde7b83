"""Issues as they cross the wire: what a validator, a gate or the verifier found, as one JSON object each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

#: An issue's wire form, as the worker's ``ValidationIssue`` writes it: code, message, severity and more.
Issue: TypeAlias = Mapping[str, Any]


def error_codes(issues: Iterable[Issue]) -> tuple[str, ...]:
    """The codes of the errors among issues, each once, in the order they were found. No severity means an error."""
    errors = (issue for issue in issues if issue.get("severity", "error") == "error")
    return tuple(dict.fromkeys(str(issue.get("code", "")) for issue in errors))
