"""Who is let in, and as whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api_client import api_keys as ring
from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings
from api_client.contract.values.owners import owner_of_key
from api_client.web.app import serve
from tests.unit.web.conftest import caller
from tests.unit.web.fake import TURN_ID, FakeTurns, app_with

KEYS = ("key-one", "key-two")


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", "Bearer wrong")],
        [("authorization", "Bearer key-on")],
        [("authorization", "Basic key-one")],
        [("authorization", "key-one")],
        [("authorization", "Bearer key-one"), ("authorization", "Bearer key-one")],
        [("x-api-key", "key-one")],
        [("api-key", "key-one")],
    ],
)
async def test_without_a_known_key_there_is_one_answer(turns: FakeTurns, headers: Any) -> None:
    async with caller(app_with(turns, api_keys=KEYS)) as http:
        for method, path in [("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("GET", f"/v1/turns/{TURN_ID}")]:
            answer = await http.request(method, f"{path}?api_key=key-one", headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert answer.json()["error"]["type"] == "authentication_error"
            assert "key-one" not in answer.text
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_each_key_is_its_own_owner_and_the_key_is_not_stored(turns: FakeTurns) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
    async with caller(app_with(turns, api_keys=KEYS), host="203.0.113.7", authorization="bearer key-two") as http:
        answer = await http.post("/v1/turns", json=body, headers={"x-conversation-id": "c"})
    assert answer.status_code == 202
    request = turns.submitted[0]
    assert request.owner == owner_of_key("key-two") != owner_of_key("key-one")
    assert "key-two" not in request.to_json()


async def test_another_owners_turn_does_not_exist(turns: FakeTurns) -> None:
    turns.owner = owner_of_key("key-one")
    app = app_with(turns, api_keys=KEYS)
    for key, status in [("key-one", 200), ("key-two", 404)]:
        async with caller(app, authorization=f"Bearer {key}") as http:
            assert (await http.get(f"/v1/turns/{TURN_ID}")).status_code == status
            assert (await http.get(f"/v1/turns/{TURN_ID}/attempts")).status_code == status
            assert (await http.get(f"/v1/turns/{TURN_ID}/events")).status_code == status
            assert (await http.delete(f"/v1/turns/{TURN_ID}")).status_code == status


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1"])
async def test_without_keys_this_machine_is_served_whatever_key_it_sends(turns: FakeTurns, host: str) -> None:
    async with caller(app_with(turns), host=host, authorization="Bearer any") as http:
        for name in ("127.0.0.1:8765", "localhost", "[::1]:8765"):
            assert (await http.get("/v1/models", headers={"host": name})).status_code == 200


@pytest.mark.parametrize(
    ("host", "headers"),
    [
        ("203.0.113.7", {}),
        ("127.0.0.1", {"host": "rebound.example"}),
        ("127.0.0.1", {"host": "127.0.0.1.example:8765"}),
        ("127.0.0.1", {"x-forwarded-for": "203.0.113.7"}),
        ("127.0.0.1", {"forwarded": "for=203.0.113.7"}),
    ],
)
async def test_without_keys_nobody_else_is_served(turns: FakeTurns, host: str, headers: dict[str, str]) -> None:
    async with caller(app_with(turns), host=host) as http:
        answer = await http.get("/v1/models", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "loopback_only")


async def test_health_needs_no_key_and_tells_nothing(turns: FakeTurns) -> None:
    async with caller(app_with(turns, api_keys=KEYS), host="203.0.113.7") as http:
        assert (await http.get("/healthz")).json() == {"status": "ok"}
        assert (await http.get("/readyz")).json() == {"status": "ok"}


def test_an_address_others_can_reach_needs_a_key() -> None:
    with pytest.raises(SettingsError, match="HELIX_API_KEYS"):
        serve(Settings(web_host="0.0.0.0", store_url="redis://127.0.0.1:1/0"))


@pytest.mark.parametrize("path", ["/metrics", "/v1/stats", "/v1/retry-rate"])
async def test_figures_over_all_owners_need_a_key_with_that_right(turns: FakeTurns, tmp_path: Path, path: str) -> None:
    file = tmp_path / "keys.json"
    secrets = {
        right: ring.add(file, ring.ApiKey(name=right, hash="", owner=right, right=right)) for right in ring.RIGHTS
    }
    app = app_with(turns, api_keys=KEYS, keys_file=str(file))
    async with caller(app, host="203.0.113.7") as http:
        for key, status in [(None, 401), ("key-one", 403), (secrets["user"], 403), (secrets["metrics"], 200)]:
            answer = await http.get(path, headers={"authorization": f"Bearer {key}"} if key else {})
            assert answer.status_code == status, key
            if status == 403:
                assert answer.json()["error"]["code"] == "operators_only"
        answer = await http.get(path, headers={"authorization": f"Bearer {secrets['operator']}"})
        assert answer.status_code == 200
    async with caller(app_with(turns)) as http:
        assert (await http.get(path)).status_code == 200, "this machine, where no key is configured"
    async with caller(app_with(turns), host="203.0.113.7") as http:
        assert (await http.get(path)).status_code == 403


@pytest.mark.parametrize(
    ("question", "param"),
    [
        ("stats?since=soon", "since"),
        ("stats?by=weather", "by"),
        ("stats?against=-1d", "against"),
        ("retry-rate?since=soon", "since"),
        ("retry-rate?by=weather", "by"),
        ("retry-rate?every=week", "every"),
    ],
)
async def test_a_wrong_question_is_told_what_is_wrong(turns: FakeTurns, question: str, param: str) -> None:
    async with caller(app_with(turns)) as http:
        answer = await http.get(f"/v1/{question}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
