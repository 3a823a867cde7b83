"""The store's client on an event loop."""

import asyncio
import gc
from contextlib import suppress
from typing import Any

import hiredis
import pytest
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, ResponseError
from redis.retry import Retry

from api_client.contract.errors import StoreUnavailable
from api_client.contract.settings import Settings
from api_client.contract.settings.cluster import ClusterAddress
from api_client.store import Store, heed_cancellation
from api_client.store.cluster import Nodes, find_master, list_nodes
from api_client.store.connecting import NOT_YET
from api_client.store.connection import Subscription
from api_client.turns.channels import ChannelHub


async def test_a_loop_whose_cancellation_was_swallowed_ends_all_the_same() -> None:
    swallowing = asyncio.Event()

    async def looking() -> None:
        for _ in range(9):
            with suppress(asyncio.CancelledError):  # as the store's client can on Python 3.11
                swallowing.set()
                await asyncio.sleep(0)
            heed_cancellation()

    task = asyncio.create_task(looking())
    await swallowing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)


@pytest.mark.parametrize("reply", [b"1", ConnectionResetError("the server is gone"), RedisConnectionError("gone")])
async def test_a_caller_that_is_cancelled_while_its_reply_arrives_ends(reply: bytes | Exception) -> None:
    store, arriving = Store(Settings(store_url="redis://127.0.0.1:1/0")), asyncio.Event()

    async def answer() -> bytes:
        arriving.set()
        with suppress(asyncio.CancelledError):  # as redis-py does on Python 3.11, by asyncio.wait_for
            await asyncio.sleep(0.1)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def ask_again_and_again() -> None:
        for _ in range(9):
            with suppress(StoreUnavailable):
                await store.await_reply(answer())

    task = asyncio.create_task(ask_again_and_again())
    await arriving.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled(), "it went on as if nobody had cancelled it"
    await store.close()


async def test_cleaning_up_after_a_cancellation_may_still_ask_the_store() -> None:
    store, replies = Store(Settings(store_url="redis://127.0.0.1:1/0")), list[bytes]()

    async def answer() -> bytes:
        return b"cleaned"

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            replies.append(await store.await_reply(answer()))

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert replies == [b"cleaned"]
    await store.close()


@pytest.mark.parametrize("kind", ["commands", "channels"])
async def test_a_connection_that_fails_after_its_only_caller_was_cancelled_is_no_fault_in_the_log(kind: str) -> None:
    store, faults = Store(Settings(store_url="redis://127.0.0.1:1/0")), list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["message"]))
    opening = store._connection._shared_pipeline if kind == "commands" else ChannelHub(store)._shared_connection
    caller = asyncio.create_task(opening())
    await asyncio.sleep(0)
    [made] = asyncio.all_tasks() - {caller, asyncio.current_task()}
    caller.cancel()
    await asyncio.wait([caller, made])
    await store.close()
    del made, caller, opening, store
    gc.collect()
    assert faults == []


# What a connection that listens to channels makes of the bytes that come.


class Wire:
    """The connection below, which keeps what is written."""

    def __init__(self) -> None:
        self.transport: Any = self
        self.reader = hiredis.Reader(replyError=_error, notEnoughData=NOT_YET)
        self.written: list[bytes] = []
        self.closed = 0

    def set_protocol(self, _: object) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed += 1


def _error(text: str) -> ResponseError:
    return NoPermissionError(text) if text.startswith("NOPERM") else ResponseError(text)


