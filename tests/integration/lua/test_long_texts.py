"""Long texts lie apart from the record, each once, and every reader finds them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.keys import keys_of
from api_client.contract.tasks import RUN, VALIDATE, Link
from api_client.contract.turn import Outcome
from api_client.index.clearing import clear
from api_client.index.lists import TurnLists
from api_client.index.search import Search
from api_client.index.selection import select
from tests.integration.lua.by_hand import claimed, log_of, request
from worker.enforcement.documents.step import marker_spans
from worker.turns.record.claim import Claim, Refusal
from worker.turns.record.ledger import Ledger
from worker.turns.transitions.accepted import Accepted
from worker.turns.transitions.moves import Answer, Move, attempt_facts

MESSAGE = "Frage. " * 5_000
ANSWER = "Ein Satz.\n" * 20_000 + "<!-- STEP: done -->"
RUN_ENDED = Move(attempt=1, next=Link(VALIDATE, 1), facts=attempt_facts(text=ANSWER, prompt=MESSAGE), run_ended=True)
PASSED = Move(
    attempt=1,
    outcome=Outcome.PASSED,
    facts=attempt_facts(answer=ANSWER, decision="accept"),
    answer=Answer(response=ANSWER, step="done", step_source="marker"),
    judged=True,
)


async def judging(client: TurnsClient, ledger: Ledger) -> Claim:
    claim = claimed(ledger, await client.submitter.submit(request(MESSAGE)))
    assert claim.turn.request.prompt == MESSAGE
    following = ledger.advance(claim, RUN_ENDED)
    assert isinstance(following, Claim)
    assert following.turn.request.prompt == MESSAGE
    return following


def sizes(store: redis.Redis, turn_id: str, namespace: str) -> dict[str, int]:
    """Bytes of every stored value above 10 kB, by where it lies."""
    keys = keys_of(namespace, turn_id)
    found: dict[str, int] = {}
    for name in (keys.turn(turn_id), keys.texts(turn_id), keys.attempts(turn_id)):
        for field, value in store.hgetall(name).items():
            found[f"{name.rpartition(turn_id)[2]} {field.decode()}"] = len(value)
    for _, fields in store.xrange(keys.log(turn_id)):
        found[" log"] = max(found.get(" log", 0), len(fields[b"e"]))
    return {name.strip(): size for name, size in found.items() if size > 10_000}


async def test_an_answer_lies_in_the_store_once_and_every_reader_finds_it(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    claim = await judging(client, ledger)
    turn_id = claim.turn.turn_id
    ledger.seal(claim, Accepted(move=PASSED, delivery="d").to_json(claim.facts(1)))
    ledger.commit(claim, PASSED)
    stored = sizes(store, turn_id, client.settings.namespace)
    assert set(stored) == {":texts request", ":attempts 1:text"}
    turn = await client.reader.get(turn_id)
    assert (turn.response, turn.request.prompt) == (ANSWER, MESSAGE)
    assert turn.markers == marker_spans(ANSWER)
    assert turn == ledger.turn(turn_id)
    [record] = await client.reader.attempts(turn_id)
    assert (record.text, record.answer, record.prompt) == (ANSWER, ANSWER, MESSAGE)
    for events in (await log_of(client, turn_id), await client.reader.events(turn_id)):
        assert events[-1].data["response"] == ANSWER
        assert "response_in" not in events[-1].data
    [selected] = await select(TurnLists(client.store), Search())
    assert selected.turn_id == turn_id


@pytest.mark.parametrize("answer", [ANSWER, "Kurz. <!-- STEP: done -->"], ids=["long", "short"])
async def test_who_takes_over_behind_the_seal_has_the_whole_answer(
    answer: str, client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    claim = await judging(client, ledger)
    move = replace(PASSED, facts=attempt_facts(answer=answer), answer=replace(PASSED.answer, response=answer))
    sealed = Accepted(move=move, delivery="d", mended={"ADR-001.md": "# ADR\n" * 10_000})
    assert ledger.seal(claim, sealed.to_json(claim.facts(1)))
    turn_id, keys = claim.turn.turn_id, keys_of(client.settings.namespace, claim.turn.turn_id)
    store.hset(keys.turn(turn_id), "lease_until", 1)
    store.zadd(keys.due, {turn_id: 1})
    assert ledger.reap(turn_id, may_take=True).what == "announce"
    later = ledger.claim(turn_id, "s-1", Link(VALIDATE, 1))
    assert isinstance(later, Claim)
    found = Accepted.from_json(later.accepted, lambda _: {"text": ANSWER})
    assert found.move == move
    assert found.mended == sealed.mended
    ledger.commit(later, found.move)
    assert (await client.reader.get(turn_id)).response == answer
    assert not store.hexists(keys.texts(turn_id), "accepted")


async def test_a_long_answer_stays_when_attempts_are_cleared_up_before_records(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    claim = await judging(client, ledger)
    ledger.commit(claim, PASSED)
    turn_id, keys = claim.turn.turn_id, keys_of(client.settings.namespace, claim.turn.turn_id)
    past = int(store.hget(keys.turn(turn_id), "finished_at") or 0) - 100_000
    store.hset(keys.turn(turn_id), "finished_at", past)
    client.store.settings = replace(client.store.settings, attempt_retention_seconds=60.0)
    assert (await clear(client.store, dry_run=False))["attempts"] == 1
    assert not store.exists(keys.attempts(turn_id))
    assert (await client.reader.get(turn_id)).response == ANSWER
    assert (await client.reader.events(turn_id))[-1].data["response"] == ANSWER
    assert store.pttl(keys.texts(turn_id)) > 0


async def test_no_key_of_a_finished_turn_with_long_texts_lives_for_ever(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    turn_id = await client.submitter.submit(request(MESSAGE))
    await client.canceller.cancel(turn_id)
    assert isinstance(ledger.claim(turn_id, "s-1", Link(RUN, 1)), Refusal)
    keys = keys_of(client.settings.namespace, turn_id)
    assert all(store.pttl(name) > 0 for name in (keys.turn(turn_id), keys.texts(turn_id), keys.log(turn_id)))
