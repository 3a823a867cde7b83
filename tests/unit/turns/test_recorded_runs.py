"""Of which runs a holder removes the recordings, once what it decided is stored."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from api_client.contract.settings import Settings
from api_client.contract.tasks import FALLBACK, RETRY, RUN, VALIDATE, Link
from worker.turns import folders


def unforgotten(link: Link, *, went_on: bool, recorded: bool = True) -> list[int]:
    runner = SimpleNamespace(name="r", adopt=lambda _order: None) if recorded else SimpleNamespace(name="r")
    turn = SimpleNamespace(request=SimpleNamespace(model="m", phase=None), stage=0)
    claim: Any = SimpleNamespace(turn=turn, link=link)
    runners: Any = lambda _spec: (runner, "")  # noqa: E731
    return list(folders.unforgotten(Settings(models={"m": "r"}), claim, runners, went_on=went_on))


@pytest.mark.parametrize(
    ("link", "went_on", "attempts"),
    [
        (Link(RUN, 1), False, [1]),
        (Link(RETRY, 3), False, [1, 2, 3]),
        (Link(VALIDATE, 2), False, [1, 2]),
        (Link(RETRY, 3), True, [3]),
        (Link(VALIDATE, 3), True, []),
        (Link(FALLBACK, 3), True, []),
    ],
)
def test_a_holder_removes_what_is_recorded_of_its_own_run_and_of_those_before_it_that_others_held(
    link: Link, went_on: bool, attempts: list[int]
) -> None:
    assert unforgotten(link, went_on=went_on) == attempts


def test_of_a_runner_whose_runs_are_not_recorded_nothing_is_removed() -> None:
    assert unforgotten(Link(RETRY, 3), went_on=False, recorded=False) == []
