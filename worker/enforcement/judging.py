"""Validation of one attempt: assemble its answer, repair it if the policy repairs first, and validate it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from api_client.contract.issue import ValidationIssue
from worker.enforcement.attempt import Attempt, best, latest_set
from worker.enforcement.content_guard import GUARD, TakenAnswer, lost, still_lost, take
from worker.enforcement.documents.normaliser import NormalisedText, describe_edit, normalise
from worker.enforcement.documents.repetition import repeated_percent
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.examination import examine
from worker.enforcement.faults import JudgingFaults
from worker.enforcement.feedback import describe
from worker.enforcement.policy import REFUSED, Policy, weighed
from worker.enforcement.repair import RepairResult, repair_answer
from worker.enforcement.replies.evidence import is_refusal
from worker.enforcement.validators import ResponseValidator
from worker.enforcement.validators.codes import DEFAULT_LOCALE, clip, issue, words
from worker.enforcement.validators.services import JudgingMeter

#: Marks where a piece was taken out of a reply.
_GAP = "\x00"


def judge(
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
    """Validate the agent's new raw text, and return the resulting attempt.

    Without a policy, nothing is repaired before validation. An incomplete text is not validated. ``fresh``: a person or
    another model asked again. ``assembled``: the answer, if the text was assembled before.
    """
    number = len(history) + 1
    if not complete:
        return Attempt(number=number, text=text, answer=text, complete=False, feedback=feedback, fresh=fresh)
    context = dict(context or {})
    faults = JudgingFaults(str(context.get("locale", DEFAULT_LOCALE)))
    before = weighed(history, policy or Policy())
    answer, edits = text if assembled is None else assembled, tuple[str, ...]()
    said = NormalisedText(text)
    if assembled is None:
        said = faults.run(partial(normalise, text), said)
        answer, edits = said.text, tuple(describe_edit(name, faults.locale) for name in said.edits)
    if assembled is None and not fresh and (kept := best(latest_set(before))) and kept.errors:
        taking = partial(take, kept.answer, kept.errors, said.text, _documents(context), feedback)
        now = faults.run(taking, TakenAnswer(kept.answer))
        answer, edits = (
            now.answer,
            (*edits, *faults.run(partial(_edits, now, said.text, faults.locale), tuple[str, ...]())),
        )
    repaired: RepairResult | None = None
    with JudgingMeter() as counted:
        if policy and (repairing := [validator for validator in validators if policy.repairs(validator.name)]):
            repaired = faults.run(partial(repair_answer, answer, repairing, context), RepairResult(text=answer))
            answer, context = repaired.text, {**context, **repaired.context}
        issues = faults.run(partial(examine, answer, validators, context), list[ValidationIssue]())
        if before:
            issues += faults.run(partial(_lost, before, answer, context, fresh=fresh), list[ValidationIssue]())
        issues += faults.run(partial(_repetition, answer, issues, faults.locale), list[ValidationIssue]())
        if faults.run(partial(is_refusal, answer, str(context.get("prompt", ""))), False):
            words_of = " ".join(strip_marker(answer).split())
            issues.append(replace(issue(REFUSED, faults.locale, said=words_of), validator=GUARD))
    return Attempt(
        number=number,
        text=text,
        answer=answer,
        issues=(*issues, *faults.issues),
        fixed_issues=repaired.fixed_issues if repaired else (),
        changes=repaired.changes if repaired else (),
        edits=edits,
        feedback=feedback,
        fresh=fresh,
        spent=counted.spent,
    )


def _lost(history: Sequence[Attempt], answer: str, context: Mapping[str, Any], *, fresh: bool) -> list[ValidationIssue]:
    locale = str(context.get("locale", DEFAULT_LOCALE))
    if fresh:
        kept = best(history)
        return lost(kept.answer, kept.errors, answer, locale, adrs_only=True) if kept else []
    files = _documents(context)
    kept = best(latest_set(history))
    if kept is not None:
        found = lost(kept.answer, kept.errors, answer, locale, files)
        earlier = [attempt for attempt in history if attempt.number < kept.number]
        return [*found, *still_lost(kept.errors, earlier, answer, locale, files)]
    drafts = [attempt.text for attempt in latest_set(history) if attempt.text.strip()]
    return lost(drafts[-1], (), answer, locale, files) if drafts else []


def _repetition(answer: str, issues: Sequence[ValidationIssue], locale: str) -> list[ValidationIssue]:
    percent = repeated_percent(answer)
    if not percent or "ANSWER_REPEATS" in {one.code for one in issues}:
        return []
    return [replace(issue("REPEATED_TEXT", locale, percent=percent), validator=GUARD)]


def _edits(taken: TakenAnswer, reply: str, locale: str) -> tuple[str, ...]:
    if taken.answer == reply:
        return ()
    left, said = reply.replace("\r\n", "\n"), []
    for part, text in taken.put.items():
        whole = text in left
        left = left.replace(text, _GAP, 1) if whole else left
        what = describe(part, locale) if part else words(locale, "den Wert allein", "the value alone")
        form = "" if whole else words(locale, ", aus anderer Form gelesen", ", read from another form")
        german, english = (
            f"Eingesetzt: {what} ({len(text)} Zeichen{form})",
            f"Put in: {what} ({len(text)} characters{form})",
        )
        said.append(words(locale, german, english))
    for piece in filter(None, map(str.strip, left.split(_GAP) if taken.put else [left])):
        german, english = f"Nicht übernommen: {len(piece)} Zeichen", f"Left out: {len(piece)} characters"
        said.append(f"{words(locale, german, english)}: {clip(piece)}")
    return tuple(said)


def _documents(context: Mapping[str, Any]) -> list[str]:
    files = context.get("files") or {}
    return [text for name, text in files.items() if name.lower().endswith(".md")]
