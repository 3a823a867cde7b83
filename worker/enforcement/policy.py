"""The decision after the attempts so far: accept, ask again, repair, or fail. Pure: the engine carries it out.

Source: ADR-038 "Entscheidung" and section 5; ADR-036 for incomplete answers; docs/enforcement.md. The engine
(``worker.turns``) and ``ResponseEnforcer`` use these functions alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from api_client.contract.issues import Severity, ValidationIssue
from api_client.contract.marker import UNKNOWN
from api_client.contract.policy import DEFAULT_ORDER, Action
from worker.enforcement.attempt import (
    GUARD,
    LOST,
    NOT_JUDGED,
    Attempt,
    Taken,
    best,
    holds,
    latest_set,
    lost,
    requested,
    restored,
    still_lost,
    take,
)
from worker.enforcement.child import NotJudged
from worker.enforcement.documents.splice import StepSource, extract_step, strip_marker, trailing_marker
from worker.enforcement.faults import JudgingFaults, fault_words, named
from worker.enforcement.going_on import build_feedback, describe, go_on_feedback, incomplete_feedback, unfinished
from worker.enforcement.replies.evidence import is_refusal
from worker.enforcement.validators import ResponseValidator, StepMarkerValidator
from worker.enforcement.validators.adr_structure import FALLBACK_STEP
from worker.enforcement.validators.codes import (
    DEFAULT_LOCALE,
    LOCALES,
    NOTHING_SPENT,
    JudgingCost,
    SpendingCount,
    clip,
    issue,
    words,
)

# Problems of an answer: issues of its validators, each isolated, and of files that were not taken.
#
# What a validator does wrong is its own issue, never the turn's end.

#: Longest answer or file that is examined, in characters.
MAX_CHARS = 4 * 1024 * 1024


def examine(
    answer: str, validators: Sequence[ResponseValidator], context: Mapping[str, Any] | None = None
) -> list[ValidationIssue]:
    """Return what the validators find in an answer and in ``context["files"]``.

    A validator that raises, ends the program or returns anything but a list of issues becomes VALIDATOR_ERROR. The
    same finding of two validators counts once.

    Args:
        answer: the complete answer.
        validators: the active ones.
        context: ``files`` (name to text), ``locale``, and whatever your own validators read.
    """
    context = context or {}
    locale = str(context.get("locale", DEFAULT_LOCALE))
    texts = [("", answer), *(context.get("files") or {}).items()]
    if too_long := [(name, len(text)) for name, text in texts if len(text) > MAX_CHARS]:
        return [issue("ANSWER_TOO_LONG", locale, file=name, count=count) for name, count in too_long]
    found: dict[tuple[object, ...], ValidationIssue] = {}
    for validator in validators:
        for one in _isolated(validator, answer, context, locale):
            found.setdefault((one.code, one.file, one.line, one.message), one)
    return list(found.values())


#: The types of most values of a context: to ask each whether it is a mapping takes longer.
_NO_MAPPINGS = frozenset({str, type(None)})


def _isolated(
    validator: ResponseValidator, answer: str, context: Mapping[str, Any], locale: str
) -> list[ValidationIssue]:
    name = type(validator).__name__
    try:
        name = str(validator.name)
        # Of a context of its own: what a validator changes, no other one sees.
        own = {
            key: dict(value) if type(value) not in _NO_MAPPINGS and isinstance(value, Mapping) else value
            for key, value in context.items()
        }
        found = validator.validate(answer, own)
        if not isinstance(found, (list, tuple)) or not all(isinstance(one, ValidationIssue) for one in found):
            return _failed(name, f"returned {type(found).__name__}", locale)
    except NotJudged as error:
        return _failed(name, str(error), locale)
    except (Exception, SystemExit) as error:  # SystemExit: a validator may not end the worker either
        return _failed(name, named(error), locale)
    return [one if one.validator == name else replace(one, validator=name) for one in found]


def _failed(name: str, problem: str, locale: str) -> list[ValidationIssue]:
    return [replace(issue("VALIDATOR_ERROR", locale, validator=name, problem=problem), validator=name)]


def refused(files: Mapping[str, str], locale: str) -> tuple[ValidationIssue, ...]:
    """One error for each file of an answer that was not taken, by its path; the value says why.

    An agent that wrote its answer there is asked for it again.
    """
    return tuple(issue("ANSWER_FILE_REFUSED", locale, path=path, problem=why) for path, why in files.items())


# The fallback: code repairs what the active validators can repair, and reports the rest (ADR-038, 5).

#: Most rounds over the validators: one fallback may make room for another, but not for ever.
MAX_ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """The result of repairing an answer.

    Attributes:
        text: the repaired answer; the answer itself when nothing could be repaired.
        fixed_issues: the errors that are gone. issues: what remains, warnings included.
        changes: what was changed, in words for the user. step: the answer's step; ``unknown`` when nothing shows it.
        step_source: ``marker`` (the agent's), ``inferred`` or ``unknown`` (the fallback's).
        files: the files that were repaired, name to new text.
        context: what a later examination of the text must know: that ``unknown`` is the fallback's own word.
        spent: what rules used of models to judge it.
    """

    text: str
    fixed_issues: tuple[ValidationIssue, ...] = ()
    issues: tuple[ValidationIssue, ...] = ()
    changes: tuple[str, ...] = ()
    step: str = UNKNOWN
    step_source: StepSource = "unknown"
    files: Mapping[str, str] = field(default_factory=dict)
    context: Mapping[str, str] = field(default_factory=dict)
    spent: JudgingCost = NOTHING_SPENT

    @property
    def accepted(self) -> bool:
        """True when no error remains."""
        return not any(issue.is_error for issue in self.issues)


def repair_answer(
    answer: str, validators: Sequence[ResponseValidator], context: Mapping[str, Any] | None = None
) -> Repaired:
    """Apply the validators' fallbacks until nothing changes any more, the step marker's last, and judge again.

    A fallback counts only when it takes an error away, brings none, and loses no content that no error of its validator
    named; one that raises is passed over. What was gained is kept.
    """
    work = _Work(answer, validators, dict(context or {}))
    ordered = sorted(validators, key=lambda validator: isinstance(validator, StepMarkerValidator))
    for _ in range(MAX_ROUNDS):
        changed = False
        for validator in ordered:
            changed |= work.apply(validator)
        if not changed:
            break
    remaining = {_key(issue) for issue in work.issues if issue.is_error}
    step = extract_step(work.text)
    source: StepSource = "marker" if step and step == extract_step(answer) else "inferred" if step else "unknown"
    return Repaired(
        text=work.text,
        fixed_issues=tuple(i for i in work.before if i.is_error and _key(i) not in remaining),
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
) -> Repaired:
    """Put back what an attempt's answer lost, then repair it. One that we cannot judge or repair is not accepted."""
    faults = JudgingFaults(str((context or {}).get("locale", DEFAULT_LOCALE)))
    faults.issues += [issue for issue in chosen.issues if issue.code == NOT_JUDGED and issue.validator == GUARD]
    unrepaired = Repaired(text=chosen.answer, issues=tuple(i for i in chosen.issues if i not in faults.issues))
    repaired = faults.run(lambda: _repaired(chosen, history, validators, context, faults.locale), unrepaired)
    return replace(repaired, issues=(*repaired.issues, *faults.issues)) if faults.issues else repaired


