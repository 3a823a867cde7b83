"""Phases as turns on a real store, with real gates and folders: success, feedback, escalation, decisions."""

import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.completion import Completion, Verdict
from api_client.contract.errors import BadRequest
from api_client.contract.escalation import Escalation
from api_client.contract.phase import Phase
from api_client.contract.phase_checks import PhaseError
from api_client.contract.phase_folders import find_input_problems, phase_session
from api_client.contract.phase_work import PHASE_RUN, PHASE_VERIFY
from api_client.contract.settings import Settings
from api_client.contract.tasks import RESUME, ChainTask
from api_client.contract.turn import Outcome, Turn, TurnState
from api_client.turns.phase_requests import build_requests
from api_client.turns.record.claim import LeaseClaim, LeaseLost
from tests.accounts import disagreements
from tests.integration.engine import Bench, Play, ends, says
from tests.unit.runners.test_folder_trees import make_deep
from worker.enforcement.policies import read_policy
from worker.files.folder_trees import remove_tree
from worker.runners.base import Emit, Order, RunResult, Stop
from worker.verification.gates.output_tree import MAX_DEPTH

BUILD: dict[str, Any] = {"id": "build", "description": "Baue add.py.", "output_files": ["add.py"]}
GOOD_CODE, BAD_CODE = "def add(a, b):\n    return a + b\n", "def add(a, b:\n"


def writes(content: str, name: str = "add.py") -> Play:
    """The agent writes a file into its output/ and says that it is done."""

    def play(order: Order, emit: Emit, stop: Stop) -> RunResult:
        (order.directory / "output" / name).write_text(content)
        return RunResult(completion=Completion(verdict=Verdict.COMPLETE, reason="exit 0"), text="Fertig.")

    return play


class PhaseBench(Bench):
    """Phases instead of messages; ``project`` is the folder of their phases.yaml."""

    @property
    def project(self) -> Path:
        folder = self.settings.root / "work"
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def output(self) -> Path:
        return self.project / "phases" / "build" / "output"

    async def phase(
        self, *plays: Play, escalation: Escalation | None = None, operator: bool = False, **more: Any
    ) -> Turn:
        self.runner.plays += plays
        phase = Phase.from_dict({**BUILD, **more})
        none = Escalation(human=False)
        [turn_id] = await self.client.phases.submit_phases(
            [phase],
            directory=str(self.project.relative_to(self.settings.root)),
            attached=(escalation or none).attached,
            operator=operator,
        )
        return await self.carried_out(turn_id, ChainTask(PHASE_RUN, 1))

    async def carried_out(self, turn_id: str, link: ChainTask) -> Turn:
        self.carry_out(turn_id, link, phase_session("work"))
        return await self.client.reader.read_turn(turn_id)

    async def decided(self, turn: Turn, kind: str, **more: str) -> Turn:
        await self.client.inbox.decide_turn(turn.turn_id, kind, by="alice", **more)
        return await self.carried_out(turn.turn_id, ChainTask(RESUME, turn.attempt))


@pytest.fixture
async def bench(settings: Settings) -> AsyncIterator[PhaseBench]:
    models = {"scripted": "scripted", "expert": "scripted:expert"}
    settings = replace(settings, models=models, transient_delay_seconds=0.01, locale="en")
    async with TurnsClient(settings) as client:
        made = PhaseBench(settings, client)
        yield made
        made.leases.close()
        assert disagreements(settings) == {}


