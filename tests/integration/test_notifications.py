"""Notifications by real workers: webhooks that OpenAI's SDK verifies, a command, retries, what was given up."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
import redis

from api_client.api_keys import make_token
from api_client.client import TurnsClient
from api_client.contract.escalation import Escalation
from api_client.contract.keys import Keys
from api_client.contract.notification import Notification
from api_client.contract.settings import Settings
from api_client.notifications.notification_keys import NotificationKeys
from tests.hooks import HookReceiver
from tests.installation import Installation, command
from tests.integration.served import serving
from tests.on_loop import outbox_of
from tests.support import wait_for, wait_until

SECRET = "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQ="
SCRIPT = """
- when: broken
  attempts:
    - - error: {kind: config, message: no such model}
- when: bad
  attempts:
    - - say: "A secret answer without a marker."
- attempts:
    - - say: "Fine.\\n\\n<!-- STEP: what -->"
"""


@pytest.fixture
def called(installation: Installation, tmp_path: Path) -> Installation:
    """Settings under which notifications are sent; the receiver's address comes from each test."""
    installation.play(
        SCRIPT,
        webhook_secret=SECRET,
        webhook_internal="allowed",
        notification_command=f'cat >> {tmp_path}/said; echo "$NOTIFICATION_KIND" >> {tmp_path}/kinds',
        public_url="https://turns.example",
        locale="en",
    )
    return installation


async def test_each_kind_of_turn_calls_its_people_and_the_sdk_of_openai_verifies_all(
    called: Installation, tmp_path: Path
) -> None:
    with HookReceiver() as receiver:
        used = called.change(webhook_urls=(receiver.url,))
        called.worker()
        relay = called.relay()
        looked = Keys(used.namespace)
        with redis.Redis.from_url(used.redis_url) as store:  # notifications are of what happens from the first look on
            await wait_until(lambda: store.exists(NotificationKeys(looked.namespace).searched_until(looked.suspended)))
        client = openai.OpenAI(base_url=f"{relay.url}/v1", api_key="any")
        done = client.responses.create(model="scripted", input="hello", background=True)
        wrong = client.responses.create(model="scripted", input="broken", background=True)
        suspended = await called.ask(
            "bad", "s", max_attempts=1, policy={"step_marker": ("escalate",)}, attached=Escalation().attached
        )
        await wait_until(lambda: receiver.kinds().total() >= 4)
    events = receiver.unwrapped(SECRET)
    by_kind = {event.type: event for event in events}
    assert set(by_kind) == {"response.completed", "response.failed", "turn.failed", "inbox.waiting"}
    assert by_kind["response.completed"].data.id == done.id
    assert by_kind["response.failed"].data.id == wrong.id
    told = {event["type"]: event["data"] for event in (json.loads(body) for _, body in receiver.taken)}
    failed = told["turn.failed"]
    turn_id = wrong.id.removeprefix("resp_")
    assert (failed["turn_id"], failed["outcome"]) == (turn_id, "error")
    assert failed["url"] == f"https://turns.example/turns/{turn_id}"
    assert told["inbox.waiting"]["turn_id"] == suspended
    assert "secret answer" not in repr(receiver.taken)
    kinds, said = tmp_path / "kinds", tmp_path / "said"
    await wait_until(lambda: kinds.exists() and sorted(kinds.read_text().split()) == sorted(by_kind))
    assert len(said.read_text().splitlines()) == len(events)


async def test_who_was_away_gets_it_later_and_what_one_took_is_not_sent_to_it_again(
    called: Installation, tmp_path: Path
) -> None:
    with HookReceiver() as receiver:
        receiver.answer = lambda headers, body: 503 if len(receiver.paths) < 2 else 200
        used = called.change(webhook_urls=(receiver.url,))
        async with TurnsClient(used) as client:
            notification = Notification(kind="queue.stuck", subject="now", at=time.time(), data={"turns": 3})
            assert await client.notifications.put(notification)
            assert not await client.notifications.put(notification), "it is put once"
        called.worker("--foreground")
        await wait_until(lambda: receiver.taken)
        listed = await wait_until(lambda: command(used, "notifications", "list", "--json").stdout.strip() == "[]")
    assert listed
    assert len(receiver.paths) == 2
    assert (tmp_path / "kinds").read_text().split() == ["queue.stuck"]


def test_after_a_day_it_is_given_up_into_a_list_from_which_it_can_be_sent_again(called: Installation) -> None:
    with HookReceiver() as receiver:
        used = called.change(webhook_urls=(receiver.url,), notification_command="")
        with redis.Redis.from_url(used.redis_url) as store:
            outbox = outbox_of(used)
            outbox.put(Notification(kind="turn.dead", subject="turn-1", at=time.time()))
            [entry] = outbox.due(10)
            began = time.time() * 1000
            assert not outbox.failed(entry, [], "http://127.0.0.1: answers 500")
            again: Any = store.zscore(NotificationKeys(used.namespace).due, entry.notification_id)
            assert again >= began + 4_999, "not before its pause is over"
            [waits] = json.loads(command(used, "notifications", "list", "--json").stdout)
            assert waits["tries"] == 1
            old = replace(entry, put_at=entry.put_at - 86_400, tries=1)
            assert outbox.failed(old, [], "http://127.0.0.1: answers 500")
            assert json.loads(command(used, "notifications", "list", "--json").stdout) == []
        [told] = json.loads(command(used, "notifications", "dead", "--json").stdout)
        assert (told["kind"], told["error"]) == ("turn.dead", "http://127.0.0.1: answers 500")
        findings = json.loads(command(used, "doctor", "--json").stdout)["findings"]
        assert any(each["check"] == "notifications" and "given up" in each["message"] for each in findings)
        assert command(used, "notifications", "resend", "no-such").returncode == 2
        assert command(used, "notifications", "resend", "--all").stdout == "1 notification will be sent again\n"
        worker = called.worker("--foreground")
        wait_for(lambda: receiver.taken)
        assert receiver.unwrapped(SECRET)[0].id == told["notification_id"]
        assert worker.process.poll() is None
    assert command(used, "notifications", "test").returncode == 1
    assert command(replace(used, webhook_urls=()), "notifications", "test").returncode == 2


