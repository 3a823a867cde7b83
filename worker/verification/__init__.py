"""Verify phases (ADR-025): deterministic gates, an independent verifier, feedback and the retry loop.

The engine (``worker.turns``) and ``run_with_verification`` share these parts; docs/WORKFLOW-SYSTEM.md explains them.
"""

from worker.verification.feedback_file import FeedbackChannel as FeedbackChannel
from worker.verification.gates import GateReport as GateReport
from worker.verification.gates import GateResult as GateResult
from worker.verification.gates import check as check
from worker.verification.gates import each_gate as each_gate
from worker.verification.gates.fence import Fence as Fence
from worker.verification.gates.gate_codes import CODES as CODES
from worker.verification.gates.stop import CheckStopped as CheckStopped
from worker.verification.gates.stop import StopRequest as StopRequest
from worker.verification.phase_loop import PhaseRun as PhaseRun
from worker.verification.phase_loop import PhaseVerificationFailed as PhaseVerificationFailed
from worker.verification.phase_loop import VerifiedPhase as VerifiedPhase
from worker.verification.phase_loop import feedback_on as feedback_on
from worker.verification.phase_loop import verify_with_retries as verify_with_retries
from worker.verification.phase_run import run_with_verification as run_with_verification
from worker.verification.phases import PhasesFileError as PhasesFileError
from worker.verification.phases import load_phases as load_phases
from worker.verification.phases import parse_phases as parse_phases
from worker.verification.phases import phases_file as phases_file
from worker.verification.result import Ground as Ground
from worker.verification.result import VerificationResult as VerificationResult
from worker.verification.result import gates_result as gates_result
from worker.verification.sub_agent import SubAgentVerifier as SubAgentVerifier
from worker.verification.sub_agent import VerificationScope as VerificationScope
from worker.verification.verdict import NoVerdict as NoVerdict
from worker.verification.verdict import VerifierVerdict as VerifierVerdict
from worker.verification.verdict import read_verdict as read_verdict
from worker.verification.verifier_prompt import phase_prompt as phase_prompt
from worker.verification.verifier_prompt import verifier_prompt as verifier_prompt
