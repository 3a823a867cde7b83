"""Two versions beside each other: equal ones are rarely called different, different ones are."""

from __future__ import annotations

import random

from api_client.figures.versions import FEWEST, compare
from tests.bench.rules.splits import called_real, session


def test_of_a_thousand_splits_of_equal_turns_at_most_five_percent_are_called_different() -> None:
    assert called_real(1000) <= 50


def test_a_version_that_fails_more_often_is_found_and_few_sessions_say_nothing() -> None:
    drawn = random.Random(16)
    turns = [turn for n in range(300) for turn in session(drawn, f"a{n}", "v2")]
    turns += [turn for n in range(300) for turn in session(drawn, f"b{n}", "v3", failing=0.15)]
    found = {figure.name: figure for figure in compare(turns, "v2", "v3").figures}
    assert found["failure"].real
    assert found["failure"].change.low > 0.05
    few = [turn for turn in turns if int(turn.session_id[1:]) < FEWEST - 1]
    assert not any(figure.real for figure in compare(few, "v2", "v3").figures)
