"""The routes of the turn itself, and its events."""

from __future__ import annotations

import json

import httpx2
import pytest

from api_client.contract.errors import StoreUnavailable
from tests.unit.web.conftest import caller
from tests.unit.web.fake import EPOCH, TURN_ID, FakeTurns, app_with, event, passed

BODY = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}]}
EVENTS = f"/v1/turns/{TURN_ID}/events"


def ids(answer: httpx2.Response) -> list[str]:
    return [line.removeprefix("id: ") for line in answer.text.split("\n") if line.startswith("id: ")]


async def test_submit_returns_at_once_and_says_where_to_look(http: httpx2.AsyncClient, turns: FakeTurns) -> None:
    answer = await http.post("/v1/turns", json=BODY, headers={"Idempotency-Key": "once"})
    assert answer.status_code == 202
    assert answer.json()["turn_id"] == TURN_ID == answer.headers["x-turn-id"]
    assert answer.headers["location"] == f"/v1/turns/{TURN_ID}"
    assert answer.json()["session_id"] == turns.submitted[0].session_id
    assert turns.keys == ["once"]
    assert turns.followed == []


async def test_a_turn_and_its_attempts_can_be_read(http: httpx2.AsyncClient) -> None:
    turn = (await http.get(f"/v1/turns/{TURN_ID}")).json()
    assert (turn["object"], turn["turn_id"], turn["outcome"], turn["success"]) == ("turn", TURN_ID, "passed", True)
    attempts = (await http.get(f"/v1/turns/{TURN_ID}/attempts")).json()
    assert [attempt["number"] for attempt in attempts["data"]] == [1]


async def test_cancelling_twice_answers_twice(http: httpx2.AsyncClient, turns: FakeTurns) -> None:
    assert (await http.post(f"/v1/turns/{TURN_ID}/cancel")).status_code == 200
    assert (await http.delete(f"/v1/turns/{TURN_ID}")).status_code == 200
    assert turns.cancelled == 2
    assert [(action, turn_id) for action, _, turn_id in turns.audit.lines] == [("cancel", TURN_ID)] * 2


async def test_the_events_carry_ids_and_end(http: httpx2.AsyncClient) -> None:
    answer = await http.get(EVENTS)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache, no-transform"
    assert ids(answer) == [f"{seq}-{EPOCH}-{1_000_000 + 1000 * seq}" for seq in range(1, 7)]
    data = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]
    assert [item["kind"] for item in data][-1] == "turn.finished"
    assert "\n: ping\n\n" in answer.text


async def test_a_reader_goes_on_behind_the_last_event_it_saw(http: httpx2.AsyncClient, turns: FakeTurns) -> None:
    every = ids(await http.get(EVENTS))
    turns.followed.clear()
    answer = await http.get(EVENTS, headers={"last-event-id": every[3]})
    assert ids(answer) == every[4:]
    assert turns.followed == [(4, EPOCH)]
    assert "log.reset" not in answer.text


@pytest.mark.parametrize("given", ["4-other", f"7-{EPOCH}", f"999-{EPOCH}"])
async def test_a_reader_of_another_log_is_told_to_start_over(http: httpx2.AsyncClient, given: str) -> None:
    answer = await http.get(EVENTS, headers={"last-event-id": given})
    assert answer.text.startswith("event: log.reset\n")
    assert len(ids(answer)) == 6


async def test_a_reader_that_has_everything_is_told_not_to_come_back(
    http: httpx2.AsyncClient, turns: FakeTurns
) -> None:
    turns.finished_at = 1_006.0
    last = ids(await http.get(EVENTS))[-1]
    assert (await http.get(EVENTS, headers={"last-event-id": last})).status_code == 204
    other = f"6-{EPOCH}-{1_005_999}"  # the store forgot that end, and another one stands in its place
    assert (await http.get(EVENTS, headers={"last-event-id": other})).status_code == 200
    earlier = f"6-{EPOCH}"  # an id that an earlier version gave out
    assert (await http.get(EVENTS, headers={"last-event-id": earlier})).status_code == 204


async def test_a_reader_whose_events_the_store_forgot_is_told_to_start_over_in_mid_stream() -> None:
    begun = [event(1, "turn.queued", position=0), event(2, "attempt.output", attempt=1, text="Ha")]
    async with caller(app_with(FakeTurns([*begun, event(0, "log.reset", reason="lost"), *passed("Hallo.")]))) as http:
        answer = await http.get(EVENTS)
    assert '\n\nevent: log.reset\ndata: {"seq":0,' in answer.text, "it has no id to come back with"
    assert [int(given.partition("-")[0]) for given in ids(answer)] == [1, 2, 1, 2, 3, 4, 5, 6]


async def test_events_that_break_off_end_with_an_error_event() -> None:
    turns = FakeTurns([event(1, "turn.queued", position=0), StoreUnavailable("redis://secret")])
    async with caller(app_with(turns)) as http:
        answer = await http.get(EVENTS)
    assert "event: error\n" in answer.text
    assert '"code":"stream_lost"' in answer.text
    assert TURN_ID in answer.text
    assert "secret" not in answer.text


async def test_the_store_being_away_is_not_ready_but_alive() -> None:
    turns = FakeTurns()
    turns.refusal = StoreUnavailable("redis://secret")
    async with caller(app_with(turns)) as http:
        assert (await http.get("/healthz")).status_code == 200
        answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"status": "unavailable"})


async def test_the_document_declares_streams_as_streams(http: httpx2.AsyncClient) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]
    for path, method in [("/v1/chat/completions", "post"), ("/v1/turns/{turn_id}/events", "get")]:
        assert "text/event-stream" in paths[path][method]["responses"]["200"]["content"]
    assert "requestBody" in paths["/v1/turns"]["post"]


async def test_models_are_listed_and_shown(http: httpx2.AsyncClient) -> None:
    listed = (await http.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["scripted"]
    assert (await http.get("/v1/models/scripted")).json() == listed["data"][0]
    assert listed["data"][0]["info"] == {
        "meta": {"capabilities": {"builtin_tools": False, "vision": False, "usage": True}}
    }
