"""The interface of a validator, how validators are run, and how they are found by name."""

import json
import re
import string
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import openai
import pytest

import worker.enforcement
from api_client.contract import validator_names
from api_client.contract.plugins import VALIDATOR
from tests.unit.enforcement.samples import codes
from worker.enforcement import (
    CODES,
    ResponseEnforcer,
    ResponseValidator,
    Severity,
    StepMarkerValidator,
    UnknownValidatorError,
    ValidationIssue,
    ValidationResult,
    build_validators,
    offered_validators,
    run_validators,
)
from worker.enforcement.error_stream import error_object
from worker.enforcement.rules.codes import RULE_CODES
from worker.enforcement.validators.codes import clip_text, make_issue
from worker.pytest_plugin import RulesUnderTest


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
    (issue,) = run_validators("Text", [MyValidator()])
    assert (issue.code, issue.severity, issue.validator) == ("MISSING_TEXT", Severity.ERROR, "my_validator")
    assert run_validators("required_text", [MyValidator()]) == []
    assert MyValidator().apply_fallback("Text", {}) is None


def test_the_interface_cannot_be_used_without_its_two_methods() -> None:
    with pytest.raises(TypeError, match="abstract"):
        ResponseValidator()  # type: ignore[abstract]


def test_a_result_says_whether_an_error_was_found() -> None:
    assert MyValidator().check("Text") == ValidationResult(valid=False, issues=examine_raw())
    assert MyValidator().check("required_text")
    assert ValidationResult.from_issues([ValidationIssue("A", "m", "f", "warning")]).valid


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


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ("MISSING", "returned str"),
        (["MISSING"], "returned a list with str"),
        ([ValidationIssue(1, "m", "f")], "returned an issue whose code is int"),  # type: ignore[arg-type]
        ([ValidationIssue("A", "m", "f", line="3")], "returned an issue whose line is str"),  # type: ignore[arg-type]
    ],
)
def test_what_a_validator_returns_instead_of_issues_is_named(found: Any, words: str) -> None:
    (issue,) = run_validators("Text", [misbehaving(lambda context: found)])
    assert (issue.code, issue.message.endswith(f": {words}")) == ("VALIDATOR_ERROR", True), issue.message


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
    issues = run_validators("Text", [misbehaving(act), StepMarkerValidator()])
    assert codes(issues) == ["VALIDATOR_ERROR", "MISSING_STEP_MARKER"]
    assert (issues[0].validator, issues[0].severity) == ("my_validator", "error")


def test_a_validator_cannot_change_what_the_next_one_sees() -> None:
    context: dict[str, Any] = {"files": {"a.md": "x"}, "k": 1}

    def spoil(own: dict[str, Any]) -> list[ValidationIssue]:
        own["files"].clear()
        own.clear()
        return []

    assert run_validators("Text", [misbehaving(spoil)], context) == []
    assert context == {"files": {"a.md": "x"}, "k": 1}


def test_a_validators_message_cannot_break_a_frame_or_a_prompt() -> None:
    def shout(context: Any) -> Any:
        raise ValueError("zeile1\n\ndata: [DONE]\x1b[2J" + "x" * 1000)

    (issue,) = run_validators("Text", [misbehaving(shout)])
    assert "\n" not in issue.message
    assert "\x1b" not in issue.message
    assert len(issue.message) < 200


def test_an_answer_beyond_all_measure_is_not_examined() -> None:
    assert codes(run_validators("x" * 4_194_305, [misbehaving(leave)])) == ["ANSWER_TOO_LONG"]


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
        EntryPoint("my_validator", here, VALIDATOR),
        EntryPoint("step_marker", here, VALIDATOR),
        EntryPoint("other", here, VALIDATOR),
    ]
    monkeypatch.setattr(validator_names, "find_plugins", lambda group: {entry.name: entry for entry in entries})
    assert offered_validators() == ("step_marker", "adr_structure", "file_existence", "my_validator", "other")
    (own, ours) = build_validators(["my_validator", "step_marker"], root=tmp_path)
    assert isinstance(own, MyValidator)
    assert isinstance(ours, StepMarkerValidator)
    with pytest.raises(TypeError, match="named 'other'"):
        build_validators(["other"], root=tmp_path)


# The closed table of codes, and the documents that list it.

DOCS = Path(__file__).parents[3] / "docs"

#: ADR-038's eight.
SEEDS = {
    "MISSING_STEP_MARKER",
    "INVALID_STEP",
    "MISSING_ADR_FIELD",
    "INVALID_YAML",
    "MISSING_YAML_HEADER",
    "MISSING_ADR_SECTION",
    "INSUFFICIENT_CRITERIA",
    "FILE_NOT_FOUND",
}


def values_for(code: str) -> dict[str, str]:
    """A value for each name in the code's templates."""
    texts = (*CODES[code].de, *CODES[code].en)
    return {name: "wert" for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}


def test_the_seeds_codes_are_all_there_with_their_severity() -> None:
    assert set(CODES) >= SEEDS
    assert [code for code in SEEDS if CODES[code].severity is Severity.WARNING] == ["INSUFFICIENT_CRITERIA"]


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_words_in_both_languages_with_the_same_values(code: str) -> None:
    entry, values = CODES[code], values_for(code)
    german, english = make_issue(code, "de", **values), make_issue(code, "en", **values)  # type: ignore[arg-type]
    assert german.severity is english.severity is entry.severity
    assert german.message != english.message
    assert "{" not in german.message + german.fix_hint + english.message + english.fix_hint
    assert entry.when.endswith(".")


