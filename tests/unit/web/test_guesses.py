"""Wrong keys, by address: a brake with bounded memory, and whose address counts behind a proxy."""

from __future__ import annotations

import pytest

from api_client.web.relay import guesses as module
from api_client.web.relay.guesses import Guesses
from tests.unit.web.conftest import caller
from tests.unit.web.fake import FakeTurns, app_with

PROXY, KEY = "192.0.2.10", "k" * 40


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_ten_at_once_then_one_every_six_seconds() -> None:
    clock = Clock()
    guesses = Guesses(clock)
    for _ in range(10):
        assert guesses.wait("198.51.100.1") == 0
        guesses.wrong("198.51.100.1")
    assert guesses.wait("198.51.100.1") == 6
    assert guesses.wait("198.51.100.2") == 0
    clock.now += 6
    assert guesses.wait("198.51.100.1") == 0


def test_a_network_of_ipv6_is_one_place() -> None:
    guesses = Guesses(Clock())
    for number in range(10):
        guesses.wrong(f"2001:db8::{number:x}")
    assert guesses.wait("2001:db8::ffff") > 0
    assert guesses.wait("2001:db8:0:1::1") == 0


def test_what_is_remembered_is_bounded_and_forgotten() -> None:
    clock = Clock()
    guesses = Guesses(clock)
    for number in range(5_000):
        guesses.wrong(f"10.{number // 65536}.{number // 256 % 256}.{number % 256}")
    assert len(guesses._full) <= 1_025
    assert guesses.wait("192.0.2.1") > 0, "addresses without a place of their own share one"
    clock.now += 100_000
    assert guesses.wait("192.0.2.1") == 0
    guesses.wrong("192.0.2.1")
    assert len(guesses._full) == 1


def test_keys_that_an_address_sent_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_KNOWN", 3)
    guesses = Guesses(Clock())
    for number in range(5):
        guesses.tried("192.0.2.1", str(number), wrong=False)
    assert [key for _, key in guesses._known] == ["2", "3", "4"]


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
    busy = app.state.relay.busy
    with busy.request("address 203.0.113.1", 0), busy.request("address 203.0.113.1", 0):
        async with caller(app, host=PROXY, authorization=f"Bearer {KEY}") as http:
            for address, status in (("203.0.113.1", 429), ("203.0.113.2", 200)):
                answer = await http.get("/v1/models", headers={"x-forwarded-for": address})
                assert answer.status_code == status
                assert answer.headers["x-request-id"]
