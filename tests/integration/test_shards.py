"""The number of shards lies in the store: another one is refused, and no turn is out of everybody's sight."""

from dataclasses import replace

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, TurnRequest
from tests.installation import Installation, asked, run


def request(session_id: str) -> TurnRequest:
    return asked("hi", session_id)


async def submit(settings: Settings, sessions: int) -> list[str]:
    async with TurnsClient(settings) as client:
        return [await client.submitter.submit(request(f"s{number}")) for number in range(sessions)]


@pytest.mark.parametrize("shards", [1, 8])
async def test_another_number_of_shards_is_refused_with_what_to_do(settings: Settings, shards: int) -> None:
    await submit(replace(settings, shards=4), 1)
    other = replace(settings, shards=shards)
    with pytest.raises(SettingsError, match=rf"HELIX_SHARDS={shards}: .* over 4 shards; set HELIX_SHARDS=4"):
        await submit(other, 1)
    for command in ("worker", "submit", "web"):
        more = ["hi"] if command == "submit" else []
        ended = run(other, command, *more)
        assert (ended.returncode, "set HELIX_SHARDS=4" in ended.stderr) == (2, True), (command, ended)
        assert len(ended.stderr.splitlines()) == 1, (command, ended)
    told = run(other, "doctor")
    assert "shards: HELIX_SHARDS" in told.stdout
    assert told.returncode == 1


async def test_turns_of_every_shard_are_carried_out(installation: Installation) -> None:
    four = replace(installation.settings, shards=4)
    turn_ids = await submit(four, 12)
    assert len({turn_id.partition("-")[0] for turn_id in turn_ids}) > 1
    store = redis.Redis.from_url(installation.settings.redis_url)
    for name in store.keys(f"{installation.settings.namespace}:celery:*"):
        store.delete(name)  # reapers alone know of them
    installation.worker(settings=four)
    async with TurnsClient(four) as client:
        for turn_id in turn_ids:
            assert (await client.reader.result(turn_id, timeout=60)).outcome is Outcome.PASSED
