"""What follows from judging an answer: pure functions from findings to a move. No clock, no store, no file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from api_client.contract.messages import ending
from api_client.contract.tasks import FAIL, FALLBACK, RETRY, Link
from api_client.contract.turn import Outcome, Turn, TurnState
from worker.enforcement.policy import Accept, Attempt, Decision, Fail, Fallback, Mended, Retry, demote
from worker.enforcement.step import step_of
from worker.turns.moves import Answer, EventData, Move, policy_of, retrying


def after_validation(turn: Turn, link: Link, attempt: Attempt, decision: Decision) -> Move:
    """What follows from the validators' findings on one attempt."""
    answer, issues = attempt.answer, demote(attempt.issues, policy_of(turn))
    found = [issue.to_dict() for issue in issues]
    facts = {"answer": answer, "issues": json.dumps(found), "changes": json.dumps(list(attempt.changes))}
    counters = {"attempt.validated": 1, **{f"validated.validator.{name}": 1 for name in turn.request.validators}}
    if isinstance(decision, Accept):
        step, source = step_of(answer)
        return Move(
            attempt=link.attempt,
            facts={**facts, "decision": "accept"},
            events=[("attempt.accepted", {"attempt": link.attempt, "issues": found})],
            counters=counters,
            outcome=Outcome.PASSED if link.attempt == 1 else Outcome.PASSED_AFTER_RETRY,
            answer=Answer(response=answer, step=step, step_source=source),
        )
    errors = [issue for issue in issues if issue.is_error]
    counters["attempt.rejected"] = 1
    counters.update({f"rejected.validator.{name}": 1 for name in {i.validator for i in errors}})
    counters.update({f"rejected.code.{code}": 1 for code in {i.code for i in errors}})
    rejected: EventData = ("attempt.rejected", {"attempt": link.attempt, "issues": found})
    if isinstance(decision, Retry):
        return Move(
            attempt=link.attempt,
            state=TurnState.QUEUED,
            next=Link(RETRY, link.attempt + 1),
            fields={"retries": str(turn.retries + 1), "transients": "0"},
            facts={**facts, "decision": "retry", "feedback": decision.feedback},
            events=[rejected, retrying(turn, link, "rejected", decision)],
            counters=counters,
        )
    if isinstance(decision, Fallback):
        codes = sorted({issue.code for issue in errors})
        return Move(
            attempt=link.attempt,
            next=Link(FALLBACK, link.attempt),
            fields={"best": str(decision.attempt)},
            facts={**facts, "decision": "fallback"},
            events=[rejected, ("turn.fallback", {"attempt": decision.attempt, "codes": codes})],
            counters=counters,
        )
    return Move(
        attempt=link.attempt,
        next=Link(FAIL, link.attempt),
        fields={"failing": json.dumps(_failed(decision))},
        facts={**facts, "decision": "fail"},
        events=[rejected],
        counters=counters,
    )


def _failed(decision: Fail) -> dict[str, str]:
    return {"outcome": Outcome.FAILED.value, "code": "failed", "reason": decision.reason}


def after_fallback(turn: Turn, link: Link, best: int, mended: Mended) -> Move:
    """What follows from the fallback: the mended answer passes, or the turn fails and the partial gains are kept."""
    left = demote(mended.issues, policy_of(turn))
    facts = {"changes": json.dumps(list(mended.changes)), "mended": mended.text}
    told: EventData = (
        "turn.mended",
        {
            "attempt": best,
            "changes": list(mended.changes),
            "fixed": [issue.to_dict() for issue in mended.fixed_issues],
            "step": mended.step,
            "step_source": mended.step_source,
        },
    )
    if not any(issue.is_error for issue in left):
        return Move(
            attempt=best,
            facts=facts,
            events=[told],
            counters={"turn.mended": 1},
            outcome=Outcome.PASSED_BY_FALLBACK,
            answer=Answer(response=mended.text, step=mended.step, step_source=mended.step_source),
        )
    facts["remaining"] = json.dumps([issue.to_dict() for issue in left])
    failing = {"outcome": Outcome.FAILED.value, "code": "failed", "reason": "the fallback could not mend every error"}
    return Move(
        attempt=best,
        next=Link(FAIL, link.attempt),
        facts=facts,
        fields={"failing": json.dumps(failing)},
        events=[told] if mended.changes else [],
    )


def after_giving_up(turn: Turn, link: Link, failing: dict[str, str], issues: Sequence[dict[str, Any]]) -> Move:
    """The honest end of a turn that has no acceptable answer: the message its user reads."""
    outcome = Outcome(failing["outcome"])
    if outcome is Outcome.FAILED:
        lines = [f"{issue['code']}: {issue['message']}" for issue in issues if issue["severity"] == "error"]
    else:
        lines = [failing["reason"]]
    error = {
        "code": failing["code"],
        "message": ending(outcome.value, turn.request.locale, lines),
        "reason": failing["reason"],
        "issues": list(issues),
    }
    return Move(attempt=link.attempt, outcome=outcome, answer=Answer(error=error))


def cannot_judge(link: Link, reason: str) -> Move:
    """The validators cannot be made on this worker: the installation is wrong, and no other answer would help."""
    failing = {"outcome": Outcome.ERROR.value, "code": "config", "reason": reason}
    return Move(attempt=link.attempt, next=Link(FAIL, link.attempt), fields={"failing": json.dumps(failing)})
