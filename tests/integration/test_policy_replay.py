"""``turns replay-policy`` over turns that real workers carried out, and the pure comparison behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome
from api_client.web.app import create_app
from tests.conftest import WorkerProcess, environ_of
from tests.fault.conftest import message
from tests.support import playing
from tests.unit.web.conftest import caller
from worker.cli import main

SCRIPT = """
- when: long
  attempts: [[{say: "Dies ist eine Antwort mit vielen Worten.\\n\\n<!-- STEP: done -->"}]]
- when: unmarked
  attempts:
    - [{say: "Kurz."}]
    - [{say: "Kurz.\\n\\n<!-- STEP: done -->"}]
- attempts: [[{say: "Kurz.\\n\\n<!-- STEP: done -->"}]]
"""
SHORT = """\
rules:
  - {rule: length, name: short, options: {max_words: 3}}
  - {rule: forbidden, name: no_words, shadow: true, options: {words: [Antwort]}}
"""


@pytest.fixture
async def turns(settings: Settings, worker_process: Callable[..., WorkerProcess]) -> dict[str, str]:
    scripted = playing(settings, SCRIPT)
    worker_process(settings=scripted)
    found = {}
    async with TurnsClient(scripted) as client:
        for text in ("long", "unmarked", "plain"):
            found[text] = await client.submit(message(text, text))
        for turn_id in found.values():
            assert (await client.result(turn_id, timeout=60)).outcome in {Outcome.PASSED, Outcome.PASSED_AFTER_RETRY}
    return found


@pytest.fixture
def replay(settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> Callable[..., str]:
    for name, value in environ_of(settings).items():
        monkeypatch.setenv(name, value)

    def run(policy: str, *arguments: str) -> str:
        (tmp_path / "policy.yaml").write_text(policy)
        with pytest.raises(SystemExit) as ended:
            main(["replay-policy", "--policy", str(tmp_path / "policy.yaml"), *arguments])
        out, err = capsys.readouterr()
        assert not ended.value.code, err
        return out

    return run


def test_it_names_what_another_policy_would_have_rejected_and_accepted(
    turns: dict[str, str], replay: Callable[..., str]
) -> None:
    found = json.loads(replay(SHORT, "--json"))
    assert (found["answers"], found["rejected_now"], found["accepted_now"]) == (4, 1, 1)
    assert (found["by_rule"], found["in_shadow"], found["extra"]["runs"]) == ({"short": 1}, {"no_words": 1}, 1)
    changes = {(each["turn_id"], each["attempt"]): each["rules"] for each in found["changes"]}
    assert changes == {(turns["long"], 1): ["short"], (turns["unmarked"], 1): []}

    lines = replay(SHORT, "--show", "1")
    assert "4 answers judged: 1 accepted then and rejected now (25.0%)" in lines
    assert "at least 1 more run" in lines
    assert replay(SHORT, "--model", "another", "--json").startswith('{"policy": ')
    assert json.loads(replay(SHORT, "--model", "another", "--json"))["answers"] == 0
    assert json.loads(replay(SHORT, "--since", "1s", "--json"))["answers"] <= 4

    same = json.loads(replay("rules: [step_marker, adr_structure, file_existence]", "--json"))
    assert (same["answers"], same["rejected_now"], same["accepted_now"]) == (4, 0, 0)


async def test_the_page_shows_the_result_with_the_texts_and_says_what_retention_removed(
    turns: dict[str, str], replay: Callable[..., str], settings: Settings
) -> None:
    page = json.loads(await asyncio.to_thread(replay, SHORT, "--json"))["page"]
    async with TurnsClient(settings) as client:
        app = create_app(settings, client)
        async with app.router.lifespan_context(app), caller(app) as http:
            listed = (await http.get("/policies")).text
            assert page in listed
            assert "policy.yaml" in listed
            shown = (await http.get(page)).text
            assert "Dies ist eine Antwort mit vielen Worten." in shown
            assert "rejected now" in shown
            assert f'href="/turns/{turns["long"]}"' in shown
            keys = Keys(settings.namespace)
            await client.store.redis.delete(keys.turn(turns["long"]), keys.attempts(turns["long"]))
            assert "Retention has removed this answer." in (await http.get(page)).text
            assert (await http.get("/policies/none")).status_code == 404
