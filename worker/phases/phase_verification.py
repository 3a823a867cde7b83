"""Verifies one attempt of a phase, with an event for each gate, rule and verifier verdict."""

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
from api_client.contract.phase_work import read_turn_phase
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn
from worker.turns.leases.lease import Lease
from worker.verification import (
    CheckInterrupted,
    GateReport,
    GateResult,
    GateSandbox,
    ResultGround,
    SubAgentVerifier,
    VerificationResult,
    VerificationScope,
    build_gates_result,
    iterate_gates,
)

Report = Callable[[list[Body]], None]


def read_phase(turn: Turn) -> Phase:
    """Return the phase that a turn carries out. Raises ``SettingsError`` if this version cannot read the phase."""
    try:
        return read_turn_phase(turn.request)
    except PhaseError as error:
        raise SettingsError([str(error)]) from error


def build_gate_sandbox(settings: Settings, turn: Turn) -> GateSandbox:
    """Return the sandbox in which the checks of a turn's phase run their programs."""
    return GateSandbox.from_settings(settings, operator=turn.request.operator)


class AttemptVerification:
    """Verifies one attempt of a phase with quality gates, then with rules, then with an independent agent.

    Stops when the turn is cancelled or its lease ends. Each rule counts as a gate.
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
        self._fence = build_gate_sandbox(settings, turn)

    def run(self) -> VerificationResult:
        if refused := self._fence.explain_phase_refusal(self._phase):
            return VerificationResult(success=False, errors=[refused], ground=ResultGround.REFUSED)
        report = self._run_gates()
        if report.passed and self._turn.request.validators:
            report = replace(report, results=(*report.results, *self._run_rules()))
        if not (report.passed and self._phase.verify_agent):
            return build_gates_result(report)
        verifier = SubAgentVerifier(settings=self._settings)
        on = self._verification_scope()
        attempt = self._record.number
        self._report([VerifierStarted(attempt=attempt, model=verifier.choose_model(on.model))])
        result = verifier.ask_verifier(self._phase, self._output, report, on)
        judged = VerifierJudged(
            attempt=attempt,
            success=result.success,
            ground=result.ground.value,
            errors=tuple(result.errors),
            checks_passed=tuple(result.checks_passed),
        )
        self._report([judged])
        return result

    def _verification_scope(self) -> VerificationScope:
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

    def _run_gates(self) -> GateReport:
        results: list[GateResult] = []
        try:
            for result in iterate_gates(
                self._phase, self._output, **self._verification_scope().gate_settings(self._fence)
            ):
                results.append(result)
                self._report([self._gate_event(result)])
        except CheckInterrupted as stopped:
            return GateReport(results=tuple(results), stopped=str(stopped))
        return GateReport(results=tuple(results))

    def _run_rules(self) -> list[GateResult]:
        found = self._judge()
        names = self._turn.request.validators
        results = [
            GateResult(gate=name, issues=tuple(each for each in found if each.validator == name)) for name in names
        ]
        self._report([self._gate_event(result) for result in results])
        return results

    def _gate_event(self, result: GateResult) -> GateChecked:
        return GateChecked(
            attempt=self._record.number,
            gate=result.gate,
            passed=result.passed,
            skipped=result.skipped,
            issues=result.issues,
        )
