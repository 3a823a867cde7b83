"""Webhooks while their senders are killed: each arrives at least once, and OpenAI's SDK accepts it.

CI sends 250, with a kill at each of both points; ``make faults`` sends a thousand, with five kills.
"""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from api_client.notifications.notification_keys import NotificationKeys
from tests.fault.matrix import WHOLE
from tests.hooks import HookReceiver
from tests.installation import Installation
from tests.on_loop import done, outbox_of
from tests.support import put, wait_until
from worker.plugins.notifications.gathering import gather_notifications

SECRET = "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQ="
COUNT = 1_000 if WHOLE else 250
#: When so many have arrived, the process that sends is killed there.
KILLS = {1: "notification.taken", 100: "notification.due"}
if WHOLE:
    KILLS |= {300: "notification.taken", 500: "notification.due", 700: "notification.taken"}


@pytest.mark.timeout(600)
async def test_webhooks_arrive_at_least_once_though_their_senders_are_killed(
    installation: Installation, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    with HookReceiver() as receiver:
        receiver.seconds = 0.02
        receiver.answer = lambda headers, body: 500 if len(receiver.paths) % 50 == 0 else 200
        used = replace(
            installation.settings,
            webhook_urls=(receiver.url,),
            webhook_secret=SECRET,
            webhook_internal="allowed",
            failpoint=str(points),
        )
        outbox = outbox_of(used).inner
        done(lambda: gather_notifications(used, outbox._store, outbox))  # from here on
        asked = await cancelled(used)
        arrived = lambda: {json.loads(body)["data"]["id"] for _, body in list(receiver.taken)}  # noqa: E731
        senders = [installation.worker("--foreground", settings=used) for _ in range(2)]
        for count, point in KILLS.items():
            await wait_until(lambda count=count: len(arrived()) >= count, 300)
            (points / f"{point}.1").unlink(missing_ok=True)
            put(points / point, "kill@1")
            await wait_until(lambda senders=senders: [one for one in senders if one.process.poll() is not None], 300)
            (points / point).unlink()
            left = [sender for sender in senders if sender.process.poll() is None]
            assert len(left) == 1, "the other one does not send"
            senders = [*left, installation.worker("--foreground", settings=used, wait=False)]
        await wait_until(lambda: arrived() == asked, 300)
        with redis.Redis.from_url(used.redis_url) as store:
            await wait_until(lambda: store.hlen(NotificationKeys(used.namespace).notifications) == 0, 120)
        events = receiver.unwrapped(SECRET)
    assert {event.type for event in events} == {"response.cancelled"}
    assert {event.data.id for event in events} == asked
    assert len({event.id for event in events}) == COUNT
    assert len(events) < 1.5 * COUNT, "at least once does not mean again and again"


async def cancelled(settings: Settings) -> set[str]:
    """Submit responses in the background and cancel each before a worker is there; return their ids."""
    async with TurnsClient(settings) as client:

        async def one(number: int) -> str:
            message = {"role": "user", "content": "hello"}
            request = TurnRequest(
                model="scripted", messages=(message,), session_id=f"s{number}", metadata={"background": "true"}
            )
            turn_id = await client.submitter.submit(request)
            await client.canceller.cancel(turn_id)
            return f"resp_{turn_id}"

        found: set[str] = set()
        for start in range(0, COUNT, 50):
            found.update(await asyncio.gather(*(one(number) for number in range(start, start + 50))))
        return found
