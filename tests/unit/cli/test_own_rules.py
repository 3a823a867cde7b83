"""``turns policy``, and ``turns validate`` with a policy and as a linter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.unit.enforcement.samples import ADR
from worker.cli import cli
from worker.cli.validate import validate
from worker.cli.validator_scaffold import new_rule
from worker.enforcement.rules import ForbiddenRule
from worker.pytest_plugin import RulesUnderTest

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


def run(*arguments: object, command=None, given: str | None = None) -> Result:
    words = [*([] if command else ["policy"]), *map(str, arguments)]
    return CliRunner().invoke(command or cli, words, input=given, env={"HELIX_ROOT": ""})


def test_check_names_rules_and_hash(file: Path) -> None:
    assert run("check", file).output.startswith(f"{file}: 2 rules, hash ")
    assert json.loads(run("check", file, "--json").output)["rules"] == ["short", "step_marker"]


def test_what_a_rule_file_prints_is_not_in_the_json_of_check_and_not_in_the_lines_of_show(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(
        "import os; from worker.enforcement import ResponseValidator\nprint('loaded'); os.system('echo loaded too')\n"
        "class Own(ResponseValidator):\n    name = 'own'\n    def validate(self, response, context): return []\n"
    )
    (tmp_path / "policy.yaml").write_text("rules: [{rule: own.py}]")
    turns = [str(Path(sys.executable).with_name("turns")), "policy"]
    for command in (["check", "--json"], ["show"]):
        subprocess.run([*turns, *command, "policy.yaml"], cwd=tmp_path, check=True)
        said, told = capfd.readouterr()
        assert "loaded" not in said
        assert told == "loaded\nloaded too\n"
        assert said.startswith("hash ") or json.loads(said)["rules"] == ["own"]


def test_check_says_which_tools_no_agent_has_and_which_it_uses_unasked(tmp_path: Path) -> None:
    path = tmp_path / "tools.yaml"
    tools = ["bash", "Bash", "read", "mcp__x__y", "*", "Task"]
    path.write_text(json.dumps({"rules": [], "tools": [{"tool": name, "do": "deny"} for name in tools]}))

    def unheld(models: str) -> list[str]:
        given = {"HELIX_ROOT": str(tmp_path), "HELIX_MODELS": models}
        result = CliRunner().invoke(cli, ["policy", "check", str(path), "--json"], env=given)
        return json.loads(result.output)["unheld"]

    assert unheld("a=claude_cli") == [
        "tools, entry 1: claude_cli has no tool bash; its name is Bash",
        "tools, entry 3: claude_cli has no tool read; its name is Read",
    ]
    assert unheld("a=claude_cli,b=acp:opencode:m")[1:] == [
        "tools, entry 1: claude_cli has no tool bash; its name is Bash",
        "tools, entry 3: acp:opencode uses read without asking",
        "tools, entry 5: acp:opencode uses read, search, think, other without asking",
    ]
    assert not any("entry 2" in each or "entry 4" in each for each in unheld("s=scripted:x.yaml"))
    assert unheld("a=codex:m")[-2] == "tools, entry 5: codex uses web_search, write_stdin without asking"


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


def test_show_finds_rules_in_files_below_helix_root(tmp_path: Path) -> None:
    assert run("new-rule", "own_rule", "--to", tmp_path / "rules").exit_code == 0
    policy = tmp_path / "own.yaml"
    policy.write_text("rules: [rules/own_rule.py]")
    assert (
        "own_rule" in CliRunner().invoke(cli, ["policy", "show", str(policy)], env={"HELIX_ROOT": str(tmp_path)}).output
    )
    assert "own_rule" in run("show", policy, "--root", tmp_path).output


@pytest.mark.parametrize("command", ["check", "show"])
def test_what_a_rule_prints_while_it_is_loaded_goes_to_standard_error(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("new-rule", "loud", "--to", tmp_path).exit_code == 0
    (tmp_path / "loud.py").write_text("print('loaded')\n" + (tmp_path / "loud.py").read_text())
    (tmp_path / "own.yaml").write_text("rules: [loud.py]")
    result = run(command, tmp_path / "own.yaml", "--root", tmp_path)
    assert (result.exit_code, "loaded" in result.output) == (0, False), result.output
    assert "loaded" in capfd.readouterr().err


def test_diff_compares_meanings(file: Path, tmp_path: Path) -> None:
    same, other = tmp_path / "same.yaml", tmp_path / "other.yaml"
    same.write_text("# the same\n" + POLICY)
    other.write_text(POLICY.replace("12", "14"))
    assert (run("diff", file, same).exit_code, run("diff", file, same).output) == (0, "")
    result = run("diff", file, other)
    assert result.exit_code == 1
    assert "-short.options: {'max_chars': 12}\n+short.options: {'max_chars': 14}" in result.output
    assert set(json.loads(run("diff", file, other, "--json").output)["rules"]) == {"short"}


@pytest.mark.parametrize(
    ("more", "line", "key"),
    [
        ("tools: [{tool: Bash, do: deny}]", '+tools, entry 1: {"tool": "Bash", "do": "deny"}', "tools"),
        ("max_attempts: 4", "+max_attempts: 4", "max_attempts"),
        ("locale: de", "+locale: de", "locale"),
    ],
)
def test_diff_names_what_differs_beside_the_rules(more: str, line: str, key: str, file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(f"{POLICY}{more}\n")
    assert line in run("diff", file, other).output.splitlines()
    assert set(json.loads(run("diff", file, other, "--json").output)["file"]) == {key}


def test_diff_names_rules_in_another_order(tmp_path: Path) -> None:
    files = [tmp_path / "one.yaml", tmp_path / "two.yaml"]
    for path, names in zip(files, ("step_marker, adr_structure", "adr_structure, step_marker"), strict=True):
        path.write_text(f"rules: [{names}]\n")
    found = json.loads(run("diff", *files, "--json").output)
    assert found["file"] == {"order": [["step_marker", "adr_structure"], ["adr_structure", "step_marker"]]}
    assert run("diff", *files).exit_code == 1


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


ODD_RULE = """
from worker.enforcement import ResponseValidator, ValidationIssue
class Odd(ResponseValidator):
    name = "odd"
    def validate(self, response, context):
        return [ValidationIssue("A\\n::error::b\\x1b[31m", "m", "h", line=line) for line in (-5, 0, 10**30)]
