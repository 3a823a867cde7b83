"""The issue codes of gates, loaded from ``gate_codes.toml``."""

from __future__ import annotations

from api_client.contract.issue import ValidationIssue
from worker.enforcement.validators.codes import build_issue, load_codes

CODES = load_codes(__file__)


def build_gate_issue(code: str, locale: str, /, *, file: str = "", line: int = 0, **values: object) -> ValidationIssue:
    """Build a quality gate's issue. Its severity and texts come from the entry of its issue code in ``CODES``.

    Raises ``KeyError`` for an unknown code.
    """
    return build_issue(CODES[code], code, locale, file=file, line=line, part="", **values)
