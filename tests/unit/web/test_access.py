"""Who is let in, and as whom."""

import hashlib
import hmac
from pathlib import Path
from typing import Any

import pytest

from api_client import api_keys as ring
from api_client.api_keys import make_token, read_token
from api_client.contract.errors import SettingsError
from api_client.contract.owners import owner_of_key
from api_client.contract.settings import Settings
from api_client.web.app.relay_server import serve_relay
from api_client.web.identity import access
from api_client.web.pages.visitor import COOKIE
from api_client.web.relay.key_guesses import KeyGuesses
from tests.html import Document
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


async def test_a_request_hashes_its_own_key_alone_however_many_keys_there_are(
    turns: FakeTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    monkeypatch.setattr(access, "hash_key", lambda key: hashed.append(key) or ring.hash_key(key))
    many = tuple(f"key-{number}" for number in range(100))
    async with caller(
        app_with(turns, api_keys=many, forwarding_keys=("key-f",)), authorization="Bearer key-99"
    ) as http:
        for _ in range(2):
            hashed.clear()
            assert (await http.get("/v1/models")).status_code == 200
    assert hashed == ["key-99"]


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
        serve_relay(Settings(store_url="redis://127.0.0.1:1/0"), "0.0.0.0", 8765)


@pytest.mark.parametrize("path", ["/metrics", "/v1/stats", "/v1/retry-rate"])
async def test_figures_over_all_owners_need_a_key_with_that_right(turns: FakeTurns, tmp_path: Path, path: str) -> None:
    file = tmp_path / "keys.json"
    secrets = {
        right: ring.add_key(file, ring.ApiKey(name=right, hash="", owner=right, right=right)) for right in ring.RIGHTS
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
        ("stats?since=99999d", "since"),
        ("turns?since=0001-01-01", "since"),
        ("turns?until=9999w", "until"),
        ("retry-rate?since=soon", "since"),
        ("retry-rate?by=weather", "by"),
        ("retry-rate?every=week", "every"),
    ],
)
async def test_a_wrong_question_is_told_what_is_wrong(turns: FakeTurns, question: str, param: str) -> None:
    async with caller(app_with(turns)) as http:
        answer = await http.get(f"/v1/{question}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


# Without keys the relay serves this machine and is nobody's operator's door (the class "low user to code").

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
    *("x-appengine-user-ip", "x-appengine-remote-addr", "tailscale-user-login", "tailscale-user-name"),
    *("ngrok-auth-user-email", "ngrok-skip-browser-warning", "cf-access-jwt-assertion", "cf-ray", "cf-visitor"),
    *("x-goog-iap-jwt-assertion", "x-goog-authenticated-user-email", "x-ms-client-principal-name", "x-azure-ref"),
    *("x-amzn-oidc-identity", "cloudfront-viewer-address", "x-vercel-id", "x-nf-client-connection-ip"),
    *("x-pomerium-jwt-assertion", "x-auth-request-email", "x-authentik-username", "x-akamai-edgescape"),
    *("teleport-jwt-assertion", "fastly-ssl", "fly-region", "x-envoy-peer-metadata", "x-remote-user", "remote-user"),
    *("do-connecting-ip", "x-user-ip"),
]
#: What ordinary programs send.
PROGRAMS = ["x-stainless-lang", "x-ms-client-request-id", "x-goog-api-client", "x-openwebui-chat-id", "x-request-id"]


@pytest.mark.parametrize("name", PROGRAMS)
async def test_what_a_program_sends_is_no_proxys(turns: FakeTurns, name: str) -> None:
    async with caller(app_with(turns)) as http:
        assert (await http.get("/v1/models", headers={name: "x"})).status_code == 200


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
    ring.add_key(tmp_path / ".helix" / "keys.json", ring.ApiKey(name="a", hash="", owner="a"))
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


# Wrong keys, by address: a brake with bounded memory, and whose address counts behind a proxy.

PROXY, KEY = "192.0.2.10", "k" * 40


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_ten_at_once_then_one_every_six_seconds() -> None:
    clock = Clock()
    guesses = KeyGuesses(clock)
    for _ in range(10):
        assert guesses.seconds_to_wait("198.51.100.1") == 0
        guesses.count_wrong("198.51.100.1")
    assert guesses.seconds_to_wait("198.51.100.1") == 6
    assert guesses.seconds_to_wait("198.51.100.2") == 0
    clock.now += 6
    assert guesses.seconds_to_wait("198.51.100.1") == 0


def test_a_network_of_ipv6_is_one_place() -> None:
    guesses = KeyGuesses(Clock())
    for number in range(10):
        guesses.count_wrong(f"2001:db8::{number:x}")
    assert guesses.seconds_to_wait("2001:db8::ffff") > 0
    assert guesses.seconds_to_wait("2001:db8:0:1::1") == 0


def test_what_is_remembered_is_bounded_and_forgotten() -> None:
    clock = Clock()
    guesses = KeyGuesses(clock)
    for number in range(5_000):
        guesses.count_wrong(f"10.{number // 65536}.{number // 256 % 256}.{number % 256}")
    assert len(guesses._full_allowance_at) <= 1_025
    assert guesses.seconds_to_wait("192.0.2.1") > 0, "addresses without a place of their own share one"
    clock.now += 100_000
    assert guesses.seconds_to_wait("192.0.2.1") == 0
    guesses.count_wrong("192.0.2.1")
    assert len(guesses._full_allowance_at) == 1


