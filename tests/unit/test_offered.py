"""What is offered and what is active: names from the metadata of installed packages, no code of theirs."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from click import Command
from click.testing import CliRunner

from api_client.contract.errors import BadRequest
from api_client.contract.settings import Settings, load_settings
from api_client.contract.turn import TurnRequest
from api_client.contract.validator_names import (
    BUILT_IN,
    describe_unknown_validator,
    offered_validators,
    requestable_validators,
)
from api_client.contract.worker_reports import WorkerReport
from api_client.policies.policy_admission import check_validators
from worker.cli.checks.machine import check_active_validators
from worker.cli.checks.workers import check_same_validators
from worker.cli.policy import check as check_policy
from worker.cli.validate import validate
from worker.enforcement import build_validators, run_validators
from worker.enforcement.policies import PolicyError, PolicySubject, build_json_schema, choose_rules, read_policy
from worker.enforcement.policies.policy_file import _standalone_rules


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package whose code cannot be imported, with two entry points; one takes a name of ours."""
    info = tmp_path / "broken_rule-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-rule\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[helix_turns.validators]\nown = broken_rule:Own\nstep_marker = broken_rule:Own\n"
    )
    (tmp_path / "broken_rule.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own"


def request(*names: str) -> TurnRequest:
    return TurnRequest(model="m", messages=({"role": "user", "content": "x"},), session_id="s", validators=names)


def test_an_installed_name_is_offered_and_its_code_is_not_imported(installed: str, tmp_path: Path) -> None:
    assert offered_validators() == (*BUILT_IN, "own")
    check_validators(request("own", "step_marker").validators, Settings(models={"m": "scripted"}, root=tmp_path))
    assert "broken_rule" not in sys.modules


def test_what_is_offered_is_not_active_by_itself(installed: str, tmp_path: Path) -> None:
    assert load_settings({"HELIX_ROOT": str(tmp_path)}).validators == BUILT_IN


def test_a_name_that_is_only_active_can_be_asked_for(tmp_path: Path) -> None:
    assert requestable_validators(("step_marker", "elsewhere")) == (*BUILT_IN, "elsewhere")
    check_validators(
        request("elsewhere").validators, Settings(models={"m": "scripted"}, root=tmp_path, validators=("elsewhere",))
    )


def test_packages_are_not_looked_at_for_a_name_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    def look() -> dict[str, object]:
        looks.append("a look at every package takes milliseconds")
        return {}

    monkeypatch.setattr("api_client.contract.validator_names.installed_validators", look)
    check_validators(request(*BUILT_IN).validators, Settings(models={"m": "scripted"}, root=tmp_path))
    assert looks == []
    with pytest.raises(BadRequest):
        check_validators(request("elsewhere").validators, Settings(models={"m": "scripted"}, root=tmp_path))
    assert looks


def test_the_built_in_names_are_those_that_can_be_built(tmp_path: Path) -> None:
    assert tuple(validator.name for validator in build_validators(BUILT_IN, root=tmp_path)) == BUILT_IN


def test_an_unknown_name_is_refused_with_what_is_offered(tmp_path: Path) -> None:
    with pytest.raises(BadRequest) as refused:
        check_validators(request("step_markr").validators, Settings(models={"m": "scripted"}, root=tmp_path))
    assert str(refused.value) == describe_unknown_validator("step_markr", BUILT_IN)
    assert str(refused.value) == (
        "unknown validator 'step_markr'; did you mean 'step_marker'?"
        " (offered: step_marker, adr_structure, file_existence)"
    )
    assert (refused.value.code, refused.value.param) == ("unknown_validator", "validators")


def test_doctor_tells_an_active_one_that_nobody_offers_here() -> None:
    assert check_active_validators(("a", "b"), ("a", "b", "c")).message == "active: a, b; offered besides: c"
    assert check_active_validators((), ("a",)).message == "active: none; offered besides: a"
    assert (
        check_active_validators(("a", "b"), ("a",)).state,
        "here" in check_active_validators(("a",), ("a",)).message,
    ) == ("wrong", False)


def test_doctor_tells_a_worker_that_lacks_what_another_one_offers() -> None:
    one, two = WorkerReport(name="one", validators=("a", "b")), WorkerReport(name="two", validators=("a",))
    old = WorkerReport(name="old")
    (finding,) = check_same_validators([one, two, old])
    assert (finding.state, finding.message) == ("wrong", "two lacks b")
    assert [each.state for each in check_same_validators([one])] == ["ok"]
    assert list(check_same_validators([old])) == []


# docs/own-rule.md is followed literally: its commands run in one shell, and print what the page says.

ROOT = Path(__file__).parents[2]


class Step(NamedTuple):
    """A command, and what it prints."""

    command: str
    output: str


def steps() -> list[Step]:
    """The commands of the page, in order; ``>`` lines belong to the command before."""
    found: list[Step] = []
    page = (ROOT / "docs" / "own-rule.md").read_text()
    for block in re.findall(r"^```console\n(.*?)\n```$", page, re.DOTALL | re.MULTILINE):
        command, output = "", ""
        for line in [*block.split("\n"), "$ "]:
            if line.startswith("$ "):
                if command:
                    found.append(Step(command, output))
                command, output = line[2:], ""
            elif line.startswith(">"):
                command += "\n" + line[1:].removeprefix(" ")
            else:
                output += line + "\n"
    return found


def test_every_command_of_the_page_prints_what_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "turns").write_text(f'#!/bin/sh\nexec {sys.executable} -c "from worker.cli import main; main()" "$@"\n')
    (tmp_path / "turns").chmod(0o755)
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HELIX_")},
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    script, wanted = [], []
    for number, step in enumerate(steps()):
        script += [step.command, f"echo '#{number}'"]
        wanted.append(f"{step.output}#{number}\n")
    assert len(wanted) >= 10
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.stdout == "".join(wanted), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("../rules/a.py", "must be a path below HELIX_ROOT"),
        ("/rules/a.py", "must be a path below HELIX_ROOT"),
        ("rules/../../a.py", "must be a path below HELIX_ROOT"),
        ("projects/sessions/x/output/a.py", "where agents write"),
        ("rules/a.py:not a name", "must be a path below HELIX_ROOT"),
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(rule: str, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        read_policy(f"rules:\n  - rule: {rule!r}\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = (", "SyntaxError"),
        ("raise RuntimeError('at import')", "at import"),
        ("raise SystemExit(3)", "mine.py: SystemExit: 3"),
        ("{RULE}\n    def __init__(self, more): raise RuntimeError('no')", "mine.py: RuntimeError: no"),
        ("{RULE}\n    def __init__(self, more): exit(4)", "mine.py: SystemExit: 4"),
        ("{RULE}\n    def __init__(self, more): int('x')", "mine.py: invalid literal"),
        ("x = 1", "there: none"),
        ("{RULE}\nclass B(A):\n    name = 'b'\n", "there: A, B"),
        ("{RULE}", "takes no arguments"),
        (None, "No such file"),
    ],
)
def test_a_file_that_makes_no_rule_is_named_with_its_line(text: str | None, words: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text.replace("{RULE}", RULE))
    (tmp_path / "policy.yaml").write_text("rules:\n  - step_marker\n  - rule: mine.py\n    options: {more: 1}\n")
    result = CliRunner().invoke(check_policy, [str(tmp_path / "policy.yaml"), "--root", str(tmp_path)])
    assert result.exit_code == 2
    assert "policy.yaml:3:1: " in result.output
    assert words in result.output
    (tmp_path / "answer.md").write_text("An answer.")
    named = [str(tmp_path / name) for name in ("answer.md", "policy.yaml")]
    result = CliRunner().invoke(validate, [named[0], "--policy", named[1], "--root", str(tmp_path)])
    assert (result.exit_code, words in result.output) == (2, True), result.output


