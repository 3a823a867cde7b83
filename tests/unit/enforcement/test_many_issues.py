"""A rule that returns far too much, or what is no issue, does not fill records, feedback or pages."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.enforcement.samples import codes
from worker.enforcement import ResponseValidator, ValidationIssue, run_validators
from worker.enforcement.answer_validation import MAX_ISSUES, MAX_MESSAGE


class Returns(ResponseValidator):
    name = "own"

    def __init__(self, made: Callable[[], Any]) -> None:
        self._made = made

    def validate(self, response: str, context: Any) -> Any:
        return self._made()


def issues(count: int, severity: str = "error") -> list[ValidationIssue]:
    return [ValidationIssue("OWN", f"issue {number}", "fix", severity=severity) for number in range(count)]


def found(made: Callable[[], Any]) -> list[ValidationIssue]:
    return run_validators("A text.", [Returns(made)], {"locale": "en"})


@pytest.mark.parametrize("kind", [list, tuple])
def test_of_tens_of_thousands_of_issues_the_first_are_kept_and_the_others_counted(kind: Callable[[Any], Any]) -> None:
    seen = found(lambda: kind(issues(50_000)))
    assert [issue.message for issue in seen[:MAX_ISSUES]] == [f"issue {number}" for number in range(MAX_ISSUES)]
    [more] = seen[MAX_ISSUES:]
    assert (more.code, more.is_error, more.validator) == ("MORE_ISSUES", False, "own")
    assert more.message == f"Validator own found {50_000 - MAX_ISSUES} more issues"


def test_an_error_behind_many_warnings_is_kept() -> None:
    assert found(lambda: [*issues(50_000, "warning"), *issues(1)])[0].is_error


def test_the_same_issue_counts_once() -> None:
    assert codes(found(lambda: issues(1) * 50_000)) == ["OWN"]


def test_as_many_as_are_kept_are_not_counted() -> None:
    assert codes(found(lambda: issues(MAX_ISSUES))) == ["OWN"] * MAX_ISSUES


def test_long_messages_are_cut() -> None:
    [issue] = found(lambda: [ValidationIssue("OWN", "m" * 10**6, "f" * 10**6)])
    assert (len(issue.message), len(issue.fix_hint)) == (MAX_MESSAGE, MAX_MESSAGE)


@pytest.mark.parametrize(
    "made",
    [
        lambda: None,
        lambda: "text",
        lambda: {"a": 1},
        lambda: (issue for issue in issues(2)),
        lambda: [*issues(2), "text"],
        lambda: [ValidationIssue("OWN", 5, "fix")],  # type: ignore[arg-type]
        lambda: [ValidationIssue("OWN", "message", None)],  # type: ignore[arg-type]
        lambda: [ValidationIssue(None, "message", "fix")],  # type: ignore[arg-type]
        lambda: [ValidationIssue("OWN", "message", "fix", line="3")],  # type: ignore[arg-type]
        lambda: [ValidationIssue("OWN", "message", "fix", file=["a.md"])],  # type: ignore[arg-type]
    ],
)
def test_what_is_no_list_of_issues_is_an_error_of_the_rule(made: Callable[[], Any]) -> None:
    assert codes(found(made)) == ["VALIDATOR_ERROR"]
