"""Two versions beside each other: equal ones are rarely called different, different ones are."""

from __future__ import annotations

import random
from collections.abc import Iterator

from api_client.contract.turn import Outcome
from api_client.figures.versions import FEWEST, Ended, compare


def session(drawn: random.Random, name: str, flow: str, failing: float = 0.03) -> Iterator[Ended]:
    """The turns of one session; sessions differ in how often they are asked again and how slow they are."""
    lean, slow = drawn.betavariate(1.2, 4), drawn.lognormvariate(0, 0.6)
    for _ in range(1 + min(19, int(drawn.expovariate(0.3)))):
        again, end = drawn.random() < lean, drawn.random()
        good = Outcome.PASSED_BY_FALLBACK if end < failing + lean * 0.2 else Outcome.PASSED
        seconds = slow * drawn.lognormvariate(2.5, 0.8) * (1 + again)
        yield Ended(
            session_id=name,
            flow=flow,
            outcome=Outcome.FAILED if end < failing else good,
            asked_again=again,
            seconds=seconds,
            usd=seconds * 0.002,
        )


def test_of_a_thousand_splits_of_equal_turns_at_most_five_percent_are_called_different() -> None:
    drawn = random.Random(16)
    called = 0
    for _ in range(1000):
        turns = [turn for n in range(240) for turn in session(drawn, f"s{n}", drawn.choice(("v2", "v3")))]
        called += any(figure.real for figure in compare(turns, "v2", "v3").figures)
    assert called <= 50


def test_a_version_that_fails_more_often_is_found_and_few_sessions_say_nothing() -> None:
    drawn = random.Random(16)
    turns = [turn for n in range(300) for turn in session(drawn, f"a{n}", "v2")]
    turns += [turn for n in range(300) for turn in session(drawn, f"b{n}", "v3", failing=0.15)]
    found = {figure.name: figure for figure in compare(turns, "v2", "v3").figures}
    assert found["failure"].real
    assert found["failure"].change.low > 0.05
    few = [turn for turn in turns if int(turn.session_id[1:]) < FEWEST - 1]
    assert not any(figure.real for figure in compare(few, "v2", "v3").figures)
