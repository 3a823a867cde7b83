"""A whole installation, set up as docs/open-webui.md says, with users, in English: what each of them sees.

``turns up`` runs broker, worker and relay; the processes under the page are killed with SIGKILL while it looks.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.step_marker import strip_own_marker
from api_client.contract.turn import Outcome, Turn
from api_client.index.search import Search
from api_client.index.selection import select_turns
from tests.browser.browsing import installation, store_of
from tests.browser.conftest import HEADERS
from tests.browser.webui import (
    HERE,
    PYTHON,
    answer_of,
    answers_of,
    call,
    drive,
    lines_of,
    missing,
    open_webui,
    script,
)
from tests.installation import turns
from worker.cli.installation.openwebui import draw_icon

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(1800)]

ADMIN = {"email": "ada@example.org", "password": "a-password-of-ada"}
USER = {"email": "ben@example.org", "password": "a-password-of-ben"}
LONG = {"text": "A long answer please", "once": "Part one of the long answer."}
ENDLESS = {"text": "An endless answer please", "once": "Part one of the endless answer."}
TWO_DRAFTS = {"text": "Please two drafts", "once": "DRAFT of the alert", "do": "look"}
WHOLE = "Part one of the long answer. Part two of the long answer."
SLOW = "The slow answer."
SHORT = "A short answer, word for word."
#: Where pictures for the docs go; none are kept without it.
PICTURES = os.environ.get("OPENWEBUI_PICTURES", "")


@dataclass(frozen=True)
class Site:
    """An installation with an Open WebUI before it."""

    told: dict[str, Any]
    address: str
    data: Path

    def ask(self, *questions: dict[str, Any]) -> dict[str, Any]:
        """What the browser saw; the user is the first one where a question names none."""
        return drive(self.address, self.data, *({"user": ADMIN, **question} for question in questions))

    def turns(self) -> list[Turn]:
        """All turns, the oldest first."""

        async def read() -> list[Turn]:
            async with TurnsClient(store_of(self.told)) as client:
                found = [
                    await client.reader.read_turn(each.turn_id) for each in await select_turns(client.lists, Search())
                ]
            return sorted(found, key=lambda turn: turn.created_at)

        return asyncio.run(read())

    def killed(self, name: str) -> dict[str, Any]:
        """The step of a question that kills a process of the installation."""
        root, relay = self.told["environ"]["HELIX_ROOT"], f"{self.told['web_url']}/readyz"
        return {"do": "run", "command": [sys.executable, "-m", "tests.browser.strike", root, name, relay]}


def command(told: dict[str, Any], *arguments: str) -> str:
    """What ``turns`` prints in this installation."""
    found = subprocess.run(turns(*arguments), env=told["environ"], capture_output=True, text=True, check=True)
    return found.stdout


def printed_environ(told: dict[str, Any], key: str) -> dict[str, str]:
    """The environment of ``turns openwebui print env``, as a shell reads it."""
    lines = command(told, "openwebui", "print", "env", "--url", told["web_url"], "--key", key).splitlines()
    return dict(shlex.split(line)[0].split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """The installation; a parameter adds to Open WebUI's environment."""
    root, played = tmp_path / "project", script("installed.yaml", tmp_path)
    root.mkdir()
    models = f"helix=scripted:{played},second=scripted:{played}"
    (root / ".helix").mkdir(mode=0o700)
    (root / ".helix" / "helix.toml").write_text('[model.helix]\nrunner = "scripted"\nvision = true\n')
    given = {"HELIX_MODELS": models, "HELIX_LOCALE": "en", "HELIX_CONSTANTS": '{"stop_grace_seconds": "30"}'}
    with installation(root, "--no-flower", **given) as told:
        key = json.loads(command(told, "keys", "create", "webui", "--forwards-users", "--json"))["key"]
        environ = printed_environ(told, key) | getattr(request, "param", {})
        with open_webui(tmp_path / "openwebui", environ) as address:
            admin = call(address, "/api/v1/auths/signup", {"name": "Ada", **ADMIN})["token"]
            call(address, "/api/v1/auths/add", {"name": "Ben", "role": "user", **USER}, admin)
            entries = json.loads(command(told, "openwebui", "print", "models"))
            # Somebody has ticked "vision" for the second model by hand: now only the relay knows better.
            entries[1]["meta"]["capabilities"]["vision"] = True
            entries[1]["params"] = {"custom_params": {"locale": "de"}}  # this model speaks German to everybody
            call(address, "/api/v1/models/import", {"models": entries}, admin)
            yield Site(told, address, tmp_path / "openwebui")