async def test_a_phase_whose_output_passes_its_gates_is_published_and_told_gate_by_gate(bench: PhaseBench) -> None:
    turn = await bench.phase(writes(GOOD_CODE))
    assert (turn.outcome, turn.response) == (Outcome.PASSED, "Fertig.")
    assert (bench.output / "add.py").read_text() == GOOD_CODE
    events = await bench.events(turn)
    gates = [(event.data["gate"], event.data["passed"]) for event in events if event.kind == "gate.checked"]
    assert gates == [("files_exist", True), ("syntax", True)]
    [asked] = bench.runner.orders
    assert "output/add.py" in asked.prompt
    assert json.loads((bench.output.parent / "status.json").read_text())["status"] == "passed"


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_rejected_phase_is_run_again_with_feedback_in_its_folder(bench: PhaseBench, failures: int) -> None:
    seen: list[str] = []

    def repairs(order: Order, emit: Emit, stop: Stop) -> RunResult:
        seen.append((order.directory / "feedback.md").read_text())
        assert (order.directory / "output" / "add.py").read_text() == BAD_CODE, "it goes on from what it wrote"
        return writes(GOOD_CODE)(order, emit, stop)

    turn = await bench.phase(*[writes(BAD_CODE)] * failures, repairs)
    assert (turn.outcome, turn.attempt) == (Outcome.PASSED_AFTER_RETRY, failures + 1)
    assert f"**Attempt**: {failures}/3" in seen[0]
    assert "add.py:1" in seen[0]
    assert not (bench.output.parent / "feedback.md").exists()
    first = (await bench.client.reader.read_attempts(turn.turn_id))[0]
    assert (first.decision, first.issues[0].code) == ("retry", "PYTHON_SYNTAX")
    assert first.verification["success"] is False
    assert "add.py:1" in first.feedback


@pytest.mark.parametrize("levels", [MAX_DEPTH + 5, 1500])
async def test_a_phase_whose_output_is_too_deep_is_run_again_with_an_empty_one(bench: PhaseBench, levels: int) -> None:
    def digs(order: Order, emit: Emit, stop: Stop) -> RunResult:
        make_deep(order.directory / "output" / "deep", levels)
        return writes(GOOD_CODE)(order, emit, stop)

    def repairs(order: Order, emit: Emit, stop: Stop) -> RunResult:
        assert list((order.directory / "output").iterdir()) == []
        assert f"{MAX_DEPTH} levels" in (order.directory / "feedback.md").read_text()
        return writes(GOOD_CODE)(order, emit, stop)

    turn = await bench.phase(digs, repairs)
    assert (turn.outcome, turn.attempt) == (Outcome.PASSED_AFTER_RETRY, 2), turn.error
    assert [path.name for path in bench.output.iterdir()] == ["add.py"]
    remove_tree(bench.output.parent / "attempts")


async def test_a_phase_that_is_never_right_fails_with_its_issues_and_publishes_nothing(bench: PhaseBench) -> None:
    turn = await bench.phase(*[writes(BAD_CODE)] * 3)
    assert (turn.outcome, turn.error.code, turn.attempt) == (Outcome.FAILED, "phase_not_verified", 3)
    assert "PYTHON_SYNTAX" in turn.error.message
    assert not list(bench.output.glob("*"))


async def test_all_attempts_failed_then_another_model_then_a_person(bench: PhaseBench) -> None:
    def starts_afresh(order: Order, emit: Emit, stop: Stop) -> RunResult:
        assert not (order.directory / "output" / "add.py").exists(), "nothing of a failed attempt is there"
        assert (order.agent_session, "PYTHON_SYNTAX" in order.prompt) == ("", True)
        assert "output/add.py" in order.prompt
        return writes(BAD_CODE)(order, emit, stop)

    escalation = Escalation(model="expert", runs=1)
    turn = await bench.phase(*[writes(BAD_CODE)] * 3, starts_afresh, escalation=escalation)
    assert (turn.state, turn.stage, turn.attempt) == (TurnState.SUSPENDED, 2, 4)
    turn = await bench.decided(turn, "approve", note="good enough")
    assert turn.outcome is Outcome.PASSED_BY_HUMAN
    assert (bench.output / "add.py").read_text() == BAD_CODE
    stages = [event.data["stage"] for event in await bench.events(turn) if event.kind == "turn.escalated"]
    assert stages == [1, 2]


