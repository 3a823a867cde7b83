"""Verification of phases (ADR-025): deterministic gates, an independent verifier, feedback, and the loop around them.

Knows no queue and no store. ``run_with_verification`` offers all of it in one process; the engine (``worker.turns``)
uses the same parts. docs/WORKFLOW-SYSTEM.md explains phases, gates and verdicts.
"""

from worker.verification.gates import GateReport, GateResult, check, each_gate
from worker.verification.gates.gate import CODES
from worker.verification.gates.gate_program import Fence, Stopped, Stopping
from worker.verification.phases import (
    FeedbackChannel,
    PhaseRun,
    PhasesFileError,
    PhaseVerificationFailed,
    Verified,
    feedback_on,
    load_phases,
    parse_phases,
    phases_file,
    run_with_verification,
    verify_with_retries,
)
from worker.verification.sub_agent import (
    Ground,
    NoVerdict,
    SubAgentVerifier,
    VerificationResult,
    VerifierVerdict,
    Verifying,
    gates_result,
    phase_prompt,
    read_verdict,
    verifier_prompt,
)

__all__ = [
    "CODES",
    "FeedbackChannel",
    "Fence",
    "GateReport",
    "GateResult",
    "Ground",
    "NoVerdict",
    "PhaseRun",
    "PhaseVerificationFailed",
    "PhasesFileError",
    "Stopped",
    "Stopping",
    "SubAgentVerifier",
    "VerificationResult",
    "Verified",
    "VerifierVerdict",
    "Verifying",
    "check",
    "each_gate",
    "feedback_on",
    "gates_result",
    "load_phases",
    "parse_phases",
    "phase_prompt",
    "phases_file",
    "read_verdict",
    "run_with_verification",
    "verifier_prompt",
    "verify_with_retries",
]
