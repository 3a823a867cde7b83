"""When a worker is stalled: messages wait, a slot is free, and it takes none of them."""

from __future__ import annotations

import pytest

from worker.turns.leases.worker_heartbeat import Liveness


def looks(liveness: Liveness, *seen: tuple[float, int, int, int | None]) -> list[bool]:
    return [liveness.look(now, taken=taken, free=free, waiting=waiting) for now, taken, free, waiting in seen]


def test_it_is_stalled_when_messages_waited_for_the_whole_time_and_it_took_none() -> None:
    assert looks(Liveness(10), (0, 5, 1, 2), (5, 5, 1, 2), (9.9, 5, 1, 3), (15, 5, 1, 2)) == [False, False, False, True]


@pytest.mark.parametrize(
    ("name", "middle"),
    [
        ("it took one", (8, 6, 1, 2)),
        ("no slot was free", (8, 5, 0, 2)),
        ("nothing waited", (8, 5, 1, 0)),
        ("the broker was away", (8, 5, 1, None)),
    ],
)
def test_anything_that_explains_the_silence_starts_the_time_anew(
    name: str, middle: tuple[float, int, int, int | None]
) -> None:
    taken = middle[1]
    seen = [(0.0, 5, 1, 2), (1.0, 5, 1, 2), middle, (12.0, taken, 1, 2), (17.0, taken, 1, 2), (22.0, taken, 1, 2)]
    assert looks(Liveness(10), *seen) == [False, False, False, False, False, True]


def test_without_a_limit_nothing_is_stalled() -> None:
    assert looks(Liveness(0), (0, 1, 1, 9), (1, 1, 1, 9), (10_000, 1, 1, 9)) == [False, False, False]
