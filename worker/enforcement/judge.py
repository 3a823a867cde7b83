"""One attempt, judged: its answer assembled, repaired where the policy repairs first, and examined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from worker.enforcement.attempt import Attempt
from worker.enforcement.documents.assemble import assemble
from worker.enforcement.examine import examine
from worker.enforcement.policy import Policy
from worker.enforcement.repair.mend import mend
from worker.enforcement.validators import ResponseValidator


def judge(
    history: Sequence[Attempt],
    text: str,
    validators: Sequence[ResponseValidator],
    context: Mapping[str, Any] | None = None,
    *,
    policy: Policy | None = None,
    complete: bool = True,
    feedback: str = "",
) -> Attempt:
    """The attempt that a new raw text makes, ready for ``decide``.

    Args:
        history: the attempts before it.
        text: the agent's raw answer, maybe a fragment when it is not complete.
        validators: the active ones.
        context: as for ``examine``.
        policy: which validators repair before anything else; the default policy repairs none first.
        complete: whether the agent really finished; else nothing is assembled, examined or repaired.
        feedback: what the agent was told before this run.
    """
    number = len(history) + 1
    if not complete:
        return Attempt(number=number, text=text, answer=text, complete=False, feedback=feedback)
    answer = assemble(history, text)
    repairing = [validator for validator in validators if policy and policy.repairs(validator.name)]
    if not repairing:
        issues = examine(answer, validators, context)
        return Attempt(number=number, text=text, answer=answer, issues=tuple(issues), feedback=feedback)
    mended = mend(answer, repairing, context)
    issues = examine(mended.text, validators, {**(context or {}), **mended.context})
    return Attempt(
        number=number,
        text=text,
        answer=mended.text,
        issues=tuple(issues),
        fixed_issues=mended.fixed_issues,
        changes=mended.changes,
        feedback=feedback,
    )
