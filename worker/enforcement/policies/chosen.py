"""The validators and the policy that a policy file gives one turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from api_client.contract.issues import ValidationIssue
from api_client.contract.policy import AppliesTo, Content, OnError, PolicyFile, PolicyRule, Subject
from worker.enforcement.attempt import Attempt
from worker.enforcement.documents.document import language_of, parse
from worker.enforcement.documents.splice import strip_marker
from worker.enforcement.policies.policy_file import is_rule_file, load_rule
from worker.enforcement.policy import Accept, Policy, Retry, decide, demote, examine, judge
from worker.enforcement.rules import RULES
from worker.enforcement.validators import ResponseValidator
from worker.enforcement.validators.codes import DEFAULT_LOCALE
from worker.enforcement.validators.registry import build_validators


@dataclass(frozen=True, slots=True)
class Chosen:
    """The judges of a turn.

    Attributes:
        validators: the active ones, in the file's order. shadow: those that judge and decide nothing.
        policy: what follows from errors.
    """

    validators: tuple[ResponseValidator, ...]
    shadow: tuple[ResponseValidator, ...]
    policy: Policy


def choose(file: PolicyFile, subject: Subject, *, root: Path, locale: str = DEFAULT_LOCALE) -> Chosen:
    """Return what a policy file gives one turn. Paths in answers are relative to ``root`` (HELIX_ROOT).

    ``locale`` is the turn's; the file's own, where it has one, wins. Raises ``ValueError``, ``TypeError``,
    ``ImportError``: an installed validator cannot be made.
    """
    locale = file.locale or locale
    entries = [entry for entry in file.rules if entry.applies_to.judges(subject)]
    built = [(entry, _build(entry, root, locale)) for entry in entries]
    return Chosen(
        validators=tuple(validator for entry, validator in built if not entry.shadow),
        shadow=tuple(validator for entry, validator in built if entry.shadow),
        policy=Policy(
            max_attempts=file.max_attempts,
            locale=locale,
            order={entry.name: entry.order for entry in entries},
            caps={entry.name: entry.max_attempts for entry in entries if entry.max_attempts},
            lenient=frozenset(entry.name for entry in entries if entry.on_error is OnError.WARN),
        ),
    )


def build(file: PolicyFile, names: Sequence[str], *, root: Path, locale: str) -> tuple[ResponseValidator, ...]:
    """The validators of a file's rules by their names, and of other rules that a request has added.

    Raises:
        ValueError, TypeError, ImportError: one of them cannot be made.
    """
    entries = {entry.name: entry for entry in file.rules}
    return tuple(_build(entries.get(name) or PolicyRule(rule=name, name=name), root, locale) for name in names)


def _build(entry: PolicyRule, root: Path, locale: str) -> ResponseValidator:
    if entry.rule in RULES:
        made: ResponseValidator = RULES[entry.rule](name=entry.name, root=root, locale=locale, **entry.options)
    elif is_rule_file(entry.rule):
        made = load_rule(entry.rule, name=entry.name, root=root, locale=locale, options=entry.options)
    else:
        (made,) = build_validators([entry.rule], root=root, locale=locale)
    if entry.applies_to.content or entry.applies_to.languages or made.name != entry.name:
        return _Conditional(made, entry.name, entry.applies_to)
    return made


def fits(condition: AppliesTo, answer: str) -> bool:
    """Return whether the answer is one that the condition wants."""
    if condition.languages and language_of(answer) not in condition.languages:
        return False
    return not condition.content or any(_holds(answer, what) for what in condition.content)


def _holds(answer: str, what: Content) -> bool:
    document = parse(answer)
    if what is Content.ADR:
        return bool(document.adrs)
    bare = strip_marker(answer).strip()
    if what is Content.JSON and (bare[:1], bare[-1:]) in (("{", "}"), ("[", "]")):
        return True
    fences = [fence for fence in document.out.fences if not fence.is_document]
    return any(what is Content.CODE or fence.info.split(" ")[0].lower() == what for fence in fences)


class _Conditional(ResponseValidator):
    """A validator under the file's name, for the answers that the file's conditions fit."""

    def __init__(self, inner: ResponseValidator, name: str, applies_to: AppliesTo) -> None:
        self._inner, self._name, self._applies_to = inner, name, applies_to

    @property
    def name(self) -> str:
        """The name of the file's entry."""
        return self._name

    @property
    def mends_files(self) -> bool:  # type: ignore[override]
        """As the validator's own."""
        return self._inner.mends_files

    def bounded_on(self, texts: Iterable[str]) -> bool:
        """As the validator's own."""
        return self._inner.bounded_on(texts)

    @property
    def bounded(self) -> bool:  # type: ignore[override]
        """As the validator's own."""
        return self._inner.bounded

    @property
    def reaches_out(self) -> bool:
        """As the rule's own."""
        return bool(getattr(self._inner, "reaches_out", False))

    @property
    def patience(self) -> float:  # type: ignore[override]
        """As the validator's own."""
        return self._inner.patience

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """The validator's issues; none for an answer that it does not judge."""
        if not fits(self._applies_to, response):
            return []
        return [replace(issue, validator=self._name) for issue in self._inner.validate(response, context)]

    def apply_fallback(self, response: str, context: Mapping[str, Any]) -> str | None:
        """The validator's repair; None for an answer that it does not judge."""
        return self._inner.apply_fallback(response, context) if fits(self._applies_to, response) else None

    def explain_fallback(self, before: str, after: str, context: Mapping[str, Any]) -> Sequence[str]:
        """As the validator's own."""
        return self._inner.explain_fallback(before, after, context)


# The decisions of another policy on turns that are over. Pure: it sees recorded attempts, a turn at a time.

