"""Did anything get lost? Counted from totals and structures: real workers, and a record that is really taken away."""

import json

from api_client.client import TurnsClient
from api_client.contract.keys import keys_for_turn
from api_client.pauses.pause import Pause
from tests.installation import Installation
from tests.support import wait_until


async def test_each_acknowledged_turn_ended_or_goes_on_and_one_that_is_gone_is_counted_as_lost(
    installation: Installation,
) -> None:
    installation.play('- attempts: [[{say: "Gut. <!-- STEP: done -->"}]]')
    installation.worker()
    client = installation.client
    for number in range(5):
        await installation.answer("x", f"s{number}")
    await client.pauses.set_pause(Pause(what="model", name="scripted", reason="", by="test"), seconds=0)
    going = [await installation.ask("x", f"w{number}") for number in range(3)]
    account = await client.figures.read_balance()
    assert (account.acknowledged, account.ended, account.going_on, account.lost) == (8, 5, 3, 0)

    await client.store.redis.delete(keys_for_turn(installation.settings.namespace, going[0]).turn(going[0]))
    await wait_until(lambda: _lost(client))
    account = await client.figures.read_balance()
    assert (account.acknowledged, account.ended, account.going_on, account.lost) == (8, 5, 2, 1)
    async with installation.web(client) as http:
        assert "of 8 ever acknowledged" in (await http.get("/overview")).text
    found = {each["check"]: each for each in json.loads(installation.command("doctor", "--json").stdout)["findings"]}
    assert found["turns kept"]["state"] == "wrong"
    assert "1 lost" in found["turns kept"]["message"]


async def _lost(client: TurnsClient) -> int:
    return (await client.figures.read_balance()).lost
