"""People see the agent's question in the real Open WebUI, follow its link, and the real Claude CLI goes on.

``BROWSER_APPROVALS=100`` in the environment asks as many questions while worker, relay and broker are killed.
"""

import asyncio
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from api_client.client import TurnsClient
from api_client.contract.turn import Outcome, Turn
from api_client.index.search import Search
from api_client.index.selection import select_turns
from tests.browser.browsing import installation, store_of
from tests.browser.conftest import Ask, open_webui_environ
from tests.browser.webui import answer_of, drive, missing, open_webui
from tests.claude.running import cli
from tests.claude.stub import Reply, Stub, says
from tests.ports import free_port
from worker.cli.installation.openwebui import draw_icon

COUNT = int(os.environ.get("BROWSER_APPROVALS", "4"))
pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(1800 + 90 * COUNT)]

POLICY = """
rules: []
tools:
  - {tool: Bash, arguments: {command: "cp *"}, do: ask}
  - {tool: Bash, arguments: {command: "echo late *"}, do: ask, wait_seconds: 30}
  - {tool: Bash, arguments: {command: "echo *"}, do: ask}
"""
#: Characters that Markdown or KaTeX would read as more than characters.
TABLE, RING = "Q3 report (final) [v2] $x$ 100% a_b_c.csv", "ring (1) $y$.png"
COMMAND = (
    "cp ../../../../../adr/ring.png 'output/ring (1) $y$.png' && echo ran >> ../../../../../adr/runs"
    f" && printf '%s' '\\(a\\) $b$ *c*' > 'output/{TABLE}'"
)
ASKED = {"once": "Ja oder Nein", "do": "answer"}
#: What people press, question for question.
WAYS = {"yes": ["Ja"], "no": ["Nein"], "expired": ["Ja"], "two at once": ["Ja", "Nein"]}
KILLED = ("worker", "relay", "broker")
#: So many questions are put to one browser.
_AT_A_TIME = 8
_NUMBER = re.compile(r"Nummer (\d+) \((\w+)")


class Model(Stub):
    """Calls its tool for each first message of a user, and says what became of it."""

    folder = Path()

    def take(self, request: dict[str, Any]) -> Reply:
        self.requests.append(request)
        said = json.dumps(request["messages"][-1], ensure_ascii=False)
        if "Danke" in json.dumps(request["messages"]):
            return says("Gern.\n\n<!-- STEP: done -->")
        if "nicht erlaubt" in said or "did not allow" in said:
            return says("Dann lasse ich es.\n\n<!-- STEP: done -->")
        if "tool_result" in said:
            return says("Das Bild liegt bei.\n\n<!-- STEP: done -->")
        command = COMMAND
        if named := _NUMBER.search(json.dumps(request["messages"])):
            command = f"echo {'late' if named[2] == 'expired' else 'soon'} >> {self.folder / named[1]}"
        return Reply(chunks=("Ich brauche das Bild.",), tool=("Bash", {"command": command}), stop_reason="tool_use")


@dataclass(frozen=True)
class Site:
    """A ``turns up`` before the real CLI, behind an Open WebUI."""

    told: dict[str, Any]
    root: Path
    ask: Ask

    @property
    def held(self) -> list[dict[str, Any]]:
        """What ``between.py`` found held by turns that waited for a person."""
        return [json.loads(line) for line in (self.root / "held").read_text().splitlines()]

    def between(self, victim: str) -> list[str]:
        """The command that looks who holds what, and kills."""
        words = (self.root, self.told["redis_url"], self.root / "held", victim, f"{self.told['web_url']}/readyz")
        return [sys.executable, "-m", "tests.browser.between", *map(str, words)]

    def turns(self) -> list[Turn]:
        async def read() -> list[Turn]:
            async with TurnsClient(store_of(self.told)) as client:
                return [
                    await client.reader.read_turn(each.turn_id) for each in await select_turns(client.lists, Search())
                ]

        return asyncio.run(read())


@pytest.fixture
def model() -> Iterator[Model]:
    with Model() as model:
        yield model


@pytest.fixture
def site(model: Model, tmp_path: Path) -> Iterator[Site]:
    root, program, port = tmp_path / "project", cli(), free_port()
    if program is None:
        pytest.skip("the Claude CLI is not installed here: `make e2e-claude` installs it")
    model.folder = root / "adr"
    model.folder.mkdir(parents=True)
    (root / "adr" / "ring.png").write_bytes(draw_icon("a"))
    (root / "policy.yaml").write_text(POLICY)
    given = {
        "HELIX_MODELS": "helix=claude_cli",
        "HELIX_CLAUDE_PATH": str(program),
        "HELIX_CLAUDE_API_URL": model.url,
        "HELIX_CLAUDE_API_KEY": "sk-stub",
        "HELIX_CLAUDE_TOOLS": "Bash",
        "HELIX_WRITABLE": "adr",
        "HELIX_POLICY": str(root / "policy.yaml"),
        "HELIX_CHAT_NOTE": "yes",
        "HELIX_LOCALE": "de",
        "HELIX_PUBLIC_URL": f"http://127.0.0.1:{port}",
        "HELIX_CONSTANTS": '{"stop_grace_seconds": "30"}',
    }
    with (
        installation(root, "--port", str(port), "--no-flower", **given) as told,
        open_webui(tmp_path / "openwebui", open_webui_environ(port)) as address,
    ):
        yield Site(told, root, partial(drive, address, tmp_path / "openwebui"))


