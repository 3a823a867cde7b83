"""`turns validate` judges a file as the first answer of a turn, and says what was edited before."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.enforcement.samples import ADR, HEADER
from worker.cli.validate import validate
from worker.enforcement import ADRStructureValidator, Policy, StepMarkerValidator, demote_issues, validate_attempt

MARKER = "<!-- STEP: generate -->\n"
RULES = [StepMarkerValidator(), ADRStructureValidator()]
TEXTS = [
    f"<think>\nHm.\n</think>\n{ADR}\n{MARKER}",
    f"```markdown\n{ADR}```\n\n{MARKER}",
    f"{HEADER}\n{ADR}\n{MARKER}",
    f"<think>\nHm.\n</think>\n{ADR.replace('## Kontext', '## Anderes')}\n{MARKER}",
    "<think>Only thoughts.",
    f"{ADR}\n{MARKER}",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_file_is_judged_as_the_same_answer_of_a_turn(text: str, tmp_path: Path) -> None:
    file = tmp_path / "answer.md"
    file.write_text(text)
    args = [str(file), "--root", str(tmp_path), "--validator", "step_marker", "--validator", "adr_structure", "--json"]
    (found,) = json.loads(CliRunner().invoke(validate, args).output)
    attempt = validate_attempt([], text, RULES, {"locale": "en"})
    assert found["valid"] is not bool(attempt.errors)
    assert [issue["code"] for issue in found["issues"]] == [i.code for i in demote_issues(attempt.issues, Policy())]
    assert found["edits"] == list(attempt.edits)


@pytest.mark.parametrize("form", ["sarif", "github"])
def test_edits_are_shown_to_code_hosts_as_notes(form: str, tmp_path: Path) -> None:
    file = tmp_path / "answer.md"
    file.write_text(f"\ufeff{ADR}\n{MARKER}")
    shown = CliRunner().invoke(validate, [str(file), "--root", str(tmp_path), "--format", form]).output
    words = "edited before the rules looked: byte_order_mark: removed the byte order mark (1×, 1 line)"
    if form == "github":
        assert shown == f"::notice file={file},line=1,title=ANSWER_EDITED::{words}\n"
    else:
        (result,) = json.loads(shown)["runs"][0]["results"]
        assert (result["level"], result["ruleId"], result["message"]["text"]) == ("note", "ANSWER_EDITED", words)


def test_a_line_is_the_line_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "answer.md"
    file.write_text("<think>\nHm.\n</think>\n\nText.\n\n<!-- STEP: quatsch -->\n")
    shown = CliRunner().invoke(validate, [str(file), "--root", str(tmp_path), "--validator", "step_marker"])
    assert "edited before the rules looked: reasoning: removed the model's reasoning" in shown.output
    assert f"{file}:7: error INVALID_STEP" in shown.output
    assert shown.exit_code == 1
