"""Did anything get lost? Counted from totals and structures: real workers, and a record that is really taken away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.keys import keys_of
from api_client.contract.settings import Settings
from api_client.pauses.pause import Pause
from api_client.web.app import create_app
from tests.conftest import WorkerProcess, environ_of
from tests.fault.conftest import message
from tests.support import playing, wait_until
from tests.unit.web.conftest import caller
from worker.cli import main


async def test_each_acknowledged_turn_ended_or_goes_on_and_one_that_is_gone_is_counted_as_lost(
    settings: Settings, worker_process: Callable[..., WorkerProcess], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    own = playing(settings, '- attempts: [[{say: "Gut. <!-- STEP: done -->"}]]')
    worker_process(settings=own)
    async with TurnsClient(own) as client:
        for number in range(5):
            ended = await client.submitter.submit(message("x", f"s{number}"))
            await client.reader.result(ended, timeout=60)
        await client.pauses.pause(Pause(what="model", name="scripted", reason="", by="test"), seconds=0)
        going = [await client.submitter.submit(message("x", f"w{number}")) for number in range(3)]
        account = await client.figures.account()
        assert (account.acknowledged, account.ended, account.going_on, account.lost) == (8, 5, 3, 0)

        await client.store.redis.delete(keys_of(own.namespace, going[0]).turn(going[0]))
        await wait_until(lambda: _lost(client))
        account = await client.figures.account()
        assert (account.acknowledged, account.ended, account.going_on, account.lost) == (8, 5, 2, 1)
        app = create_app(own, client)
        async with app.router.lifespan_context(app), caller(app) as http:
            assert "of 8 ever acknowledged" in (await http.get("/overview")).text
    for name, value in environ_of(own).items():
        monkeypatch.setenv(name, value)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        await asyncio.to_thread(main, ["doctor", "--json"])
    found = {each["check"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    assert found["turns kept"]["state"] == "wrong"
    assert "1 lost" in found["turns kept"]["message"]


async def _lost(client: TurnsClient) -> int:
    return (await client.figures.account()).lost
