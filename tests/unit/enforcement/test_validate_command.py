"""``turns validate``: exit codes, lines for people, JSON for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.unit.enforcement.samples import ADR, header_with
from worker.cli.validate import command


def run(*arguments: str, given: str | bytes | None = None) -> Result:
    return CliRunner().invoke(command, list(arguments), input=given, env={"HELIX_ROOT": ""})


@pytest.fixture
def answer(tmp_path: Path) -> Path:
    path = tmp_path / "answer.md"
    path.write_text("Antwort.\n\n<!-- STEP: done -->\n")
    return path


def test_a_good_answer_is_ok_and_exits_with_0(answer: Path) -> None:
    result = run(str(answer))
    assert (result.exit_code, result.output) == (0, f"{answer}: ok\n")


def test_errors_exit_with_1_and_name_file_line_code_message_and_fix(answer: Path) -> None:
    answer.write_text("Antwort.\n\n<!-- STEP: foo -->\n")
    result = run(str(answer))
    assert result.exit_code == 1
    assert result.output == (
        f"{answer}:3: error INVALID_STEP: Invalid step: foo\n"
        "    fix: Valid steps: constraints, done, finalize, generate, what, why\n"
    )


def test_warnings_alone_exit_with_0(answer: Path) -> None:
    answer.write_text("<!-- STEP: done -->\nNoch etwas.\n")
    result = run(str(answer))
    assert (result.exit_code, "warning TEXT_AFTER_MARKER" in result.output) == (0, True)


def test_standard_input_is_read_for_a_dash() -> None:
    assert run("-", given="Text <!-- STEP: done -->").exit_code == 0
    assert run("-", given="Text").exit_code == 1


def test_json_has_every_file_with_its_issues(answer: Path) -> None:
    result = run(str(answer), "-", "--json", given="Text")
    first, second = json.loads(result.output)
    assert first == {"file": str(answer), "valid": True, "issues": []}
    assert (second["valid"], second["issues"][0]["code"]) == (False, "MISSING_STEP_MARKER")
    assert result.exit_code == 1


def test_only_the_named_validators_judge(tmp_path: Path) -> None:
    path = tmp_path / "text.md"
    path.write_text(ADR)
    assert run(str(path)).exit_code == 1
    assert run(str(path), "--validator", "adr_structure").exit_code == 0


def test_a_file_named_adr_needs_no_step_marker_but_must_be_one(tmp_path: Path) -> None:
    path = tmp_path / "adr-040.md"
    path.write_text(ADR)
    assert run(str(path)).exit_code == 0
    path.write_text("Nur Text.")
    assert "MISSING_YAML_HEADER" in run(str(path)).output


def test_paths_are_relative_to_the_root(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    path = tmp_path / "adr-1.md"
    path.write_text(header_with("files:\n  modify: [a.py]\n"))
    assert run(str(path), "--root", str(tmp_path)).exit_code == 0
    (tmp_path / "other").mkdir()
    assert "FILE_NOT_FOUND" in run(str(path), "--root", str(tmp_path / "other")).output


def test_messages_come_in_english_too() -> None:
    assert "The response has no STEP marker" in run("-", "--locale", "en", given="x").output


@pytest.mark.parametrize("arguments", [[], ["nothing.md"], ["-", "--validator", "step_markr"], ["-", "--shout"]])
def test_wrong_use_exits_with_2(arguments: list[str]) -> None:
    assert run(*arguments, given="x").exit_code == 2


def test_a_file_that_is_no_text_is_wrong_use(tmp_path: Path) -> None:
    path = tmp_path / "x.md"
    path.write_bytes(b"\xff\xfe\x00")
    result = run(str(path))
    assert result.exit_code == 2
    assert "not UTF-8" in result.output


def test_an_answer_cannot_drive_the_terminal() -> None:
    result = run("-", given="<!-- STEP: \x1b[2J -->")
    assert "\x1b" not in result.output