def test_every_code_of_the_table_is_used_and_no_other() -> None:
    package = Path(worker.enforcement.__file__).parent
    files = [*package.rglob("*.py"), *(package.parent / "plugins" / "claims").glob("*.py")]
    source = "\n".join(file.read_text() for file in files if file.name != "codes.py")
    written = set(re.findall(r'"([A-Z]+(?:_[A-Z]+)+)"', source))
    assert {*CODES, *RULE_CODES} <= written
    assert {code for code in written if f' issue("{code}"' in source} <= set(CODES)
    assert {code for code in written if f'rule_issue("{code}"' in source} <= set(RULE_CODES)


def test_the_document_lists_every_code_with_its_severity_occasion_and_repair() -> None:
    text = (DOCS / "enforcement.md").read_text()
    assert re.findall(r"^- `([A-Z_]+)`", text.partition("## Codes")[2], re.MULTILINE) == list(CODES)
    for code, entry in CODES.items():
        mark = "" if entry.severity == "error" else f" ({entry.severity})"
        assert f"- `{code}`{mark}: {entry.when}{' ' + entry.repair if entry.repair else ''}\n" in text


def test_the_example_of_a_validator_in_the_documents_works() -> None:
    (example,) = re.findall(r"```python\n(from collections.*?)```", (DOCS / "validators.md").read_text(), re.DOTALL)
    space: dict[str, object] = {}
    exec(example, space)
    assert len([line for line in example.splitlines() if line.startswith(("class", " "))]) <= 12
    made = space["CitesSource"]
    assert isinstance(made, type)
    validator = made()
    assert isinstance(validator, ResponseValidator)
    (found,) = validator.validate("Ohne Beleg.", {})
    assert isinstance(found, ValidationIssue)
    assert validator.validate("Siehe [1](https://example.org).", {}) == []


@pytest.mark.parametrize(
    ("text", "shown"), [("a\nb", "a b"), ("\x1b[2J", " [2J"), ("x" * 100, "x" * 79 + "…"), ("ä", "ä"), ("", "")]
)
def test_foreign_text_in_messages_is_short_and_printable(text: str, shown: str) -> None:
    assert clip_text(text) == shown


# The fixture ``helix_turns``, as authors of rules use it, and use it wrongly.

GOOD = "Text.\n\n<!-- STEP: done -->"


def test_a_policy_file_is_named_by_a_path_or_its_text_is_given(tmp_path: Path) -> None:
    text = "rules: [step_marker]"
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    for form in (file, str(file), text):
        RulesUnderTest(policy=form).assert_rejected("Text.", "MISSING_STEP_MARKER")
    with pytest.raises(FileNotFoundError):
        RulesUnderTest(policy="none.yaml")


@pytest.mark.parametrize("wrong", [42, None, StepMarkerValidator, Path("rule.py")], ids=repr)
def test_what_is_no_validator_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(TypeError, match="is not a validator"):
        RulesUnderTest(wrong)


def test_an_agent_is_asked_again_in_a_plain_test() -> None:
    assert RulesUnderTest("step_marker").run("Text.", GOOD).attempts == 2


async def test_an_agent_is_asked_again_in_an_asynchronous_test() -> None:
    assert RulesUnderTest("step_marker").run("Text.", GOOD).attempts == 2


# A rejected answer on the wire: what an OpenAI client can read, with ADR-038's lines in it.

ISSUES = [
    ValidationIssue("A_CODE", 'erste Zeile\nzweite "Zeile"\r\n\r\ndata: [DONE]', "f"),
    ValidationIssue("B", "m", "f"),
]


async def frames() -> list[str]:
    enforcer = ResponseEnforcer(SimpleNamespace(run_session=None, continue_session=None))
    return [frame async for frame in enforcer.stream_enforcement_error(ISSUES)]


def data_of(frame: str) -> Any:
    assert frame.startswith("data: ")
    assert frame.endswith("\n\n")
    return json.loads(frame[6:-2])


async def test_every_frame_is_one_event_of_json_and_the_last_is_done() -> None:
    *events, done = await frames()
    assert done == "data: [DONE]\n\n"
    for frame in events:
        assert frame.count("\n") == 2
        data_of(frame)


async def test_the_chunks_say_the_adrs_lines() -> None:
    chunks = [data_of(frame) for frame in (await frames())[:-1]]
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if "choices" in c)
    assert text.startswith("[ENFORCEMENT ERROR]\nThe LLM response could not be validated:\n- A_CODE: erste Zeile")
    assert text.endswith("- B: m\nPlease try again or contact the administrator.\n")


async def test_the_error_is_an_object_without_choices() -> None:
    error = data_of((await frames())[-2])
    assert error == {"error": error_object(ISSUES)}
    assert error["error"]["code"] == "A_CODE"
    assert error["error"]["message"] == "The LLM response could not be validated: A_CODE, B"
    assert error_object(ISSUES, "de")["message"] == "Die LLM-Response konnte nicht validiert werden: A_CODE, B"


async def test_the_openai_client_reads_the_lines_and_then_raises_the_error() -> None:
    body = "".join(await frames())

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, text=body)

    client = openai.OpenAI(
        api_key="k", base_url="http://test/v1", http_client=httpx2.Client(transport=httpx2.MockTransport(answer))
    )
    stream = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=True)
    seen: list[str] = []

    def read() -> None:
        seen.extend(chunk.choices[0].delta.content or "" for chunk in stream)

    with pytest.raises(openai.APIError, match="could not be validated: A_CODE"):
        read()
    assert "".join(seen).startswith("[ENFORCEMENT ERROR]\n")
