"""aider, a coding agent that speaks chat completions: the answer of a turn becomes a change of a file."""

import asyncio
import json
from pathlib import Path

import pytest

from api_client.contract.settings import Settings
from tests.clients.conftest import CLIENTS, agent_writes, needs, ran, requests, selected, started
from tests.installation import RelayProcess
from worker.cli.installation.openwebui import draw_icon

AIDER = CLIENTS / "aider" / "bin" / "aider"
QUIET = ("--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--no-show-release-notes")


def asking(url: str) -> tuple[str, ...]:
    """The options of docs/clients.md."""
    model = ("--model", "openai/helix", "--openai-api-base", url, "--openai-api-key", "none")
    return *model, *QUIET, "--no-analytics"


@needs(AIDER)
@pytest.mark.parametrize("streams", ["--stream", "--no-stream"])
def test_aider_changes_a_file_as_the_turns_answer_says(url: str, tmp_path: Path, streams: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    greeting = folder / "greeting.py"
    greeting.write_text("print('hi')\n")
    message = ("--message", "Please change the greeting", "greeting.py", streams)
    done = ran(AIDER, *asking(url), *message, home=folder)
    assert done.returncode == 0, done.stderr
    assert "Applied edit to greeting.py" in done.stdout
    assert greeting.read_text() == "print('hello, world')\n"
    assert "STEP" not in done.stdout, "the step marker is our affair"


@needs(AIDER)
def test_aider_shows_the_accepted_answer_alone(url: str, tmp_path: Path) -> None:
    done = ran(AIDER, *asking(url), "--chat-mode", "ask", "--message", "Please two drafts", home=tmp_path)
    assert "ADR-008: An alert" in done.stdout
    assert "DRAFT" not in done.stdout


@needs(AIDER)
def test_aider_asks_a_failed_question_again_and_says_why_it_failed(
    url: str, relay_settings: Settings, tmp_path: Path
) -> None:
    done = ran(AIDER, *asking(url), "--chat-mode", "ask", "--message", "It never ends", home=tmp_path)
    assert "The agent did not finish its answer" in " ".join(done.stdout.split())
    assert len(asyncio.run(selected(relay_settings))) == 1 + 8


@needs(AIDER)
def test_the_agent_reads_that_aider_sent_an_image_it_cannot_see(
    url: str, relay_settings: Settings, tmp_path: Path
) -> None:
    """aider sends files, images too, in a message before the question: there they are left out with a note."""
    (tmp_path / "ring.png").write_bytes(draw_icon("a"))
    known = {"litellm_provider": "openai", "mode": "chat", "max_input_tokens": 100_000, "supports_vision": True}
    (tmp_path / "models.json").write_text(json.dumps({"openai/helix": known}))
    eyes = ("--model-metadata-file", "models.json", "--chat-mode", "ask")
    done = ran(AIDER, *asking(url), *eyes, "--message", "two attempts at this image", "ring.png", home=tmp_path)
    assert "The answer." in done.stdout
    [asked] = asyncio.run(requests(relay_settings))
    said = [message["content"] for message in asked.messages]
    assert any("[There was an image here. You do not have it.]" in text for text in said)


@needs(AIDER)
@pytest.mark.parametrize("streams", ["--stream", "--no-stream"])
def test_aider_asks_again_by_itself_when_its_relay_died(
    relay: RelayProcess, url: str, gate: Path, tmp_path: Path, streams: str
) -> None:
    waits = started(AIDER, *asking(url), streams, "--chat-mode", "ask", "--message", "a held answer", home=tmp_path)
    asyncio.run(agent_writes(relay.settings))
    relay.kill()
    relay.start()
    gate.touch()
    said, _ = waits.communicate(timeout=240)
    assert "Held no more." in said
    turns = len(asyncio.run(selected(relay.settings)))
    assert turns in {1, 2}, (
        "a repeat of its library joins the turn; where the relay is away for longer, aider asks anew"
    )