"""


@pytest.mark.parametrize("form", ["text", "sarif", "github"])
def test_validate_writes_codes_lines_and_file_names_that_no_rule_can_break(form: str, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD_RULE)
    answer, policy = tmp_path / "ein blöder:Name.md", tmp_path / "p.yaml"
    answer.write_text("Text")
    policy.write_text("rules: [odd.py]")
    result = run(answer, "--policy", policy, "--root", tmp_path, "--format", form, command=validate)
    assert result.exit_code == 1, result.output
    assert "\x1b" not in result.output
    if form == "sarif":
        for found in json.loads(result.output)["runs"][0]["results"]:
            (place,) = found["locations"]
            assert place["physicalLocation"]["region"] == {"startLine": 1}
            assert place["physicalLocation"]["artifactLocation"]["uri"].endswith("/ein%20bl%C3%B6der%3AName.md")
        return
    lines = [line for line in result.output.splitlines() if not line.startswith("    fix: ")]
    assert len(lines) == 3, "a line for each issue"
    assert all(line.startswith("::error file=") if form == "github" else ":1: error A " in line for line in lines)


# ``turns policy new-rule`` writes a rule whose own tests pass, with the pytest plugin that users have.

ROOT = Path(__file__).parents[3]


def test_a_new_rule_comes_with_tests_that_pass_and_can_fail(tmp_path: Path) -> None:
    result = CliRunner().invoke(new_rule, ["cites_source", "--to", str(tmp_path)])
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
    result = CliRunner().invoke(new_rule, [name, "--to", str(tmp_path)])
    assert (result.exit_code, words in result.output, list(tmp_path.iterdir())) == (2, True, [])


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "cites_source.md").write_text("mine")
    result = CliRunner().invoke(new_rule, ["cites_source", "--to", str(tmp_path)])
    assert (result.exit_code, (tmp_path / "cites_source.md").read_text()) == (2, "mine")
    assert len(list(tmp_path.iterdir())) == 1


def test_the_plugins_assertions_can_fail(tmp_path: Path) -> None:
    rules = RulesUnderTest("step_marker")
    rules.assert_accepted("x\n\n<!-- STEP: done -->")
    rules.assert_repaired("# ADR-1\n", "# ADR-1\n\n<!-- STEP: unknown -->")
    with pytest.raises(AssertionError, match="MISSING_STEP_MARKER"):
        rules.assert_accepted("x")
    with pytest.raises(AssertionError, match="accepted"):
        rules.assert_rejected("x\n\n<!-- STEP: done -->")
    with pytest.raises(AssertionError, match="rejected by"):
        rules.assert_rejected("x", "INVALID_STEP")
    with pytest.raises(AssertionError):
        RulesUnderTest("adr_structure").assert_repaired("# ADR-1\n")
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
    with pytest.raises(AssertionError, match=r"validated the other way: secret\.md"):
        RulesUnderTest(ForbiddenRule()).check_corpus(tmp_path)
    (tmp_path / "accepted" / "secret.md").unlink()
    assert RulesUnderTest(ForbiddenRule()).check_corpus(tmp_path) == 2


def test_a_policy_and_its_reactions_are_played_as_a_turn() -> None:
    rules = RulesUnderTest(policy="rules:\n  - {rule: length, reactions: [retry, warn], options: {max_words: 2}}")
    result = rules.run("far too many words", "still too many words", max_retries=1)
    assert (result.success, [issue.severity for issue in result.issues]) == (True, ["warning"])
