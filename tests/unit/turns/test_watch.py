"""When a reaper may take leases: not after it was away itself, and not after the server's clock jumped."""

from __future__ import annotations

from worker.turns.leases.reaper import Watch


def looks(watch: Watch, *times: tuple[float, float]) -> list[bool]:
    return [watch.look(monotonic, server) for monotonic, server in times]


def test_a_reaper_takes_nothing_before_it_was_awake_for_a_whole_lease() -> None:
    watch = Watch(lease_seconds=3, reap_seconds=1)
    assert looks(watch, (0, 100), (1, 101), (2, 102), (3, 103)) == [False, False, False, True]


def test_a_reaper_that_was_away_waits_one_lease() -> None:
    watch = Watch(lease_seconds=3, reap_seconds=1)
    looks(watch, *((n, 100 + n) for n in range(5)))
    assert looks(watch, (9, 109), (10, 110), (11, 111), (12, 112)) == [False, False, False, True]


def test_a_reaper_that_sees_the_clock_jump_forward_waits_one_lease() -> None:
    watch = Watch(lease_seconds=2, reap_seconds=1)
    assert looks(watch, (0, 100), (1, 101), (2, 102)) == [False, False, True]
    assert looks(watch, (3, 3703), (4, 3704), (5, 3705)) == [False, False, True]
    assert not watch.jumped_back


def test_a_clock_that_was_set_back_is_told_once() -> None:
    watch = Watch(lease_seconds=2, reap_seconds=1)
    looks(watch, (0, 10_000), (1, 10_001))
    assert not watch.jumped_back
    looks(watch, (2, 6_402))
    assert watch.jumped_back
    looks(watch, (3, 6_403))
    assert not watch.jumped_back
