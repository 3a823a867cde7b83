"""Issue codes of the rules with options, loaded from ``codes.toml``."""

from __future__ import annotations

from typing import Any

from api_client.contract.issue import ValidationIssue
from worker.enforcement.validators.codes import build_issue, load_codes

RULE_CODES = load_codes(__file__)


def rule_issue(
    code: str, locale: str, /, *, line: int = 0, file: str = "", part: str = "", **values: Any
) -> ValidationIssue:
    """Return a new issue for an issue code, with ``values`` filled into the code's texts.

    Raises ``KeyError`` if the code or a value is missing.
    """
    return build_issue(RULE_CODES[code], code, locale, line=line, file=file, part=part, **values)
