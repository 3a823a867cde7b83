"""Bulk actions on a page, and replays by another model or with another message, over a real store."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import httpx2
import pytest

from api_client import api_keys as keys
from api_client.contract.owners import owner_of_name
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from api_client.operator_actions import carry_out_action
from api_client.turn_actions.replay import ReplayAction
from api_client.web.app.relay_server import create_app
from tests.html import Document
from tests.integration.engine import GOOD, NO_MARKER, Bench, says
from tests.integration.test_lists import command
from tests.replays import replay_turn
from tests.unit.web.conftest import caller

PLAIN, OTHER = "scripted", "oracle"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, models={PLAIN: "scripted", OTHER: "scripted"})


Visit = Callable[..., Awaitable[httpx2.AsyncClient]]


@pytest.fixture
async def visit(settings: Settings) -> AsyncIterator[Visit]:
    """Somebody with a key of ``turns keys``, signed in at the pages; programs send the same key."""
    async with AsyncExitStack() as open_:
        made: dict[str, str] = {}

        async def visitor(name: str, right: str = "user", **more: object) -> httpx2.AsyncClient:
            key = made.setdefault(
                name,
                keys.add_key(settings.keys_path, keys.ApiKey(name=name, hash="", owner=name, right=right, **more)),  # type: ignore[arg-type]
            )
            app = create_app(settings)
            await open_.enter_async_context(app.router.lifespan_context(app))
            http = await open_.enter_async_context(caller(app, host="203.0.113.7"))
            http.headers["authorization"] = f"Bearer {key}"
            assert (await http.post("/sign-in", data={"key": key})).status_code == 303
            return http

        yield visitor


def form(page: Document, action: str = "/turns/bulk") -> dict[str, str]:
    [found] = [each for each in page.all("form", action=action) if each.attributes["method"] == "post"]
    fields = [each.attributes for each in found.inside if each.tag == "input"]
    return {each["name"]: each.get("value", "") for each in fields}


async def finished(bench: Bench, owner: str, number: int, **more: object) -> list[str]:
    """That many failed turns of an owner."""
    found = []
    for count in range(number):
        session = f"{owner}-{count}"
        asked = {"owner": owner_of_name(owner), "session_id": session, "policy": {"step_marker": ("fail",)}, **more}
        found.append((await bench.outcome(says(NO_MARKER), max_attempts=1, **asked)).turn_id)
    return found


async def test_what_was_counted_is_replayed_once_confirmed_and_twice_makes_no_second_turn(
    bench: Bench, visit: Visit
) -> None:
    mine, other = await finished(bench, "alice", 3), await finished(bench, "bob", 1)
    http = await visit("ops", "operator")
    listed = Document((await http.get("/turns", params={"status": "failed", "owner": owner_of_name("alice")})).text)
    [asking] = listed.all("form", action="/turns/bulk")
    asked = {each.attributes["name"]: each.attributes["value"] for each in asking.inside if each.tag == "input"}
    counted = Document((await http.get("/turns/bulk", params={**asked, "action": "replay"})).text)
    assert "3 turns would be replayed" in counted.text
    assert await bench.client.audit.read_lines() == []  # nothing was changed
    confirmed = form(counted)
    for said in ("3 turns replayed", "0 turns replayed, 3 already were"):
        done = await http.post("/turns/bulk", data=confirmed)
        assert said in Document(done.text).text
    replays = [each for each in (await http.get("/v1/turns")).json()["data"] if each["replay_of"]]
    assert sorted(each["replay_of"] for each in replays) == sorted(mine)
    assert {each["owner"] for each in replays} == {owner_of_name("alice")}
    lines = await bench.client.audit.read_lines()
    assert {line.turn_id for line in lines} == set(mine)
    assert not {line.turn_id for line in lines} & set(other)
    assert {(line.action, line.bulk) for line in lines} == {("replay", confirmed["bulk"])}
    assert all("failed" in line.detail and owner_of_name("alice") in line.detail for line in lines)


async def test_a_key_acts_in_bulk_on_its_own_turns_alone_and_drops_nothing(bench: Bench, visit: Visit) -> None:
    for owner in ("alice", "bob"):
        await bench.submit(owner=owner_of_name(owner), session_id=owner)
    http = await visit("alice")
    address = f"/turns/bulk?{urlencode({'action': 'cancel', 'owner': owner_of_name('bob'), 'status': 'unfinished'})}"
    counted = Document((await http.get(address)).text)
    assert "1 turn would be cancelled" in counted.text
    await http.post("/turns/bulk", data=form(counted))
    turns = (await (await visit("ops", "operator")).get("/v1/turns")).json()["data"]
    assert {each["owner"]: each["outcome"] for each in turns} == {
        owner_of_name("alice"): "cancelled",
        owner_of_name("bob"): None,
    }
    assert (await http.get("/turns/bulk?action=drop")).status_code == 403
    assert (await http.post("/turns/bulk", data={**form(counted), "action": "drop"})).status_code == 403
    assert (await http.get("/turns/bulk?action=erase")).status_code == 400
    assert (await http.post("/turns/bulk", data={**form(counted), "csrf": "x"})).status_code == 403


async def test_a_turn_that_came_after_the_counting_is_not_touched(bench: Bench, visit: Visit) -> None:
    await bench.submit(session_id="before")
    http = await visit("ops", "operator")
    counted = Document((await http.get("/turns/bulk?action=cancel")).text)
    later = await bench.submit(session_id="later")
    assert "1 turn cancelled" in Document((await http.post("/turns/bulk", data=form(counted))).text).text
    assert (await bench.client.reader.read_turn(later)).outcome is None


async def test_bulk_replays_stop_at_the_limit_and_go_on_behind_what_is_done(bench: Bench, visit: Visit) -> None:
    mine = await finished(bench, "alice", 3)
    http = await visit("alice", per_minute=1)
    counted = Document((await http.get("/turns/bulk?action=replay")).text)
    page = Document((await http.post("/turns/bulk", data=form(counted))).text)
    assert "1 turn replayed" in page.text
    assert "Stopped early: at most 1 turns a minute are allowed" in page.text
    assert "2 turns remain." in page.text
    operator = await visit("ops", "operator")
    page = Document((await operator.get("/turns/bulk?action=replay&status=failed")).text)
    await operator.post("/turns/bulk", data={**form(page), "cursor": form(page)["cursor"]})
    replays = {
        (await bench.client.reader.read_turn(await replay_turn(bench.client, turn_id))).labels["replay_of"]
        for turn_id in mine
    }
    assert replays == set(mine)


async def test_a_replay_asks_another_model_or_sends_another_message_and_says_of_which_turn(
    bench: Bench, visit: Visit, settings: Settings
) -> None:
    [turn_id] = await finished(bench, "alice", 1)
    http = await visit("alice")

    async def replayed(**body: str) -> dict[str, str]:
        answer = await http.post(f"/v1/turns/{turn_id[:14]}/replay", json=body)
        assert answer.status_code == 202, answer.text
        return answer.json()  # type: ignore[no-any-return]

    plain, other, edited = await replayed(), await replayed(model=OTHER), await replayed(message="Und anders?")
    assert plain["turn_id"] == await replay_turn(bench.client, turn_id)
    assert (await http.post(f"/v1/turns/{turn_id}/replay")).json() == plain  # without any body
    assert await replayed(model=PLAIN, message="Wie geht das?") == plain  # nothing was changed
    assert len({plain["turn_id"], other["turn_id"], edited["turn_id"]}) == 3
    for said, model, message in ((other, OTHER, "Wie geht das?"), (edited, PLAIN, "Und anders?")):
        turn = await bench.client.reader.read_turn(said["turn_id"])
        assert (turn.labels["replay_of"], turn.request.model, turn.request.prompt) == (turn_id, model, message)
        assert (turn.request.owner, turn.request.max_attempts) == (owner_of_name("alice"), 1)
    by_command = json.loads(
        await asyncio.to_thread(command, settings, "turn", "replay", turn_id, "--as-model", OTHER, "--json")
    )
    assert by_command == {"turn_id": other["turn_id"], "replay_of": turn_id}
    page = Document((await http.get(f"/turns/{turn_id}")).text)
    fields = form(page, f"/turns/{turn_id}/replay-changed") | {"model": PLAIN, "message": "Und anders?"}
    answer = await http.post(f"/turns/{turn_id}/replay-changed", data=fields)
    assert answer.headers["location"] == f"/turns/{edited['turn_id']}"
    unfit = await http.post(f"/turns/{turn_id}/replay-changed", data={**fields, "message": "a\0b"})
    assert unfit.status_code == 400, "a form's text is held to what a body of JSON is"
    details = [line.detail for line in await bench.client.audit.read_lines(turn_id=turn_id)]
    assert f"model={OTHER}" in details
    assert "page, message edited" in details
    assert "Und anders?" not in str(details)


async def test_a_replay_that_is_not_allowed_is_refused_and_makes_no_turn(bench: Bench, visit: Visit) -> None:
    [turn_id] = await finished(bench, "alice", 1)
    waiting = await bench.submit(owner=owner_of_name("alice"), session_id="waits")
    http, bound = await visit("alice"), await visit("bound", models=(PLAIN,))
    address = f"/v1/turns/{turn_id}/replay"
    assert (await http.post(address, json={"model": "nobody"})).status_code == 404
    for empty in (" ", "\u200b", "\u2060\n\u00ad"):
        assert (await http.post(address, json={"message": empty})).status_code == 400, ascii(empty)
    assert (await http.post(address, json={"prompt": "x"})).status_code == 400
    assert (await http.post(f"/v1/turns/{waiting}/replay")).status_code == 409
    assert (await bound.post(address)).status_code == 404  # somebody else's
    [own] = await finished(bench, "bound", 1)
    assert (await bound.post(f"/v1/turns/{own}/replay", json={"model": OTHER})).status_code == 404
    listed = (await http.get("/v1/turns")).json()["data"]
    assert [each["turn_id"] for each in listed if each["replay_of"]] == []


async def test_another_model_gets_its_own_rules_unless_the_caller_named_some(bench: Bench, tmp_path: Path) -> None:
    settings = replace(bench.settings, model_settings={OTHER: {"validators": ("adr_structure",), "max_attempts": 5}})
    bench.client.settings = settings
    for named, wanted in ((False, (("adr_structure",), 5)), (True, (("file_existence",), 2))):
        given = {"validators": ("file_existence",), "max_attempts": 2} if named else {"max_attempts": 3}
        message = ({"role": "user", "content": "Wie geht das?"},)
        request = TurnRequest(model=PLAIN, messages=message, session_id=f"s{named}", **given)  # type: ignore[arg-type]
        bench.runner.plays += (says(GOOD),)
        turn_id = await bench.client.submitter.submit(request)
        bench.carry_out(turn_id, session_id=f"s{named}")
        again = await bench.client.reader.read_turn(await replay_turn(bench.client, turn_id, model=OTHER))
        assert (again.request.validators, again.request.max_attempts) == wanted


async def test_a_response_and_an_inbox_item_are_named_by_the_beginning_of_their_id(bench: Bench, visit: Visit) -> None:
    [turn_id] = await finished(bench, "alice", 1)
    http, other = await visit("alice"), await visit("bob")
    short = turn_id[:14]
    assert (await http.get(f"/v1/responses/resp_{short}")).json()["id"] == f"resp_{turn_id}"
    assert (await http.get(f"/v1/inbox/{short}")).json()["turn_id"] == turn_id
    assert (await other.get(f"/v1/responses/resp_{short}")).status_code == 404
    assert (await other.get(f"/v1/inbox/{short}")).status_code == 404


async def test_a_refused_replay_stands_in_the_audit_log_as_refused(bench: Bench) -> None:
    [turn_id] = await finished(bench, "alice", 1)
    with pytest.raises(Exception, match="unknown model"):
        await carry_out_action(bench.client, ReplayAction(model="nobody"), turn_id, by="me")
    [line] = await bench.client.audit.read_lines(turn_id=turn_id)
    assert "unknown model" in line.refused
