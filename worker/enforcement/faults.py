"""Exceptions in our code while it judges an answer: issues of the attempt, never the end of the turn."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from api_client.contract.issue import ValidationIssue
from worker.enforcement.content_guard import GUARD, NOT_JUDGED
from worker.enforcement.validators.codes import issue

Found = TypeVar("Found")


def named(error: BaseException) -> str:
    """Say what was raised; by its type alone where a validator's own exception fails at being shown."""
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except Exception:
        return type(error).__name__


def fault_words(error: Exception) -> str:
    """Say what was raised and by which calls, the innermost first."""
    calls = traceback.extract_tb(error.__traceback__)[:-7:-1]
    return f"{named(error)}; " + " < ".join(f"{Path(call.filename).name}:{call.lineno} {call.name}" for call in calls)


@dataclass
class JudgingFaults:
    """Runs steps of judging, and collects what they raise as VALIDATOR_ERROR; the hint has the traceback."""

    locale: str
    issues: list[ValidationIssue] = field(default_factory=list)

    def run(self, step: Callable[[], Found], otherwise: Found) -> Found:
        """Return what the step returns, or ``otherwise`` where it raises."""
        try:
            return step()
        except Exception as error:
            found = issue(NOT_JUDGED, self.locale, validator=GUARD, problem=named(error))
            self.issues.append(replace(found, validator=GUARD, fix_hint=fault_words(error)))
            return otherwise