async def test_another_model_that_is_right_ends_the_escalation(bench: PhaseBench) -> None:
    turn = await bench.phase(*[writes(BAD_CODE)] * 3, writes(GOOD_CODE), escalation=Escalation(model="expert"))
    assert (turn.outcome, turn.stage) == (Outcome.PASSED_AFTER_RETRY, 1)
    assert (bench.output / "add.py").read_text() == GOOD_CODE


async def test_a_person_edits_the_files_in_place(bench: PhaseBench) -> None:
    turn = await bench.phase(writes(BAD_CODE), max_attempts=1, escalation=Escalation())
    [file] = bench.project.glob("phases/build/attempts/*/output/add.py")
    file.write_text(GOOD_CODE)
    turn = await bench.decided(turn, "edit")
    assert turn.outcome is Outcome.PASSED_BY_HUMAN
    assert (bench.output / "add.py").read_text() == GOOD_CODE


async def test_a_person_has_the_phase_run_again_with_a_note(bench: PhaseBench) -> None:
    turn = await bench.phase(writes(BAD_CODE), max_attempts=1, escalation=Escalation())
    bench.runner.plays = [writes(GOOD_CODE)]
    turn = await bench.decided(turn, "retry", note="Close the bracket!")
    assert turn.outcome is Outcome.PASSED_AFTER_RETRY
    assert "Close the bracket!" in bench.runner.orders[-1].prompt


async def test_a_rejected_phase_leaves_the_output_as_it_was(bench: PhaseBench) -> None:
    await bench.phase(writes(GOOD_CODE))
    turn = await bench.phase(writes(BAD_CODE), max_attempts=1, escalation=Escalation())
    assert (await bench.decided(turn, "reject")).outcome is Outcome.FAILED
    assert (bench.output / "add.py").read_text() == GOOD_CODE


async def test_an_agent_that_never_finishes_is_escalated_too(bench: PhaseBench) -> None:
    turn = await bench.phase(*[ends(Verdict.INCOMPLETE)] * 3, escalation=Escalation())
    assert turn.state is TurnState.SUSPENDED
    assert (await bench.decided(turn, "reject")).outcome is Outcome.FAILED


async def test_a_verifier_without_a_verdict_is_asked_again_and_never_lets_a_phase_pass(bench: PhaseBench) -> None:
    bench.settings.models["judge"] = "scripted:" + str(_script(bench.settings.root, "Sieht gut aus!"))
    verifying = replace(bench.settings, verifier_model="judge")
    bench.service.parts = replace(bench.service.parts, settings=verifying)
    turn = await bench.phase(writes(GOOD_CODE), verify_agent=True)
    while turn.outcome is None:
        found = bench.ledger.reap_turn(turn.turn_id, may_take=True)
        if found.chain_task:
            turn = await bench.carried_out(turn.turn_id, ChainTask.parse(found.chain_task))
    assert (turn.outcome, turn.attempt, turn.error.code) == (Outcome.FAILED, 1, "phase_not_verified")
    verdicts = [event.data for event in await bench.events(turn) if event.kind == "verifier.judged"]
    assert [(data["success"], data["ground"]) for data in verdicts] == [(False, "no_verdict")] * 3
    assert len(bench.runner.orders) == 1, "the agent could not repair that"
    assert (turn.tokens_used, turn.cost_used) == (30, 300_000), "a verifier's runs are the turn's"
    bench.store.delete(bench.keys.turn(turn.turn_id))  # the log does not tell what judging costs


def _script(root: Path, text: str) -> Path:
    path = root / "judge.yaml"
    path.write_text(json.dumps([{"attempts": [[{"say": text}, {"usage": {"input_tokens": 10, "cost_usd": 0.1}}]]}]))
    return path


