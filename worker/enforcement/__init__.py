"""Enforcement: an answer counts only when it is complete and every active validator accepts it (ADR-038, ADR-036).

Pure code: no queue, no store, no clock. ``ResponseEnforcer`` offers it in one process; the engine (``worker.turns``)
uses the same policy over a queue. docs/enforcement.md has every code, docs/validators.md how to write your own.
"""

from api_client.contract.issues import Severity, ValidationIssue
from api_client.contract.marker import STEPS, UNKNOWN
from api_client.contract.policy import Action, offered_validators
from worker.enforcement.attempt import Attempt, assemble, best
from worker.enforcement.documents.splice import (
    Part,
    extract_state_from_messages,
    extract_step,
    infer_step,
    step_of,
    strip_marker,
)
from worker.enforcement.going_on import build_feedback, incomplete_feedback
from worker.enforcement.policy import (
    Accept,
    Decision,
    Fail,
    Fallback,
    Policy,
    Repaired,
    Retry,
    decide,
    demote,
    examine,
    judge,
    repair_answer,
)
from worker.enforcement.response_enforcer import EnforcementResult, ResponseEnforcer
from worker.enforcement.validators import (
    ADRStructureValidator,
    FileExistenceValidator,
    ResponseValidator,
    StepMarkerValidator,
    ValidationResult,
)
from worker.enforcement.validators.codes import CODES, Code
from worker.enforcement.validators.registry import (
    DuplicateValidatorError,
    UnknownValidatorError,
    build_validators,
)

__all__ = [
    "CODES",
    "STEPS",
    "UNKNOWN",
    "ADRStructureValidator",
    "Accept",
    "Action",
    "Attempt",
    "Code",
    "Decision",
    "DuplicateValidatorError",
    "EnforcementResult",
    "Fail",
    "Fallback",
    "FileExistenceValidator",
    "Part",
    "Policy",
    "Repaired",
    "ResponseEnforcer",
    "ResponseValidator",
    "Retry",
    "Severity",
    "StepMarkerValidator",
    "UnknownValidatorError",
    "ValidationIssue",
    "ValidationResult",
    "assemble",
    "best",
    "build_feedback",
    "build_validators",
    "decide",
    "demote",
    "examine",
    "extract_state_from_messages",
    "extract_step",
    "incomplete_feedback",
    "infer_step",
    "judge",
    "offered_validators",
    "repair_answer",
    "step_of",
    "strip_marker",
]
