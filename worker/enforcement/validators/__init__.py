"""The validators. ADR-038's three, and the interface for your own."""

from api_client.contract.issues import Severity, ValidationIssue
from worker.enforcement.validators.adr_structure import ADRStructureValidator, StepMarkerValidator
from worker.enforcement.validators.codes import ResponseValidator, ValidationResult
from worker.enforcement.validators.paths import FileExistenceValidator

__all__ = [
    "ADRStructureValidator",
    "FileExistenceValidator",
    "ResponseValidator",
    "Severity",
    "StepMarkerValidator",
    "ValidationIssue",
    "ValidationResult",
]
