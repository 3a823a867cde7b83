"""The codes of the rules with options, ``codes.toml``: as enforcement's table. docs/rules/ lists them by rule."""

from __future__ import annotations

from typing import Any

from api_client.contract.issue import ValidationIssue
from worker.enforcement.validators.codes import codes_beside, worded

RULE_CODES = codes_beside(__file__)


def rule_issue(
    code: str, locale: str, /, *, line: int = 0, file: str = "", part: str = "", **values: Any
) -> ValidationIssue:
    """An issue of this table. Values fill its templates; long or unprintable ones are clipped.

    Raises:
        KeyError: the code is not in the table, or a value of its templates is missing.
    """
    return worded(RULE_CODES[code], code, locale, line=line, file=file, part=part, **values)
