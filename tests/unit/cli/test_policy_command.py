"""``turns policy``, and ``turns validate`` with a policy and as a linter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from worker.cli.policy import command as policy
from worker.cli.validate import command as validate

POLICY = """\
rules:
  - {rule: length, name: short, options: {max_chars: 12}, applies_to: {models: [small]}}
  - step_marker
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


def run(*arguments: object, command=policy, given: str | None = None) -> Result:
    return CliRunner().invoke(command, [str(each) for each in arguments], input=given, env={"HELIX_ROOT": ""})


def test_check_names_rules_and_hash(file: Path) -> None:
    assert run("check", file).output.startswith(f"{file}: 2 rules, hash ")
    assert json.loads(run("check", file, "--json").output)["rules"] == ["short", "step_marker"]


def test_check_refuses_with_every_problem_and_its_place(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("rules:\n  - rule: lenght\nmax_attempts: 0\n")
    result = run("check", path)
    assert result.exit_code == 2
    assert f"{path}:2:11: rules[1].rule: unknown validator 'lenght'" in result.output
    assert f"{path}:3:15: max_attempts: must be a whole number from 1 to 20, not '0'" in result.output


def test_show_gives_the_rules_of_a_turn(file: Path) -> None:
    assert "short" in run("show", file).output
    assert "short" in run("show", file, "--model", "small").output
    assert "short" not in run("show", file, "--model", "large").output
    assert [rule["name"] for rule in json.loads(run("show", file, "--json").output)["rules"]] == [
        "short",
        "step_marker",
    ]


def test_diff_compares_meanings(file: Path, tmp_path: Path) -> None:
    same, other = tmp_path / "same.yaml", tmp_path / "other.yaml"
    same.write_text("# the same\n" + POLICY)
    other.write_text(POLICY.replace("12", "14"))
    assert (run("diff", file, same).exit_code, run("diff", file, same).output) == (0, "")
    result = run("diff", file, other)
    assert result.exit_code == 1
    assert "-short.options: {'max_chars': 12}\n+short.options: {'max_chars': 14}" in result.output
    assert set(json.loads(run("diff", file, other, "--json").output)["rules"]) == {"short"}


def test_schema_is_json() -> None:
    assert json.loads(run("schema").output)["title"] == "helix-turns policy"


def test_validate_takes_the_rules_of_a_policy(file: Path) -> None:
    long = "A long answer.\n\n<!-- STEP: done -->\n"
    assert run("-", "--policy", file, command=validate, given=long).exit_code == 0
    result = run("-", "--policy", file, "--model", "small", "--locale", "en", command=validate, given=long)
    assert (result.exit_code, "ANSWER_OVER_LENGTH" in result.output) == (1, True)


def test_validate_reads_standard_input_once_and_refuses_two_sources_of_rules(file: Path) -> None:
    result = run("-", "--policy", file, "--validator", "step_marker", command=validate, given="x")
    assert (result.exit_code, "exclude each other" in result.output) == (2, True)


def test_validate_names_a_rule_file_that_is_not_there_in_one_line(tmp_path: Path) -> None:
    policy = tmp_path / "p.yaml"
    policy.write_text("rules: [{rule: rules/none.py}]")
    result = run("-", "--policy", policy, command=validate, given="x")
    assert result.exit_code == 2
    assert "a rule cannot be made: rules/none.py: No such file or directory" in result.output


def test_validate_writes_sarif(tmp_path: Path) -> None:
    answer = tmp_path / "answer.md"
    answer.write_text("Text\n\n<!-- STEP: foo -->\n")
    result = run(answer, "--validator", "step_marker", "--format", "sarif", command=validate)
    written = json.loads(result.output)
    (found,) = written["runs"][0]["results"]
    assert (written["version"], found["ruleId"], found["level"]) == ("2.1.0", "INVALID_STEP", "error")
    assert found["locations"][0]["physicalLocation"]["region"] == {"startLine": 3}
    assert found["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": str(answer)}
    assert result.exit_code == 1


def test_validate_writes_annotations_that_no_text_can_break(tmp_path: Path) -> None:
    answer = tmp_path / "a,b:c.md"
    answer.write_text("Text\n\n<!-- STEP: 100% -->\n")
    result = run(answer, "--validator", "step_marker", "--locale", "en", "--format", "github", command=validate)
    (line,) = result.output.splitlines()
    assert line.startswith(
        f"::error file={str(answer).replace(',', '%2C').replace(':', '%3A')},line=3,title=INVALID_STEP::"
    )
    assert "100%25" in line