def test_two_users_sign_in_and_each_has_their_own_turns(site: Site, tmp_path: Path) -> None:
    ring = tmp_path / "ring.png"
    ring.write_bytes(draw_icon("a"))
    short = {"text": "A short answer please", "tags": True}
    picture = {"text": "A short answer please: what is this?", "image": str(ring), "user": USER}
    seen = site.ask(
        {**short, "name": "ada"},
        {**short, "name": "ben", "user": USER},
        {**picture, "name": "read", "user": USER},
        {
            **picture,
            "name": "not-read",
            "user": USER,
            "models": ["second"],
            "then": "say",
            "more": "A short answer please",
        },
        {"name": "two-models", "text": "A slow answer please", "models": ["helix", "second"]},
    )
    ada, ben, read, not_read, two = (seen[name] for name in ("ada", "ben", "read", "not-read", "two-models"))
    assert seen["chats"] == {ADMIN["email"]: 2, USER["email"]: 3}, "nobody sees the other's chats"
    for one in (ada, ben, read):
        assert answer_of(one)["content"] == SHORT
        assert lines_of(one)[-1] == ("Checked", True)
    assert answer_of(ada)["usage"]["total_tokens"] == 42
    assert ada["shows_usage"]
    assert ada["tags"] == ["General"]

    refused, after = answers_of(not_read)
    assert refused["error"]["content"].startswith("Dieses Modell liest keine Bilder."), "in the language of its model"
    assert after["content"] == SHORT, "the chat goes on"
    assert {answer["model"]: answer["content"] for answer in answers_of(two)} == {"helix": SLOW, "second": SLOW}
    told = {answer["model"]: [line["description"] for line in answer["statusHistory"]] for answer in answers_of(two)}
    assert (told["helix"][-1], told["second"][-1]) == ("Checked", "Geprüft")
    waited = {"1 of your questions is ahead of this one", "Vor dieser Frage ist noch 1 deiner Fragen"}
    assert waited & {*told["helix"], *told["second"]}, "turns of a chat run in order, and the second one says so"

    made = site.turns()
    owners = [turn.request.owner for turn in made]
    assert len(set(owners)) == 2
    assert owners == [owners[0], owners[1], owners[1], owners[1], owners[0], owners[0]]
    [image] = made[2].request.images
    stored = Path(site.told["environ"]["HELIX_ROOT"], "projects/sessions", made[2].request.session_id, image.path)
    assert stored.read_bytes() == ring.read_bytes()
    assert made[3].request.images == ()
    assert "Hier stand ein Bild" in made[3].request.messages[0]["content"], "the agent reads that an image stood there"


def test_the_chat_shows_what_was_checked_what_went_wrong_and_an_adr_in_english(site: Site) -> None:
    seen = site.ask(
        {"name": "adr", "text": "Please write an ADR", "then": "say", "more": "A short answer please"},
        {**TWO_DRAFTS, "name": "retract"},
        {"name": "repaired", "text": "Please never a marker"},
        {"name": "failed", "text": "Please a bad ADR"},
        {"name": "broken", "text": "Please no success"},
        {**ENDLESS, "name": "stopped", "do": "stop", "then": "say", "more": "A short answer please"},
    )
    adr, retract, repaired, failed, broken, stopped = (seen[name] for name in list(seen)[:-1])
    stored, [accepted, after, *_] = answers_of(adr)[0]["content"], site.turns()
    assert stored.startswith('````yaml\n---\nadr_id: "043"\ntitle: A queue\n')
    [_, history, _] = after.request.messages
    assert history["content"] == strip_own_marker(accepted.response, accepted.markers), (
        "byte for byte, without the fence"
    )

    assert any("DRAFT" in text for text in retract["texts"])
    assert "DRAFT" not in answer_of(retract)["content"]
    assert answer_of(retract)["content"].count("````yaml\n---\nadr_id:") == 2, "the header of each ADR is a block"
    assert ("Asking again 1/2: the header of the ADR is missing", False) in lines_of(retract)
    assert lines_of(retract)[-1] == ("Checked, second attempt", True)

    last, done = lines_of(repaired)[-1]
    assert (last.startswith("Checked, completed automatically: "), done) == (True, True)
    assert last[:60] in repaired["after_reload"], "it can be read without a click"

    box = answer_of(failed)["error"]["content"]["message"]
    assert box.startswith("None of 3 attempts passed the checks. Errors in the last attempt: ")
    assert "Ask again (Regenerate), or rephrase the question. (MISSING_" in box
    assert "Ask again (Regenerate)." in broken["after_reload"]
    assert lines_of(failed)[-1] == ("Ended without a valid answer", True)

    first, second = answers_of(stopped)
    assert first["content"] == "Part one of the endless answer."
    assert first["statusHistory"][-1] == {"description": "The agent is writing", "done": True}
    assert second["content"] == SHORT
    assert [turn.outcome for turn in site.turns()[-2:]] == [Outcome.CANCELLED, Outcome.PASSED]
    _keep(site, seen)