def test_a_person_says_yes_or_no_by_the_link_in_the_chat_and_the_answer_goes_on(site: Site, model: Model) -> None:
    runs = site.root / "adr" / "runs"
    asked = {**ASKED, "text": "Bitte hole das Bild"}
    english = {**asked, "text": "Please get the picture for me", "once": "Yes or no"}
    no = site.ask({**english, "name": "no", "press": ["No"]})["no"]
    assert not runs.exists()
    yes = site.ask({**asked, "name": "yes", "press": ["Ja"], "images": 1, "then": "say", "more": "Danke"})["yes"]

    for seen, title, said in (
        (no, "May the agent do this?", "Thank you: no."),
        (yes, "Darf der Agent das?", "Danke: Ja."),
    ):
        asking = next(text for text in seen["texts"] if title in text)
        assert COMMAND in "".join(asking.replace("⟦…⟧", "").split("\n")), "each character of what is asked is drawn"
        assert seen["answered"][0].startswith(said)
        assert title not in seen["after_reload"], "the question goes when the agent goes on"
    for german in ("Der Agent", "Geprüft", "Aufwand", "Darf", "Durchlauf"):
        assert german not in "\n".join([*no["texts"], no["after_reload"]]), "an English question is answered in English"
    assert [name for name, _ in yes["linked"]] == [TABLE, RING]
    for _, link in yes["linked"]:
        assert httpx2.get(link).status_code == 200
    assert "Dann lasse ich es." in answer_of(no)["content"]
    assert "Checked" not in no["after_reload"], "no rule is active"
    assert "Not checked: no rule is active" in no["after_reload"]
    assert "Cost: 1 run, " in no["after_reload"]
    assert "Aufwand: 1 Durchlauf, " in yes["after_reload"]

    assert runs.read_text() == "ran\n"
    assert yes["drawn"], "the browser draws the image that the agent wrote"
    told = json.dumps(model.requests[-1]["messages"], ensure_ascii=False)
    assert "Das Bild liegt bei." in told
    for ours in ("/answer/", "/files/", "Aufwand"):
        assert ours not in told, "what we add is no word of the agent"


def test_nothing_runs_unasked_or_twice_and_no_question_is_lost_while_everything_is_killed(
    site: Site, model: Model
) -> None:
    ways = [tuple(WAYS)[number % len(WAYS)] for number in range(COUNT)]
    questions = []
    for number, way in enumerate(ways):
        victim = KILLED[(number + number // len(WAYS)) % len(KILLED)]  # each of them in each way
        question = {**ASKED, "name": f"{number}", "text": f"Bitte hole die Nummer {number} ({way})", "press": WAYS[way]}
        question |= {"command": site.between(victim), "late": way == "expired"}
        questions.append(question | ({"then": "regenerate"} if victim == "relay" else {}))
    seen: dict[str, Any] = {}
    for first in range(0, COUNT, _AT_A_TIME):
        seen |= site.ask(*questions[first : first + _AT_A_TIME])

    counted, read = Counter[str](questions=COUNT), dict[str, Counter[str]]()
    for number, way in enumerate(ways):
        said, file = seen[f"{number}"]["answered"], model.folder / f"{number}"
        ran = len(file.read_text().splitlines()) if file.exists() else 0
        yes = sum(each.startswith("Danke: Ja.") for each in said)
        counted["run without a yes"] += ran > yes
        counted["run twice"] += ran > 1
        counted["a yes that did not run"] += yes > ran
        read.setdefault(way, Counter()).update(each.partition(":")[0] for each in said)
    held = [found for line in site.held for found in line.values()]
    counted["waited for a person"] = len(held)
    counted["slots held while waiting"] = sum(found != [0, ""] for found in held)
    counted["questions lost"] = COUNT - sum(turn.outcome is Outcome.PASSED for turn in site.turns())
    print(json.dumps({**counted, "people read": read}, ensure_ascii=False))
    assert +counted == {"questions": COUNT, "waited for a person": COUNT}
    each = {way: ways.count(way) for way in WAYS}
    assert read.pop("two at once") == {"Danke": each["two at once"], "Schon beantwortet": each["two at once"]}
    over = "Diese Frage ist nicht mehr offen."
    assert read == {"yes": {"Danke": each["yes"]}, "no": {"Danke": each["no"]}, "expired": {over: each["expired"]}}
