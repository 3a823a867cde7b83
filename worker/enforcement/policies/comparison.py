"""The decisions of another policy on turns that are over. Pure: it sees recorded attempts, a turn at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from api_client.contract.issue import ValidationIssue
from worker.enforcement.attempt import Attempt
from worker.enforcement.examination import examine
from worker.enforcement.judging import judge
from worker.enforcement.policies.chosen import ChosenRules
from worker.enforcement.policy import Accept, Retry, decide, demote

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
class JudgedTurn:
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


def rejects(turn: JudgedTurn, chosen: ChosenRules) -> list[Rejects]:
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

    def add(self, turn: JudgedTurn, chosen: ChosenRules) -> None:
        """Judge a turn's answers by what the new policy gives it, and count them."""
        self.count(turn, rejects(turn, chosen))

    def count(self, turn: JudgedTurn, found: Sequence[Rejects]) -> None:
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
