"""The decision after each attempt: accept, retry, repair or fail. Pure; the engine carries it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from api_client.contract.issue import Severity, ValidationIssue
from api_client.contract.policy import DEFAULT_ORDER, Action
from worker.enforcement.answer_continuation import find_unfinished_text
from worker.enforcement.attempt import Attempt, find_best_attempt, latest_attempts
from worker.enforcement.content_guard import LOST, NOT_JUDGED, ONLY_MARKER, ONLY_REASONING, derive_request
from worker.enforcement.feedback import build_feedback, continuation_feedback, incomplete_feedback
from worker.enforcement.replies.part_tags import make_tag_id
from worker.enforcement.validation_faults import describe_fault
from worker.enforcement.validators.codes import DEFAULT_LOCALE, LOCALES

#: Code of a refusal by the model, which is asked once more; no fallback replaces its answer.
REFUSED = "MODEL_REFUSED"
_ALWAYS_ERRORS = frozenset({LOST, REFUSED, ONLY_REASONING, ONLY_MARKER})
#: An answer is hopeless if the same errors were found this often in a row.
SAME_ERRORS = 3
_GIVING_UP = frozenset({Action.ESCALATE, Action.FAIL})


@lru_cache(maxsize=256)
def _parse_actions(names: tuple[str, ...]) -> tuple[Action, ...]:
    return tuple(map(Action, names))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The order in which reactions to validation errors are tried, with their limits.

    Attributes:
        max_attempts: most runs of the agent; ADR-038's max_retries plus one.
        order: actions for a validator's errors, tried one after the other. default: for all other validators.
        go_on: ask for the rest of a truncated answer instead of a whole one.
        caps: per validator, the number of rejected answers after which it causes no more retries.
        lenient: validators whose own failure (``VALIDATOR_ERROR``) is only a warning.

    Raises:
        ValueError: no attempt is allowed, or the locale or an action is unknown.
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
            _parse_actions(tuple(order))

    def list_actions(self, validator: str) -> tuple[Action, ...]:
        """Return the reactions to a validator's errors, in the order in which they are tried."""
        return _parse_actions(tuple(self.order.get(validator, self.default)))

    def repairs_first(self, validator: str) -> bool:
        """Return True if the first reaction to an error of this validator is to repair the answer."""
        return self.list_actions(validator)[:1] == (Action.REPAIR,)