def test_killed_workers_relays_and_brokers_cost_no_answer(site: Site) -> None:
    seen = site.ask(
        {**LONG, "name": "worker", **site.killed("worker")},
        {**LONG, "name": "broker", **site.killed("broker")},
        {**LONG, "name": "relay", **site.killed("relay"), "then": "regenerate"},
        {**ENDLESS, "name": "moved-on", **site.killed("relay"), "then": "say", "more": "A short answer please"},
    )
    worker, broker, relay, moved_on = (seen[name] for name in ("worker", "broker", "relay", "moved-on"))
    assert answer_of(worker)["content"] == WHOLE
    assert ("A crash interrupted the agent; it continues in a moment", True) in lines_of(worker)
    assert lines_of(worker)[-1] == ("Checked", True)

    assert answer_of(broker)["content"] == WHOLE
    assert answer_of(broker)["error"] is None

    lost, found = answers_of(relay)
    assert lost["error"]
    assert found["content"] == WHOLE
    assert answers_of(moved_on)[-1]["content"] == SHORT

    outcomes = [turn.outcome for turn in site.turns()]
    passed = Outcome.PASSED
    assert outcomes == [passed, passed, passed, Outcome.CANCELLED, passed], "Regenerate brought the turn that went on"


@pytest.mark.parametrize(
    "site",
    [{"OPENAI_API_CONFIGS": json.dumps({"0": {"api_type": "responses", "headers": HEADERS}})}],
    indirect=True,
    ids=["connection of type Responses"],
)
def test_a_connection_of_type_responses_shows_progress_and_merges_answers(site: Site) -> None:
    seen = site.ask(
        {**TWO_DRAFTS, "name": "retract"},
        {**LONG, "name": "held", "do": "look"},
        {"name": "merged", "text": "A short answer please", "models": ["helix", "second"], "then": "merge"},
    )
    retract, held, merged = (seen[name] for name in ("retract", "held", "merged"))
    before = "\n".join(text for text in held["texts"] if "Part two" not in text)
    assert "The agent is" in before, "what it does, while it works"
    assert LONG["once"] in before, "and its text, while it waited for somebody to see that"
    assert answer_of(held)["content"] == WHOLE
    assert any("DRAFT" in text for text in retract["texts"]), "the draft is shown while it comes"
    assert "DRAFT" not in answer_of(retract)["content"]
    assert lines_of(retract)[-1] == ("Checked, second attempt", True)
    assert merged["merged"] == SHORT


def _keep(site: Site, seen: dict[str, Any]) -> None:
    """Put pictures into the docs, where they are asked for: the ends of two answers, and a draft that is taken back."""
    if not PICTURES:
        return
    for name, picture in {"repaired": "repaired", "failed": "failure"}.items():
        Path(PICTURES, f"open-webui-{picture}.png").write_bytes((site.data / f"{name}-reload.png").read_bytes())
    texts = list(enumerate(seen["retract"]["texts"], 1))
    draft = max(number for number, text in texts if "DRAFT" in text and "The agent is writing" in text)
    taken_back = next(number for number, text in texts if "Asking again" in text and "DRAFT" not in text)
    frames = [site.data / f"retract-{name}.png" for name in (f"{draft:03}", f"{taken_back:03}", "reload")]
    compose = [str(PYTHON), str(HERE / "frames.py"), str(Path(PICTURES, "open-webui-retract.png"))]
    subprocess.run([*compose, *map(str, frames)], check=True)
