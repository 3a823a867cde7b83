"""When the store's clock jumped, a reaper takes nothing for one lease."""

from __future__ import annotations

from worker.turns.leases.calm import Clocks


def looks(clocks: Clocks, *times: tuple[float, float]) -> list[bool]:
    return [clocks.look(monotonic, server) for monotonic, server in times]


def test_a_reaper_that_has_just_begun_or_was_away_trusts_the_clock() -> None:
    clocks = Clocks(lease_seconds=3)
    assert looks(clocks, (0, 100), (1, 101), (90, 190)) == [True, True, True]


def test_a_reaper_that_sees_the_clock_jump_forward_waits_one_lease() -> None:
    clocks = Clocks(lease_seconds=2)
    assert looks(clocks, (0, 100), (1, 3701), (2, 3702), (3, 3703)) == [True, False, False, True]
    assert not clocks.jumped_back


def test_a_clock_that_was_set_back_is_told_once() -> None:
    clocks = Clocks(lease_seconds=2)
    assert looks(clocks, (0, 10_000), (1, 6_401)) == [True, False]
    assert clocks.jumped_back
    looks(clocks, (2, 6_402))
    assert not clocks.jumped_back


def test_what_the_clock_did_while_there_was_no_turn_concerns_nobody() -> None:
    clocks = Clocks(lease_seconds=2)
    assert looks(clocks, (0, 10_000)) == [True]
    clocks.rest()
    assert looks(clocks, (1, 6_401)) == [True]
    assert not clocks.jumped_back
