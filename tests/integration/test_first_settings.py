"""``turns init`` tries the agent with a real worker and broker, and ``turns up`` runs what it wrote."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.installation import turns
from tests.support import processes_with, wait_for


def environ_at(root: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(root), "HELIX_ROOT": str(root)}


def init(root: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    words = turns("init", "--json", "--agent", "scripted", *arguments)
    done = subprocess.run(words, env=environ_at(root), capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("answer", "rules", "code", "said"),
    [
        ("say: Hello.", "chat", 0, "the agent answered in "),
        ("say: Hello.", "json", 0, "; the rules did not accept it: "),
        ("die", "chat", 1, "the agent did not answer: "),
    ],
)
def test_the_agent_is_asked_once_and_what_came_of_it_is_said(
    answer: str, rules: str, code: int, said: str, tmp_path: Path
) -> None:
    (script := tmp_path / "script.yaml").write_text(f"- attempts: [[{answer}], [say: second]]\n")
    found, told = init(tmp_path, "--rules", rules, "--model", str(script))
    assert (found, said in told["test"]["said"]) == (code, True), told
    assert told["next"] == ["turns up"]
    shown = (tmp_path / ".helix" / "helix.toml").read_text()
    assert f'policy = "{rules}.yaml"' in shown
    assert processes_with(str(tmp_path / ".helix")) == {}, "nothing stays"


def test_up_without_settings_says_how_to_get_a_real_agent_and_init_asks_none_beside_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as output:
        up = subprocess.Popen(
            turns("up", "--port", "0", "--no-flower"), env=environ_at(tmp_path), stdout=output, stderr=output
        )
    try:
        wait_for(lambda: "Ctrl-C stops everything" in log.read_text())
        assert "for a real one, stop this and run: turns init" in log.read_text()
        code, told = init(tmp_path, "--rules", "chat")
        assert code == 0
        assert told["test"]["said"].startswith("the agent was not asked: `turns up` already runs on ")
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(60)