@dataclass(frozen=True, slots=True)
class Accept:
    """The decision to accept the answer of the last attempt."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Retry:
    """The decision to run the agent again, with a prompt that explains the errors.

    ``codes`` are for events and metrics. ``goes_on``: the run continues a truncated text.
    """

    feedback: str
    codes: tuple[str, ...]
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class Fallback:
    """The decision to repair the best answer automatically instead of asking the agent again."""

    attempt: int
    codes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fail:
    """The decision to end the turn without an accepted answer.

    ``attempt`` is the best attempt; ``reason`` is ``incomplete``, ``rejected``, ``refused``, ``escalated``, or
    ``undecided`` if the policy itself failed, with the exception described in ``fault``.
    """

    attempt: int
    reason: str
    fault: str = ""

    @property
    def asks_person(self) -> bool:
        """Return True if the policy asks a person to decide before the turn ends."""
        return self.reason == "escalated"


Decision = Accept | Retry | Fallback | Fail


def decide_next(history: Sequence[Attempt], policy: Policy | None = None) -> Decision:
    """Return the decision after the latest attempt: accept the answer, ask the agent again, repair or fail.

    Raises ``ValueError`` if there is no attempt.
    """
    if not history:
        raise ValueError("no attempt to decide on")
    try:
        return _apply_policy(history, policy or Policy())
    except Exception as error:
        return Fail(history[-1].number, "undecided", fault=describe_fault(error))


def _apply_policy(history: Sequence[Attempt], policy: Policy) -> Decision:
    last = history[-1]
    used_up = len(history) >= policy.max_attempts
    if not last.complete:
        if used_up:
            return Fail((find_best_attempt(history) or last).number, "incomplete")
        if policy.go_on and (so_far := find_unfinished_text(history)):
            return Retry(continuation_feedback(so_far, policy.locale), ("INCOMPLETE_RESPONSE",), goes_on=True)
        return Retry(incomplete_feedback(policy.locale), ("INCOMPLETE_RESPONSE",))
    errors = [issue for issue in demote_issues(last.issues, policy) if issue.is_error]
    if not errors:
        return Accept(last.number)
    codes = tuple(dict.fromkeys(issue.code for issue in errors))
    if REFUSED in codes:
        again = used_up or any(issue.code == REFUSED for attempt in history[:-1] for issue in attempt.issues)
        return Fail(last.number, "refused") if again else Retry(_write_feedback(history, policy), codes)
    hopeless = used_up or _repeats_errors(history)
    spent = _exhausted_validators(history, policy)
    next_of = {
        issue: next(
            (
                each
                for each in policy.list_actions(issue.validator)
                if each is not Action.REPAIR
                and not (each is Action.RETRY and (hopeless or issue.validator in spent or issue.code == NOT_JUDGED))
            ),
            Action.FAIL,
        )
        for issue in errors
    }
    wanted = set(next_of.values())
    asked = {action for issue, action in next_of.items() if issue.code != NOT_JUDGED}
    if Action.RETRY in asked and not asked & _GIVING_UP:
        return Retry(_write_feedback(history, policy), codes)
    if wanted == {Action.WARN} and not _ALWAYS_ERRORS & set(codes):
        return Accept(last.number)
    number = (find_best_attempt(weigh_attempts(history, policy)) or last).number
    if wanted & _GIVING_UP:
        return Fail(number, "escalated" if Action.ESCALATE in wanted else "rejected")
    return Fallback(number, codes)


def demote_issues(
    issues: Sequence[ValidationIssue], policy: Policy, *, final: bool = False
) -> tuple[ValidationIssue, ...]:
    """Return the issues, with errors turned into warnings where the policy tolerates them.

    ``final``: no retry follows, so ``warn`` counts at any place of a validator's order.
    """
    if not issues:
        return ()
    return tuple(
        replace(issue, severity=Severity.WARNING)
        if issue.is_error and issue.code not in _ALWAYS_ERRORS and _is_tolerated(issue, policy, final=final)
        else issue
        for issue in issues
    )


def _is_tolerated(issue: ValidationIssue, policy: Policy, *, final: bool) -> bool:
    if issue.code == NOT_JUDGED and issue.validator in policy.lenient:
        return True
    actions = policy.list_actions(issue.validator)
    return Action.WARN in (actions if final else actions[:1])


def weigh_attempts(history: Sequence[Attempt], policy: Policy) -> list[Attempt]:
    """Return the attempts, with errors turned into warnings where the policy tolerates them."""
    found: list[Attempt] = []
    for attempt in history:
        issues = demote_issues(attempt.issues, policy)
        found.append(attempt if issues == attempt.issues else replace(attempt, issues=issues))
    return found


def _write_feedback(history: Sequence[Attempt], policy: Policy) -> str:
    attempts = weigh_attempts(latest_attempts(history), policy)
    last = attempts[-1]
    kept = find_best_attempt(attempts) or last
    request = derive_request(kept.answer, kept.errors)
    errors = [error for error in kept.errors if error.code != NOT_JUDGED]
    if request.whole:  # the next answer is a whole one and must avoid the errors of both
        known = {(error.code, error.message) for error in errors}
        errors += [e for e in last.errors if (e.code, e.message) not in known and e.code != NOT_JUDGED]
    ignored = kept is not last or last.answer in {attempt.answer for attempt in attempts[:-1]}
    nonce = make_tag_id(history[0].text, len(history))
    return build_feedback(errors, policy.locale, request=request, ignored=ignored, nonce=nonce)


def _exhausted_validators(history: Sequence[Attempt], policy: Policy) -> frozenset[str]:
    if not policy.caps:
        return frozenset()
    rejected = [{error.validator for error in attempt.errors} for attempt in history if attempt.complete]
    return frozenset(name for name, cap in policy.caps.items() if sum(name in names for names in rejected) >= cap)


def _repeats_errors(history: Sequence[Attempt]) -> bool:
    recent = history[-SAME_ERRORS:]
    if len(recent) < SAME_ERRORS or not all(attempt.complete for attempt in recent):
        return False
    return len({frozenset((i.validator, i.code, i.file, i.message) for i in attempt.errors) for attempt in recent}) == 1
