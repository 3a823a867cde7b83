"""aider, a coding agent that speaks chat completions: the answer of a turn becomes a change of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.conftest import CLIENTS, needs, ran

AIDER = CLIENTS / "aider" / "bin" / "aider"
QUIET = ("--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--no-show-release-notes")


@needs(AIDER)
@pytest.mark.parametrize("streams", ["--stream", "--no-stream"])
def test_aider_changes_a_file_as_the_turns_answer_says(url: str, tmp_path: Path, streams: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    greeting = folder / "greeting.py"
    greeting.write_text("print('hi')\n")
    asked = ("--model", "openai/helix", "--openai-api-base", url, "--openai-api-key", "none", streams)
    message = ("--no-analytics", "--message", "Please change the greeting", "greeting.py")
    done = ran(AIDER, *asked, *QUIET, *message, home=folder)
    assert done.returncode == 0, done.stderr
    assert "Applied edit to greeting.py" in done.stdout
    assert greeting.read_text() == "print('hello, world')\n"
    assert "STEP" not in done.stdout, "the step marker is our affair"