def _repaired(
    chosen: Attempt,
    history: Sequence[Attempt],
    validators: Sequence[ResponseValidator],
    context: Mapping[str, Any] | None,
    locale: str,
) -> Repaired:
    missing = [issue for issue in chosen.issues if issue.code == LOST]
    earlier = [attempt for attempt in history if attempt.number < chosen.number]
    text, back = restored(chosen.answer, missing, [attempt.answer for attempt in earlier if attempt.complete])
    with SpendingCount() as counted:
        repaired = repair_answer(text, validators, context)
    left = {issue.message for issue in still_lost(missing, earlier, repaired.text, locale)}
    german, english = "Section '## {}' aus der Antwort davor zurückgeholt", "Section '## {}' taken back from before"
    return replace(
        repaired,
        fixed_issues=(*(i for i in missing if i.message not in left), *repaired.fixed_issues),
        issues=(*repaired.issues, *(i for i in missing if i.message in left)),
        changes=(*(words(locale, german, english).format(title) for title in back), *repaired.changes),
        spent=counted.spent,
    )


class _Work:
    """An answer being repaired, with its files and what is known about them."""

    def __init__(self, answer: str, validators: Sequence[ResponseValidator], context: dict[str, Any]) -> None:
        self.text, self.validators, self.context = answer, validators, context
        self.original: dict[str, str] = dict(context.get("files") or {})
        self.files = dict(self.original)
        self.changes: list[str] = []
        self.issues = self.before = examine(answer, validators, context)

    def apply(self, validator: ResponseValidator) -> bool:
        """Try one validator's fallback on the answer, and on files where it has errors; True when something changed."""
        mine = [issue for issue in self.issues if issue.is_error and issue.validator == validator.name]
        changed = any(not issue.file for issue in mine) and self._try(validator, "")
        if validator.mends_files:
            for name in dict.fromkeys(issue.file for issue in mine if issue.file in self.files):
                changed = self._try(validator, name) or changed
        return changed

    def _try(self, validator: ResponseValidator, name: str) -> bool:
        before = self.files[name] if name else self.text
        context = self.context | {"files": {} if name else dict(self.files)}
        try:
            after = validator.apply_fallback(before, context)
            lines = validator.explain_fallback(before, after, context) if isinstance(after, str) else ()
            lines = [str(line) for line in lines]
        except (Exception, SystemExit):  # the error it should have repaired stays, and is reported
            return False
        if not isinstance(after, str):
            return False
        text, files = (self.text, self.files | {name: after}) if name else (after, self.files)
        # That the step is ``unknown`` is the fallback's own word.
        last = trailing_marker(text) if isinstance(validator, StepMarkerValidator) and not name else None
        context = self.context | ({"files": files} if files else {}) | ({FALLBACK_STEP: last.value} if last else {})
        mine = [i for i in self.issues if i.validator == validator.name and i.file == name]
        if not holds(before, after, mine):
            return False
        issues = examine(text, self.validators, context)
        if not _better(issues, self.issues):
            return False
        self.text, self.files, self.context, self.issues = text, files, context, issues
        locale = str(context.get("locale", DEFAULT_LOCALE))
        lines = lines or [words(locale, f"{validator.name}: automatisch korrigiert", f"{validator.name}: repaired")]
        self.changes += [f"{name}: {line}" if name else line for line in lines]
        return True


