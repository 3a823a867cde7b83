"""``turns init`` writes settings with which each real agent answers, against the stub of its service."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.agents.running import program_of
from tests.agents.stub import Services, fails, says
from tests.installation import turns

ANSWERS = [says("Hello from the stub.")]


def init(agent: str, root: Path, stub: Services) -> subprocess.CompletedProcess[str]:
    program = program_of(agent)
    assert program is not None
    (key := root / "key").write_text("sk-stub")
    words = ["--agent", agent, "--rules", "chat", "--model", "m1", "--url", stub.url, "--key-file", str(key)]
    environ = {"PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(root), "LANG": "C.UTF-8"}
    command = turns("init", "--root", str(root / "project"), *words)
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)


def test_the_agent_answers_with_the_settings_that_were_written(name: str, tmp_path: Path) -> None:
    with Services(ANSWERS) as stub:
        done = init(name, tmp_path, stub)
        assert done.returncode == 0, done.stdout + done.stderr
        assert stub.requests
    assert ": passed" in done.stdout


@pytest.mark.parametrize("name", ["codex", "opencode"], indirect=True)
def test_a_wrong_key_is_told_by_the_words_of_the_service(name: str, tmp_path: Path) -> None:
    with Services([fails(401)]) as stub:
        done = init(name, tmp_path, stub)
    assert (done.returncode, "401" in done.stdout) == (1, True), done.stdout