#: Decisions that followed from judging an answer.
JUDGED = frozenset({"accept", "retry", "fallback", "fail", "escalate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAttempt:
    """One attempt as its turn's record has it.

    Attributes:
        text, answer, complete, fresh: as in ``Attempt``.
        decision: what was decided on it, one of ``JUDGED``; another one when it was never judged.
        feedback: what the agent was asked because of it.
        files: those of its answer, as far as they are still there. issues: of these files, whatever judges them.
    """

    text: str
    answer: str = ""
    complete: bool = True
    fresh: bool = False
    decision: str = "accept"
    feedback: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    issues: tuple[ValidationIssue, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One recorded turn.

    Attributes:
        turn_id: names it. attempts: all of them, in order.
        context: what rules get besides the answer: its prompt and its session.
        allowed: how many attempts it was allowed after an escalation; 0 without one.
        tokens: what a run used. micro_dollars: what a run cost, in millionths of a US dollar.
    """

    turn_id: str
    attempts: tuple[RecordedAttempt, ...]
    context: Mapping[str, str] = field(default_factory=dict)
    allowed: int = 0
    tokens: int = 0
    micro_dollars: int = 0


@dataclass(frozen=True, slots=True)
class ChangedJudgement:
    """An answer that the two policies judge differently, and the rules that reject it now (empty: accepted now)."""

    turn_id: str
    attempt: int
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rejects:
    """A policy's decision on one answer.

    Attributes:
        attempt: its number. was_accepted, accepted: what was decided then, and now. asks: the agent is asked again.
        rules: those that find errors, as the policy weighs them. shadow: those in shadow.
    """

    attempt: int
    was_accepted: bool
    accepted: bool
    asks: bool
    rules: tuple[str, ...]
    shadow: tuple[str, ...]


def rejects(turn: Judged, chosen: Chosen) -> list[Rejects]:
    """Judge a turn's answers by what a policy gives it, and decide on each, as the engine does: ``judge``, ``decide``.

    An answer that came where this policy would have asked for it in the same words is put together again; one that it
    would not have asked for is judged as it stood.
    """
    policy, history, found, alike = chosen.policy, list[Attempt](), list[Rejects](), True
    for number, each in enumerate(turn.attempts, 1):
        if each.fresh:
            alike, policy = True, replace(policy, max_attempts=turn.allowed or policy.max_attempts)
        context = {"locale": policy.locale, **turn.context, "files": each.files}
        attempt = judge(
            history,
            each.text,
            chosen.validators,
            context,
            policy=policy,
            complete=each.complete,
            fresh=each.fresh,
            feedback=turn.attempts[number - 2].feedback if number > 1 and not each.fresh else "",
            assembled=None if alike else each.answer or each.text,
        )
        history.append(replace(attempt, issues=(*attempt.issues, *each.issues)))
        if not each.complete or each.decision not in JUDGED:
            continue
        decision = decide(history, policy)
        alike = isinstance(decision, Retry) and decision.feedback == each.feedback
        shadow = demote(examine(attempt.answer, chosen.shadow, context), policy)
        accepted = isinstance(decision, Accept)
        errors = () if accepted else _errors(demote(history[-1].issues, policy))
        was = each.decision == "accept"
        found.append(Rejects(number, was, accepted, isinstance(decision, Retry), errors, _errors(shadow)))
    return found


@dataclass(slots=True)
class Comparison:
    """Counts over all answers; of the changes only the first ``most`` are kept, so that memory stays constant.

    Attributes:
        answers: how many were judged. rejected_now: accepted then, rejected now. accepted_now: the other way.
        by_rule: rejected now, by rule. in_shadow: answers that rules in shadow reject, by rule.
        runs, tokens, micro_dollars: what asking once again would have used at least, where the policy asks again.
    """

    most: int = 20
    answers: int = 0
    rejected_now: int = 0
    accepted_now: int = 0
    by_rule: Counter[str] = field(default_factory=Counter)
    in_shadow: Counter[str] = field(default_factory=Counter)
    changes: list[ChangedJudgement] = field(default_factory=list)
    runs: int = 0
    tokens: int = 0
    micro_dollars: int = 0

    def add(self, turn: Judged, chosen: Chosen) -> None:
        """Judge a turn's answers by what the new policy gives it, and count them."""
        self.count(turn, rejects(turn, chosen))

    def count(self, turn: Judged, found: Sequence[Rejects]) -> None:
        """Count a turn's answers that the new policy has decided on."""
        for each in found:
            self.answers += 1
            self.in_shadow.update(each.shadow)
            if each.accepted == each.was_accepted:
                continue
            self.accepted_now += each.accepted
            self.rejected_now += not each.accepted
            self.by_rule.update(each.rules)
            if each.asks:
                self.runs += 1
                self.tokens += turn.tokens
                self.micro_dollars += turn.micro_dollars
            if len(self.changes) < self.most:
                self.changes.append(ChangedJudgement(turn.turn_id, each.attempt, each.rules))

    def to_dict(self) -> dict[str, Any]:
        """The comparison, JSON-ready."""
        return {
            "answers": self.answers,
            "rejected_now": self.rejected_now,
            "accepted_now": self.accepted_now,
            "by_rule": dict(self.by_rule.most_common()),
            "in_shadow": dict(self.in_shadow.most_common()),
            "extra": {"runs": self.runs, "tokens": self.tokens, "usd": self.micro_dollars / 1e6},
            "changes": [
                {"turn_id": each.turn_id, "attempt": each.attempt, "rules": list(each.rules)} for each in self.changes
            ],
        }


def _errors(issues: Sequence[ValidationIssue]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(issue.validator for issue in issues if issue.is_error))
