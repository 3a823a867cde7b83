"""What issue 12 promises, measured by the bench: nothing wrong passes, nothing good is lost, little is asked for."""

import pytest

from tests.lab.bench.economy.__main__ import POLICIES, measure
from tests.lab.bench.economy.play import Played
from tests.lab.bench.economy.table import Row, row


@pytest.fixture(scope="module", params=POLICIES)
def played(request: pytest.FixtureRequest) -> dict[str, list[Played]]:
    return measure(request.param)


@pytest.fixture(scope="module")
def rows(played: dict[str, list[Played]]) -> dict[str, Row]:
    return {name: row(name, one) for name, one in played.items()}


def test_no_answer_passes_that_is_wrong_or_lost_content(played: dict[str, list[Played]]) -> None:
    bad = [(name, one.case.name, one.wrong, one.lost) for name, all_ in played.items() for one in all_ if one.success]
    assert [one for one in bad if one[2] or one[3]] == []


def test_every_turn_is_repaired_or_fails_honestly(rows: dict[str, Row]) -> None:
    assert {name: one.repaired + one.honest for name, one in rows.items()} == dict.fromkeys(rows, 200)


def test_every_fault_is_repaired_when_the_model_sends_what_it_was_asked_for(rows: dict[str, Row]) -> None:
    for name in ("obedient, framed part", "obedient, natural forms", "stubborn"):
        assert rows[name].repaired == 200, name


def test_little_is_asked_for_again(rows: dict[str, Row]) -> None:
    for name in ("obedient, framed part", "obedient, natural forms"):
        assert rows[name].small_saved >= 0.97, name
        assert rows[name].beyond <= 0.05, name


def test_a_model_that_never_mends_never_passes_but_by_a_fallback_or_with_warnings(
    played: dict[str, list[Played]],
) -> None:
    for one in played["never repairs"]:
        if one.success and one.runs == 3:
            assert one.answer != one.case.first, one.case.name
