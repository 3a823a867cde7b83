"""``turns new-validator`` writes a rule whose own tests pass, with the pytest plugin that users have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.enforcement.samples import ADR
from worker.cli.new_validator import new_validator
from worker.enforcement.rules import Forbidden
from worker.pytest_plugin import Rules

ROOT = Path(__file__).parents[3]


def test_a_new_rule_comes_with_tests_that_pass_and_can_fail(tmp_path: Path) -> None:
    result = CliRunner().invoke(new_validator, ["cites_source", "--to", str(tmp_path)])
    assert (result.exit_code, sorted(path.name for path in tmp_path.iterdir())) == (
        0,
        ["cites_source.md", "cites_source.py", "test_cites_source.py"],
    )
    assert_ends(tmp_path, 0, "3 passed")
    rule = tmp_path / "cites_source.py"
    rule.write_text(rule.read_text().replace('if "https://" in response', 'if "ftp://" in response'))
    assert_ends(tmp_path, 1, "2 failed, 1 passed")


def assert_ends(folder: Path, code: int, last: str) -> None:
    """Run the written tests as their author would: pytest alone, the plugin named as its entry point names it."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "worker.pytest_plugin",
        "-p",
        "no:cacheprovider",
        ".",
    ]
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, last in done.stdout) == (code, True), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Cites", "must be like"),
        ("a" * 61, "must be like"),
        ("length", "is built in already"),
        ("step_marker", "is built in already"),
    ],
)
def test_a_name_that_cannot_be_is_refused(name: str, words: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(new_validator, [name, "--to", str(tmp_path)])
    assert (result.exit_code, words in result.output, list(tmp_path.iterdir())) == (2, True, [])


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "cites_source.md").write_text("mine")
    result = CliRunner().invoke(new_validator, ["cites_source", "--to", str(tmp_path)])
    assert (result.exit_code, (tmp_path / "cites_source.md").read_text()) == (2, "mine")
    assert len(list(tmp_path.iterdir())) == 1


def test_the_plugins_assertions_can_fail(tmp_path: Path) -> None:
    rules = Rules("step_marker")
    rules.assert_accepted("x\n\n<!-- STEP: done -->")
    rules.assert_repaired("# ADR-1\n", "# ADR-1\n\n<!-- STEP: unknown -->")
    with pytest.raises(AssertionError, match="MISSING_STEP_MARKER"):
        rules.assert_accepted("x")
    with pytest.raises(AssertionError, match="accepted"):
        rules.assert_rejected("x\n\n<!-- STEP: done -->")
    with pytest.raises(AssertionError, match="rejected by"):
        rules.assert_rejected("x", "INVALID_STEP")
    with pytest.raises(AssertionError):
        Rules("adr_structure").assert_repaired("# ADR-1\n")
    with pytest.raises(AssertionError, match="no accepted"):
        rules.check_corpus(tmp_path)


def test_a_corpus_names_the_files_that_are_judged_the_other_way(tmp_path: Path) -> None:
    secret = "AKIAABCDEFGHIJKLMNOP"
    for folder, name, text in [
        ("accepted", "good.md", ADR),
        ("accepted", "secret.md", secret),
        ("rejected", "key.md", secret),
    ]:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(text)
    with pytest.raises(AssertionError, match=r"judged the other way: secret\.md"):
        Rules(Forbidden()).check_corpus(tmp_path)
    (tmp_path / "accepted" / "secret.md").unlink()
    assert Rules(Forbidden()).check_corpus(tmp_path) == 2


def test_a_policy_and_its_reactions_are_played_as_a_turn() -> None:
    rules = Rules(policy="rules:\n  - {rule: length, reactions: [retry, warn], options: {max_words: 2}}")
    result = rules.run("far too many words", "still too many words", max_retries=1)
    assert (result.success, [issue.severity for issue in result.issues]) == (True, ["warning"])
