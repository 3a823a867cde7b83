"""Validation of one attempt: assemble its answer, repair it if the policy repairs first, and validate it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from api_client.contract.issue import ValidationIssue
from api_client.contract.step_marker import PATTERN
from api_client.contract.visible_text import has_visible_text
from worker.enforcement.answer_validation import run_validators
from worker.enforcement.attempt import Attempt, find_best_attempt, latest_attempts
from worker.enforcement.content_guard import (
    GUARD,
    ONLY_MARKER,
    ONLY_REASONING,
    find_lost_content,
    find_unresolved_losses,
)
from worker.enforcement.documents.normaliser import (
    FENCE,
    REASONING,
    UNCLOSED,
    NormalisedText,
    describe_edit,
    normalise_answer,
)
from worker.enforcement.documents.repetition import repeated_percent
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.feedback import describe_part
from worker.enforcement.policy import REFUSED, Policy, demote_issues, weigh_attempts
from worker.enforcement.repair import RepairResult, repair_answer
from worker.enforcement.replies.refusals import is_refusal
from worker.enforcement.reply_merging import MergedAnswer, list_candidates
from worker.enforcement.validation_faults import ValidationFaults
from worker.enforcement.validator_process import run_step_isolated
from worker.enforcement.validators import ResponseValidator
from worker.enforcement.validators.codes import DEFAULT_LOCALE, choose_text, clip_text, make_issue
from worker.enforcement.validators.services import measure_cost

#: Marks where a piece was taken out of a reply.
_GAP = "\x00"


def validate_attempt(
    history: Sequence[Attempt],
    text: str,
    validators: Sequence[ResponseValidator],
    context: Mapping[str, Any] | None = None,
    *,
    policy: Policy | None = None,
    complete: bool = True,
    feedback: str = "",
    fresh: bool = False,
    assembled: str | None = None,
) -> Attempt:
    """Build the answer from the agent's new text and the earlier attempts, validate it, and return the new attempt.

    An incomplete text is not validated. ``feedback`` is this attempt's prompt; ``assembled`` is the answer, if the text
    was merged before. ``fresh``: a person or another model asked again, so earlier answers are not kept.
    """
    attempt = Attempt(
        number=len(history) + 1, text=text, answer=text, complete=complete, feedback=feedback, fresh=fresh
    )
    if not complete:
        return attempt
    policy, context = policy or Policy(), dict(context or {})
    texts = [text, *(each.answer for each in history), *(context.get("files") or {}).values()]
    limited = partial(run_step_isolated, validators, texts)
    faults = ValidationFaults(str(context.get("locale", DEFAULT_LOCALE)), run_limited=limited)
    weighing = partial(weigh_attempts, history, policy)
    before = faults.run_step(weighing, list(history)) if history else []
    said, edits = NormalisedText(text), tuple[str, ...]()
    candidates = [MergedAnswer(text if assembled is None else assembled)]
    if assembled is None:
        said = faults.run_reading_step(partial(normalise_answer, text), said)
        describing = partial(_describe_normaliser_edits, said, faults.locale)
        edits = faults.run_step(describing, edits) if said.edits else edits
        candidates = [MergedAnswer(said.text)]
    kept = None if fresh or not before or assembled is not None else faults.run_step(partial(_find_kept, before), None)
    if kept is not None:
        # A fence around the whole reply shows where a part ends.
        read = text if any(edit.name == FENCE for edit in said.edits) else said.text
        files = _markdown_files(context)
        listing = partial(list_candidates, kept.answer, kept.errors, said.text, files, feedback, read)
        candidates = faults.run_reading_step(listing, [MergedAnswer(kept.answer)])
    with measure_cost() as counted:
        choosing = partial(_choose_candidate, candidates, validators, context, policy, faults)
        default = min(candidates, key=lambda each: each.whole)
        found = faults.run_step(choosing, _ExaminedAnswer(default, default.answer, []))
        issues = _add_guard_issues(found, said, before, context, faults, fresh=fresh)
    describing = partial(_describe_edits, found.merged, said.text, faults.locale)
    edits += faults.run_reading_step(describing, tuple[str, ...]()) if kept is not None else ()
    return replace(
        attempt,
        answer=found.answer,
        issues=(*issues, *faults.issues),
        fixed_issues=found.fixed_issues,
        changes=found.changes,
        edits=edits,
        spent=counted.spent,
    )


def _add_guard_issues(
    examined: _ExaminedAnswer,
    new_text: NormalisedText,
    earlier: list[Attempt],
    context: Mapping[str, Any],
    faults: ValidationFaults,
    *,
    fresh: bool,
) -> list[ValidationIssue]:
    """Return the validators' issues, with further issues about lost content, flawed text and refusals.

    ``fresh`` says that the agent was asked for an independent answer, which may lack the sections of ``earlier`` ones.
    """
    finding = partial(_find_losses, earlier, examined, context, fresh=fresh)
    issues = [*examined.issues, *(faults.run_reading_step(finding, list[ValidationIssue]()) if earlier else ())]
    finding = partial(_find_flaws, examined.answer, new_text, issues, faults.locale)
    issues += faults.run_reading_step(finding, list[ValidationIssue]())
    finding = partial(_find_refusal, examined.answer, str(context.get("prompt", "")), faults.locale)
    return issues + faults.run_step(finding, list[ValidationIssue]())


def _find_kept(history: Sequence[Attempt]) -> Attempt | None:
    kept = find_best_attempt(latest_attempts(history))
    return kept if kept is not None and kept.errors else None


def _find_refusal(answer: str, prompt: str, locale: str) -> list[ValidationIssue]:
    if not is_refusal(answer, prompt):
        return []
    said = " ".join(strip_marker(answer).split())
    return [replace(make_issue(REFUSED, locale, said=said), validator=GUARD)]


def _describe_normaliser_edits(said: NormalisedText, locale: str) -> tuple[str, ...]:
    return tuple(describe_edit(edit, locale) for edit in said.edits)


@dataclass(frozen=True, slots=True)
class _ExaminedAnswer:
    """A candidate for the answer, possibly repaired, with the issues that the validators found."""

    merged: MergedAnswer
    answer: str
    issues: list[ValidationIssue]
    fixed_issues: tuple[ValidationIssue, ...] = ()
    changes: tuple[str, ...] = ()


def _choose_candidate(
    candidates: Sequence[MergedAnswer],
    validators: Sequence[ResponseValidator],
    context: Mapping[str, Any],
    policy: Policy,
    faults: ValidationFaults,
) -> _ExaminedAnswer:
    default: _ExaminedAnswer | None = None
    for merged in candidates:
        found = _examine(merged, validators, context, policy, faults)
        if not any(issue.is_error for issue in demote_issues(found.issues, policy)):
            return found
        default = default or (None if merged.whole else found)
    return default or _ExaminedAnswer(MergedAnswer(""), "", [])


def _examine(
    merged: MergedAnswer,
    validators: Sequence[ResponseValidator],
    context: Mapping[str, Any],
    policy: Policy,
    faults: ValidationFaults,
) -> _ExaminedAnswer:
    repaired = RepairResult(text=merged.answer)
    if repairing := [validator for validator in validators if policy.repairs_first(validator.name)]:
        repaired = faults.run_step(partial(repair_answer, merged.answer, repairing, context), repaired)
    judging = partial(run_validators, repaired.text, validators, {**context, **repaired.context})
    issues = faults.run_step(judging, list[ValidationIssue]())
    return _ExaminedAnswer(merged, repaired.text, issues, repaired.fixed_issues, repaired.changes)


def _find_losses(
    history: Sequence[Attempt], found: _ExaminedAnswer, context: Mapping[str, Any], *, fresh: bool
) -> list[ValidationIssue]:
    locale, answer = str(context.get("locale", DEFAULT_LOCALE)), found.answer
    if fresh:
        kept = find_best_attempt(history)
        return find_lost_content(kept.answer, kept.errors, answer, locale, adrs_only=True) if kept else []
    files = _markdown_files(context)
    kept = find_best_attempt(latest_attempts(history))
    if kept is not None:
        lost = find_lost_content(kept.answer, kept.errors, answer, locale, files, check_length=found.merged.whole)
        earlier = [attempt for attempt in history if attempt.number < kept.number]
        return [*lost, *find_unresolved_losses(kept.errors, earlier, answer, locale, files)]
    drafts = [attempt.text for attempt in latest_attempts(history) if attempt.text.strip()]
    return find_lost_content(drafts[-1], (), answer, locale, files) if drafts else []


def _find_flaws(
    answer: str, said: NormalisedText, issues: Sequence[ValidationIssue], locale: str
) -> list[ValidationIssue]:
    names = {edit.name for edit in said.edits}
    if not has_visible_text(PATTERN.sub("", answer)):
        code = ONLY_MARKER if names.isdisjoint((REASONING, UNCLOSED)) else ONLY_REASONING
        return [replace(make_issue(code, locale), validator=GUARD)]
    found = [make_issue("UNCLOSED_REASONING", locale)] if UNCLOSED in names and said.text.strip() else []
    percent = repeated_percent(answer)
    if percent and "ANSWER_REPEATS" not in {one.code for one in issues}:
        found.append(make_issue("REPEATED_TEXT", locale, percent=percent))
    return [replace(issue, validator=GUARD) for issue in found]


def _describe_edits(taken: MergedAnswer, reply: str, locale: str) -> tuple[str, ...]:
    if taken.answer == reply:
        return ()
    left, said = reply.replace("\r\n", "\n"), []
    for part, text in taken.inserted.items():
        whole = text in left
        left = left.replace(text, _GAP, 1) if whole else left
        what = describe_part(part, locale) if part else choose_text(locale, "den Wert allein", "the value alone")
        form = "" if whole else choose_text(locale, ", aus anderer Form gelesen", ", read from another form")
        german, english = (
            f"Eingesetzt: {what} ({len(text)} Zeichen{form})",
            f"Put in: {what} ({len(text)} characters{form})",
        )
        said.append(choose_text(locale, german, english))
    for piece in filter(None, map(str.strip, left.split(_GAP) if taken.inserted else [left])):
        german, english = f"Nicht übernommen: {len(piece)} Zeichen", f"Left out: {len(piece)} characters"
        said.append(f"{choose_text(locale, german, english)}: {clip_text(piece)}")
    return tuple(said)


def _markdown_files(context: Mapping[str, Any]) -> list[str]:
    files = context.get("files") or {}
    return [text for name, text in files.items() if name.lower().endswith(".md")]
