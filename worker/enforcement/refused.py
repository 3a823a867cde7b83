"""Files that belong to an answer and were not taken: an agent that wrote its answer there is asked for it again."""

from __future__ import annotations

from collections.abc import Mapping

from worker.enforcement.codes import issue
from worker.enforcement.issue import ValidationIssue


def refused(files: Mapping[str, str], locale: str) -> tuple[ValidationIssue, ...]:
    """One error for each file, by its path; the value says why it was not taken."""
    return tuple(issue("ANSWER_FILE_REFUSED", locale, path=path, problem=why) for path, why in files.items())
