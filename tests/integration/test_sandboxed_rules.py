"""Rules that run programs and ask models: real programs, a real sandbox where there is one, a real agent process."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from api_client.contract.settings import Settings
from worker.enforcement import ValidationIssue, run_validators
from worker.enforcement.rules import CodeBlocksRule, CommandRule, LlmJudgeRule, Rule
from worker.enforcement.rules.llm_judge import verdicts
from worker.enforcement.validators import services
from worker.external.local_services import provide_services
from worker.runners.sandbox import bubblewrap

Judge = Callable[..., list[ValidationIssue]]
BOXED = pytest.mark.skipif(
    bool(bubblewrap.find_network_obstacle()), reason=f"no sandbox here: {bubblewrap.find_network_obstacle()}"
)


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[Judge]:
    """Examines an answer with one rule, on a machine with these settings."""
    verdicts.clear()

    def run(rule: Rule, answer: str, sandbox: str = "off", **models: str) -> list[ValidationIssue]:
        provide_services(replace(Settings(root=tmp_path, sandbox=sandbox), models=models or {"scripted": "scripted"}))
        return run_validators(answer, [rule], {"locale": "en"})

    yield run
    services.provide_services(services.NOTHING)


def sh(script: str, **options: object) -> CommandRule:
    return CommandRule(command=("sh", "-c", script), **options)


MODES = ["off", pytest.param("auto", marks=BOXED), pytest.param("required", marks=BOXED)]


@pytest.mark.parametrize("mode", MODES)
def test_a_real_program_judges_by_exit_code_and_lines(judge: Judge, mode: str) -> None:
    rule = sh("grep -n bad answer.md && exit 1; exit 0")
    assert judge(rule, "fine", mode) == []
    (issue,) = judge(rule, "one\nthis is bad", mode)
    assert (issue.code, issue.line, issue.message) == (
        "COMMAND_REJECTED",
        0,
        "sh rejects the answer (exit code 1): 2:this is bad",
    )
    (issue,) = judge(sh("echo 'answer.md:2: bad word'; exit 1"), "one\nthis is bad", mode)
    assert (issue.code, issue.line) == ("COMMAND_FOUND", 2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (sh("sleep 600", seconds=1), "1 s"),
        (CommandRule(command=("python3", "-c", "x = bytearray(10**9)"), memory_mb=64), "MemoryError"),
        (CommandRule(command=("no-such-program",)), "no-such-program"),
    ],
)
def test_a_program_that_hangs_or_eats_memory_or_is_missing_never_accepts(
    judge: Judge, mode: str, rule: CommandRule, words: str
) -> None:
    (issue,) = judge(rule, "fine", mode)
    assert issue.code in {"VALIDATOR_ERROR", "COMMAND_REJECTED"}
    assert words in issue.message


@BOXED
def test_in_the_box_a_program_reaches_neither_files_nor_the_network(judge: Judge, tmp_path: Path) -> None:
    secret = tmp_path.parent / "secret"
    secret.write_text("s3cret")
    assert judge(sh(f"cat {secret} && exit 1; exit 0"), "fine", "auto") == []
    assert judge(sh("touch /tmp/x ../y && test ! -e /proc/1/environ -o $$ -lt 100"), "fine", "auto") == []
    reach = "import socket; socket.create_connection(('127.0.0.1', 9), 1)"
    (issue,) = judge(CommandRule(command=("python3", "-c", reach)), "fine", "auto")
    assert issue.code == "COMMAND_REJECTED"


def test_without_a_box_no_program_runs_unless_the_container_is_the_box(
    judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    for name in ("sh", "touch"):
        (empty / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(empty))
    ran = tmp_path / "ran"
    for mode in ("auto", "required"):
        (issue,) = judge(sh(f"touch {ran}"), "fine", mode)
        assert issue.code == "VALIDATOR_ERROR"
        assert "no sandbox" in issue.message
    assert not ran.exists()
    assert judge(sh(f"touch {ran}"), "fine", "off") == []
    assert ran.exists()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
@pytest.mark.parametrize("mode", MODES)
def test_bash_reads_shell_blocks_and_runs_none(judge: Judge, tmp_path: Path, mode: str) -> None:
    ran = tmp_path / "ran"
    answer = f"```sh\ntouch {ran}\n```\n\n```bash\nif true; then\n  ls\n```\n\n```bash\necho $(\n```\n"
    issues = judge(CodeBlocksRule(languages=("shell",)), answer, mode)
    assert [(issue.code, issue.line) for issue in issues] == [("CODE_DOES_NOT_PARSE", 8), ("CODE_DOES_NOT_PARSE", 12)]
    assert not ran.exists()


SCRIPT = """
- matches: 'is the best'
  attempts: [[verdict: {success: false, errors: [It names no disadvantage.]}]]
- matches: 'slow to answer'
  attempts: [[wait: 600]]
- matches: 'talks'
  attempts: [[say: I like it.]]
- matches: 'another nonce'
  attempts: [[verdict: {success: true, nonce: '00000000'}]]
- attempts: [[verdict: true]]
"""


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ("Redis is fast and needs memory.", "", ""),
        ("Redis is the best.", "JUDGE_REJECTED", "It names no disadvantage."),
        ("slow to answer", "VALIDATOR_ERROR", "gave no verdict"),
        ("talks", "VALIDATOR_ERROR", "one JSON object"),
        ("another nonce", "VALIDATOR_ERROR", "nonce"),
    ],
)
def test_a_real_agent_process_judges(judge: Judge, tmp_path: Path, answer: str, code: str, words: str) -> None:
    (tmp_path / "judge.yaml").write_text(SCRIPT)
    rule = LlmJudgeRule(
        model="small", criteria="The answer names disadvantages.", seconds=5 if answer == "slow to answer" else 60
    )
    issues = judge(rule, answer, small=f"scripted:{tmp_path / 'judge.yaml'}")
    assert [issue.code for issue in issues] == ([code] if code else [])
    assert all(words in issue.message for issue in issues)


def test_a_judge_that_is_not_configured_is_named(judge: Judge) -> None:
    (issue,) = judge(LlmJudgeRule(model="nobody", criteria="x"), "fine")
    assert "'nobody' is not in HELIX_MODELS" in issue.message


def test_a_folder_of_a_program_is_gone_when_it_ended(judge: Judge, tmp_path: Path) -> None:
    place = tmp_path / "place"
    judge(sh(f"pwd > {place}"), "fine")
    assert place.read_text().strip()
    assert not Path(place.read_text().strip()).exists()