OWN = """
from dataclasses import dataclass
from pathlib import Path
from worker.enforcement.rules import Rule
@dataclass(frozen=True)
class Own(Rule):
    def __post_init__(self):
        if self.root != Path():
            raise RuntimeError("no")
    def validate(self, response, context):
        return []
"""


@pytest.mark.parametrize(
    "code", ["import no_such_library", "exit(3)", "Own = 3", "def Own(): raise RuntimeError('no')", OWN]
)
def test_a_validator_or_rule_of_a_package_that_breaks_is_one_line_and_breaks_no_other_policy(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "odd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    groups = ("[helix_turns.validators]", "own = odd_rule:Own", "[helix_turns.rules]", "odd = odd_rule:Own", "")
    (info / "entry_points.txt").write_text("\n".join(groups))
    (tmp_path / "odd_rule.py").write_text(code)
    (tmp_path / "answer.md").write_text("An answer.")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "odd_rule", raising=False)
    _standalone_rules.cache_clear()

    def run(command: Command, *words: str) -> tuple[int, str]:
        result = CliRunner().invoke(command, [*words, "--root", str(tmp_path)], standalone_mode=True)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.output

    for name, wanted in (("own", 2), ("odd", 2), ("step_marker", 0)):
        policy = tmp_path / f"{name}.yaml"
        policy.write_text(f"rules: [{name}]")
        checked, said = run(check_policy, str(policy))
        assert checked == wanted, said
        validated, said = run(validate, str(tmp_path / "answer.md"), "--policy", str(policy))
        assert validated == (1 if name == "step_marker" else 2), said
    assert run(validate, str(tmp_path / "answer.md"), "--validator", "own")[0] == 2
    assert "odd" in build_json_schema()["properties"]["rules"]["items"]["anyOf"][1]["properties"]["rule"]["examples"]


RULE = """
from worker.enforcement import ResponseValidator, ValidationIssue
class A(ResponseValidator):
    name = "a"
    def validate(self, response, context):
        return [ValidationIssue("FIRST", "", "")]
"""


def test_a_file_that_changed_is_loaded_again_under_the_policys_name(tmp_path: Path) -> None:
    policy = read_policy("rules: [{rule: 'rules/mine.py:A', name: ours}]")
    (tmp_path / "rules").mkdir()
    for code, when in (("FIRST", 1), ("SECOND", 2)):
        (tmp_path / "rules" / "mine.py").write_text(RULE.replace("FIRST", code))
        os.utime(tmp_path / "rules" / "mine.py", ns=(when, when))
        validators = choose_rules(policy, PolicySubject(), root=tmp_path).validators
        assert [(issue.code, issue.validator) for issue in run_validators("x", validators)] == [(code, "ours")]


def test_a_link_out_of_the_root_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "mine.py").write_text(RULE)
    (tmp_path / "root" / "mine.py").symlink_to(tmp_path / "mine.py")
    with pytest.raises(ValueError, match="leads out of HELIX_ROOT"):
        choose_rules(read_policy("rules: [mine.py]"), PolicySubject(), root=tmp_path / "root")
