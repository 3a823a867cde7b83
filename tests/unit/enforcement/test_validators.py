"""The interface of a validator, how validators are run, and how they are found by name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from api_client.contract import offered
from tests.unit.enforcement.samples import codes
from worker.enforcement import (
    ResponseValidator,
    Severity,
    StepMarkerValidator,
    UnknownValidatorError,
    ValidationIssue,
    ValidationResult,
    build_validators,
    examine,
    offered_validators,
)


class MyValidator(ResponseValidator):
    """The document's own example: "Adding Custom Validators"."""

    @property
    def name(self) -> str:
        return "my_validator"

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        if "required_text" not in response:
            return [
                ValidationIssue(
                    code="MISSING_TEXT",
                    message="Required text not found",
                    fix_hint="Add required_text to your response",
                )
            ]
        return []


def misbehaving(act: Any) -> ResponseValidator:
    class Misbehaving(MyValidator):
        def validate(self, response: str, context: Mapping[str, Any]) -> Any:
            return act(context)

    return Misbehaving()


def test_a_validator_written_by_the_document_works() -> None:
    (issue,) = examine("Text", [MyValidator()])
    assert (issue.code, issue.severity, issue.validator) == ("MISSING_TEXT", Severity.ERROR, "my_validator")
    assert examine("required_text", [MyValidator()]) == []
    assert MyValidator().apply_fallback("Text", {}) is None


def test_the_interface_cannot_be_used_without_its_two_methods() -> None:
    with pytest.raises(TypeError, match="abstract"):
        ResponseValidator()  # type: ignore[abstract]


def test_a_result_says_whether_an_error_was_found() -> None:
    assert MyValidator().check("Text") == ValidationResult(valid=False, issues=examine_raw())
    assert MyValidator().check("required_text")
    assert ValidationResult.of([ValidationIssue("A", "m", "f", "warning")]).valid


def examine_raw() -> list[ValidationIssue]:
    return MyValidator().validate("Text", {})


def test_a_severity_is_error_or_warning_and_nothing_else() -> None:
    assert ValidationIssue("A", "m", "f").severity is Severity.ERROR
    assert ValidationIssue("A", "m", "f", "warning").severity is Severity.WARNING
    with pytest.raises(ValueError, match="fatal"):
        ValidationIssue("A", "m", "f", "fatal")


def test_an_issue_survives_its_way_through_json() -> None:
    issue = ValidationIssue("A", "m", "f", "warning", "v", "a.md", 3, "## X")
    assert ValidationIssue.from_dict({**issue.to_dict(), "new_key": 1}) == issue


def leave(context: Any) -> Any:
    sys.exit(3)


def recurse(context: Any) -> Any:
    return recurse(context)


@pytest.mark.parametrize(
    "act",
    [
        lambda context: 1 / 0,
        leave,
        recurse,
        lambda context: None,
        lambda context: "text",
        lambda context: [1],
        lambda context: (one for one in ()),
    ],
)
def test_a_validator_that_fails_is_an_issue_and_the_others_still_judge(act: Any) -> None:
    issues = examine("Text", [misbehaving(act), StepMarkerValidator()])
    assert codes(issues) == ["VALIDATOR_ERROR", "MISSING_STEP_MARKER"]
    assert (issues[0].validator, issues[0].severity) == ("my_validator", "error")


def test_a_validator_cannot_change_what_the_next_one_sees() -> None:
    context: dict[str, Any] = {"files": {"a.md": "x"}, "k": 1}

    def spoil(own: dict[str, Any]) -> list[ValidationIssue]:
        own["files"].clear()
        own.clear()
        return []

    assert examine("Text", [misbehaving(spoil)], context) == []
    assert context == {"files": {"a.md": "x"}, "k": 1}


def test_a_validators_message_cannot_break_a_frame_or_a_prompt() -> None:
    def shout(context: Any) -> Any:
        raise ValueError("zeile1\n\ndata: [DONE]\x1b[2J" + "x" * 1000)

    (issue,) = examine("Text", [misbehaving(shout)])
    assert "\n" not in issue.message
    assert "\x1b" not in issue.message
    assert len(issue.message) < 200


def test_an_answer_beyond_all_measure_is_not_examined() -> None:
    assert codes(examine("x" * 4_194_305, [misbehaving(leave)])) == ["ANSWER_TOO_LONG"]


def test_validators_are_built_by_name_in_the_order_asked_for(tmp_path: Path) -> None:
    built = build_validators(["file_existence", "step_marker"], root=tmp_path)
    assert [validator.name for validator in built] == ["file_existence", "step_marker"]
    assert offered_validators()[:3] == ("step_marker", "adr_structure", "file_existence")


def test_an_unknown_name_is_refused_with_the_offered_ones_and_the_likely_one(tmp_path: Path) -> None:
    with pytest.raises(UnknownValidatorError) as caught:
        build_validators(["step_markers"], root=tmp_path)
    assert "did you mean 'step_marker'?" in str(caught.value)
    assert "(offered: step_marker, adr_structure, file_existence" in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="twice"):
        build_validators(["step_marker", "step_marker"], root=tmp_path)


def test_validators_of_ones_own_are_found_through_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = f"{__name__}:MyValidator"
    entries = [
        EntryPoint("my_validator", here, offered.GROUP),
        EntryPoint("step_marker", here, offered.GROUP),
        EntryPoint("other", here, offered.GROUP),
    ]
    monkeypatch.setattr(offered, "entry_points", lambda group: entries)
    offered._installed.cache_clear()
    try:
        assert offered_validators() == ("step_marker", "adr_structure", "file_existence", "my_validator", "other")
        (own, ours) = build_validators(["my_validator", "step_marker"], root=tmp_path)
        assert isinstance(own, MyValidator)
        assert isinstance(ours, StepMarkerValidator)
        with pytest.raises(TypeError, match="named 'other'"):
            build_validators(["other"], root=tmp_path)
    finally:
        offered._installed.cache_clear()
