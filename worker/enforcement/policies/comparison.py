"""How another policy would have judged answers that were judged already. Pure: it sees answers, one at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from worker.enforcement.examine import examine
from worker.enforcement.issue import ValidationIssue
from worker.enforcement.policies.chosen import Chosen
from worker.enforcement.policy import demote


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One recorded answer.

    Attributes:
        turn_id, attempt: where it is recorded.
        answer: the text that was judged.
        accepted: whether it was accepted then.
        tokens: what its run used. micro_dollars: what its run cost, in millionths of a US dollar.
    """

    turn_id: str
    attempt: int
    answer: str
    accepted: bool
    tokens: int = 0
    micro_dollars: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """An answer that the two policies judge differently, and the rules that reject it now (empty: accepted now)."""

    turn_id: str
    attempt: int
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rejects:
    """The rules that reject an answer: active ones, and those in shadow."""

    rules: tuple[str, ...]
    shadow: tuple[str, ...]


def rejects(answer: str, chosen: Chosen) -> Rejects:
    """Judge an answer by what a policy gives its turn."""
    context = {"locale": chosen.policy.locale}
    active, shadow = (
        _errors(demote(examine(answer, validators, context), chosen.policy))
        for validators in (chosen.validators, chosen.shadow)
    )
    return Rejects(active, shadow)


@dataclass(slots=True)
class Comparison:
    """Counts over all answers; of the changes only the first ``most`` are kept, so that memory stays constant.

    Attributes:
        answers: how many were judged. rejected_now: accepted then, rejected now. accepted_now: the other way.
        by_rule: rejected now, by rule. in_shadow: answers that rules in shadow reject, by rule.
        runs, tokens, micro_dollars: what asking once again for each answer rejected now would have used at least.
    """

    most: int = 20
    answers: int = 0
    rejected_now: int = 0
    accepted_now: int = 0
    by_rule: Counter[str] = field(default_factory=Counter)
    in_shadow: Counter[str] = field(default_factory=Counter)
    changes: list[Change] = field(default_factory=list)
    runs: int = 0
    tokens: int = 0
    micro_dollars: int = 0

    def add(self, judged: Judged, chosen: Chosen) -> None:
        """Judge one answer by what the new policy gives its turn, and count it."""
        self.count(judged, rejects(judged.answer, chosen))

    def count(self, judged: Judged, found: Rejects) -> None:
        """Count an answer that the new policy's rules have judged."""
        rules = found.rules
        self.answers += 1
        self.in_shadow.update(found.shadow)
        if judged.accepted == (not rules):
            return
        if rules:
            self.rejected_now += 1
            self.by_rule.update(rules)
            self.runs += 1
            self.tokens += judged.tokens
            self.micro_dollars += judged.micro_dollars
        else:
            self.accepted_now += 1
        if len(self.changes) < self.most:
            self.changes.append(Change(judged.turn_id, judged.attempt, rules))

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