def test_keys_that_an_address_sent_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api_client.web.relay.key_guesses._MOST_KNOWN", 3)
    guesses = KeyGuesses(Clock())
    for number in range(5):
        guesses.note_attempt("192.0.2.1", str(number), wrong=False)
    assert [key for _, key in guesses._known_keys] == ["2", "3", "4"]


async def test_guessing_bearer_keys_meets_a_brake_and_a_right_key_that_was_never_sent_waits_too(
    turns: FakeTurns,
) -> None:
    async with caller(app_with(turns, api_keys=(KEY,)), host="198.51.100.1") as http:
        tried = [await http.get("/v1/models", headers={"authorization": f"Bearer {n}"}) for n in range(50)]
        right = await http.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})
        again = await http.get("/v1/models", headers={"authorization": "Bearer 3"})
    assert [answer.status_code for answer in tried] == [401] * 10 + [429] * 40
    assert (right.status_code, right.json()["error"]["code"]) == (429, "too_many_guesses"), "else the brake is none"
    assert int(right.headers["retry-after"]) >= 1
    assert again.status_code == 401, "sent before: no guess"


async def test_one_wrong_key_again_and_again_and_no_key_are_no_guesses(turns: FakeTurns) -> None:
    """A client with an old key, and whoever shares its address, are answered as ever."""
    async with caller(app_with(turns, api_keys=(KEY,)), host="198.51.100.1") as http:
        for _ in range(30):
            assert (await http.get("/v1/models", headers={"authorization": "Bearer old"})).status_code == 401
            assert (await http.get("/v1/models")).status_code == 401
        assert (await http.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})).status_code == 200


async def test_who_was_right_before_is_served_while_somebody_guesses_from_its_address(turns: FakeTurns) -> None:
    async with caller(app_with(turns, api_keys=(KEY,)), host="198.51.100.1") as http:
        good = {"authorization": f"Bearer {KEY}"}
        assert (await http.get("/v1/models", headers=good)).status_code == 200
        for number in range(30):
            await http.get("/v1/models", headers={"authorization": f"Bearer {number}"})
        assert (await http.get("/v1/models", headers=good)).status_code == 200


@pytest.mark.parametrize(("peer", "trusted"), [("127.0.0.1", ()), ("198.51.100.1", (PROXY,)), (PROXY, (PROXY,))])
async def test_sign_ins_with_changing_forwarded_addresses_are_one_client_but_behind_a_trusted_proxy(
    turns: FakeTurns, peer: str, trusted: tuple[str, ...]
) -> None:
    async with caller(app_with(turns, api_keys=(KEY,), trusted_proxies=trusted), host=peer) as http:
        answers = [
            await http.post("/sign-in", data={"key": "x"}, headers={"x-forwarded-for": f"203.0.113.{number}"})
            for number in range(12)
        ]
    assert [answer.status_code for answer in answers[10:]] == [403, 403] if peer in trusted else [429, 429]


async def test_what_a_client_forwards_itself_does_not_count_behind_a_trusted_proxy(turns: FakeTurns) -> None:
    """A proxy appends the address that it saw: the last one that is no proxy's is the client's."""
    async with caller(app_with(turns, api_keys=(KEY,), trusted_proxies=("192.0.2.0/24",)), host=PROXY) as http:
        for number in range(11):
            forwarded = {"x-forwarded-for": f"203.0.113.{number}, 198.51.100.1, 192.0.2.77"}
            answer = await http.post("/sign-in", data={"key": "x"}, headers=forwarded)
    assert answer.status_code == 429


@pytest.mark.parametrize(("trusted", "secure"), [((), False), ((PROXY,), True)])
async def test_the_cookie_is_for_https_only_where_a_trusted_proxy_says_so(
    turns: FakeTurns, trusted: tuple[str, ...], secure: bool
) -> None:
    async with caller(app_with(turns, api_keys=(KEY,), trusted_proxies=trusted), host=PROXY) as http:
        answer = await http.post("/sign-in", data={"key": KEY}, headers={"x-forwarded-proto": "https"})
    assert answer.status_code == 303
    assert ("secure" in answer.headers["set-cookie"].lower()) is secure


async def test_one_forwarded_address_has_half_of_the_connections_at_most(turns: FakeTurns) -> None:
    app = app_with(turns, api_keys=(KEY,), trusted_proxies=(PROXY,), max_connections=4)
    busy = app.state.relay.requests_in_progress
    with busy.count_request("address 203.0.113.1", 0), busy.count_request("address 203.0.113.1", 0):
        async with caller(app, host=PROXY, authorization=f"Bearer {KEY}") as http:
            for address, status in (("203.0.113.1", 429), ("203.0.113.2", 200)):
                answer = await http.get("/v1/models", headers={"x-forwarded-for": address})
                assert answer.status_code == status
                assert answer.headers["x-request-id"]
