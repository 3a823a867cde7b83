"""The verification of phases (ADR-025): gates, an independent verifier, feedback and the retry loop.

The engine (``worker.turns``) and ``run_with_verification`` share these parts; docs/WORKFLOW-SYSTEM.md explains them.
"""

from worker.verification.feedback_file import FeedbackChannel as FeedbackChannel
from worker.verification.gates import GateReport as GateReport
from worker.verification.gates import GateResult as GateResult
from worker.verification.gates import iterate_gates as iterate_gates
from worker.verification.gates import run_gates as run_gates
from worker.verification.gates.gate_codes import CODES as CODES
from worker.verification.gates.gate_sandbox import GateSandbox as GateSandbox
from worker.verification.gates.stop import CheckInterrupted as CheckInterrupted
from worker.verification.gates.stop import StopRequest as StopRequest
from worker.verification.phase_loop import PhaseRun as PhaseRun
from worker.verification.phase_loop import PhaseVerificationFailed as PhaseVerificationFailed
from worker.verification.phase_loop import VerifiedPhase as VerifiedPhase
from worker.verification.phase_loop import compose_feedback as compose_feedback
from worker.verification.phase_loop import verify_with_retries as verify_with_retries
from worker.verification.phase_run import run_with_verification as run_with_verification
from worker.verification.phases import PhasesFileError as PhasesFileError
from worker.verification.phases import load_phases as load_phases
from worker.verification.phases import parse_phases as parse_phases
from worker.verification.phases import resolve_phases_file as resolve_phases_file
from worker.verification.result import ResultGround as ResultGround
from worker.verification.result import VerificationResult as VerificationResult
from worker.verification.result import build_gates_result as build_gates_result
from worker.verification.sub_agent import SubAgentVerifier as SubAgentVerifier
from worker.verification.sub_agent import VerificationScope as VerificationScope
from worker.verification.verdict import VerdictError as VerdictError
from worker.verification.verdict import VerifierVerdict as VerifierVerdict
from worker.verification.verdict import read_verdict as read_verdict
from worker.verification.verifier_prompt import build_phase_prompt as build_phase_prompt
from worker.verification.verifier_prompt import build_verifier_prompt as build_verifier_prompt
