"""A search for part of a message: the store leaves out what cannot match, and no match is missed."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.turn import new_turn_id
from api_client.index.search import Search
from api_client.index.selection import select_turns
from tests.integration.lua.by_hand import request

MESSAGES = (
    "Plain NEEDLE", 'a "quoted" \\ word', "STRASSE", "Stra\u00dfe", "Stra\u1e9ee", "\ufb01nd me", "FIND me",
    "273 \u212a", "\u0130stanbul", "PR\u00dcFUNG", "pr\u00fcfung", "two\nlines", "nothing", "\u65e5\u672c\u8a9e",
    "x" * 20_000 + "Far behind",
)  # fmt: skip
ASKED = (
    "needle",
    '"quoted" \\',
    "stra\u00dfe",
    "strasse",
    "find",
    "k",
    "i",
    "pr\u00fcfung",
    "\u00fc",
    "o\nl",
    "far BEHIND",
    "\u672c",
    "zz",
)


def store_finished(
    client: TurnsClient, store: redis.Redis, messages: Sequence[str], *, seconds_ago: int = 0
) -> dict[str, str]:
    """Store a finished turn for each message, a long one apart, and return the messages by turn id, oldest first."""
    keys, now = Keys(client.settings.namespace), int(time.time() * 1000) - 1000 * seconds_ago
    said = {new_turn_id(): message for message in messages}
    pipe = store.pipeline(transaction=False)
    for number, (turn_id, message) in enumerate(said.items()):
        record = {"id": turn_id, "epoch": "e", "state": "finished", "outcome": "passed", "created_at": now + number}
        text = request(message).to_json()
        pipe.hset(keys.turn(turn_id), mapping=record | ({"request": text} if len(text) < 16_384 else {"apart": 1}))
        if len(text) >= 16_384:
            pipe.hset(keys.texts(turn_id), "request", text)
        pipe.zadd(keys.finished, {turn_id: now + number})
    pipe.execute()
    return said


async def test_the_store_finds_what_python_finds_whatever_the_case(client: TurnsClient, store: redis.Redis) -> None:
    said = store_finished(client, store, MESSAGES)
    for text in ASKED:
        found = await select_turns(client.lists, Search(text=text), only="finished")
        wanted = {message for message in MESSAGES if text.casefold() in message.casefold()}
        assert {said[each.turn_id] for each in found} == wanted, text


@pytest.mark.parametrize("size", [10, 10_000])
async def test_a_search_reads_no_message_that_cannot_match(client: TurnsClient, store: redis.Redis, size: int) -> None:
    """The bytes that the store sends do not grow with the messages, and one command looks at many turns."""
    turns = 1200
    store_finished(client, store, ("the needle", *("hay " * (size // 4) for _ in range(turns))))
    store.config_resetstat()
    page = await client.lists.read_page(Search(text="Needle"), seconds=60)
    [turn] = page.turns
    assert (turn.request.prompt, page.next) == ("the needle", None)
    stats: Any = store.info("commandstats")
    assert stats["cmdstat_evalsha_ro"]["calls"] <= 8
    net: Any = store.info("stats")
    assert net["total_net_output_bytes"] < 150 * turns