async def test_a_failed_phase_stops_those_after_it_and_a_passed_one_does_not(bench: PhaseBench) -> None:
    bench.runner.plays = [writes(GOOD_CODE), *[writes(BAD_CODE)] * 3]
    bench.project.mkdir(exist_ok=True)
    phases = [Phase.from_dict({**BUILD, "id": name}) for name in ("one", "two", "three")]
    ids = await bench.client.phases.submit_phases(phases, directory="work", attached=Escalation(human=False).attached)
    for turn_id in ids:
        await bench.carried_out(turn_id, ChainTask(PHASE_RUN, 1))
    turns = [await bench.client.reader.read_turn(turn_id) for turn_id in ids]
    assert [turn.outcome for turn in turns] == [Outcome.PASSED, Outcome.FAILED, Outcome.CANCELLED]
    assert turns[2].error.code == "phase_not_reached"
    assert bench.runner.plays == []


async def test_a_lost_verification_is_made_again_and_counts_once(bench: PhaseBench) -> None:
    bench.runner.plays = [writes(GOOD_CODE)]
    [turn_id] = await bench.client.phases.submit_phases([Phase.from_dict(BUILD)], directory=bench.project.name)
    session = phase_session("work")
    bench.loop.run_and_wait(bench.service.carry_out_task(ChainTask(PHASE_RUN, 1), turn_id, session))
    bench.announced.clear()
    late = bench.ledger.claim_turn(turn_id, session, ChainTask(PHASE_VERIFY, 1))
    assert isinstance(late, LeaseClaim)
    while not (found := bench.ledger.reap_turn(turn_id, may_take=True)).chain_task:
        pass
    turn = await bench.carried_out(turn_id, ChainTask.parse(found.chain_task))
    assert turn.outcome is Outcome.PASSED
    with pytest.raises(LeaseLost):
        bench.ledger.renew_lease(late)
    kinds = [event.kind for event in await bench.events(turn)]
    assert kinds.count("attempt.accepted") == 1
    assert kinds.count("attempt.lost") == 1


async def test_phases_elsewhere_or_wrong_ones_are_refused_before_anything_is_stored(bench: PhaseBench) -> None:
    phase = Phase.from_dict(BUILD)
    for directory in ("../x", "/etc", "", "projects/sessions/s", "projects", ".helix", "work/.x", "n" * 256, "a\0b"):
        with pytest.raises(BadRequest, match="directory"):
            await bench.client.phases.submit_phases([phase], directory=directory)
    with pytest.raises(PhaseError):
        await bench.client.phases.submit_phases([replace(phase, id="../x")], directory="work")


@pytest.mark.parametrize("path", [".helix/keys.json", "sub/.helix/x", ".helix"])
def test_what_belongs_to_an_installation_is_no_input_of_a_phase(bench: PhaseBench, path: str) -> None:
    phases = [Phase.from_dict({**BUILD, "input_files": [path]})]
    root = bench.settings.root
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    [problem] = find_input_problems(root, phases, build_requests(phases, bench.settings, directory="."))
    assert "part of the installation" in problem.message


async def test_a_phase_whose_folder_no_worker_has_waits_for_one_that_has_it(bench: PhaseBench) -> None:
    """It ended as an error of the set-up, though another worker may have the folder."""
    [turn_id] = await bench.client.phases.submit_phases([Phase.from_dict(BUILD)], directory="gone")
    bench.carry_out(turn_id, ChainTask(PHASE_RUN, 1), phase_session("gone"))
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.outcome, turn.strikes, turn.delivery) == (None, 0, 0)
    assert "'gone'" in turn.lacks["w"]
    bench.runner.plays = [writes(GOOD_CODE)]
    (bench.settings.root / "gone").mkdir()
    bench.carry_out(turn_id, ChainTask(PHASE_RUN, 1), phase_session("gone"))
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.outcome, turn.lacks) == (Outcome.PASSED, {})