class Heard:
    """What the listener was called with, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def on_subscribed(self, channel: bytes) -> None:
        self.calls.append(("subscribed", channel))

    def on_message(self, channel: bytes, data: bytes) -> None:
        self.calls.append(("heard", channel, data))

    def on_lost(self, error: Exception) -> None:
        self.calls.append(("lost", type(error)))


def said(*words: bytes | int, kind: bytes = b"*") -> bytes:
    """A reply of the server: an array, or (kind ``>``) what RESP3 says instead."""
    parts = [b":%d\r\n" % word if isinstance(word, int) else b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    return b"%s%d\r\n%s" % (kind, len(words), b"".join(parts))


async def made() -> tuple[Subscription, Wire, Heard]:
    wire, heard = Wire(), Heard()
    return Subscription(wire, heard), wire, heard  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [b"*", b">"], ids=["RESP2", "RESP3"])
async def test_messages_come_whole_and_in_order_however_the_bytes_are_cut(kind: bytes) -> None:
    line, wire, heard = await made()
    line.subscribe(b"a")
    assert wire.written == [b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\na\r\n"]
    data = said(b"subscribe", b"a", 1, kind=kind) + b"".join(
        said(b"message", b"a", b"%d" % number, kind=kind) for number in range(3)
    )
    for at in range(len(data)):
        line.data_received(data[at : at + 1])
    assert heard.calls == [("subscribed", b"a"), *(("heard", b"a", b"%d" % number) for number in range(3))]


async def test_a_channel_that_was_left_and_is_listened_to_again_is_confirmed_by_its_last_confirmation() -> None:
    line, _, heard = await made()
    line.subscribe(b"a")
    line.unsubscribe(b"a")
    line.subscribe(b"a")
    line.data_received(said(b"subscribe", b"a", 1) + said(b"unsubscribe", b"a", 0))
    assert not heard.calls, "between the two nothing is heard"
    line.data_received(said(b"subscribe", b"a", 1))
    assert heard.calls == [("subscribed", b"a")]


async def test_a_lost_connection_is_said_once_and_a_refusal_is_one() -> None:
    line, wire, heard = await made()
    line.connection_lost(None)
    line.connection_lost(OSError("again"))
    assert (heard.calls, wire.closed, line.usable) == ([("lost", RedisConnectionError)], 1, False)
    line, wire, heard = await made()
    line.data_received(b"-NOPERM no such channel\r\n" + said(b"message", b"a", b"x"))
    assert (heard.calls, wire.closed) == ([("lost", NoPermissionError)], 1)


async def test_a_connection_that_was_ended_says_nothing_more() -> None:
    line, wire, heard = await made()
    line.end()
    line.connection_lost(None)
    assert (heard.calls, wire.closed, line.usable) == ([], 1, False)


# What the nodes of a cluster say about the slot of our keys.

SLOTS = [
    [0, 99, [b"10.0.0.1", 1, b"id", []], [b"10.0.0.2", 2, b"id", []]],
    [100, 16383, [b"", 3, b"id", []], [None, 4, b"id", []], [b"?", 5, b"id", []]],
]


def test_a_node_names_the_master_of_a_slot_and_itself_by_the_address_it_was_asked_at() -> None:
    assert find_master(SLOTS, 99, "asked") == ("10.0.0.1", 1)
    assert find_master(SLOTS, 100, "asked") == ("asked", 3)
    assert find_master(SLOTS[:1], 100, "asked") is None
    assert list_nodes(SLOTS) == [("10.0.0.1", 1), ("10.0.0.2", 2)]


def test_the_word_of_a_node_without_the_majority_does_not_count_and_it_is_asked_last() -> None:
    named = ClusterAddress.parse("redis+cluster://a:1,b:2")
    assert named
    nodes = Nodes(named, "{x}", {"retry": Retry(NoBackoff(), 0)})
    assert nodes._accept_reply(("a", 1), ({"cluster_state": "fail"}, [[0, 16383, [b"old", 1]]])) is None
    nodes._demote_node(("a", 1))
    assert nodes._ordered_nodes() == (("b", 2), ("a", 1))
    assert nodes._accept_reply(("b", 2), ({"cluster_state": "ok"}, [[0, 16383, [b"new", 9]]])) == ("new", 9)
    assert nodes._ordered_nodes() == (("b", 2), ("new", 9), ("a", 1))