async def test_the_page_shows_what_was_given_up_and_its_forms_send_it_again_or_drop_it(settings: Settings) -> None:
    outbox = outbox_of(settings)
    for subject in ("one", "two"):
        outbox.put(Notification(kind="turn.dead", subject=subject, at=time.time()))
    for entry in outbox.due(2):
        outbox.failed(replace(entry, put_at=entry.put_at - 86_400), [], "<b>answers 500</b>")
    async with serving(settings) as relay, TurnsClient(settings) as client:
        assert (await relay.http.post("/sign-in", data={"key": make_token(settings.token_path)})).status_code == 303
        shown = (await relay.http.get("/notifications")).text
        assert "2 given up after a day" in shown
        assert "&lt;b&gt;answers 500&lt;/b&gt;" in shown
        csrf = re.search(r'name="csrf" value="([^"]+)"', shown)
        assert csrf
        one, two = await client.notifications.given_up()
        wanted = {"csrf": csrf[1], "notification": one.notification_id}
        assert (await relay.http.post("/notifications/resend", data=wanted)).headers["location"] == "/notifications"
        assert [each.notification_id for each in await client.notifications.waiting()] == [one.notification_id]
        assert (await relay.http.post("/notifications/resend", data=wanted)).status_code == 400, (
            "it is not given up any more"
        )
        metrics = (await relay.http.get("/metrics")).text
        assert "helix_notifications_waiting 1.0" in metrics
        assert "helix_notifications_given_up 1.0" in metrics
        assert (await relay.http.post("/notifications/drop", data={"csrf": csrf[1]})).status_code == 303
        assert "Nothing was given up." in (await relay.http.get("/notifications")).text
        assert two.notification_id not in {each.notification_id for each in await client.notifications.waiting()}
    audit = command(settings, "data", "audit").stdout
    assert "resend notifications" in audit
    assert "drop notifications" in audit


async def test_the_api_lists_notifications_and_sends_those_given_up_again_or_drops_them(settings: Settings) -> None:
    outbox = outbox_of(settings)
    for subject in ("one", "two", "three"):
        outbox.put(Notification(kind="turn.dead", subject=subject, at=time.time()))
    for entry in outbox.due(3):
        outbox.failed(replace(entry, put_at=entry.put_at - 86_400), [], "answers 500")
    outbox.put(Notification(kind="turn.failed", subject="waits", at=time.time()))
    async with serving(settings) as relay:
        http = relay.http
        http.headers["authorization"] = f"Bearer {make_token(settings.token_path)}"
        waiting = (await http.get("/v1/notifications")).json()
        assert [each["kind"] for each in waiting["data"]] == ["turn.failed"]
        assert (waiting["waiting"], waiting["given_up"]) == (1, 3)
        dead = (await http.get("/v1/notifications/dead")).json()["data"]
        assert [(each["object"], each["error"]) for each in dead] == [("notification", "answers 500")] * 3
        assert len((await http.get("/v1/notifications/dead?limit=2")).json()["data"]) == 2
        assert dead == [
            {"object": "notification", **each}
            for each in json.loads(command(settings, "notifications", "dead", "--json").stdout)
        ]
        first = dead[0]["notification_id"]
        again = await http.post("/v1/notifications/dead/resend", json={"notification_ids": [first]})
        assert (again.status_code, again.json()) == (200, {"resent": [first]})
        assert first in {each["notification_id"] for each in (await http.get("/v1/notifications")).json()["data"]}
        refused = await http.post(
            "/v1/notifications/dead/resend", json={"notification_ids": [dead[1]["notification_id"], first]}
        )
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "notification")
        assert (await http.get("/v1/notifications")).json()["given_up"] == 2, "all of them or none"
        dropped = (await http.post("/v1/notifications/dead/drop", json={"all": True})).json()["dropped"]
        assert sorted(dropped) == sorted(each["notification_id"] for each in dead[1:])
        assert (await http.get("/v1/notifications/dead")).json()["data"] == []
    audit = command(settings, "data", "audit").stdout
    assert "resend notifications" in audit
    assert "drop notifications" in audit


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "notification_ids"),
        ({"notification_ids": []}, "notification_ids"),
        ({"notification_ids": "evt_1"}, "notification_ids"),
        ({"notification_ids": ["evt_1"], "all": True}, "notification_ids"),
        ({"all": 1}, "all"),
        ({"notifications": ["evt_1"]}, "notifications"),
    ],
)
async def test_the_api_drops_nothing_when_it_is_not_clear_what(
    settings: Settings, body: dict[str, Any], param: str
) -> None:
    async with serving(settings) as relay:
        relay.http.headers["authorization"] = f"Bearer {make_token(settings.token_path)}"
        answer = await relay.http.post("/v1/notifications/dead/drop", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_doctor_names_an_address_that_leads_inside_and_webhooks_without_a_signature(called: Installation) -> None:
    used = called.change(webhook_urls=("https://localhost/x",), webhook_internal="refused", webhook_secret="")
    findings = json.loads(command(used, "doctor", "--json").stdout)["findings"]
    said = [each["message"] for each in findings if each["check"] == "webhook"]
    assert any("an internal address" in each for each in said)
    assert any("not signed" in each for each in said)