def _better(after: Sequence[ValidationIssue], before: Sequence[ValidationIssue]) -> bool:
    """True when an error is gone, and none of another kind has come."""
    old, new = ([(i.validator, i.code, i.file) for i in issues if i.is_error] for issues in (before, after))
    return len(new) < len(old) and set(new) <= set(old)


def _key(issue: ValidationIssue) -> tuple[str, str, str, str]:
    """An issue without its line, which moves when text is repaired."""
    return issue.validator, issue.code, issue.file, issue.message


#: The model refused instead of answering: it is asked once more, and no fallback makes an answer of that.
REFUSED = "MODEL_REFUSED"
#: No policy makes a warning of these.
_ALWAYS_ERRORS = frozenset({LOST, REFUSED})
#: A rejected answer is hopeless when the same errors were found this often in a row: they came back twice.
SAME_ERRORS = 3
#: Wanted for one error, they end the turn whatever the others want.
_GIVING_UP = frozenset({Action.ESCALATE, Action.FAIL})


@lru_cache(maxsize=256)
def _actions(names: tuple[str, ...]) -> tuple[Action, ...]:
    """Raises ``ValueError``: one of them does not exist."""
    return tuple(map(Action, names))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The order of reactions and their bounds.

    Attributes:
        max_attempts: how often the agent is run at most; ADR-038's max_retries plus one.
        locale: language of the feedback, ``de`` or ``en``.
        order: what is tried for a validator's errors, one after the other; validators that are not named follow
            ``default``.
        default: retry, then fallback, then fail.
        go_on: an answer that broke off is asked to go on; else it is asked for in full.
        caps: per validator, after how many rejected answers the agent is not asked again because of it.
        lenient: validators that accept an answer they could not judge (``VALIDATOR_ERROR`` is a warning).

    Raises:
        ValueError: no attempt is allowed, the locale is unknown, or an action does not exist.
    """

    max_attempts: int = 3
    locale: str = DEFAULT_LOCALE
    order: Mapping[str, Sequence[str]] = field(default_factory=dict)
    default: Sequence[str] = DEFAULT_ORDER
    go_on: bool = True
    caps: Mapping[str, int] = field(default_factory=dict)
    lenient: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, not {self.max_attempts}")
        if self.locale not in LOCALES:
            raise ValueError(f"locale must be one of {', '.join(LOCALES)}, not {self.locale!r}")
        for order in (*self.order.values(), self.default):
            _actions(tuple(order))

    def actions(self, validator: str) -> tuple[Action, ...]:
        """Return what is tried for a validator's errors, in order."""
        return _actions(tuple(self.order.get(validator, self.default)))

    def repairs(self, validator: str) -> bool:
        """True when the validator's errors are repaired before anything else is tried."""
        return self.actions(validator)[:1] == (Action.REPAIR,)


