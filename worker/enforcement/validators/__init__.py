"""The validators. ADR-038's three, and the interface for your own."""

from api_client.contract.issues import Severity as Severity
from api_client.contract.issues import ValidationIssue as ValidationIssue
from worker.enforcement.validators.adr_structure import ADRStructureValidator as ADRStructureValidator
from worker.enforcement.validators.adr_structure import StepMarkerValidator as StepMarkerValidator
from worker.enforcement.validators.codes import ResponseValidator as ResponseValidator
from worker.enforcement.validators.codes import ValidationResult as ValidationResult
from worker.enforcement.validators.paths import FileExistenceValidator as FileExistenceValidator
