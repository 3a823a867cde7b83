"""Shadow rules: rules of a policy file that check live answers and are counted, but decide nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import structlog

from api_client.contract.counters import counter_field, model_label
from api_client.contract.issue import ValidationIssue
from api_client.contract.policy import AppliedPolicy
from api_client.contract.turn import Turn
from api_client.turns.record.transition import attempt_facts
from worker.enforcement.attempt import Attempt
from worker.enforcement.policy import demote_issues
from worker.enforcement.validators.services import NOTHING_SPENT, ValidationCost
from worker.turns.engine_parts import EngineParts
from worker.turns.shadow_check import ShadowCheck, ShadowResult
from worker.turns.validation_pool import ValidationCase

log = structlog.get_logger()

#: Longest wait for the shadow rules of one answer, in seconds. Each rule has its own limit besides.
SHADOW_SECONDS = 120.0


class ShadowRules(ShadowCheck):
    """Checks answers against a policy's shadow rules, whose verdicts are counted but never reject an answer."""

    def applies_to(self, turn: Turn) -> bool:
        applied = AppliedPolicy.from_request(turn.request)
        return bool(applied and applied.shadow)

    async def check_answer(
        self, parts: EngineParts, turn: Turn, case: ValidationCase, attempt: Attempt, seconds_left: float
    ) -> ShadowResult:
        """Check an answer by the shadow rules, within two minutes and half of the time that the turn has left."""
        applied = AppliedPolicy.from_request(turn.request)
        names = applied.shadow if applied else ()
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
            return summarise_findings(turn, names, (), NOTHING_SPENT)
        return summarise_findings(turn, names, demote_issues(found.issues, policy), found.spent)


def summarise_findings(
    turn: Turn, names: Sequence[str], issues: Sequence[ValidationIssue], spent: ValidationCost
) -> ShadowResult:
    """Return the counters, issues and costs of a check by shadow rules."""
    rejecting = {issue.validator for issue in issues if issue.is_error}
    counted = {counter_field("shadow.judged", name, model_label(turn)): 1 for name in names}
    counted |= {counter_field("shadow.rejected", name, model_label(turn)): 1 for name in names if name in rejecting}
    return ShadowResult(facts=attempt_facts(shadow=tuple(issues)), counters=counted, spent=spent)
