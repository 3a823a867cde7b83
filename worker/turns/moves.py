"""What follows from what happened: pure functions from a result to a ``Move``. No clock, no store, no file.

Counting (DESIGN section 4): incomplete runs use up attempts, passing errors do not. A turn whose last run was
incomplete ends ``incomplete``; a permanent error ends it as ``error``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from api_client.contract.messages import GIVEN_UP, ending
from api_client.contract.tasks import FAIL, FALLBACK, RETRY, VALIDATE, Link
from api_client.contract.turn import AttemptRecord, Outcome, Turn, TurnState
from worker.enforcement.issue import ValidationIssue
from worker.enforcement.policy import Accept, Attempt, Decision, Fail, Fallback, Mended, Policy, Retry, decide, demote
from worker.enforcement.step import step_of
from worker.runners.base import Completion, ErrorKind, RunResult, Verdict

EventData = tuple[str, dict[str, Any]]

#: Why a run was stopped, where that ends the turn.
_CALLED_OFF = {"cancelled": Outcome.CANCELLED, "expired": Outcome.EXPIRED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a finished turn answers. ``error`` has code, message (for the user) and issues; empty on success."""

    response: str = ""
    step: str = ""
    step_source: str = ""
    error: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One change of a turn by its holder: what is written, told and counted, and what comes next.

    Attributes:
        state, next: where the turn goes; ignored when ``outcome`` is set.
        fields: facts of the turn. facts: facts of attempt ``attempt``. Texts to texts.
        events: in order; the end of a turn is told by the store itself.
        delay_ms: time before ``next`` may be claimed.
        outcome, answer: set when this is the end.
        run_ended: an agent run ended with this.
    """

    attempt: int
    state: TurnState = TurnState.RAN
    next: Link | None = None
    fields: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    events: list[EventData] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    delay_ms: int = 0
    outcome: Outcome | None = None
    answer: Answer = field(default_factory=Answer)
    run_ended: bool = False

    def to_json(self) -> str:
        """The move as ``commit.lua`` reads it."""
        answer = self.answer
        return json.dumps(
            {
                "state": self.state.value,
                "next": str(self.next or ""),
                "fields": self.fields,
                "attempt": str(self.attempt),
                "facts": self.facts,
                "counters": self.counters,
                "delay_ms": self.delay_ms,
                "outcome": self.outcome.value if self.outcome else "",
                "answer": {
                    "response": answer.response,
                    "step": answer.step,
                    "step_source": answer.step_source,
                    "error": json.dumps(answer.error),
                },
                "run_ended": self.run_ended,
            }
        )


def policy_of(turn: Turn) -> Policy:
    """The policy a turn was submitted with."""
    return Policy(max_attempts=turn.request.max_attempts, locale=turn.request.locale)


def judged(record: AttemptRecord) -> Attempt:
    """A stored attempt as the policy sees it."""
    return Attempt(
        number=record.number,
        text=record.text,
        answer=record.answer,
        complete=record.completion.get("verdict") == Verdict.COMPLETE.value,
        issues=tuple(ValidationIssue.from_dict(issue) for issue in record.issues),
    )


def after_run(
    turn: Turn,
    link: Link,
    result: RunResult,
    *,
    prompt: str,
    history: Sequence[AttemptRecord] = (),
    stop: str = "",
    transient_retries: int,
    transient_delay: float,
) -> Move:
    """What follows from an agent run.

    ``stop`` is why the run was stopped, if it was; ``history`` the attempts before this one.
    """
    completion = result.completion
    facts = {
        "prompt": prompt,
        "text": result.text,
        "completion": json.dumps(completion.to_dict()),
        "usage": json.dumps(result.usage),
        "last_delivery": str(turn.delivery),
    }
    ended: EventData = (
        "attempt.completed",
        {"attempt": link.attempt, "verdict": completion.verdict.value, "reason": completion.reason},
    )
    if completion.verdict is Verdict.COMPLETE:
        return Move(
            attempt=link.attempt,
            next=Link(VALIDATE, link.attempt),
            fields={"agent_session": result.agent_session},
            facts=facts,
            events=[ended],
            counters={"attempt.completed": 1},
            run_ended=True,
        )
    if stop in _CALLED_OFF and completion.verdict is not Verdict.ERROR:
        return _called_off(turn, link, _CALLED_OFF[stop], facts, ended)
    if stop or completion.verdict is Verdict.CANCELLED:
        return _handed_over(turn, link, stop)
    if completion.verdict is Verdict.ERROR:
        passing = completion.kind in {ErrorKind.TRANSIENT, ErrorKind.SESSION_LOST}
        if passing and turn.transients < transient_retries:
            return _again_later(turn, link, completion, ended, transient_delay)
        return _cannot_work(turn, link, completion, facts, ended)
    return _incomplete(turn, link, completion, facts, ended, history)


def _handed_over(turn: Turn, link: Link, reason: str) -> Move:
    """The worker shuts down, or could not keep its lease: the turn goes back, and the attempt is delivered again.

    No strike: nothing says that the turn is to blame. A worker whose lease another one has by now is refused.
    """
    lost = {"attempt": link.attempt, "delivery": turn.delivery, "during": reason or "stopped"}
    return Move(
        attempt=link.attempt,
        state=TurnState.QUEUED,
        next=link,
        events=[("attempt.lost", lost)],
        counters={"delivery.handed_over": 1},
    )


def _called_off(turn: Turn, link: Link, outcome: Outcome, facts: dict[str, str], ended: EventData) -> Move:
    texts = GIVEN_UP[outcome.value]
    message = texts.get(turn.request.locale, texts["en"])
    return Move(
        attempt=link.attempt,
        facts=facts,
        events=[ended],
        outcome=outcome,
        answer=Answer(error={"code": outcome.value, "message": message, "issues": []}),
        run_ended=True,
    )


def _again_later(turn: Turn, link: Link, completion: Completion, ended: EventData, first_delay: float) -> Move:
    """A passing error: the same attempt again after a while, twice as long each time."""
    delay = completion.retry_after or first_delay * 2**turn.transients
    if completion.kind is ErrorKind.SESSION_LOST:
        delay = 0.0
    fields = {"transients": str(turn.transients + 1)}
    if completion.kind is ErrorKind.SESSION_LOST:
        fields["agent_session"] = ""
    retrying = {
        "attempt": link.attempt,
        "max_attempts": turn.request.max_attempts,
        "reason": "transient",
        "delay_seconds": delay,
    }
    return Move(
        attempt=link.attempt,
        state=TurnState.QUEUED,
        next=link,
        fields=fields,
        events=[ended, ("turn.retrying", retrying)],
        counters={"attempt.transient": 1},
        delay_ms=int(delay * 1000),
        run_ended=True,
    )


def _cannot_work(turn: Turn, link: Link, completion: Completion, facts: dict[str, str], ended: EventData) -> Move:
    kind = completion.kind.value if completion.kind else "error"
    return Move(
        attempt=link.attempt,
        next=Link(FAIL, link.attempt),
        facts=facts,
        fields={"failing": json.dumps({"outcome": Outcome.ERROR.value, "code": kind, "reason": completion.reason})},
        events=[ended],
        counters={"attempt.error": 1},
        run_ended=True,
    )


def _incomplete(
    turn: Turn,
    link: Link,
    completion: Completion,
    facts: dict[str, str],
    ended: EventData,
    history: Sequence[AttemptRecord],
) -> Move:
    this = Attempt(number=link.attempt, text="", answer="", complete=False, issues=())
    decision = decide([*map(judged, history), this], policy_of(turn))
    if isinstance(decision, Retry):
        return Move(
            attempt=link.attempt,
            state=TurnState.QUEUED,
            next=Link(RETRY, link.attempt + 1),
            facts={**facts, "decision": "retry", "feedback": decision.feedback},
            events=[ended, _retrying(turn, link, "incomplete", decision)],
            counters={"attempt.incomplete": 1},
            run_ended=True,
        )
    failing = {"outcome": Outcome.INCOMPLETE.value, "code": "incomplete", "reason": completion.reason}
    return Move(
        attempt=link.attempt,
        next=Link(FAIL, link.attempt),
        facts={**facts, "decision": "fail"},
        fields={"failing": json.dumps(failing)},
        events=[ended],
        counters={"attempt.incomplete": 1},
        run_ended=True,
    )


def _retrying(turn: Turn, link: Link, reason: str, decision: Retry) -> EventData:
    return (
        "turn.retrying",
        {
            "attempt": link.attempt + 1,
            "max_attempts": turn.request.max_attempts,
            "reason": reason,
            "codes": list(decision.codes),
            "feedback": decision.feedback,
            "delay_seconds": 0,
        },
    )


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
            fields={"retries": str(turn.retries + 1)},
            facts={**facts, "decision": "retry", "feedback": decision.feedback},
            events=[rejected, _retrying(turn, link, "rejected", decision)],
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
    if mended.accepted:
        return Move(
            attempt=best,
            facts=facts,
            events=[told],
            counters={"turn.mended": 1},
            outcome=Outcome.PASSED_BY_FALLBACK,
            answer=Answer(response=mended.text, step=mended.step, step_source=mended.step_source),
        )
    facts["remaining"] = json.dumps([issue.to_dict() for issue in mended.issues])
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
