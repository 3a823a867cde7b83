"""Turn ids, requests and records as they are stored."""

from __future__ import annotations

import json

import pytest

from api_client.contract.issues.issue import ValidationIssue
from api_client.contract.keys import Keys, keys_of
from api_client.contract.record import decode_attempts, decode_turn
from api_client.contract.tasks import QUEUES, Link, chain_of
from api_client.contract.turn import DoubleText, Outcome, TurnRequest, TurnState, new_turn_id, shard_of

REQUEST = TurnRequest(
    model="m",
    messages=({"role": "user", "content": "Grüße \u2028"},),
    session_id="s",
    double_text=DoubleText.REJECT,
    metadata={"a": "b"},
)


def test_a_turn_id_names_its_shard() -> None:
    assert shard_of(new_turn_id(7)) == 7
    assert keys_of("ns", new_turn_id(7)).due == Keys("ns", 7).due == "ns:{7}:due"


@pytest.mark.parametrize("garbage", ["", "t0", "t0-xyz", "../x", "t0-" + "a" * 31, "t-" + "a" * 32, "t0-" + "A" * 32])
def test_garbage_is_no_turn_id(garbage: str) -> None:
    with pytest.raises(ValueError, match="not a turn id"):
        shard_of(garbage)


def test_every_key_of_a_turn_carries_the_shards_hash_tag() -> None:
    turn_id = new_turn_id(3)
    keys = keys_of("ns", turn_id)
    names = [keys.turn(turn_id), keys.log(turn_id), keys.attempts(turn_id), keys.session("s"), *keys.metrics(0)]
    assert all("{3}" in name for name in [*names, keys.due, keys.dead, keys.finished, keys.idempotency("o", "k")])


def test_sessions_and_idempotency_keys_cannot_be_confused_by_their_spelling() -> None:
    keys = Keys("ns")
    assert keys.idempotency("a", "bc") != keys.idempotency("ab", "c")
    assert keys.session("a:b") != keys.session("a")


def test_a_request_survives_being_stored_and_one_of_a_newer_version_can_be_read() -> None:
    assert TurnRequest.from_json(REQUEST.to_json()) == REQUEST
    newer = json.dumps({**json.loads(REQUEST.to_json()), "colour": "blue"})
    assert TurnRequest.from_json(newer) == REQUEST


def test_a_record_of_a_newer_version_can_be_read() -> None:
    turn_id = new_turn_id()
    stored = {b"id": turn_id.encode(), b"epoch": b"e", b"state": b"queued", b"request": REQUEST.to_json().encode()}
    turn = decode_turn({**stored, b"colour": b"blue"})
    assert (turn.state, turn.request, turn.outcome) == (TurnState.QUEUED, REQUEST, None)
    with pytest.raises(ValueError, match="epoch is missing"):
        decode_turn({name: value for name, value in stored.items() if name != b"epoch"})


def test_attempts_are_read_in_order_with_the_facts_that_are_there() -> None:
    first, second = decode_attempts({b"2:text": b"b", b"1:text": b"a", b"1:issues": b'[{"code": "X"}]', b"1:new": b"?"})
    assert (first.number, first.text, first.issues, second.number) == (1, "a", (ValidationIssue("X", "", ""),), 2)


def test_exactly_four_outcomes_are_successes() -> None:
    successes = {outcome.value for outcome in Outcome if outcome.success}
    assert successes == {"passed", "passed_after_retry", "passed_by_fallback", "passed_by_human"}


@pytest.mark.parametrize("task", list(QUEUES))
def test_a_link_is_read_back_and_its_messages_carry_ids_only(task: str) -> None:
    link = Link(task, 2)
    assert Link.parse(str(link)) == link
    messages = chain_of(link, "t0-x", "s")
    assert messages[0]["name"] == task
    assert all(set(message["kwargs"]) == {"turn_id", "attempt", "session_id"} for message in messages)


@pytest.mark.parametrize("garbage", ["", "turn.run", "turn.run/x", "os.system/1", "turn.run/-1"])
def test_garbage_is_no_link(garbage: str) -> None:
    with pytest.raises(ValueError, match="not a link"):
        Link.parse(garbage)
