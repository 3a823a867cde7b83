"""The places at a service: how many agents may ask it at once, over all workers, and who gets the next one."""

from dataclasses import replace

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.tasks import RETRY, VALIDATE, ChainTask
from api_client.contract.turn import Outcome, TurnState
from api_client.turns.record.claim import ClaimRefusal, LeaseClaim
from api_client.turns.record.transition import Transition
from tests.integration.lua.by_hand import FIRST, PASSED, claimed, request
from tests.on_loop import Ledger
from tests.support import wait_until

ENDED = Transition(attempt=1, next=ChainTask(VALIDATE, 1), run_ended=True)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, model_settings={"scripted": {"service_at_once": 2}})


async def submitted(client: TurnsClient, *sessions: str, owner: str = "") -> list[str]:
    asks = [request(session_id=session, owner=owner or f"o{session}") for session in sessions]
    return [await client.submitter.submit(each) for each in asks]


def ran(ledger: Ledger, turn_id: str, session: str) -> None:
    ledger.commit_transition(claimed(ledger, turn_id, session_id=session), PASSED)


async def told(client: TurnsClient, turn_id: str) -> list[str]:
    return [event.kind for event in await client.reader.read_events(turn_id)]


async def test_no_more_agents_start_than_the_service_has_places_and_the_next_one_takes_the_first_that_is_free(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    a, b, c, d = await submitted(client, *"abcd")
    first, second = claimed(ledger, a, session_id="a"), claimed(ledger, b, session_id="b")
    assert ledger.claim_turn(c, "c", FIRST) == ClaimRefusal("held_back")
    assert ledger.claim_turn(d, "d", FIRST) == ClaimRefusal("held_back")
    assert (await client.reader.read_events(c))[-1].data["what"] == "limit"
    assert await client.pauses.list_active() == [], "nothing limits us but we ourselves"
    assert ledger.list_due() == []
    ledger.commit_transition(first, PASSED)
    assert ledger.list_due() == [c], "a reaper looks at once"
    [e] = await submitted(client, "e")
    assert ledger.claim_turn(e, "e", FIRST) == ClaimRefusal("held_back"), "the place is given already"
    assert ledger.reap_turn(c, may_take=True).what == "announce"
    ran(ledger, c, "c")
    ledger.commit_transition(second, PASSED)
    for turn_id, session in ((d, "d"), (e, "e")):
        assert ledger.reap_turn(turn_id, may_take=True).what == "announce"
        ran(ledger, turn_id, session)
    assert await told(client, c) == ["turn.queued", "turn.paused", "turn.resumed", "attempt.started", "turn.finished"]
    assert (store.zcard(Keys(client.settings.namespace).at_work), await client.pauses.count_held()) == (0, 0)


async def test_the_owners_of_waiting_turns_take_turns(client: TurnsClient, ledger: Ledger) -> None:
    running = await submitted(client, "1", "2", owner="a")
    claims = [claimed(ledger, turn_id, session_id=f"{n}") for n, turn_id in enumerate(running, 1)]
    of_a = await submitted(client, *(f"a{n}" for n in range(4)), owner="a")
    of_b, of_c = await submitted(client, "b1", "b2", owner="b"), await submitted(client, "c1", owner="c")
    sessions = dict(zip((*of_a, *of_b, *of_c), ("a0", "a1", "a2", "a3", "b1", "b2", "c1"), strict=True))
    assert {ledger.claim_turn(each, session, FIRST) for each, session in sessions.items()} == {
        ClaimRefusal("held_back")
    }
    order, claim = [], claims[0]
    for _ in sessions:
        ledger.commit_transition(claim, PASSED)
        [turn_id] = ledger.list_due()
        order.append(sessions[turn_id][0])
        claim = claimed(ledger, turn_id, session_id=sessions[turn_id])
    assert order == ["b", "c", "a", "b", "a", "a", "a"]


async def test_an_agent_that_ended_has_no_place_while_its_answer_is_judged(client: TurnsClient, ledger: Ledger) -> None:
    a, b, c = await submitted(client, *"abc")
    claim = claimed(ledger, a, session_id="a")
    claimed(ledger, b, session_id="b")
    assert ledger.claim_turn(c, "c", FIRST) == ClaimRefusal("held_back")
    judging = ledger.commit_transition(claim, ENDED, keep=True)
    assert isinstance(judging, LeaseClaim)
    assert ledger.list_due() == [c]
    again = Transition(attempt=1, state=TurnState.QUEUED, next=ChainTask(RETRY, 2))
    assert not isinstance(ledger.commit_transition(judging, again, keep=True), LeaseClaim), (
        "its second run waits as well"
    )
    assert (await told(client, a))[-1] == "turn.paused"
    ran(ledger, c, "c")
    assert ledger.list_due() == [a]
    assert claimed(ledger, a, ChainTask(RETRY, 2), session_id="a").turn.attempt == 2


async def test_a_turn_that_waits_after_an_error_gives_its_place_back(client: TurnsClient, ledger: Ledger) -> None:
    a, b, c = await submitted(client, *"abc")
    claim = claimed(ledger, a, session_id="a")
    claimed(ledger, b, session_id="b")
    assert ledger.claim_turn(c, "c", FIRST) == ClaimRefusal("held_back")
    transition = Transition(attempt=1, state=TurnState.QUEUED, next=FIRST, delay_ms=60_000, run_ended=True)
    ledger.commit_transition(claim, transition)
    assert ledger.list_due() == [c]


async def test_a_run_whose_worker_died_keeps_its_place_and_one_that_is_cancelled_gives_it_back(
    client: TurnsClient, ledger: Ledger
) -> None:
    a, b, c, d = await submitted(client, *"abcd")
    claimed(ledger, a, session_id="a")
    running = claimed(ledger, b, session_id="b")
    assert {ledger.claim_turn(each, session, FIRST) for each, session in ((c, "c"), (d, "d"))} == {
        ClaimRefusal("held_back")
    }
    await client.canceller.cancel(c)
    await wait_until(lambda: ledger.reap_turn(a, may_take=True).what == "announce")
    claimed(ledger, a, session_id="a")
    assert d not in ledger.list_due(), "no place was free meanwhile"
    await client.canceller.cancel(b)
    ledger.commit_transition(running, replace(PASSED, outcome=Outcome.CANCELLED))
    assert d in ledger.list_due(), "c waits no more"


async def test_a_place_that_leaked_is_found_and_goes_to_who_waits(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    at_work = Keys(client.settings.namespace).at_work
    stale = [f"}}scripted|turn-{n:032}" for n in range(2)]
    store.zadd(at_work, dict.fromkeys(stale, 0))
    [a] = await submitted(client, "a")
    assert ledger.claim_turn(a, "a", FIRST) == ClaimRefusal("held_back")
    found = ledger.release_turns()
    assert sorted(ledger.find_ended(found.places)) == stale
    ledger.release_turns("", stale)
    assert ledger.list_due() == [a]


async def test_a_service_has_the_smallest_number_of_its_models(settings: Settings) -> None:
    asks = {"openai_url": "https://llm.example/v1"}
    models = {"x": asks | {"service_at_once": 9}, "y": asks | {"service_at_once": 6}, "z": asks}
    used = replace(settings, models=dict.fromkeys(models, "openai_http:m"), model_settings=models)
    assert used.at_once == {"llm.example/v1": 6}
    async with TurnsClient(replace(used, namespace=f"{settings.namespace}-2")) as client:
        ledger = Ledger(client.settings, "w")
        ids = [await client.submitter.submit(request(session_id=f"s{n}", model="z")) for n in range(16)]
        took = [ledger.claim_turn(turn_id, f"s{n}", FIRST) for n, turn_id in enumerate(ids)]
        assert sum(isinstance(each, LeaseClaim) for each in took) == 6
