"""The fallback: code repairs what the active validators can repair, and reports the rest (ADR-038, section 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from api_client.contract.issue import ValidationIssue
from api_client.contract.step_marker import UNKNOWN
from api_client.contract.usage import NOTHING_USED, Usage
from worker.enforcement.answer_validation import run_validators
from worker.enforcement.attempt import Attempt
from worker.enforcement.content_guard import (
    GUARD,
    LOST,
    NOT_JUDGED,
    ONLY_MARKER,
    ONLY_REASONING,
    find_unresolved_losses,
    keeps_content,
    restore_sections,
)
from worker.enforcement.documents.step import StepSource, extract_step, trailing_marker
from worker.enforcement.validation_faults import ValidationFaults
from worker.enforcement.validators import ResponseValidator, StepMarkerValidator
from worker.enforcement.validators.codes import DEFAULT_LOCALE, choose_text
from worker.enforcement.validators.services import measure_cost
from worker.enforcement.validators.step_marker import FALLBACK_STEP

#: Most rounds over the validators: one fallback may enable another.
MAX_ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairResult:
    """An automatically repaired answer, with the issues that were fixed and the issues that remain.

    Attributes:
        changes: descriptions of the changes, for the user.
        step_source: ``marker`` (the agent's), ``inferred`` or ``unknown`` (the fallback's).
        files: repaired files only, name to new text.
        context: values that a later validation needs.
    """

    text: str
    fixed_issues: tuple[ValidationIssue, ...] = ()
    issues: tuple[ValidationIssue, ...] = ()
    changes: tuple[str, ...] = ()
    step: str = UNKNOWN
    step_source: StepSource = "unknown"
    files: Mapping[str, str] = field(default_factory=dict)
    context: Mapping[str, str] = field(default_factory=dict)
    spent: Usage = NOTHING_USED

    @property
    def accepted(self) -> bool:
        return not any(issue.is_error for issue in self.issues)


def repair_answer(
    answer: str, validators: Sequence[ResponseValidator], context: Mapping[str, Any] | None = None
) -> RepairResult:
    """Repair an answer automatically, without the agent, and return the result with the issues that remain.

    A fallback counts only if it removes an error, adds none, and loses no content without errors.
    """
    work = _RepairState(answer, validators, dict(context or {}))
    ordered = sorted(validators, key=lambda validator: isinstance(validator, StepMarkerValidator))
    for _ in range(MAX_ROUNDS):
        changed = False
        for validator in ordered:
            changed |= work.try_fallbacks(validator)
        if not changed:
            break
    remaining = {_issue_key(issue) for issue in work.issues if issue.is_error}
    step = extract_step(work.text)
    source: StepSource = "marker" if step and step == extract_step(answer) else "inferred" if step else "unknown"
    return RepairResult(
        text=work.text,
        fixed_issues=tuple(i for i in work.before if i.is_error and _issue_key(i) not in remaining),
        issues=tuple(work.issues),
        changes=tuple(work.changes),
        step=step or UNKNOWN,
        step_source=source,
        files={name: text for name, text in work.files.items() if text != work.original.get(name)},
        context={FALLBACK_STEP: UNKNOWN} if work.context.get(FALLBACK_STEP) == UNKNOWN else {},
    )


def repair_attempt(
    chosen: Attempt,
    history: Sequence[Attempt],
    validators: Sequence[ResponseValidator],
    context: Mapping[str, Any] | None = None,
) -> RepairResult:
    """Repair the answer of an attempt automatically, and return the result with the issues that remain.

    Sections that the answer lost are restored from earlier attempts. A failure of our own code leaves the answer
    rejected.
    """
    faults = ValidationFaults(str((context or {}).get("locale", DEFAULT_LOCALE)))
    stay = (NOT_JUDGED, ONLY_REASONING, ONLY_MARKER)
    faults.issues += [issue for issue in chosen.issues if issue.code in stay and issue.validator == GUARD]
    unrepaired = RepairResult(text=chosen.answer, issues=tuple(i for i in chosen.issues if i not in faults.issues))
    repaired = faults.run_step(
        lambda: _restore_and_repair(chosen, history, validators, context, faults.locale), unrepaired
    )
    return replace(repaired, issues=(*repaired.issues, *faults.issues)) if faults.issues else repaired


def _restore_and_repair(
    chosen: Attempt,
    history: Sequence[Attempt],
    validators: Sequence[ResponseValidator],
    context: Mapping[str, Any] | None,
    locale: str,
) -> RepairResult:
    missing = [issue for issue in chosen.issues if issue.code == LOST]
    earlier = [attempt for attempt in history if attempt.number < chosen.number]
    text, back = restore_sections(chosen.answer, missing, [attempt.answer for attempt in earlier if attempt.complete])
    with measure_cost() as counted:
        repaired = repair_answer(text, validators, context)
    left = {issue.message for issue in find_unresolved_losses(missing, earlier, repaired.text, locale)}
    german, english = "Section '## {}' aus der Antwort davor zurückgeholt", "Section '## {}' taken back from before"
    return replace(
        repaired,
        fixed_issues=(*(i for i in missing if i.message not in left), *repaired.fixed_issues),
        issues=(*repaired.issues, *(i for i in missing if i.message in left)),
        changes=(*(choose_text(locale, german, english).format(title) for title in back), *repaired.changes),
        spent=counted.spent,
    )


class _RepairState:
    def __init__(self, answer: str, validators: Sequence[ResponseValidator], context: dict[str, Any]) -> None:
        self.text, self.validators, self.context = answer, validators, context
        self.original: dict[str, str] = dict(context.get("files") or {})
        self.files = dict(self.original)
        self.changes: list[str] = []
        self.issues = self.before = run_validators(answer, validators, context)

    def try_fallbacks(self, validator: ResponseValidator) -> bool:
        """Repair the answer and its files with one validator. Return True if anything changed."""
        mine = [issue for issue in self.issues if issue.is_error and issue.validator == validator.name]
        changed = any(not issue.file for issue in mine) and self._try_fallback(validator, "")
        if validator.mends_files:
            for name in dict.fromkeys(issue.file for issue in mine if issue.file in self.files):
                changed = self._try_fallback(validator, name) or changed
        return changed

    def _try_fallback(self, validator: ResponseValidator, name: str) -> bool:
        before = self.files[name] if name else self.text
        context = self.context | {"files": {} if name else dict(self.files)}
        try:
            after = validator.apply_fallback(before, context)
            lines = validator.explain_fallback(before, after, context) if isinstance(after, str) else ()
            lines = [str(line) for line in lines]
        except (Exception, SystemExit):  # the error stays, and is reported
            return False
        if not isinstance(after, str):
            return False
        text, files = (self.text, self.files | {name: after}) if name else (after, self.files)
        # Validators must know that the fallback, not the agent, wrote this step.
        last = trailing_marker(text) if isinstance(validator, StepMarkerValidator) and not name else None
        context = self.context | ({"files": files} if files else {}) | ({FALLBACK_STEP: last.value} if last else {})
        mine = [i for i in self.issues if i.validator == validator.name and i.file == name]
        if not keeps_content(before, after, mine):
            return False
        issues = run_validators(text, self.validators, context)
        if not _is_better(issues, self.issues):
            return False
        self.text, self.files, self.context, self.issues = text, files, context, issues
        locale = str(context.get("locale", DEFAULT_LOCALE))
        lines = lines or [
            choose_text(locale, f"{validator.name}: automatisch korrigiert", f"{validator.name}: repaired")
        ]
        self.changes += [f"{name}: {line}" if name else line for line in lines]
        return True


def _is_better(after: Sequence[ValidationIssue], before: Sequence[ValidationIssue]) -> bool:
    old, new = ([(i.validator, i.code, i.file) for i in issues if i.is_error] for issues in (before, after))
    return len(new) < len(old) and set(new) <= set(old)


def _issue_key(issue: ValidationIssue) -> tuple[str, str, str, str]:
    return issue.validator, issue.code, issue.file, issue.message
