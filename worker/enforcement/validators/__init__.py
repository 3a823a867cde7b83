"""The validators. ADR-038's three, and the interface for your own."""

from worker.enforcement.validators.adr_structure import ADRStructureValidator
from worker.enforcement.validators.base import ResponseValidator, Severity, ValidationIssue, ValidationResult
from worker.enforcement.validators.file_existence import FileExistenceValidator
from worker.enforcement.validators.step_marker import StepMarkerValidator

__all__ = [
    "ADRStructureValidator",
    "FileExistenceValidator",
    "ResponseValidator",
    "Severity",
    "StepMarkerValidator",
    "ValidationIssue",
    "ValidationResult",
]