@dataclass(frozen=True, slots=True)
class Accept:
    """The last attempt's answer counts."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Retry:
    """Run the agent again with this feedback.

    Attributes:
        codes: names the errors, for events and metrics.
        goes_on: the run goes on from the text so far (``going_on.unfinished``).
    """

    feedback: str
    codes: tuple[str, ...]
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class Fallback:
    """Repair the answer of this attempt, the best one, with the active validators' fallbacks."""

    attempt: int
    codes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fail:
    """End the turn. ``attempt`` is the best one; ``reason`` is incomplete, rejected, refused or escalated."""

    attempt: int
    reason: str


Decision = Accept | Retry | Fallback | Fail


def decide(history: Sequence[Attempt], policy: Policy | None = None) -> Decision:
    """Return what follows from the attempts so far; the last one has just been judged.

    Raises:
        ValueError: there is no attempt yet.
    """
    if not history:
        raise ValueError("no attempt to decide on")
    try:
        return _decide(history, policy or Policy())
    except Exception as error:
        return Fail(history[-1].number, f"nothing could be decided: {fault_words(error)}")


def _decide(history: Sequence[Attempt], policy: Policy) -> Decision:
    last = history[-1]
    used_up = len(history) >= policy.max_attempts
    if not last.complete:
        if used_up:
            return Fail((best(history) or last).number, "incomplete")
        if policy.go_on and (so_far := unfinished(history)):
            return Retry(go_on_feedback(so_far, policy.locale), ("INCOMPLETE_RESPONSE",), goes_on=True)
        return Retry(incomplete_feedback(policy.locale), ("INCOMPLETE_RESPONSE",))
    errors = [issue for issue in demote(last.issues, policy) if issue.is_error]
    if not errors:
        return Accept(last.number)
    codes = tuple(dict.fromkeys(issue.code for issue in errors))
    if REFUSED in codes:
        again = used_up or any(issue.code == REFUSED for attempt in history[:-1] for issue in attempt.issues)
        return Fail(last.number, "refused") if again else Retry(_feedback(history, policy), codes)
    hopeless = used_up or _came_back(history)
    spent = _spent(history, policy)
    next_of = {
        issue: _next_action(
            policy.actions(issue.validator), hopeless=hopeless or issue.validator in spent or issue.code == NOT_JUDGED
        )
        for issue in errors
    }
    wanted = set(next_of.values())
    asked = {action for issue, action in next_of.items() if issue.code != NOT_JUDGED}
    if Action.RETRY in asked and not asked & _GIVING_UP:
        return Retry(_feedback(history, policy), codes)
    if wanted == {Action.WARN} and not _ALWAYS_ERRORS & set(codes):
        return Accept(last.number)
    number = (best(weighed(history, policy)) or last).number
    if wanted & _GIVING_UP:
        return Fail(number, "escalated" if Action.ESCALATE in wanted else "rejected")
    return Fallback(number, codes)


def demote(issues: Sequence[ValidationIssue], policy: Policy, *, final: bool = False) -> tuple[ValidationIssue, ...]:
    """The issues as the policy weighs them: errors of validators whose order says ``warn`` are warnings.

    ``final``: asking is over, so that ``warn`` counts behind other actions too; else only as the first one.
    """
    if not issues:
        return ()
    return tuple(
        replace(issue, severity=Severity.WARNING)
        if issue.is_error and issue.code not in _ALWAYS_ERRORS and _tolerated(issue, policy, final=final)
        else issue
        for issue in issues
    )


def _tolerated(issue: ValidationIssue, policy: Policy, *, final: bool) -> bool:
    if issue.code == NOT_JUDGED and issue.validator in policy.lenient:
        return True
    actions = policy.actions(issue.validator)
    return Action.WARN in (actions if final else actions[:1])


def weighed(history: Sequence[Attempt], policy: Policy) -> list[Attempt]:
    """The attempts, their issues as the policy weighs them."""
    found: list[Attempt] = []
    for attempt in history:
        issues = demote(attempt.issues, policy)
        found.append(attempt if issues == attempt.issues else replace(attempt, issues=issues))
    return found


