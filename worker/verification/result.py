"""The result of a verification (ADR-025)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from api_client.contract.completion import Completion
from worker.verification.gates import GateReport


class ResultGround(StrEnum):
    """The reason for a verification's result, such as a failed quality gate or a verdict."""

    #: A deterministic gate failed, or the gates passed and no verifier was needed.
    GATES = "gates"
    #: The verifier gave a valid verdict.
    VERDICT = "verdict"
    #: The verifier finished without a valid verdict. Not verified.
    NO_VERDICT = "no_verdict"
    #: The verifier crashed, timed out or is misconfigured. Not verified.
    VERIFIER = "verifier"
    #: Not the phase's fault.
    STOPPED = "stopped"
    #: The gates may not run on this worker.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """The result of a phase's verification, with errors and advice for the agent.

    Attributes:
        errors: one sentence per fault; not empty unless ``success``.
        checks_passed: what was found correct, gates first.
        completion: how the verifier's run ended; None without a verifier.
    """

    success: bool
    feedback: str | None = None
    errors: list[str] = field(default_factory=list)
    checks_passed: list[str] = field(default_factory=list)
    ground: ResultGround = ResultGround.GATES
    gates: GateReport = field(default_factory=GateReport)
    completion: Completion | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def has_verdict(self) -> bool:
        """Return True if the output was assessed, or False if the verification did not finish."""
        return self.ground in {ResultGround.GATES, ResultGround.VERDICT}

    def to_dict(self) -> dict[str, Any]:
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


def build_gates_result(report: GateReport) -> VerificationResult:
    """Return the verification result of a phase that was checked by its quality gates alone."""
    if report.stopped:
        return VerificationResult(
            success=False,
            errors=[f"the check was stopped: {report.stopped}"],
            ground=ResultGround.STOPPED,
            gates=report,
        )
    errors = [describe_issue(issue) for issue in report.issues if issue.is_error]
    if not report.passed and not errors:
        errors = ["no gate was run"]
    feedback = "\n".join(f"- {describe_issue(issue)}: {issue.fix_hint}" for issue in report.issues if issue.is_error)
    return VerificationResult(
        success=report.passed,
        feedback=feedback or None,
        errors=errors,
        checks_passed=list(report.checks_passed),
        gates=report,
    )


def describe_issue(issue: Any) -> str:
    """Return an issue as one sentence that starts with the file and the line of the problem."""
    named = issue.file and issue.file in issue.message
    place = f"{issue.file}:{issue.line}: " if issue.line else f"{issue.file}: " if issue.file and not named else ""
    return f"{place}{issue.message}"
