"""A model that refuses ends its turn as ``refused``: real workers, and the cause where people look."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome
from api_client.web.app import create_app
from tests.conftest import WorkerProcess, environ_of
from tests.fault.conftest import message
from tests.support import playing
from tests.unit.web.conftest import caller
from worker.cli import main

SCRIPT = """
- when: filter
  attempts:
    - - say: Die erste Hälfte der Antwort, mit der man achtzig Zeichen füllt, damit es sonst weiterginge
      - refuse: {filtered: true}
- when: provider
  attempts: [[{refuse: "I must not."}]]
- when: once
  attempts: [[{say: "I can't help with that request."}], [{say: "Der Cache liegt in Redis.\\n\\n<!-- STEP: done -->"}]]
- attempts: [[{say: "I can't help with that request."}]]
"""


async def test_a_refusal_is_an_outcome_of_its_own_and_is_asked_once_at_most(
    settings: Settings, worker_process: Callable[..., WorkerProcess], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    own = playing(settings, SCRIPT)
    worker_process(settings=own)
    async with TurnsClient(own) as client:
        asked = ("filter", "provider", "once", "text")
        ids = {text: await client.submitter.submit(message(text, text)) for text in asked}
        ends = {text: await client.reader.result(each, timeout=60) for text, each in ids.items()}
        assert [ends[text].outcome for text in asked] == [
            Outcome.REFUSED,
            Outcome.REFUSED,
            Outcome.PASSED_AFTER_RETRY,
            Outcome.REFUSED,
        ]
        assert [ends[text].attempt for text in asked] == [1, 1, 2, 2]
        said = {text: end.error.message for text, end in ends.items() if end.error}
        assert "filter" in said["filter"]
        assert "I must not." in said["provider"]
        assert "I can't help with that request." in said["text"]
        assert all("refused the request" in message for message in said.values())
        app = create_app(own, client)
        async with app.router.lifespan_context(app), caller(app) as http:
            page = (await http.get(f"/turns/{ids['text']}")).text
            assert "refused" in page
            assert "I can&#39;t help with that request." in page
            assert ids["text"] in (await http.get("/turns?status=refused")).text
            assert ids["once"] not in (await http.get("/turns?status=refused")).text
    for name, value in environ_of(own).items():
        monkeypatch.setenv(name, value)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        await asyncio.to_thread(main, ["list", "--status", "refused", "--json"])
    listed = json.loads(capsys.readouterr().out)
    assert {turn["outcome"] for turn in listed["turns"]} == {"refused"}
