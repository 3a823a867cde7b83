"""The message that a submit pushes is the one that the installed Celery sends, byte for byte."""

import base64
import json
import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import celery
import pytest
import redis
from celery import Celery, chain

from api_client.broker.celery_message import (
    Announcement,
    MessageStamp,
    build_announcement,
    celery_settings,
)
from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.tasks import CHECK_QUEUE, RUN, RUN_QUEUE, ChainTask, all_tasks, build_chain, choose_queue
from api_client.contract.turn import TurnRequest
from api_client.turns import submitter
from tests.support import wait_for

TURN, SESSION = f"turn-{'a' * 32}", "session-ü-'\"\\-%(turn_id)s-%-\0turn_id\0"


class Heard:
    """What was sent under a namespace: the messages of its queues, and its events."""

    def __init__(self, settings: Settings) -> None:
        self.store = redis.Redis.from_url(settings.redis_url)
        self.prefix = f"{settings.namespace}:celery:"
        self._events = self.store.pubsub()
        self._events.psubscribe(f"{self.prefix}*celeryev*")
        wait_for(lambda: self._events.get_message(timeout=1))  # it is subscribed

    def message(self, queue: str) -> str:
        return str(wait_for(lambda: self.store.rpop(self.prefix + queue)), "utf-8")

    def event(self) -> tuple[str, str]:
        found = wait_for(lambda: self._events.get_message(timeout=1))
        return str(found["channel"], "utf-8"), str(found["data"], "utf-8")


def body(message: str) -> Any:
    return json.loads(base64.b64decode(json.loads(message)["body"]))


def stamp_of(message: str, event: str) -> MessageStamp:
    """The ids, sender and time of what Celery sent."""
    sent, told = json.loads(message), body(event)
    rest = body(message)[2]["chain"]
    return MessageStamp(
        root_id=sent["headers"]["id"],
        next_id=rest[0]["options"]["task_id"] if rest else "",
        reply_to=sent["properties"]["reply_to"],
        delivery_tag=sent["properties"]["delivery_tag"],
        event_tag=json.loads(event)["properties"]["delivery_tag"],
        pid=told["pid"],
        host=told["hostname"].partition("@")[2],
        clock=told["clock"],
        at=told["timestamp"],
    )


@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize("task", all_tasks())
def test_every_link_s_message_and_event_are_celery_s_own_byte_for_byte(
    settings: Settings, task: str, attempt: int
) -> None:
    heard, link = Heard(settings), ChainTask(task, attempt)
    app = Celery("helix-turns-client", set_as_current=False)
    app.conf.update(celery_settings(settings))
    items = build_chain(link, TURN, SESSION)
    chain(
        *(app.signature(item["name"], kwargs=item["kwargs"], queue=item["queue"], immutable=True) for item in items)
    ).apply_async(retry=False)
    message, (channel, event) = heard.message(choose_queue(link)), heard.event()
    made = build_announcement(settings, link, TURN, SESSION, stamp_of(message, event))
    sent = Announcement(heard.prefix + choose_queue(link), message, channel, event)
    assert made == sent, f"Celery {celery.__version__} sends something else"
    app.close()


def test_each_message_has_random_ids() -> None:
    ids = [
        id_ for stamp in (MessageStamp(), MessageStamp()) for id_ in (stamp.root_id, stamp.next_id, stamp.delivery_tag)
    ]
    assert {uuid.UUID(id_).version for id_ in ids} == {4}
    assert [str(uuid.UUID(id_)) for id_ in ids] == ids
    assert len({*ids}) == len(ids)


def request(**more: Any) -> TurnRequest:
    return TurnRequest(
        **{"model": "scripted", "messages": ({"role": "user", "content": "hi"},), "session_id": "s"} | more
    )


def commands(monitor: Any, settings: Settings) -> list[str]:
    """What clients sent under this namespace up to the echo that ends it."""
    sent = []
    for seen in monitor.listen():
        if seen["command"].startswith("ECHO end"):
            return sent
        if seen["client_type"] != "lua" and settings.namespace in seen["command"]:
            sent.append(seen["command"].split()[0])
    return sent


async def test_a_submit_stores_the_turn_and_its_message_in_one_command(settings: Settings) -> None:
    heard = Heard(settings)
    async with TurnsClient(settings) as client:
        await client.submitter.submit(request(session_id="first"))  # the script is loaded
        heard.message(RUN_QUEUE)
        heard.event()
        for number in range(5):  # what a client knows for seconds only it may have to ask again on a slow machine
            with heard.store.monitor() as monitor:
                turn_id = await client.submitter.submit(request(session_id=f"s{number}"))
                heard.store.echo("end")
                sent = commands(monitor, settings)
            message, (_, event) = heard.message(RUN_QUEUE), heard.event()
            if sent == ["EVALSHA"]:
                break
    assert sent == ["EVALSHA"]
    assert body(message)[1] == {"turn_id": turn_id, "attempt": 1, "session_id": f"s{number}"}
    assert body(message)[2]["chain"][0]["options"]["queue"] == CHECK_QUEUE
    assert body(event)["uuid"] == json.loads(message)["headers"]["id"]


async def test_only_the_head_of_a_session_is_announced_and_a_repeat_is_not_again(settings: Settings) -> None:
    queue = f"{settings.namespace}:celery:{RUN_QUEUE}"
    store = redis.Redis.from_url(settings.redis_url)
    async with TurnsClient(settings) as client:
        turn_id = await client.submitter.submit(request())
        await client.submitter.submit(request())
        assert await client.submitter.submit(request(), turn_id=turn_id) == turn_id
    assert store.llen(queue) == 1


async def test_where_the_queue_cannot_be_pushed_to_the_turn_is_stored_all_the_same(settings: Settings) -> None:
    store = redis.Redis.from_url(settings.redis_url)
    store.set(f"{settings.namespace}:celery:{RUN_QUEUE}", "no list")
    async with TurnsClient(settings) as client:
        turn_id = await client.submitter.submit(request())
        assert (await client.reader.read_turn(turn_id)).next == str(ChainTask(RUN, 1))


async def test_with_two_servers_celery_publishes_the_message(settings: Settings) -> None:
    heard = Heard(settings)
    other = replace(settings, broker_url=f"{settings.broker_url}?virtual_host=0")  # another address: another server
    async with TurnsClient(other) as client:
        await client.submitter.submit(request())
    assert body(heard.message(RUN_QUEUE))[1]["session_id"] == "s"


async def test_the_event_of_a_submit_is_left_out_for_a_second_after_one_reached_nobody(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(submitter, "time", SimpleNamespace(monotonic=lambda: now))
    async with TurnsClient(settings) as client:
        await client.submitter.submit(request(session_id="a"))
        heard = Heard(settings)
        now = 100.5
        await client.submitter.submit(request(session_id="b"))
        heard.store.publish(f"{heard.prefix}/0.celeryev/marker", "behind it")
        assert heard.event()[1] == "behind it"
        for now in (101.5, 101.6):
            await client.submitter.submit(request(session_id=f"{now}"))
            assert body(heard.event()[1])["type"] == "task-sent"
