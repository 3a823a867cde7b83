"""Long texts lie apart from the record, each once, and every reader finds them."""

from dataclasses import replace

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.keys import keys_for_turn
from api_client.contract.tasks import RUN, VALIDATE, ChainTask
from api_client.contract.turn import Outcome
from api_client.index.clearing import clear
from api_client.index.lists import TurnLists
from api_client.index.search import Search
from api_client.index.selection import select_turns
from api_client.turns.record import ledger as product
from api_client.turns.record.accepted import AcceptedAnswer
from api_client.turns.record.changes import TurnCommands
from api_client.turns.record.claim import ClaimRefusal, LeaseClaim, LeaseLost, LostCommands
from api_client.turns.record.transition import Answer, Transition, attempt_facts
from tests.integration.lua.by_hand import claimed, log_of, request
from tests.on_loop import Ledger
from worker.enforcement.documents.step import marker_spans

MESSAGE = "Frage. " * 5_000
ANSWER = "Ein Satz.\n" * 20_000 + "<!-- STEP: done -->"
RUN_ENDED = Transition(
    attempt=1, next=ChainTask(VALIDATE, 1), facts=attempt_facts(text=ANSWER, prompt=MESSAGE), run_ended=True
)
PASSED = Transition(
    attempt=1,
    outcome=Outcome.PASSED,
    facts=attempt_facts(answer=ANSWER, decision="accept"),
    answer=Answer(response=ANSWER, step="done", step_source="marker"),
    validated=True,
)


async def judging(client: TurnsClient, ledger: Ledger) -> LeaseClaim:
    claim = claimed(ledger, await client.submitter.submit(request(MESSAGE)))
    assert claim.turn.request.prompt == MESSAGE
    following = ledger.commit_transition(claim, RUN_ENDED, keep=True)
    assert isinstance(following, LeaseClaim)
    assert following.turn.request.prompt == MESSAGE
    return following


def taken_over(client: TurnsClient, ledger: Ledger, store: redis.Redis, turn_id: str, link: ChainTask) -> LeaseClaim:
    """Another worker's claim of a turn whose holder was lost."""
    keys = keys_for_turn(client.settings.namespace, turn_id)
    store.hset(keys.turn(turn_id), "lease_until", 1)
    store.zadd(keys.due, {turn_id: 1})
    assert ledger.reap_turn(turn_id, may_take=True).what == "announce"
    return claimed(ledger, turn_id, link)


def written_ahead(store: redis.Redis, claim: LeaseClaim, namespace: str) -> list[str]:
    """The facts of the turn's attempts that bear a token, as they are stored."""
    key = keys_for_turn(namespace, claim.turn.turn_id).attempts(claim.turn.turn_id)
    return sorted(name.decode() for name in store.hkeys(key) if b"~" in name)


def sizes(store: redis.Redis, turn_id: str, namespace: str) -> dict[str, int]:
    """Bytes of every stored value above 10 kB, by where it lies."""
    keys = keys_for_turn(namespace, turn_id)
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
    ledger.seal_answer(claim, AcceptedAnswer(transition=PASSED, delivery="d").to_json(claim.known_facts(1)))
    ledger.commit_transition(claim, PASSED)
    stored = sizes(store, turn_id, client.settings.namespace)
    assert set(stored) == {":texts request", f":attempts 1:text~{claim.token}"}
    turn = await client.reader.read_turn(turn_id)
    assert (turn.response, turn.request.prompt) == (ANSWER, MESSAGE)
    assert turn.markers == marker_spans(ANSWER)
    assert turn == ledger.read_turn(turn_id)
    [record] = await client.reader.read_attempts(turn_id)
    assert (record.text, record.answer, record.prompt) == (ANSWER, ANSWER, MESSAGE)
    for events in (await log_of(client, turn_id), await client.reader.read_events(turn_id)):
        assert events[-1].data["response"] == ANSWER
        assert "response_in" not in events[-1].data
    [selected] = await select_turns(TurnLists(client.store), Search())
    assert selected.turn_id == turn_id


