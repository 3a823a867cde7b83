"""The result of a verification (ADR-025), and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from api_client.contract.completion import Completion
from worker.verification.gates import GateReport


class Ground(StrEnum):
    """The ground of a result."""

    #: A deterministic gate failed, or the gates passed and no verifier was asked.
    GATES = "gates"
    #: A verifier's valid verdict.
    VERDICT = "verdict"
    #: The verifier finished, but its answer holds no valid verdict: not verified.
    NO_VERDICT = "no_verdict"
    #: The verifier could not do its work: it crashed, ran out of time, or is set up wrongly. Not verified.
    VERIFIER = "verifier"
    #: The verification was asked to stop. Not verified, and not the phase's fault.
    STOPPED = "stopped"
    #: The gates may not run on this worker: nothing of the phase was judged.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """The result of a verification.

    Attributes:
        success: True only when every gate passed and, where one was asked, the verifier's verdict is valid and says so.
        feedback: what to do about it, for the agent; None when there is nothing to say.
        errors: the faults, one sentence each; never empty unless ``success``.
        checks_passed: what was found right, gates first. ground: what the result rests on.
        gates: what the gates found; empty when they were not run.
        completion: how the verifier's run ended; None when none was asked. usage: what the verifier used.
        text: the verifier's answer as it came, for the record.
    """

    success: bool
    feedback: str | None = None
    errors: list[str] = field(default_factory=list)
    checks_passed: list[str] = field(default_factory=list)
    ground: Ground = Ground.GATES
    gates: GateReport = field(default_factory=GateReport)
    completion: Completion | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def judged(self) -> bool:
        """True when the output was judged; False when the verification itself did not come to an end."""
        return self.ground in {Ground.GATES, Ground.VERDICT}

    def to_dict(self) -> dict[str, Any]:
        """The result as a JSON-ready mapping."""
        return {
            "success": self.success,
            "feedback": self.feedback,
            "errors": self.errors,
            "checks_passed": self.checks_passed,
            "ground": self.ground.value,
            "gates": self.gates.to_dict(),
            "completion": self.completion.to_dict() if self.completion else None,
            "usage": self.usage,
            "text": self.text,
        }


def gates_result(report: GateReport) -> VerificationResult:
    """The result that the gates alone make."""
    if report.stopped:
        return VerificationResult(
            success=False, errors=[f"the check was stopped: {report.stopped}"], ground=Ground.STOPPED, gates=report
        )
    errors = [place_of(issue) for issue in report.issues if issue.is_error]
    if not report.passed and not errors:
        errors = ["no gate was run"]
    feedback = "\n".join(f"- {place_of(issue)}: {issue.fix_hint}" for issue in report.issues if issue.is_error)
    return VerificationResult(
        success=report.passed,
        feedback=feedback or None,
        errors=errors,
        checks_passed=list(report.checks_passed),
        gates=report,
    )


def place_of(issue: Any) -> str:
    """An issue as one sentence, with file and line before it; a file that the sentence names is not named twice."""
    named = issue.file and issue.file in issue.message
    place = f"{issue.file}:{issue.line}: " if issue.line else f"{issue.file}: " if issue.file and not named else ""
    return f"{place}{issue.message}"
