"""The closed table of what gates find in a phase's output, ``codes.toml``: as enforcement's table.

docs/WORKFLOW-SYSTEM.md lists the same codes; a test compares the two.
"""

from __future__ import annotations

from api_client.contract.issue import ValidationIssue
from worker.enforcement.validators.codes import codes_beside, worded

CODES = codes_beside(__file__)


def issue(code: str, locale: str, /, *, file: str = "", line: int = 0, **values: object) -> ValidationIssue:
    """Make an issue with the table's severity, and its words in ``de`` or ``en``.

    Raises:
        KeyError: the code is not in the table, or a value of its templates is missing.
    """
    return worded(CODES[code], code, locale, file=file, line=line, part="", **values)
