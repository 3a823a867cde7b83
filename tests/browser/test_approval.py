"""A person sees the agent's question in the real Open WebUI, follows its link, and the real Claude CLI goes on."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Ask, open_webui_environ
from tests.browser.webui import answer_of, drive, missing, open_webui
from tests.claude.running import cli
from tests.claude.stub import Reply, Stub, says
from tests.installation import Installation, RelayProcess
from worker.cli.installation.openwebui import icon

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(1800)]

POLICY = 'rules: []\ntools: [{tool: Bash, arguments: {command: "cp *"}, do: ask}]\n'
COMMAND = "cp ../../../../../adr/ring.png output/ring.png && echo ran >> ../../../../../adr/runs"
ASKED = {"once": "Ja oder Nein", "do": "answer"}


class Model(Stub):
    """Calls its tool for each first message of a user, and says what became of it."""

    def take(self, request: dict[str, Any]) -> Reply:
        self.requests.append(request)
        said = json.dumps(request["messages"][-1], ensure_ascii=False)
        if "Danke" in json.dumps(request["messages"]):
            return says("Gern.\n\n<!-- STEP: done -->")
        if "nicht erlaubt" in said:
            return says("Dann lasse ich es.\n\n<!-- STEP: done -->")
        if "tool_result" in said:
            return says("Das Bild liegt bei.\n\n<!-- STEP: done -->")
        return Reply(chunks=("Ich brauche das Bild.",), tool=("Bash", {"command": COMMAND}), stop_reason="tool_use")


@pytest.fixture
def model() -> Iterator[Model]:
    with Model() as model:
        yield model


@pytest.fixture
def ask(installation: Installation, model: Model, tmp_path: Path) -> Iterator[Ask]:
    """Puts questions to the page of a real Open WebUI; returns what was seen of each."""
    root, program = installation.settings.root, cli()
    if program is None:
        pytest.skip("the Claude CLI is not installed here: `make e2e-claude` installs it")
    (root / "adr").mkdir(parents=True)
    (root / "adr" / "ring.png").write_bytes(icon("a"))
    (root / "policy.yaml").write_text(POLICY)
    installation.change(
        models={"helix": "claude_cli"},
        claude_path=str(program),
        claude_api_url=model.url,
        claude_api_key="sk-stub",
        claude_tools=("Bash",),
        writable=("adr",),
        policy=str(root / "policy.yaml"),
        chat_note="yes",
        stop_grace_seconds=30.0,
    )
    installation.worker()
    relay = RelayProcess(installation.settings)
    relay.settings = replace(relay.settings, public_url=relay.url)
    installation.relays.append(relay)
    relay.start()
    with open_webui(tmp_path / "openwebui", open_webui_environ(relay.settings.web_port)) as address:
        yield partial(drive, address, tmp_path / "openwebui")


def test_a_person_says_yes_or_no_by_the_link_in_the_chat_and_the_answer_goes_on(
    ask: Ask, installation: Installation, model: Model
) -> None:
    runs = installation.settings.root / "adr" / "runs"
    text = "Bitte hole das Bild"
    no = ask({**ASKED, "name": "no", "text": text, "press": "Nein"})["no"]
    assert not runs.exists()
    yes = ask({**ASKED, "name": "yes", "text": text, "press": "Ja", "images": 1, "then": "say", "more": "Danke"})["yes"]

    for seen, said in ((no, "Danke: Nein."), (yes, "Danke: Ja.")):
        asking = next(text for text in seen["texts"] if "Darf der Agent das?" in text)
        assert "cp ../../../../../adr/ring.png" in asking, "it says what is asked"
        assert seen["answered"].startswith(said)
        assert "Darf der Agent das?" not in seen["after_reload"], "the question goes when the agent goes on"
    assert "Dann lasse ich es." in answer_of(no)["content"]
    assert "Geprüft" not in no["after_reload"], "no rule is active"
    assert "Nicht geprüft: keine Regel ist aktiv" in no["after_reload"]
    assert "Aufwand: 1 Durchlauf, " in no["after_reload"]

    assert runs.read_text() == "ran\n"
    assert yes["drawn"], "the browser draws the image that the agent wrote"
    told = json.dumps(model.requests[-1]["messages"], ensure_ascii=False)
    assert "Das Bild liegt bei." in told
    for ours in ("/answer/", "/files/", "Aufwand"):
        assert ours not in told, "what we add is no word of the agent"