def _feedback(history: Sequence[Attempt], policy: Policy) -> str:
    """The feedback on the answer that is kept: the next reply is put into it, or takes its place."""
    attempts = weighed(latest_set(history), policy)
    last = attempts[-1]
    kept = best(attempts) or last
    request = requested(kept.answer, kept.errors)
    errors = [error for error in kept.errors if error.code != NOT_JUDGED]
    if request.whole:  # a whole answer comes next: it is to have none of both
        known = {(error.code, error.message) for error in errors}
        errors += [e for e in last.errors if (e.code, e.message) not in known and e.code != NOT_JUDGED]
    ignored = kept is not last or last.answer in {attempt.answer for attempt in attempts[:-1]}
    return build_feedback(errors, policy.locale, request=request, ignored=ignored)


def _spent(history: Sequence[Attempt], policy: Policy) -> frozenset[str]:
    """The validators that rejected as many answers as the policy asks again for."""
    if not policy.caps:
        return frozenset()
    rejected = [{error.validator for error in attempt.errors} for attempt in history if attempt.complete]
    return frozenset(name for name, cap in policy.caps.items() if sum(name in names for names in rejected) >= cap)


def _next_action(actions: Sequence[Action], *, hopeless: bool) -> Action:
    """The first action that can still be taken; the repair was tried before the answer was judged."""
    left = (a for a in actions if a is not Action.REPAIR and not (a is Action.RETRY and hopeless))
    return next(left, Action.FAIL)


def _came_back(history: Sequence[Attempt]) -> bool:
    """True when the last attempts all failed by the same errors: the agent does not repair them."""
    recent = history[-SAME_ERRORS:]
    if len(recent) < SAME_ERRORS or not all(attempt.complete for attempt in recent):
        return False
    return len({frozenset((i.validator, i.code, i.file, i.message) for i in attempt.errors) for attempt in recent}) == 1


# One attempt, judged: its answer assembled, repaired where the policy repairs first, and examined.

#: Marks where a text was taken out of a reply.
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
    """The attempt that a new raw text makes after those of ``history``, ready for ``decide``.

    ``context`` is as for ``examine``; the default policy repairs nothing before anything else. A text that is not
    ``complete`` is not assembled, examined or repaired. ``feedback`` is what the agent got before this run; ``fresh``:
    it was asked again, not by the feedback of ``decide``. ``assembled``: the answer that was made of it before.
    """
    number = len(history) + 1
    if not complete:
        return Attempt(number=number, text=text, answer=text, complete=False, feedback=feedback, fresh=fresh)
    context = dict(context or {})
    faults = JudgingFaults(str(context.get("locale", DEFAULT_LOCALE)))
    before = weighed(history, policy or Policy())
    answer, edits = text if assembled is None else assembled, tuple[str, ...]()
    if assembled is None and not fresh and (kept := best(latest_set(before))) and kept.errors:
        taking = partial(take, kept.answer, kept.errors, text, _documents(context), feedback)
        now = faults.run(taking, Taken(kept.answer))
        answer, edits = now.answer, faults.run(partial(_edits, now, text, faults.locale), edits)
    repaired: Repaired | None = None
    with SpendingCount() as counted:
        if policy and (repairing := [validator for validator in validators if policy.repairs(validator.name)]):
            repaired = faults.run(partial(repair_answer, answer, repairing, context), Repaired(text=answer))
            answer, context = repaired.text, {**context, **repaired.context}
        issues = faults.run(partial(examine, answer, validators, context), list[ValidationIssue]())
        if before:
            issues += faults.run(partial(_lost, before, answer, context, fresh=fresh), list[ValidationIssue]())
        if faults.run(partial(is_refusal, answer, str(context.get("prompt", ""))), False):
            said = " ".join(strip_marker(answer).split())
            issues.append(replace(issue(REFUSED, faults.locale, said=said), validator=GUARD))
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
    """Return what the answer lacks that was in the one before it, or in what was known of one that broke off."""
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


def _edits(taken: Taken, reply: str, locale: str) -> tuple[str, ...]:
    """Word what of a reply was put into an answer, and what was left out; empty where the reply counts."""
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
    """The Markdown files that the agent wrote."""
    files = context.get("files") or {}
    return [text for name, text in files.items() if name.lower().endswith(".md")]