@pytest.mark.parametrize("answer", [ANSWER, "Kurz. <!-- STEP: done -->"], ids=["long", "short"])
async def test_who_takes_over_behind_the_seal_has_the_whole_answer(
    answer: str, client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    claim = await judging(client, ledger)
    transition = replace(PASSED, facts=attempt_facts(answer=answer), answer=replace(PASSED.answer, response=answer))
    sealed = AcceptedAnswer(transition=transition, delivery="d", mended={"ADR-001.md": "# ADR\n" * 10_000})
    assert ledger.seal_answer(claim, sealed.to_json(claim.known_facts(1)))
    turn_id, keys = claim.turn.turn_id, keys_for_turn(client.settings.namespace, claim.turn.turn_id)
    store.hset(keys.turn(turn_id), "lease_until", 1)
    store.zadd(keys.due, {turn_id: 1})
    assert ledger.reap_turn(turn_id, may_take=True).what == "announce"
    later = ledger.claim_turn(turn_id, "s-1", ChainTask(VALIDATE, 1))
    assert isinstance(later, LeaseClaim)
    ledger._run_exchange(ledger._changes.read_attempts(later))
    found = AcceptedAnswer.from_json(later.accepted, later.known_facts)
    assert found.transition == transition
    assert found.mended == sealed.mended
    ledger.commit_transition(later, found.transition)
    assert (await client.reader.read_turn(turn_id)).response == answer
    assert not store.hexists(keys.texts(turn_id), "accepted")


async def test_a_long_answer_stays_when_attempts_are_cleared_up_before_records(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    claim = await judging(client, ledger)
    ledger.commit_transition(claim, PASSED)
    turn_id, keys = claim.turn.turn_id, keys_for_turn(client.settings.namespace, claim.turn.turn_id)
    past = int(store.hget(keys.turn(turn_id), "finished_at") or 0) - 100_000
    store.hset(keys.turn(turn_id), "finished_at", past)
    assert (await clear(client.store, dry_run=False, attempts=60.0))["attempts"] == 1
    assert not store.exists(keys.attempts(turn_id))
    assert (await client.reader.read_turn(turn_id)).response == ANSWER
    assert (await client.reader.read_events(turn_id))[-1].data["response"] == ANSWER
    assert store.pttl(keys.texts(turn_id)) > 0


async def test_no_key_of_a_finished_turn_with_long_texts_lives_for_ever(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    turn_id = await client.submitter.submit(request(MESSAGE))
    await client.canceller.cancel(turn_id)
    assert isinstance(ledger.claim_turn(turn_id, "s-1", ChainTask(RUN, 1)), ClaimRefusal)
    keys = keys_for_turn(client.settings.namespace, turn_id)
    assert all(store.pttl(name) > 0 for name in (keys.turn(turn_id), keys.texts(turn_id), keys.log(turn_id)))


async def test_what_a_holder_wrote_ahead_and_did_not_come_to_name_is_removed_by_the_next(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    lost = claimed(ledger, await client.submitter.submit(request(MESSAGE)))
    turn_id, namespace = lost.turn.turn_id, client.settings.namespace
    command = next(TurnCommands(client.settings, "lost").commit_transition(lost, RUN_ENDED, 0.0, keep=True))
    store.execute_command(*command.words)  # and then it died
    assert written_ahead(store, lost, namespace) == [f"1:text~{lost.token}"]
    later = taken_over(client, ledger, store, turn_id, ChainTask(RUN, 1))
    [record] = ledger._run_exchange(ledger._changes.read_attempts(later))
    assert record.text == ""
    judged = ledger.commit_transition(later, RUN_ENDED, keep=True)
    assert isinstance(judged, LeaseClaim)
    assert written_ahead(store, later, namespace) == [f"1:text~{later.token}"]
    assert not judged.left_behind
    ledger.commit_transition(judged, PASSED)
    with pytest.raises(LeaseLost):
        ledger.commit_transition(lost, RUN_ENDED, keep=True)  # it only froze: what it writes now goes with the turn
    assert (await client.reader.read_turn(turn_id)).response == ANSWER
    keys = keys_for_turn(namespace, turn_id)
    assert store.pttl(keys.attempts(turn_id)) > 0


async def test_who_read_the_attempts_and_was_superseded_removes_nothing(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    late = claimed(ledger, await client.submitter.submit(request(MESSAGE)))
    late.attempts = None  # as in any delivery but the first
    holder = taken_over(client, ledger, store, late.turn.turn_id, ChainTask(RUN, 1))
    steps = TurnCommands(client.settings, "holder").commit_transition(holder, RUN_ENDED, 0.0, keep=True)
    store.execute_command(*next(steps).words)
    ledger._run_exchange(ledger._changes.read_attempts(late))
    assert late.left_behind == [f"1:text~{holder.token}"]
    judging = ledger.commit_transition(holder, RUN_ENDED, keep=True)
    assert isinstance(judging, LeaseClaim)
    with pytest.raises(LeaseLost):
        ledger.commit_transition(late, RUN_ENDED)
    ledger.commit_transition(judging, PASSED)
    assert (await client.reader.read_turn(late.turn.turn_id)).response == ANSWER


async def test_a_move_whose_text_the_store_has_lost_is_not_written_but_sent_again_with_it(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    claim = claimed(ledger, await client.submitter.submit(request(MESSAGE)))
    changes, key = TurnCommands(client.settings, "w"), keys_for_turn(client.settings.namespace, claim.turn.turn_id)
    before = store.hgetall(key.turn(claim.turn.turn_id))
    steps = changes.commit_transition(claim, RUN_ENDED, 0.0, keep=True)
    ahead = next(steps)  # answered by a server that died with it
    command = steps.send(None)
    said = ledger._send_command(command)
    assert said == LostCommands(0)
    assert store.hgetall(key.turn(claim.turn.turn_id)) == before
    assert steps.send(said) is not command
    for each in (ahead, command):
        said = ledger._send_command(each)
    assert steps.send(None) is command
    with pytest.raises(StopIteration) as end:
        steps.send(said)
    assert isinstance(end.value.value, LeaseClaim)
    ledger.commit_transition(end.value.value, PASSED)
    assert (await client.reader.read_turn(claim.turn.turn_id)).response == ANSWER


async def test_a_very_long_text_that_the_store_forgot_is_sent_again_with_the_move_that_names_it(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    claim = claimed(ledger, await client.submitter.submit(request(MESSAGE)))
    keys, turn_id = keys_for_turn(client.settings.namespace, claim.turn.turn_id), claim.turn.turn_id
    names = [keys.turn(turn_id), keys.log(turn_id), keys.attempts(turn_id)]
    before = {name: store.dump(name) for name in names}
    following = ledger.commit_transition(claim, RUN_ENDED, keep=True)
    assert isinstance(following, LeaseClaim)
    for name, dump in before.items():  # its power failed
        store.restore(name, 0, dump, replace=True)
    ledger.commit_transition(following, PASSED)
    assert (await client.reader.read_turn(turn_id)).response == ANSWER
    [record] = await client.reader.read_attempts(turn_id)
    assert record.text == ANSWER


async def test_a_lost_reply_to_a_move_with_a_very_long_text_changes_nothing(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    claim = claimed(ledger, await client.submitter.submit(request(MESSAGE)))
    changes, turn_id = TurnCommands(client.settings, "w"), claim.turn.turn_id
    steps = changes.commit_transition(claim, RUN_ENDED, 0.0, keep=True)
    ahead = next(steps)
    command = steps.send(None)
    keys = keys_for_turn(client.settings.namespace, turn_id)
    seen = []
    for _ in range(2):
        for each in (ahead, command):
            ledger._send_command(each)
        seen.append((store.hgetall(keys.attempts(turn_id)), store.xlen(keys.log(turn_id))))
    assert seen[0] == seen[1]


async def test_a_holder_of_a_dropped_turn_leaves_no_text_in_the_store(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    claim = claimed(ledger, await client.submitter.submit(request(MESSAGE)))
    turn_id, keys = claim.turn.turn_id, keys_for_turn(client.settings.namespace, claim.turn.turn_id)
    store.delete(keys.turn(turn_id), keys.log(turn_id), keys.attempts(turn_id), keys.texts(turn_id))
    with pytest.raises(LeaseLost):
        ledger.commit_transition(claim, RUN_ENDED, keep=True)
    assert not store.exists(keys.attempts(turn_id))


async def test_the_loops_holder_of_a_dropped_turn_leaves_none_either(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    claim = claimed(ledger, await client.submitter.submit(request(MESSAGE)))
    turn_id, keys = claim.turn.turn_id, keys_for_turn(client.settings.namespace, claim.turn.turn_id)
    store.delete(keys.turn(turn_id), keys.log(turn_id), keys.attempts(turn_id), keys.texts(turn_id))
    on_loop = product.Ledger(client.settings, "w")
    with pytest.raises(LeaseLost):
        await on_loop.commit_transition(claim, RUN_ENDED, keep=True)
    await on_loop.close()
    assert not store.exists(keys.attempts(turn_id))


async def test_who_repeats_a_move_that_counted_and_is_fenced_by_then_removes_no_text(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    claim = claimed(ledger, await client.submitter.submit(request(MESSAGE)))
    turn_id, changes = claim.turn.turn_id, TurnCommands(client.settings, "w")
    steps = changes.commit_transition(claim, RUN_ENDED, 0.0, keep=True)
    ahead = next(steps)
    command = steps.send(None)
    for each in (ahead, command):
        ledger._send_command(each)  # whose reply was lost
    later = taken_over(client, ledger, store, turn_id, ChainTask(VALIDATE, 1))
    ledger._run_exchange(ledger._changes.read_attempts(later))
    ledger.commit_transition(later, PASSED)
    with pytest.raises(LeaseLost):
        ledger._run_exchange(changes._send_with_texts(claim, command))
    assert (await client.reader.read_turn(turn_id)).response == ANSWER


async def test_a_run_whose_text_the_landed_format_has_goes_on(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    claim = await judging(client, ledger)
    turn_id, keys = claim.turn.turn_id, keys_for_turn(client.settings.namespace, claim.turn.turn_id)
    store.hdel(keys.attempts(turn_id), "1:text_in", f"1:text~{claim.token}")
    store.hset(keys.attempts(turn_id), "1:text", ANSWER)
    later = taken_over(client, ledger, store, turn_id, ChainTask(VALIDATE, 1))
    [record] = ledger._run_exchange(ledger._changes.read_attempts(later))
    assert record.text == ANSWER
    ledger.commit_transition(later, PASSED)
    assert (await client.reader.read_turn(turn_id)).response == ANSWER
    assert written_ahead(store, later, client.settings.namespace) == []
