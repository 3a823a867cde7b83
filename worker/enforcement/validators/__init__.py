"""ADR-038's three validators, and the interface for custom validators."""

from api_client.contract.issue import Severity as Severity
from api_client.contract.issue import ValidationIssue as ValidationIssue
from worker.enforcement.validators.adr_structure import ADRStructureValidator as ADRStructureValidator
from worker.enforcement.validators.file_existence import FileExistenceValidator as FileExistenceValidator
from worker.enforcement.validators.step_marker import StepMarkerValidator as StepMarkerValidator
from worker.enforcement.validators.validator import ResponseValidator as ResponseValidator
from worker.enforcement.validators.validator import ValidationResult as ValidationResult
