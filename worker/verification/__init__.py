"""Verification of phases (ADR-025): deterministic gates, an independent verifier, feedback, and the loop around them.

Knows no queue and no store. ``run_with_verification`` offers all of it in one process; the engine (``worker.turns``)
uses the same parts. docs/WORKFLOW-SYSTEM.md explains phases, gates and verdicts.
"""

from worker.verification.gates import GateReport as GateReport
from worker.verification.gates import GateResult as GateResult
from worker.verification.gates import check as check
from worker.verification.gates import each_gate as each_gate
from worker.verification.gates.gate import CODES as CODES
from worker.verification.gates.gate_program import Fence as Fence
from worker.verification.gates.gate_program import Stopped as Stopped
from worker.verification.gates.gate_program import Stopping as Stopping
from worker.verification.phases import FeedbackChannel as FeedbackChannel
from worker.verification.phases import PhaseRun as PhaseRun
from worker.verification.phases import PhasesFileError as PhasesFileError
from worker.verification.phases import PhaseVerificationFailed as PhaseVerificationFailed
from worker.verification.phases import Verified as Verified
from worker.verification.phases import feedback_on as feedback_on
from worker.verification.phases import load_phases as load_phases
from worker.verification.phases import parse_phases as parse_phases
from worker.verification.phases import phases_file as phases_file
from worker.verification.phases import run_with_verification as run_with_verification
from worker.verification.phases import verify_with_retries as verify_with_retries
from worker.verification.sub_agent import Ground as Ground
from worker.verification.sub_agent import NoVerdict as NoVerdict
from worker.verification.sub_agent import SubAgentVerifier as SubAgentVerifier
from worker.verification.sub_agent import VerificationResult as VerificationResult
from worker.verification.sub_agent import VerifierVerdict as VerifierVerdict
from worker.verification.sub_agent import Verifying as Verifying
from worker.verification.sub_agent import gates_result as gates_result
from worker.verification.sub_agent import phase_prompt as phase_prompt
from worker.verification.sub_agent import read_verdict as read_verdict
from worker.verification.sub_agent import verifier_prompt as verifier_prompt
