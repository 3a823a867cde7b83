"""The first five minutes, as the README says: ``python -m tests.lab.first_minutes``, from a clone and an empty HOME.

It runs the commands of the section "Start it", word for word, until the scripted agent's enforced answer, then those of
"Put your agent in" with the real Claude CLI (where ``make e2e-claude`` has installed it) against a stub of its service.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.claude.stub import Stub, says
from tests.support import wait_for

ROOT = Path(__file__).parents[2]
GOAL_SECONDS, GOAL_COMMANDS, GOAL_MORE = 90.0, 3, 2
CLAUDE = sorted((ROOT / ".helix-tools").glob("claude-*/claude"))


def commands_below(heading: str) -> list[str]:
    """The commands of the first console block below a heading of the README, without their remarks."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition(f"{heading}\n")[2]
    [block] = re.findall(r"```console\n(.*?)```", section, re.DOTALL)[:1]
    return [line[2:].partition("  #")[0].strip() for line in block.splitlines() if line.startswith("$ ")]


@contextlib.contextmanager
def running(command: str, environ: dict[str, str], folder: Path, log: Path) -> Iterator[None]:
    """A command that stays, from the moment when it says that Ctrl-C ends it; then Ctrl-C ends it."""
    with log.open("wb") as output:
        shell = ["bash", "-c", f"exec {command}"] if " turns" not in command else ["bash", "-c", command]
        process = subprocess.Popen(shell, env=environ, cwd=folder, stdout=output, stderr=output, start_new_session=True)
    try:
        wait_for(lambda: "Ctrl-C stops everything" in log.read_text() or process.poll() is not None, seconds=300)
        assert process.poll() is None, log.read_text()
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself, and the assertion says why
            os.killpg(process.pid, signal.SIGINT)
        process.wait(120)


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    """Run both parts in a temporary folder; exit code 1 beyond a goal."""
    with tempfile.TemporaryDirectory() as name, Stub() as stub:
        place = Path(name)
        (home := place / "home").mkdir()
        (project := place / "project").mkdir()
        kept = {each: os.environ[each] for each in ("PATH", "PIP_INDEX_URL", "PIP_CONFIG_FILE") if each in os.environ}
        environ = kept | {"HOME": str(home), "LANG": "C.UTF-8"}
        begun = time.monotonic()
        clone = place / "helix-turns"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], env=environ, check=True)
        up, *asking = first = commands_below("## Start it")
        with running(up, environ, clone, place / "up.log"):
            asked = subprocess.run(
                ["bash", "-c", " && ".join(asking)], env=environ, cwd=clone, capture_output=True, text=True
            )
            seconds = time.monotonic() - begun
            say(f"{len(first)} commands, {seconds:.0f} s from the clone to the first enforced answer")
        assert asked.returncode == 0, asked.stderr + asked.stdout
        assert "asking again" in asked.stdout
        assert "passed_after_retry" in asked.stdout
        late = len(first) > GOAL_COMMANDS or seconds > GOAL_SECONDS
        if not CLAUDE:
            say("the Claude CLI is not here (make e2e-claude): its part is left out")
            return int(late)
        stub.replies = [says("Hello from the stub.")]
        (home / "anthropic.key").write_text("sk-stub")
        more = [line.replace("/srv/project", str(project)) for line in commands_below("### Put your agent in")]
        environ |= {"HELIX_CLAUDE_API_URL": stub.url, "HELIX_CLAUDE_PATH": str(CLAUDE[-1])}
        environ["PATH"] = f"{clone / '.venv' / 'bin'}:{environ['PATH']}"
        written = subprocess.run(["bash", "-c", more[0]], env=environ, cwd=clone, capture_output=True, text=True)
        say(written.stdout)
        assert written.returncode == 0, written.stderr
        assert "the agent answered" in written.stdout
        assert stub.requests
        with running(more[1], environ, clone, place / "claude.log"):
            ask = "turns submit --wait 'Say hello'"
            told = subprocess.run(
                ["bash", "-c", ask], env=environ | {"HELIX_ROOT": str(project)}, capture_output=True, text=True
            )
            assert told.stdout.strip() == "Hello from the stub.", told.stderr
        say(f"{len(more)} more commands to the real Claude CLI")
        shutil.rmtree(clone, ignore_errors=True)
    return int(late or len(more) > GOAL_MORE)


if __name__ == "__main__":
    sys.exit(main())
