"""Comparison of a new policy with the recorded decisions on finished turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from api_client.contract.decision import HANDED_ON
from api_client.contract.issue import ValidationIssue
from worker.enforcement.answer_validation import run_validators
from worker.enforcement.attempt import Attempt
from worker.enforcement.attempt_validation import validate_attempt
from worker.enforcement.policies.chosen_rules import ChosenRules
from worker.enforcement.policy import Accept, Retry, decide_next, demote_issues

JUDGED = frozenset({"accept", "retry", "fallback", "fail", HANDED_ON})


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAttempt:
    """An attempt recorded in a finished turn, to which another policy can be applied.

    ``decision`` is one of ``JUDGED``, or another value if the answer was never validated; ``feedback`` is the prompt of
    the next attempt.
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
class RecordedTurn:
    """A finished turn with its recorded attempts, to which another policy can be applied.

    Attributes:
        context: values for rules: the prompt and the session.
        allowed: most attempts if the turn was handed on; 0 otherwise.
        tokens, micro_dollars: average use of one run; money in millionths of a US dollar.
    """

    turn_id: str
    attempts: tuple[RecordedAttempt, ...]
    context: Mapping[str, str] = field(default_factory=dict)
    allowed: int = 0
    tokens: int = 0
    micro_dollars: int = 0


@dataclass(frozen=True, slots=True)
class ChangedDecision:
    """An answer on which the old and the new policy disagree. ``rules`` reject the answer now."""

    turn_id: str
    attempt: int
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AnswerDecision:
    """The decision of a new policy on one recorded answer, together with the recorded decision.

    ``asks``: the new policy asks the agent again. ``rules`` and ``shadow`` are the rules that find errors.
    """

    attempt: int
    was_accepted: bool
    accepted: bool
    asks: bool
    rules: tuple[str, ...]
    shadow: tuple[str, ...]


def replay_turn(turn: RecordedTurn, chosen: ChosenRules) -> list[AnswerDecision]:
    """Apply another policy to the recorded answers of a turn, and return the policy's decision on each answer."""
    policy, history, found, alike = chosen.policy, list[Attempt](), list[AnswerDecision](), True
    for number, each in enumerate(turn.attempts, 1):
        if each.fresh:
            alike, policy = True, replace(policy, max_attempts=turn.allowed or policy.max_attempts)
        context = {"locale": policy.locale, **turn.context, "files": each.files}
        attempt = validate_attempt(
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
        decision = decide_next(history, policy)
        alike = isinstance(decision, Retry) and decision.feedback == each.feedback
        shadow = demote_issues(run_validators(attempt.answer, chosen.shadow, context), policy)
        accepted = isinstance(decision, Accept)
        errors = () if accepted else _rules_with_errors(demote_issues(history[-1].issues, policy))
        was = each.decision == "accept"
        found.append(
            AnswerDecision(number, was, accepted, isinstance(decision, Retry), errors, _rules_with_errors(shadow))
        )
    return found


@dataclass(slots=True)
class Comparison:
    """Counts the answers on which two policies disagree, and keeps the first ``most`` of these answers.

    Attributes:
        rejected_now, accepted_now: accepted before and rejected now, and the reverse.
        by_rule: answers rejected now, by rule. in_shadow: answers that shadow rules reject, by rule.
        runs, tokens, micro_dollars: least cost of the additional retries.
    """

    most: int = 20
    answers: int = 0
    rejected_now: int = 0
    accepted_now: int = 0
    by_rule: Counter[str] = field(default_factory=Counter)
    in_shadow: Counter[str] = field(default_factory=Counter)
    changes: list[ChangedDecision] = field(default_factory=list)
    runs: int = 0
    tokens: int = 0
    micro_dollars: int = 0

    def add_turn(self, turn: RecordedTurn, chosen: ChosenRules) -> None:
        """Apply the new policy to a recorded turn, and count the decisions that differ."""
        self.count_decisions(turn, replay_turn(turn, chosen))

    def count_decisions(self, turn: RecordedTurn, found: Sequence[AnswerDecision]) -> None:
        """Add the new policy's decisions on the answers of a turn to the counts."""
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
                self.changes.append(ChangedDecision(turn.turn_id, each.attempt, each.rules))

    def to_dict(self) -> dict[str, Any]:
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


def _rules_with_errors(issues: Sequence[ValidationIssue]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(issue.validator for issue in issues if issue.is_error))
