"""Verification of phases (ADR-025): deterministic gates, an independent verifier, feedback, and the loop around them.

Knows no queue and no store. ``run_with_verification`` offers all of it in one process; the engine (``worker.turns``)
uses the same parts. docs/WORKFLOW-SYSTEM.md explains phases, gates and verdicts.
"""

from worker.verification.feedback_file import FeedbackChannel
from worker.verification.gates import GateReport, GateResult, check, each_gate
from worker.verification.gates.codes import CODES
from worker.verification.gates.fence import Fence
from worker.verification.gates.stop import Stopped, Stopping
from worker.verification.phase_loop import PhaseRun, PhaseVerificationFailed, Verified, feedback_on, verify_with_retries
from worker.verification.phase_run import run_with_verification
from worker.verification.phases import PhasesFileError, load_phases, parse_phases, phases_file
from worker.verification.prompt import phase_prompt, verifier_prompt
from worker.verification.result import Ground, VerificationResult, gates_result
from worker.verification.sub_agent import SubAgentVerifier, Verifying
from worker.verification.verdict import NoVerdict, VerifierVerdict, read_verdict

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
