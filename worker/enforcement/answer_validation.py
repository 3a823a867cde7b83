"""Validation of one answer by all active validators, each run in isolation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from api_client.contract.issue import ValidationIssue
from worker.enforcement.validation_faults import describe_exception
from worker.enforcement.validator_process import ValidatorFailure
from worker.enforcement.validators import ResponseValidator
from worker.enforcement.validators.codes import DEFAULT_LOCALE, make_issue

MAX_CHARS = 4 * 1024 * 1024
#: Most issues of one validator that are kept, and most characters of their texts.
MAX_ISSUES, MAX_MESSAGE = 200, 2_000


def run_validators(
    answer: str, validators: Sequence[ResponseValidator], context: Mapping[str, Any] | None = None
) -> list[ValidationIssue]:
    """Run validators on an answer and its files, and return the issues that they find.

    A validator that raises or returns anything but a list of issues produces VALIDATOR_ERROR. ``context`` has ``files``
    (name to text), ``locale``, and values for custom validators.
    """
    context = context or {}
    locale = str(context.get("locale", DEFAULT_LOCALE))
    texts = [("", answer), *(context.get("files") or {}).items()]
    if too_long := [(name, len(text)) for name, text in texts if len(text) > MAX_CHARS]:
        return [make_issue("ANSWER_TOO_LONG", locale, file=name, count=count) for name, count in too_long]
    found: dict[tuple[object, ...], ValidationIssue] = {}
    for validator in validators:
        for one in _run_isolated(validator, answer, context, locale):
            found.setdefault(_finding_key(one), one)
    return list(found.values())


_NO_MAPPINGS = frozenset({str, type(None)})


def _run_isolated(
    validator: ResponseValidator, answer: str, context: Mapping[str, Any], locale: str
) -> list[ValidationIssue]:
    name = type(validator).__name__
    try:
        name = str(validator.name)
        own = {
            key: dict(value) if type(value) not in _NO_MAPPINGS and isinstance(value, Mapping) else value
            for key, value in context.items()
        }
        found: Any = validator.validate(answer, own)
        if not isinstance(found, (list, tuple)):
            return _failure_issue(name, f"returned {type(found).__name__}", locale)
        if problem := next(filter(None, map(_find_issue_problem, found)), ""):
            return _failure_issue(name, f"returned {problem}", locale)
    except ValidatorFailure as error:
        return _failure_issue(name, str(error), locale)
    except (Exception, SystemExit) as error:  # SystemExit: a validator must not end the worker
        return _failure_issue(name, describe_exception(error), locale)
    return _limit_issues(found, name, locale) if found else []


_ISSUE_FIELDS = (("code", str), ("message", str), ("fix_hint", str), ("file", str), ("line", int), ("adr", str))


def _find_issue_problem(one: object) -> str:
    """Return why an object is not a valid issue, or an empty string."""
    if not isinstance(one, ValidationIssue):
        return f"a list with {type(one).__name__}"
    wrong = (name for name, kind in _ISSUE_FIELDS if type(getattr(one, name)) is not kind)
    name = next(wrong, "")
    return f"an issue whose {name} is {type(getattr(one, name)).__name__}" if name else ""


def _finding_key(one: ValidationIssue) -> tuple[object, ...]:
    return one.code, one.severity, one.file, one.line, one.message


def _limit_issues(found: Sequence[ValidationIssue], name: str, locale: str) -> list[ValidationIssue]:
    different = list({_finding_key(one): one for one in reversed(found)}.values())[::-1]
    kept = (
        different if len(different) <= MAX_ISSUES else sorted(different, key=lambda one: not one.is_error)[:MAX_ISSUES]
    )
    if len(kept) < len(different):
        kept = [*kept, make_issue("MORE_ISSUES", locale, validator=name, count=len(different) - len(kept))]
    return [
        replace(one, validator=name, message=one.message[:MAX_MESSAGE], fix_hint=one.fix_hint[:MAX_MESSAGE])
        if one.validator != name or len(one.message) + len(one.fix_hint) > MAX_MESSAGE
        else one
        for one in kept
    ]


def _failure_issue(name: str, problem: str, locale: str) -> list[ValidationIssue]:
    return [replace(make_issue("VALIDATOR_ERROR", locale, validator=name, problem=problem), validator=name)]


def refused_file_issues(files: Mapping[str, str], locale: str) -> tuple[ValidationIssue, ...]:
    """Return an issue for each refused file of an answer. ``files`` maps paths to the reasons for the refusal."""
    return tuple(make_issue("ANSWER_FILE_REFUSED", locale, path=path, problem=why) for path, why in files.items())
