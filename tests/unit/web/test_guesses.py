"""Wrong keys at the sign-in: a brake with bounded memory."""

from __future__ import annotations

from api_client.web.identity.guesses import Guesses


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
