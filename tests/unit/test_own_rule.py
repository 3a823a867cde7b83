"""docs/own-rule.md is followed literally: its commands run in one shell, and print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from worker.cli.policy import check
from worker.enforcement import examine
from worker.enforcement.policies import PolicyError, Subject, choose, read_policy

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
    result = CliRunner().invoke(check, [str(tmp_path / "policy.yaml"), "--root", str(tmp_path)])
    assert result.exit_code == 2
    assert "policy.yaml:3:1: " in result.output
    assert words in result.output


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
        validators = choose(policy, Subject(), root=tmp_path).validators
        assert [(issue.code, issue.validator) for issue in examine("x", validators)] == [(code, "ours")]


def test_a_link_out_of_the_root_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "mine.py").write_text(RULE)
    (tmp_path / "root" / "mine.py").symlink_to(tmp_path / "mine.py")
    with pytest.raises(ValueError, match="leads out of HELIX_ROOT"):
        choose(read_policy("rules: [mine.py]"), Subject(), root=tmp_path / "root")
