"""Enforcement: an answer counts only if it is complete and every active validator accepts it (ADR-036, ADR-038).

Pure code: no queue, no store, no clock. docs/enforcement.md lists every code.
"""

from api_client.contract.issue import Severity as Severity
from api_client.contract.issue import ValidationIssue as ValidationIssue
from api_client.contract.policy import Action as Action
from api_client.contract.step_marker import STEPS as STEPS
from api_client.contract.step_marker import UNKNOWN as UNKNOWN
from api_client.contract.validator_names import offered_validators as offered_validators
from worker.enforcement.answer_validation import run_validators as run_validators
from worker.enforcement.attempt import Attempt as Attempt
from worker.enforcement.attempt import find_best_attempt as find_best_attempt
from worker.enforcement.attempt_validation import validate_attempt as validate_attempt
from worker.enforcement.documents.splice import Part as Part
from worker.enforcement.documents.step import extract_state_from_messages as extract_state_from_messages
from worker.enforcement.documents.step import extract_step as extract_step
from worker.enforcement.documents.step import infer_step as infer_step
from worker.enforcement.documents.step import step_of as step_of
from worker.enforcement.documents.step import strip_marker as strip_marker
from worker.enforcement.feedback import build_feedback as build_feedback
from worker.enforcement.feedback import incomplete_feedback as incomplete_feedback
from worker.enforcement.policy import Accept as Accept
from worker.enforcement.policy import Decision as Decision
from worker.enforcement.policy import Fail as Fail
from worker.enforcement.policy import Fallback as Fallback
from worker.enforcement.policy import Policy as Policy
from worker.enforcement.policy import Retry as Retry
from worker.enforcement.policy import decide_next as decide_next
from worker.enforcement.policy import demote_issues as demote_issues
from worker.enforcement.repair import RepairResult as RepairResult
from worker.enforcement.repair import repair_answer as repair_answer
from worker.enforcement.response_enforcer import EnforcementResult as EnforcementResult
from worker.enforcement.response_enforcer import ResponseEnforcer as ResponseEnforcer
from worker.enforcement.validators import ADRStructureValidator as ADRStructureValidator
from worker.enforcement.validators import FileExistenceValidator as FileExistenceValidator
from worker.enforcement.validators import ResponseValidator as ResponseValidator
from worker.enforcement.validators import StepMarkerValidator as StepMarkerValidator
from worker.enforcement.validators import ValidationResult as ValidationResult
from worker.enforcement.validators.codes import CODES as CODES
from worker.enforcement.validators.codes import Code as Code
from worker.enforcement.validators.registry import DuplicateValidatorError as DuplicateValidatorError
from worker.enforcement.validators.registry import UnknownValidatorError as UnknownValidatorError
from worker.enforcement.validators.registry import build_validators as build_validators
