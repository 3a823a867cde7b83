"""Exceptions in validation code become issues of the attempt and never end the turn."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from api_client.contract.issue import ValidationIssue
from worker.enforcement.content_guard import GUARD, NOT_JUDGED
from worker.enforcement.validators.codes import make_issue

Found = TypeVar("Found")


def describe_exception(error: BaseException) -> str:
    """Return the type and message of an exception, or only the type if the message cannot be formatted."""
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except Exception:
        return type(error).__name__


def describe_fault(error: Exception) -> str:
    """Return a description of an exception that also lists the calls leading to it, innermost first."""
    calls = traceback.extract_tb(error.__traceback__)[:-7:-1]
    return f"{describe_exception(error)}; " + " < ".join(
        f"{Path(call.filename).name}:{call.lineno} {call.name}" for call in calls
    )


@dataclass
class ValidationFaults:
    """Runs the steps of a validation, and turns exceptions into issues."""

    locale: str
    issues: list[ValidationIssue] = field(default_factory=list)
    #: Runs a step that reads texts, with a time limit if they are long.
    run_limited: Callable[[Callable[[], Any]], Any] = lambda step: step()

    def run_reading_step(self, step: Callable[[], Found], otherwise: Found) -> Found:
        """Run a step that reads texts, with a time limit. Return ``otherwise`` if the step raises or takes too long.

        The failure is recorded as an issue.
        """
        return self.run_step(partial(self.run_limited, step), otherwise)

    def run_step(self, step: Callable[[], Found], otherwise: Found) -> Found:
        """Run a step and return its result. If the step raises, record an issue and return ``otherwise``."""
        try:
            return step()
        except Exception as error:
            found = make_issue(NOT_JUDGED, self.locale, validator=GUARD, problem=describe_exception(error))
            self.issues.append(replace(found, validator=GUARD, fix_hint=describe_fault(error)))
            return otherwise
