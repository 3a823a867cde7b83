"""How long rounds of beats take: the worst is shown for a minute, and one alarm says when they begin to be slow."""

from __future__ import annotations

from worker.turns.loops.rounds import SLOW_SHARE, Rounds


def test_a_slow_round_is_alarmed_long_before_a_lease_fences_itself() -> None:
    rounds = Rounds(6.0 * SLOW_SHARE)
    assert not rounds.add(10.0, 0.9)
    assert rounds.add(12.0, 1.1)
    assert SLOW_SHARE < 0.75 - 0.25, "between alarm and fence more than a round lies"


def test_slow_rounds_are_alarmed_once_and_again_after_a_quick_one() -> None:
    rounds = Rounds(6.0 * SLOW_SHARE)
    assert [rounds.add(at, seconds) for at, seconds in ((1, 2.0), (2, 3.0), (3, 0.1), (4, 2.0))] == [
        True,
        False,
        False,
        True,
    ]


def test_the_worst_round_is_shown_for_a_minute() -> None:
    rounds = Rounds(6.0 * SLOW_SHARE)
    assert rounds.worst(0.0) == 0.0
    rounds.add(10.0, 2.5)
    rounds.add(60.0, 0.2)
    assert (rounds.worst(69.0), rounds.worst(71.0), rounds.worst(200.0)) == (2.5, 0.2, 0.0)