@pytest.mark.parametrize("decision", ["approve", "edit", "retry", "reject"])
async def test_a_folder_that_vanishes_while_a_person_decides_loses_nothing(bench: PhaseBench, decision: str) -> None:
    turn = await bench.phase(writes(BAD_CODE), max_attempts=1, escalation=Escalation())
    shutil.rmtree(bench.settings.root / "work")
    turn = await bench.decided(turn, decision, **{"note": "noch einmal"} if decision == "retry" else {})
    if decision == "retry":  # its agent needs the folder: it waits for a worker that has it
        assert (turn.outcome, turn.state, turn.strikes) == (None, TurnState.QUEUED, 0)
        return
    outcomes = {"reject": (Outcome.FAILED, "rejected")}
    assert (turn.outcome, turn.error.code) == outcomes.get(decision, (Outcome.ERROR, "config"))


async def test_phases_of_an_owner_lie_in_a_place_of_its_own(bench: PhaseBench) -> None:
    """CVE class "foreign object": session and folder were made from the directory alone."""
    bench.runner.plays = [writes(GOOD_CODE), writes(BAD_CODE)]
    (bench.settings.root / "work").mkdir()
    phase, sessions = Phase.from_dict({**BUILD, "max_attempts": 1}), []
    for owner in ("alice", "bob"):
        [turn_id] = await bench.client.phases.submit_phases(
            [phase], directory="work", owner=owner, attached=Escalation(human=False).attached
        )
        sessions.append((await bench.client.reader.read_turn(turn_id)).request.session_id)
        bench.carry_out(turn_id, ChainTask(PHASE_RUN, 1), sessions[-1])
    assert len({phase_session("work"), *sessions}) == 3
    hers, his = (bench.settings.root / "projects" / "phases" / session / "build" / "output" for session in sessions)
    assert (hers / "add.py").read_text() == GOOD_CODE
    assert not list(his.glob("*"))
    assert bench.runner.orders[0].workdir == hers.parent


async def test_a_missing_input_file_ends_the_phase_with_its_name(bench: PhaseBench) -> None:
    turn = await bench.phase(says("nie"), input_files=["request.md"])
    assert (turn.outcome, turn.error.code) == (Outcome.ERROR, "config")
    assert "request.md" in turn.error.message


POLICY = """
rules:
  - {rule: length, name: not_talkative, options: {max_words: 3}, applies_to: {kinds: [phase]}}
  - {rule: forbidden, name: hint, severity: warning, options: {words: [Zaubern]}, applies_to: {kinds: [phase, chat]}}
  - {rule: step_marker}
"""


def says_too(content: str, text: str) -> Play:
    def play(order: Order, emit: Emit, stop: Stop) -> RunResult:
        return replace(writes(content)(order, emit, stop), text=text)

    return play


async def test_rules_for_phases_judge_after_the_gates_and_other_rules_leave_phases_alone(
    settings: Settings, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    settings = replace(settings, policy=str(policy), locale="en")
    async with TurnsClient(settings) as client:
        bench = PhaseBench(settings, client)
        talk = says_too(GOOD_CODE, "Zaubern: viel zu viele Worte sind das.")
        turn = await bench.phase(says_too(BAD_CODE, "Viel zu viele Worte sind das."), talk, says_too(GOOD_CODE, "So."))
        assert (turn.outcome, turn.attempt) == (Outcome.PASSED_AFTER_RETRY, 3)
        assert turn.request.validators == ("not_talkative", "hint")
        assert turn.labels["policy"] == read_policy(POLICY).hash
        gates = [event.data for event in await bench.events(turn) if event.kind == "gate.checked"]
        told = [(gate["gate"], gate["passed"]) for gate in gates]
        assert told[:2] == [("files_exist", True), ("syntax", False)], "no rule judges what no gate passed"
        assert told[2:6] == [("files_exist", True), ("syntax", True), ("not_talkative", False), ("hint", True)]
        assert told[6:] == [("files_exist", True), ("syntax", True), ("not_talkative", True), ("hint", True)]
        second = (await client.reader.read_attempts(turn.turn_id))[1]
        assert {issue.validator for issue in second.issues} == {"not_talkative", "hint"}
        assert "3" in second.feedback
        bench.leases.close()
