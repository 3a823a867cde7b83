"""Verify one attempt of a phase, with an event for each gate, rule and verifier verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.errors import SettingsError
from api_client.contract.event_kinds import GateChecked, VerifierJudged, VerifierStarted
from api_client.contract.events import Body
from api_client.contract.issue import ValidationIssue
from api_client.contract.phase import Phase
from api_client.contract.phase_checks import PhaseError
from api_client.contract.phase_work import phase_of
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn
from worker.turns.leases.lease import Lease
from worker.verification import (
    CheckStopped,
    Fence,
    GateReport,
    GateResult,
    Ground,
    SubAgentVerifier,
    VerificationResult,
    VerificationScope,
    each_gate,
    gates_result,
)

Report = Callable[[list[Body]], None]


def read_phase(turn: Turn) -> Phase:
    """Return the phase of a turn.

    Raises:
        SettingsError: this version cannot read the phase.
    """
    try:
        return phase_of(turn.request)
    except PhaseError as error:
        raise SettingsError([str(error)]) from error


def fence_of(settings: Settings, turn: Turn) -> Fence:
    """Return the sandbox for the gates of a phase's turn."""
    return Fence.of(settings, operator=turn.request.operator)


class Verification:
    """Verify an attempt: gates first, then the policy's rules for phases, then an agent that works on a copy.

    Stops when the turn is cancelled or its lease ends. ``judge`` returns the rules' issues; each rule counts as a gate.
    """

    def __init__(
        self,
        settings: Settings,
        turn: Turn,
        record: AttemptRecord,
        lease: Lease,
        report: Report,
        output: Path,
        judge: Callable[[], Sequence[ValidationIssue]],
    ) -> None:
        self._judge = judge
        self._settings = settings
        self._turn = turn
        self._record = record
        self._lease = lease
        self._report = report
        self._output = output
        self._phase = read_phase(turn)
        self._fence = fence_of(settings, turn)

    def run(self) -> VerificationResult:
        """Verify the attempt and return the result."""
        if refused := self._fence.refusal(self._phase):
            return VerificationResult(success=False, errors=[refused], ground=Ground.REFUSED)
        report = self._gates()
        if report.passed and self._turn.request.validators:
            report = replace(report, results=(*report.results, *self._rules()))
        if not (report.passed and self._phase.verify_agent):
            return gates_result(report)
        verifier = SubAgentVerifier(settings=self._settings)
        on = self._verifying()
        attempt = self._record.number
        self._report([VerifierStarted(attempt=attempt, model=verifier.model_for(on.model))])
        result = verifier.ask(self._phase, self._output, report, on)
        judged = VerifierJudged(
            attempt=attempt,
            success=result.success,
            ground=result.ground.value,
            errors=tuple(result.errors),
            checks_passed=tuple(result.checks_passed),
        )
        self._report([judged])
        return result

    def _verifying(self) -> VerificationScope:
        turn = self._turn
        return VerificationScope(
            turn_id=turn.turn_id,
            session_id=turn.request.session_id,
            attempt=self._record.number,
            delivery=turn.delivery,
            model=turn.request.model,
            stop=self._lease,
            deadline=self._lease.deadline,
            locale=turn.request.locale,
            fence=self._fence,
        )

    def _gates(self) -> GateReport:
        results: list[GateResult] = []
        try:
            for result in each_gate(self._phase, self._output, **self._verifying().around(self._fence)):
                results.append(result)
                self._report([self._checked(result)])
        except CheckStopped as stopped:
            return GateReport(results=tuple(results), stopped=str(stopped))
        return GateReport(results=tuple(results))

    def _rules(self) -> list[GateResult]:
        found = self._judge()
        names = self._turn.request.validators
        results = [
            GateResult(gate=name, issues=tuple(each for each in found if each.validator == name)) for name in names
        ]
        self._report([self._checked(result) for result in results])
        return results

    def _checked(self, result: GateResult) -> GateChecked:
        return GateChecked(
            attempt=self._record.number,
            gate=result.gate,
            passed=result.passed,
            skipped=result.skipped,
            issues=result.issues,
        )
