"""Shadow rules: rules of a policy file that check live answers and are counted, but decide nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from api_client.contract.attempt_record import AttemptFacts
from api_client.contract.counters import counter_field, model_label
from api_client.contract.issue import ValidationIssue
from api_client.contract.policy import AppliedPolicy
from api_client.contract.record import FieldChanges
from api_client.contract.turn import Turn
from api_client.contract.usage import NOTHING_USED, Usage
from api_client.turns.record.transition import Transition, attempt_facts
from worker.enforcement.attempt import Attempt
from worker.enforcement.policy import demote_issues
from worker.turns.engine_parts import EngineParts
from worker.turns.validation_pool import ValidationCase

log = structlog.get_logger()

#: Longest wait for the shadow rules of one answer, in seconds. Each rule has its own limit besides.
SHADOW_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowFindings:
    """The results of shadow rules, which check an answer and are counted, but cannot reject the answer."""

    facts: FieldChanges[AttemptFacts]
    counters: Mapping[str, int]
    spent: Usage = NOTHING_USED

    def add_to_transition(self, transition: Transition) -> Transition:
        """Return a copy of the transition that also stores these findings."""
        return replace(
            transition, facts=transition.facts | self.facts, counters={**transition.counters, **self.counters}
        )


def list_shadow_rules(turn: Turn) -> tuple[str, ...]:
    """Return the names of the shadow rules in the turn's policy."""
    applied = AppliedPolicy.from_request(turn.request)
    return applied.shadow if applied else ()


async def check_shadow_rules(
    parts: EngineParts, turn: Turn, case: ValidationCase, attempt: Attempt, seconds_left: float
) -> ShadowFindings:
    """Check an answer by the shadow rules, within two minutes and half of the time that the turn has left."""
    names = list_shadow_rules(turn)
    policy = replace(case.policy, order={}, caps={})
    other = replace(case, text=attempt.answer, history=(), names=names, policy=policy, fresh=False)
    try:
        if other.bounded:
            found = parts.validation_pool.validate_answer(other)
        else:
            async with asyncio.timeout(min(SHADOW_SECONDS, seconds_left / 2)):
                found = await parts.threads.do_check(parts.validation_pool.validate_answer, other)
    except Exception as error:  # errors of a shadow rule must not stop the turn
        log.warning("shadow.failed", rules=names, error=f"{type(error).__name__}: {error}"[:200])
        return _summarise_findings(turn, names, (), NOTHING_USED)
    return _summarise_findings(turn, names, demote_issues(found.issues, policy), found.spent)


def _summarise_findings(
    turn: Turn, names: Sequence[str], issues: Sequence[ValidationIssue], spent: Usage
) -> ShadowFindings:
    rejecting = {issue.validator for issue in issues if issue.is_error}
    counted = {counter_field("shadow.judged", name, model_label(turn)): 1 for name in names}
    counted |= {counter_field("shadow.rejected", name, model_label(turn)): 1 for name in names if name in rejecting}
    return ShadowFindings(facts=attempt_facts(shadow=tuple(issues)), counters=counted, spent=spent)
