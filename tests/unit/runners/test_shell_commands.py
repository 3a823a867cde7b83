"""What a command line runs by our reading, compared with what a real bash runs: programs that note their arguments."""

import itertools
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.approvals.spellings import WAYS
from worker.runners import tool_gate
from worker.runners.tool_rules.patterns import match_pattern
from worker.runners.tool_rules.shell_commands import find_commands, list_spellings

_BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(_BASH is None, reason="needs bash")
_NOTED = ("git", "rm", "npm", "deploy.sh", "ls", "cat", "curl")
_STUB = f"""#!{sys.executable} -IS
import json, os, sys
with open(os.environ["NOTES"], "a") as notes:
    notes.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
"""
_LET = [{"arguments": {"command": f"{pattern}*"}, "do": "run"} for pattern in ("git push", "rm", "true", "echo", ":")]
#: Ways that must not be tried for real: they would leave the folder, wait, or are not for every machine.
_SKIPPED = (
    "sudo",
    "su ",
    "doas",
    "watch",
    "script",
    "while",
    "until",
    "for ((",
    "flock",
    "alias",
    "strace",
    "busybox",
    "uv ",
)


@pytest.fixture
def bash(tmp_path: Path):
    """Run a line in a real bash; the calls of the programs in _NOTED."""
    programs, work, numbers = tmp_path / "bin", tmp_path / "work", itertools.count()
    for folder in (programs, work / "x"):
        folder.mkdir(parents=True)
    for name in _NOTED:
        (programs / name).write_text(_STUB)
        (programs / name).chmod(0o755)

    def ran(line: str) -> list[list[str]]:
        notes = tmp_path / f"notes-{next(numbers)}"  # of this line: what runs in the background may be late
        notes.touch()
        env = {"PATH": f"{programs}:/usr/bin:/bin", "NOTES": str(notes), "HOME": str(work), "X": "push"}
        with subprocess.Popen(
            [str(_BASH), "-c", line],
            cwd=work,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as shell:
            shell.wait(20)
        return [json.loads(each) for each in notes.read_text().splitlines()]

    return ran


def seen(line: str, call: list[str]) -> bool:
    """Whether a call is one of the commands that we read in the line, or may be."""
    text = " ".join(call)
    return any(
        match_pattern(text.replace("*", "?"), each)
        for command in find_commands(line)
        for each in list_spellings(command)
    )


def composed(dice: random.Random) -> str:
    """A line: a command in some spelling, in up to three wrappers of one another."""
    words = dice.choice([["git", "push", "origin"], ["rm", "-f", "x"], ["npm", "publish"], ["deploy.sh", "now"]])
    line = " ".join(dice.choice(_SPELLINGS)(word) for word in words)
    line = dice.choice(["{}", "A=1 {}", "{} > y", "{} 2>&1", "{} <<< x", "{} "]).format(line)
    ways = [way for way in WAYS if not any(each in way for each in _SKIPPED)]
    for _ in range(dice.randrange(4)):
        way = dice.choice(ways)
        if "'" in line and ("'@'" in way or "\n" in line):
            continue
        line = way.replace("@", line)
    return line


_SPELLINGS: list[Callable[[str], str]] = [
    *[str] * 4,
    lambda word: f"'{word}'",
    lambda word: f'"{word}"',
    lambda word: f"{word[0]}''{word[1:]}",
    lambda word: f"{word[0]}\\{word[1:]}" if len(word) > 1 else word,
    lambda word: f"$'\\x{ord(word[0]):02x}{word[1:]}'",
    lambda word: f"{word[0]}\\\n{word[1:]}",
    lambda word: f"{{{word},}}",
    lambda word: f"${{Y:-{word}}}",
    lambda word: f"$(printf %s {word})",
    lambda word: f" {word}\t",
]


@pytest.mark.parametrize("seed", range(10))
def test_every_program_that_a_real_bash_starts_is_read_in_the_line(bash, seed: int) -> None:
    dice, ran = random.Random(seed), 0
    for _ in range(15):
        line = composed(dice)
        let = tool_gate.find_rule(_LET, "Bash", {"command": line}, root="/r", folder="/r/f").get("do") == "run"
        for call in bash(line):
            ran += 1
            assert not let or call[0] in {"git", "rm"}, "what a rule lets run is all that runs"
            braces = any("{" in word for word in call)  # dash knows no list in braces
            assert braces or seen(line, call), (line, call)
    assert ran, "the lines run something"
