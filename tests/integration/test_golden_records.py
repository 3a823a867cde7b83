"""Records as version 0.1.0 wrote them, kept as files: a newer version must still show and finish them.

``python -m tests.golden`` writes such a file: all keys of a turn's namespace.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.keys import Keys, keys_for_turn
from api_client.contract.settings import Settings
from api_client.contract.tasks import RESUME, ChainTask
from api_client.contract.turn import Outcome
from api_client.store.connecting import open_blocking_store
from tests import golden
from tests.integration.engine import GOOD, Bench, says
from tests.support import wait_until

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDS: dict[str, dict[str, Any]] = json.loads((GOLDEN / "records-v1.json").read_text())


@pytest.fixture
async def bench(settings: Settings) -> AsyncIterator[Bench]:
    async with TurnsClient(settings) as client:
        made = Bench(settings, client)
        yield made
        made.leases.close()


def restore(settings: Settings, record: dict[str, Any]) -> str:
    """Put a stored turn into this test's store, due now."""
    store = open_blocking_store(settings)
    golden.restore(store, Keys(settings.namespace).prefix, record["keys"])
    store.zadd(keys_for_turn(settings.namespace, record["turn"]).due, {record["turn"]: 1})
    return str(record["turn"])


@pytest.mark.parametrize("state", ["queued", "running", "retrying", "held"])
async def test_a_turn_of_an_earlier_version_is_found_and_finished(state: str, bench: Bench) -> None:
    turn_id = restore(bench.settings, RECORDS[state])
    bench.runner.plays = [says(GOOD)] * 3
    reap = bench.ledger.reap_turn
    found = await wait_until(lambda: (found := reap(turn_id, may_take=True)).what == "announce" and found)
    bench.carry_out(turn_id, ChainTask.parse(found.chain_task), found.session_id)
    turn = await bench.client.reader.read_turn(turn_id)
    assert turn.outcome is not None
    assert turn.outcome.success, turn.error
    events = await bench.events(turn)
    assert [event.seq for event in events] == list(range(1, turn.seq + 1))
    assert turn.request.prompt == "Wie geht das?"
    assert turn.response
    if not state.startswith("queued"):
        assert turn.outcome in {Outcome.PASSED, Outcome.PASSED_AFTER_RETRY}
    keys, store = keys_for_turn(bench.settings.namespace, turn_id), bench.store
    kept = [name for name in (keys.turn(turn_id), keys.log(turn_id), keys.texts(turn_id)) if store.pttl(name) == -1]
    assert kept == [], "nobody clears these"


async def test_a_turn_that_an_earlier_version_finished_is_shown_whole(bench: Bench) -> None:
    turn = await bench.client.reader.read_turn(restore(bench.settings, RECORDS["finished"]))
    assert (turn.request.prompt, turn.outcome) == ("Wie geht das?", Outcome.PASSED_AFTER_RETRY)
    assert turn.response == GOOD


async def test_a_turn_that_an_earlier_version_suspended_is_decided_and_goes_on(bench: Bench) -> None:
    turn_id = restore(bench.settings, RECORDS["suspended"])
    assert [each.turn_id for each in await bench.client.inbox.list_suspended()] == [turn_id]
    turn = await bench.client.inbox.decide_turn(turn_id, "approve", by="alice")
    bench.carry_out(turn_id, ChainTask(RESUME, turn.attempt))
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.outcome, turn.response) == (Outcome.PASSED_BY_HUMAN, "Alles klar.")


@pytest.mark.parametrize("kind", ["approve", "reject"])
async def test_a_tool_call_that_an_earlier_version_asked_about_is_answered(kind: str, bench: Bench) -> None:
    turn_id = restore(bench.settings, RECORDS["asking"])
    bench.runner.plays = [says(GOOD)]
    turn = await bench.client.inbox.decide_turn(turn_id, kind, by="alice")
    bench.carry_out(turn_id, ChainTask(RESUME, turn.attempt))
    turn = await bench.client.reader.read_turn(turn_id)
    assert turn.outcome is Outcome.PASSED
    assert turn.response == f"Ich habe es gebaut.\n\n{GOOD}"
    [order] = bench.runner.orders
    assert order.agent_session == "agent-1"
