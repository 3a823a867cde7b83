"""What is offered and what is active: names from the metadata of installed packages, no code of theirs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from api_client.contract.errors import BadRequest
from api_client.contract.offered import BUILT_IN, askable, not_offered, offered_validators
from api_client.contract.settings import Settings, load
from api_client.contract.turn import TurnRequest
from api_client.contract.values.worker_reports import WorkerReport
from api_client.turns.admission import check
from worker.cli.checks.machine import validators
from worker.cli.checks.workers import same_validators
from worker.enforcement import build_validators


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package whose code cannot be imported, with two entry points; one takes a name of ours."""
    info = tmp_path / "broken_rule-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-rule\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[helix_turns.validators]\nown = broken_rule:Own\nstep_marker = broken_rule:Own\n"
    )
    (tmp_path / "broken_rule.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own"


def request(*names: str) -> TurnRequest:
    return TurnRequest(model="m", messages=({"role": "user", "content": "x"},), session_id="s", validators=names)


def test_an_installed_name_is_offered_and_its_code_is_not_imported(installed: str, tmp_path: Path) -> None:
    assert offered_validators() == (*BUILT_IN, "own")
    check(request("own", "step_marker"), Settings(models={"m": "scripted"}, root=tmp_path))
    assert "broken_rule" not in sys.modules


def test_what_is_offered_is_not_active_by_itself(installed: str, tmp_path: Path) -> None:
    assert load({"HELIX_ROOT": str(tmp_path)}).validators == BUILT_IN


def test_a_name_that_is_only_active_can_be_asked_for(tmp_path: Path) -> None:
    assert askable(("step_marker", "elsewhere")) == (*BUILT_IN, "elsewhere")
    check(request("elsewhere"), Settings(models={"m": "scripted"}, root=tmp_path, validators=("elsewhere",)))


def test_packages_are_not_looked_at_for_a_name_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    def look() -> dict[str, object]:
        looks.append("a look at every package takes milliseconds")
        return {}

    monkeypatch.setattr("api_client.contract.offered.installed_validators", look)
    check(request(*BUILT_IN), Settings(models={"m": "scripted"}, root=tmp_path))
    assert looks == []
    with pytest.raises(BadRequest):
        check(request("elsewhere"), Settings(models={"m": "scripted"}, root=tmp_path))
    assert looks


def test_the_built_in_names_are_those_that_can_be_built(tmp_path: Path) -> None:
    assert tuple(validator.name for validator in build_validators(BUILT_IN, root=tmp_path)) == BUILT_IN


def test_an_unknown_name_is_refused_with_what_is_offered(tmp_path: Path) -> None:
    with pytest.raises(BadRequest) as refused:
        check(request("step_markr"), Settings(models={"m": "scripted"}, root=tmp_path))
    assert str(refused.value) == not_offered("step_markr", BUILT_IN)
    assert str(refused.value) == (
        "unknown validator 'step_markr'; did you mean 'step_marker'?"
        " (offered: step_marker, adr_structure, file_existence)"
    )
    assert (refused.value.code, refused.value.param) == ("unknown_validator", "validators")


def test_doctor_tells_an_active_one_that_nobody_offers_here() -> None:
    assert validators(("a", "b"), ("a", "b", "c")).message == "active: a, b; offered besides: c"
    assert validators((), ("a",)).message == "active: none; offered besides: a"
    assert (validators(("a", "b"), ("a",)).state, "here" in validators(("a",), ("a",)).message) == ("wrong", False)


def test_doctor_tells_a_worker_that_lacks_what_another_one_offers() -> None:
    one, two = WorkerReport(name="one", validators=("a", "b")), WorkerReport(name="two", validators=("a",))
    old = WorkerReport(name="old")
    (finding,) = same_validators([one, two, old])
    assert (finding.state, finding.message) == ("wrong", "two lacks b")
    assert [each.state for each in same_validators([one])] == ["ok"]
    assert list(same_validators([old])) == []
