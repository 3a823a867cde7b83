"""The issue codes of gates, loaded from ``gate_codes.toml``."""

from __future__ import annotations

from api_client.contract.issue import ValidationIssue
from worker.enforcement.validators.codes import build_issue, load_codes

CODES = load_codes(__file__)


def build_gate_issue(code: str, locale: str, /, *, file: str = "", line: int = 0, **values: object) -> ValidationIssue:
    """Build an issue with the severity and the texts of an issue code of quality gates. Raises ``KeyError``."""
    return build_issue(CODES[code], code, locale, file=file, line=line, part="", **values)
