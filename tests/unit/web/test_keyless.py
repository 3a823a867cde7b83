"""Without keys the relay serves this machine and is nobody's operator's door (the class "low user to code")."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Any

import pytest

from api_client import api_keys as ring
from api_client.api_keys import make_token, read_token
from api_client.web.pages.visitor import COOKIE
from tests.html import Document
from tests.unit.web.conftest import caller
from tests.unit.web.fake import TURN_ID, FakeTurns, app_with

PROXY_HEADERS = [
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-port",
    "x-forwarded-anything",
    "cf-connecting-ip",
    "true-client-ip",
    "x-client-ip",
    "x-real-ip",
    "x-cluster-client-ip",
    "fastly-client-ip",
    "fly-client-ip",
    "x-envoy-external-address",
    "x-original-forwarded-for",
    "x-proxyuser-ip",
    "cdn-loop",
    "x-amzn-trace-id",
]


@pytest.mark.parametrize("path", ["/v1/models", "/turns", "/overview", f"/v1/turns/{TURN_ID}", "/metrics"])
@pytest.mark.parametrize("name", PROXY_HEADERS)
async def test_what_a_proxy_brings_is_refused_with_the_fix(turns: FakeTurns, name: str, path: str) -> None:
    async with caller(app_with(turns)) as http:
        answer = await http.get(path, headers={name: "203.0.113.7"})
    assert answer.status_code == 403
    assert name in answer.text
    assert "turns keys create" in answer.text


@pytest.mark.parametrize("name", ["rebound.example", "127.0.0.1.example:8765", "127.0.0.1@evil.example", "", "[::1"])
async def test_a_foreign_host_is_refused(turns: FakeTurns, name: str) -> None:
    async with caller(app_with(turns)) as http:
        for path in ("/v1/models", "/turns"):
            answer = await http.get(path, headers={"host": name})
            assert (answer.status_code, "Host" in answer.text) == (403, True)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "https://[", "sec-fetch-site": "none"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "origin": "http://127.0.0.1:8765"},
    ],
)
@pytest.mark.parametrize("keys", [(), ("key",)])
async def test_another_sites_page_is_refused_on_every_door(
    turns: FakeTurns, headers: dict[str, str], keys: tuple[str, ...]
) -> None:
    async with caller(app_with(turns, api_keys=keys), authorization="Bearer key") as http:
        asked = [
            await http.post(f"/v1/turns/{TURN_ID}/cancel", headers=headers),
            await http.delete(f"/v1/turns/{TURN_ID}", headers=headers),
            await http.get("/v1/models", headers=headers),
            await http.post("/sign-in", data={"key": "key"}, headers=headers),
        ]
    assert [answer.status_code for answer in asked] == [403] * 4
    assert all("cross_site" in answer.text for answer in asked)
    assert turns.cancelled == 0


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://127.0.0.1:8765"},
        {"sec-fetch-site": "same-origin", "origin": "https://turns.example"},
        {"sec-fetch-site": "none"},
        {"origin": "https://turns.example"},
    ],
)
async def test_our_own_pages_and_programs_are_let_in(turns: FakeTurns, headers: dict[str, str]) -> None:
    async with caller(app_with(turns, public_url="https://turns.example")) as http:
        assert (await http.get("/v1/models", headers=headers)).status_code == 200


async def test_a_link_from_elsewhere_opens_a_page(turns: FakeTurns) -> None:
    async with caller(app_with(turns)) as http:
        answer = await http.get("/sign-in", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"})
    assert answer.status_code == 200


def csrf_of(cookie: str) -> str:
    """What the forms of the browser with this cookie carry."""
    return hmac.new(cookie.encode(), b"helix-form", hashlib.sha256).hexdigest()


def phase(**more: Any) -> dict[str, Any]:
    return {"id": "a", "description": "x", "output_files": ["a.txt"], **more}


async def test_an_operators_action_needs_the_token(turns: FakeTurns, tmp_path: Path) -> None:
    token = make_token(tmp_path / ".helix" / "operator-token")
    gate = {"type": "command", "command": ["true"]}
    body = {"directory": "w", "phases": [phase(quality_gate=gate)]}
    decision = {"decision": "approve"}
    for headers, status in [({}, 403), ({"authorization": "Bearer wrong"}, 403)]:
        async with caller(app_with(turns, root=tmp_path), **headers) as http:
            for answer in (
                await http.post("/v1/phases", json=body),
                await http.post(f"/v1/inbox/{TURN_ID}/decision", json=decision),
            ):
                assert (answer.status_code, answer.json()["error"]["code"]) == (status, "operators_only")
                assert "operator-token" in answer.json()["error"]["message"]
    async with caller(app_with(turns, root=tmp_path), authorization=f"Bearer {token}") as http:
        answer = await http.post(f"/v1/inbox/{TURN_ID}/decision", json={"decision": "dance"})
    assert answer.json()["error"]["code"] != "operators_only"


async def test_pages_show_without_the_token_and_act_with_it(turns: FakeTurns, tmp_path: Path) -> None:
    token = make_token(tmp_path / ".helix" / "operator-token")
    turns.owner = "somebody else"
    async with caller(app_with(turns, root=tmp_path)) as http:
        form = Document((await http.get("/sign-in")).text).form("/sign-in")
        for action in ("cancel", "drop", "decision", "replay"):
            answer = await http.post(
                f"/turns/{TURN_ID}/{action}",
                data={"csrf": csrf_of("browser"), "decision": "approve"},
                headers={"cookie": f"{COOKIE}=browser"},
            )
            assert (answer.status_code, "operator-token" in answer.text) == (403, True), action
        assert turns.cancelled == 0
        assert (await http.post("/sign-in", data={**form, "key": "wrong"})).status_code == 403
        answer = await http.post("/sign-in", data={**form, "key": token})
        assert answer.status_code == 303
        csrf = csrf_of(http.cookies[COOKIE])
        assert (await http.post(f"/turns/{TURN_ID}/cancel", data={"csrf": csrf})).status_code == 303
        assert turns.cancelled == 1


async def test_with_keys_the_token_opens_nothing(turns: FakeTurns, tmp_path: Path) -> None:
    token = make_token(tmp_path / ".helix" / "operator-token")
    ring.add(tmp_path / ".helix" / "keys.json", ring.ApiKey(name="a", hash="", owner="a"))
    async with caller(app_with(turns, root=tmp_path), authorization=f"Bearer {token}") as http:
        assert (await http.get("/v1/models")).status_code == 401
        assert (await http.post("/sign-in", data={"key": token})).status_code == 403


def test_the_token_is_made_once_and_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / ".helix" / "operator-token"
    token = make_token(path)
    assert len(token) > 40
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    assert make_token(path) == token == read_token(path)
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("")
    assert make_token(path) not in {"", token}
    assert [file.name for file in path.parent.iterdir()] == ["operator-token"]


async def test_wrong_keys_are_slowed_down_by_address_and_a_right_one_waits_too(turns: FakeTurns) -> None:
    app = app_with(turns, api_keys=("key",))
    async with caller(app, host="203.0.113.7") as http:
        said = [(await http.post("/sign-in", data={"key": f"wrong {n}"})).status_code for n in range(14)]
        assert said == [403] * 10 + [429] * 4
        refused = await http.post("/sign-in", data={"key": "key"})
        assert (refused.status_code, 0 < int(refused.headers["retry-after"]) <= 6) == (429, True)
    async with caller(app, host="203.0.113.8") as http:
        assert (await http.post("/sign-in", data={"key": "key"})).status_code == 303
