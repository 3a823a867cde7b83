"""The inbox and phases over HTTP, and what a caller hears of a turn that waits for a person."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from api_client.api_keys import make_token
from api_client.contract.errors import IdempotencyConflict, StoreUnavailable
from api_client.contract.escalation import Escalation
from api_client.contract.order_log import name_caller
from api_client.contract.owners import LOCAL_OWNER
from api_client.contract.phase import Phase
from api_client.contract.settings import Settings
from api_client.contract.tasks import RESUME, ChainTask
from api_client.turns.submitter import Submitter
from tests.installation import Installation, web
from tests.integration.engine import GOOD, NO_MARKER, Bench, says
from tests.integration.served import PAGE, serving
from tests.support import wait_until
from tests.unit.web.openwebui import Reader

BODY = {
    "model": "scripted",
    "messages": [{"role": "user", "content": "Hallo"}],
    "policy": {"step_marker": ["escalate"]},
    "max_attempts": 1,
}


@pytest.fixture
def bench(bench: Bench) -> Bench:
    (bench.settings.root / "work").mkdir()
    return bench


@pytest.fixture
async def http(settings: Settings) -> AsyncIterator[httpx2.AsyncClient]:
    token = make_token(settings.token_path)
    async with web(replace(settings, suspended_seconds=0.2), authorization=f"Bearer {token}") as client:
        yield client


async def suspended(bench: Bench, http: httpx2.AsyncClient) -> dict[str, str]:
    turn: dict[str, str] = (await http.post("/v1/turns", json=BODY)).json()
    bench.runner.plays.append(says(NO_MARKER))
    await asyncio.to_thread(bench.carry_out, turn["turn_id"], session_id=turn["session_id"])
    return turn


async def test_a_turn_is_listed_shown_and_decided_once(bench: Bench, http: httpx2.AsyncClient) -> None:
    turn = await suspended(bench, http)
    [listed] = (await http.get("/v1/inbox")).json()["data"]
    assert (listed["turn_id"], listed["state"]) == (turn["turn_id"], "suspended")
    url = f"/v1/inbox/{turn['turn_id']}"
    proposal = (await http.get(url)).json()["proposal"]
    assert (proposal["text"], proposal["issues"][0]["code"]) == (NO_MARKER, "MISSING_STEP_MARKER")
    assert (await http.post(f"{url}/decision", json={"decision": "retry"})).status_code == 400
    decided = await http.post(f"{url}/decision", json={"decision": "approve", "for": "alice"})
    decision = decided.json()["decision"]
    assert (decided.status_code, decision["by"], decision["for"]) == (200, name_caller(LOCAL_OWNER), "alice")
    [line] = await bench.client.audit.read_lines(turn_id=turn["turn_id"])  # the refused retry left none
    assert (line.action, line.by, line.detail) == ("approve", name_caller(LOCAL_OWNER), "inbox, for alice")
    again = await http.post(f"{url}/decision", json={"decision": "reject"})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "turn_not_suspended")
    await asyncio.to_thread(bench.carry_out, turn["turn_id"], ChainTask(RESUME, 1), turn["session_id"])
    assert (await http.get(f"/v1/turns/{turn['turn_id']}")).json()["outcome"] == "passed_by_human"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_caller_is_told_that_a_person_has_to_decide_and_the_turn_goes_on(
    bench: Bench, http: httpx2.AsyncClient, stream: bool
) -> None:
    once = {"idempotency-key": "one"}
    asking = asyncio.create_task(http.post("/v1/chat/completions", json={**BODY, "stream": stream}, headers=once))
    pattern = f"{bench.settings.namespace}:*turn:turn-{'?' * 32}"
    [key] = await wait_until(lambda: bench.client.store.redis.keys(pattern))
    turn = await bench.client.reader.read_turn(key.decode().rpartition(":")[2])
    bench.runner.plays.append(says(NO_MARKER))
    await asyncio.to_thread(bench.carry_out, turn.turn_id, session_id=turn.request.session_id)
    answer = await asking
    assert "turn_suspended" in answer.text
    assert turn.turn_id in answer.text
    assert answer.status_code == (200 if stream else 503)
    assert (await bench.client.reader.read_turn(turn.turn_id)).state == "suspended"


async def test_a_page_says_whom_it_waits_for_is_kept_alive_and_goes_on_after_the_decision(
    installation: Installation,
) -> None:
    installation.play(f"- attempts: [[say: {NO_MARKER}]]\n", public_url="https://turns.example/helix/")
    installation.worker()
    page, pings, shown_while_suspended = Reader(), 0, ""
    async with (
        serving(installation.settings) as relay,
        relay.http.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}, headers=PAGE) as answer,
    ):
        turn_id = answer.headers["x-turn-id"]
        waiting = f"Ein Mensch muss entscheiden: https://turns.example/helix/turns/{turn_id}"
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                page.read([json.loads(line.removeprefix("data: "))])
            if line == ": ping" and page.status[-1:] == [waiting] and (pings := pings + 1) == 3:
                shown_while_suspended = page.text
                await relay.client.inbox.decide_turn(turn_id, "edit", by="alice", text=f"Besser: {GOOD}")
    assert pings >= 3
    assert shown_while_suspended == NO_MARKER
    assert page.status[-2:] == ["Entschieden; es geht weiter", "Von einem Menschen angenommen"]
    assert page.completed == [page.text] == ["Besser: Alles klar."]


async def test_phases_are_stored_in_order_and_wrong_ones_are_told_with_their_place(
    bench: Bench, http: httpx2.AsyncClient
) -> None:
    phases = [{"id": name, "description": "Tu es.", "output_files": ["a.md"]} for name in ("one", "two")]
    answer = await http.post("/v1/phases", json={"directory": "work", "phases": phases})
    assert answer.status_code == 202
    first, second = answer.json()["data"]
    shown = (await http.get(second["url"])).json()
    assert (await bench.client.reader.read_turn(second["turn_id"])).request.work_data["after"] == first["turn_id"]
    assert (shown["phase"], shown["directory"]) == ("two", "work")
    bad = await http.post("/v1/phases", json={"directory": "work", "phases": [{"id": "x", "describtion": "?"}]})
    assert (bad.status_code, bad.json()["error"]["code"]) == (400, "invalid_phases")
    assert re.fullmatch(r"2 problems: \(1\) \[1\]\.\S+: .* \(2\) \[1\]\.\S+: .*", bad.json()["error"]["message"])
    outside = await http.post("/v1/phases", json={"directory": "../x", "phases": phases})
    assert outside.json()["error"]["param"] == "directory"


async def test_a_decision_names_the_key_whatever_its_caller_says_it_is(bench: Bench, http: httpx2.AsyncClient) -> None:
    """D7: ``by`` was free text, so anybody could decide as "admin", or as the time-out."""
    turn = await suspended(bench, http)
    url = f"/v1/inbox/{turn['turn_id']}/decision"
    assert (await http.post(url, json={"decision": "reject", "by": "timeout"})).status_code == 400
    decided = await http.post(url, json={"decision": "reject", "for": "timeout"})
    assert decided.json()["decision"] | {"at": 0} == {
        "kind": "reject",
        "by": name_caller(LOCAL_OWNER),
        "for": "timeout",
        "note": "",
        "text": "",
        "at": 0,
    }
    again = await http.post(url, json={"decision": "approve"})
    assert f"{name_caller(LOCAL_OWNER)} for timeout decided reject before" in again.json()["error"]["message"]
    await asyncio.to_thread(bench.carry_out, turn["turn_id"], ChainTask(RESUME, 1), turn["session_id"])
    ended = (await http.get(f"/v1/turns/{turn['turn_id']}")).json()
    assert (ended["outcome"], ended["error"]["code"]) == ("failed", "rejected"), (
        "a person rejected it, not the time-out"
    )


async def test_phases_sent_again_under_their_key_are_the_same_turns_and_what_was_left_out_is_stored(
    bench: Bench, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"directory": "work", "phases": [{"id": name, "description": "Tu es."} for name in ("one", "two")]}
    key = {"idempotency-key": "k"}
    stored, submit = [], Submitter.submit

    async def submit_until_the_store_is_away(submitter: Submitter, *args: Any, **more: Any) -> str:
        if stored:
            raise StoreUnavailable("cut off")
        stored.append(await submit(submitter, *args, **more))
        return stored[0]

    with monkeypatch.context() as cut:
        cut.setattr(Submitter, "submit", submit_until_the_store_is_away)
        assert (await http.post("/v1/phases", json=body, headers=key)).status_code == 503
    first, second = (await http.post("/v1/phases", json=body, headers=key)).json()["data"]
    assert [first["turn_id"]] == stored
    again = await http.post("/v1/phases", json=body, headers=key)
    assert again.json()["data"] == [first, second]
    other = {**body, "phases": [{"id": "other", "description": "Tu es."}]}
    refused = await http.post("/v1/phases", json=other, headers=key)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "idempotency_key_reused")
    with pytest.raises(IdempotencyConflict, match="'k'"):
        await bench.client.phases.submit_phases(
            [Phase.from_dict(other["phases"][0])], directory="work", owner=LOCAL_OWNER, idempotency_key="k"
        )


async def test_phases_escalate_as_their_request_says_to_models_their_caller_may_use(
    bench: Bench, http: httpx2.AsyncClient
) -> None:
    body = {"directory": "work", "phases": [{"id": "one", "description": "Tu es."}]}
    escalation = {"human": True, "timeout_seconds": 5, "default": "approve"}
    answer = await http.post("/v1/phases", json={**body, "escalation": escalation})
    turn = await bench.client.reader.read_turn(answer.json()["data"][0]["turn_id"])
    assert Escalation.from_request(turn.request) == Escalation(timeout_seconds=5, default="approve")
    refused = await http.post("/v1/phases", json={**body, "escalation": {"model": "oracle"}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "escalation.model")
