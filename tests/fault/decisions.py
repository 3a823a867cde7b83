"""The transitions that pretend workers commit, as the ledger sends them. A schedule chooses which, and when."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from api_client.contract.event_kinds import AttemptRejected
from api_client.contract.events import Body, body_of
from api_client.contract.interruption import Interruption
from api_client.contract.issue import ValidationIssue
from api_client.contract.phase_work import PHASE_RUN, PHASE_VERIFY
from api_client.contract.tasks import FAIL, FALLBACK, RESUME, RETRY, RUN, VALIDATE, ChainTask, all_tasks, runs_agent
from api_client.contract.turn import DEFAULT_VALIDATORS, Outcome, TurnState
from api_client.contract.turn_error import TurnError
from api_client.store.commands import Word, load_script
from api_client.turns.record.encoding import encode_transition
from api_client.turns.record.transition import Answer, Transition, progress
from tests.fault import scripts
from worker.turns.transitions.validated_run import ValidatedRun

#: Links that run an agent.
RUNS = frozenset(filter(runs_agent, all_tasks()))


_COMMIT = load_script(scripts.FILES["commit"], scripts.SETTINGS).arguments
#: Where a commit's own arguments begin: behind token, number, keep, task.
_OWN = 4


@cache
def commit_arguments(move_name: str, link: ChainTask, retries: int, delay_ms: int) -> tuple[Word, ...]:
    """Return the arguments of a commit that follow token, number, keep and task."""
    sent = encode_transition(_MOVES[move_name](link, retries, delay_ms), {})
    values = sent.build_arguments() | {"left": "", "files": ""}
    return (*(values[name] for name in _COMMIT[_OWN:]), *sent.build_rest())


@dataclass(frozen=True, slots=True)
class Sent:
    """The contents of a sent commit; ``events`` has kind and data of each event in a row."""

    next: str
    state: str
    delay_ms: int
    suspend_ms: int
    outcome: str
    response: str
    fields: dict[str, str]
    events: tuple[str, ...]


@lru_cache(maxsize=4096)
def read_commit(arguments: tuple[Any, ...]) -> Sent:
    """Parse the arguments that ``commit_arguments`` returned."""
    own = dict(zip(_COMMIT[_OWN:], arguments, strict=False))
    rest = arguments[len(_COMMIT) - _OWN :]
    fields, answer = (
        rest[start : start + own[n]] for start, n in ((0, "n_fields"), (own["n_fields"] + own["n_facts"], "n_answer"))
    )
    return Sent(
        next=own["next"],
        state=own["state"],
        delay_ms=own["delay_ms"],
        suspend_ms=own["suspend_ms"],
        outcome=own["outcome"],
        response=dict(zip(answer[::2], answer[1::2], strict=True)).get("response", ""),
        fields=dict(zip(fields[::2], fields[1::2], strict=True)),
        events=rest[own["n_fields"] + own["n_facts"] + own["n_answer"] :],
    )


def _ran(link: ChainTask, next_link: ChainTask | None, verdict: str, **more: Any) -> Transition:
    """Build the transition for an agent run that ended, with its events and counters."""
    state = TurnState.QUEUED if next_link and next_link.task in RUNS else TurnState.RAN
    told = "error" if verdict == "transient" else verdict
    usage = {"input_tokens": 70, "output_tokens": 7, "cost_usd": 0.5}
    events: list[Body] = [
        body_of("attempt.completed", {"attempt": link.attempt, "verdict": told, "reason": "", "usage": usage})
    ]
    if state is TurnState.QUEUED:
        events.append(body_of("turn.retrying", {"attempt": link.attempt, "reason": "not rejected"}))
    counters = {f"attempt.ended|{verdict}|m": 1, "tokens.input|m": 70, "tokens.output|m": 7, "cost.all|m": 500_000}
    if verdict != "complete":
        counters |= _WASTED
    return Transition(
        attempt=link.attempt, next=next_link, state=state, events=events, counters=counters, run_ended=True, **more
    )


_WASTED = {"tokens.failed|m": 77, "cost.failed|m": 500_000}
_JUDGED = {f"validator.judged|{name}|m": 1 for name in DEFAULT_VALIDATORS}
_ERROR = ValidationIssue("MISSING_STEP_MARKER", "no marker", "add it", validator="step_marker")


def _rejected(link: ChainTask, next_link: ChainTask, decision: str, *more: Body, **fields: int) -> Transition:
    return Transition(
        attempt=link.attempt,
        next=next_link,
        state=TurnState.QUEUED if next_link.task in RUNS else TurnState.RAN,
        events=[AttemptRejected(attempt=link.attempt, issues=(_ERROR,)), *more],
        counters={
            f"attempt.judged|{decision}|m": 1,
            f"validator.rejected|step_marker|{decision}|m": 1,
            f"code.rejected|MISSING_STEP_MARKER|{decision}": 1,
            **_JUDGED,
            **_WASTED,
        },
        validated=True,
        fields=progress(**fields),
    )


def _ended(link: ChainTask, outcome: Outcome, *events: Body, **more: Any) -> Transition:
    failed = Answer(error=TurnError(code="failed", message="no", issues=(_ERROR,)))
    answer = Answer(response=f"Antwort {link}", step="done") if outcome.success else failed
    return Transition(attempt=link.attempt, outcome=outcome, answer=answer, events=list(events), **more)


def _again(link: ChainTask, by: int = 1) -> ChainTask:
    """Return the task that runs the agent once more."""
    return ChainTask(PHASE_RUN if link.task in {PHASE_RUN, PHASE_VERIFY} else RETRY, link.attempt + by)


def _suspended(link: ChainTask, seconds: float) -> Transition:
    rejected = _rejected(link, link, "escalate", body_of("turn.escalated", {"attempt": link.attempt, "stage": 2}))
    return replace(
        rejected,
        state=TurnState.SUSPENDED,
        next=None,
        events=[*rejected.events, body_of("turn.suspended", {"attempt": link.attempt})],
        counters=rejected.counters | {"turn.escalated|2": 1},
        fields=progress(interruption=Interruption(kind="verdict")),
        suspend_seconds=seconds,
    )


#: What a worker may decide, by name: (link, retries so far, delay) -> move.
_MOVES: dict[str, Callable[[ChainTask, int, int], Transition]] = {
    "complete": lambda link, _r, _d: _ran(link, ChainTask(all_tasks()[link.task].checked_by, link.attempt), "complete"),
    "incomplete": lambda link, _r, _d: _ran(link, _again(link), "incomplete"),
    "transient": lambda link, _r, delay: _ran(link, link, "transient", delay_ms=delay),
    "unable": lambda link, _r, _d: _ran(link, ChainTask(FAIL, link.attempt), "error"),
    "hand over": lambda link, _r, _d: Transition(
        attempt=link.attempt,
        next=link,
        state=TurnState.QUEUED,
        events=[body_of("attempt.lost", {"attempt": link.attempt, "during": "shutdown"})],
        counters={"delivery.handed_over": 1},
    ),
    "called off": lambda link, _r, _d: _ran(
        link, None, "cancelled", outcome=Outcome.CANCELLED, answer=Answer(error=TurnError(code="off"))
    ),
    "accept": lambda link, retries, _d: _ended(
        link,
        Outcome.PASSED_AFTER_RETRY if retries else Outcome.PASSED,
        body_of("attempt.accepted", {"attempt": link.attempt, "issues": []}),
        counters={"attempt.judged|accept|m": 1, **_JUDGED},
        validated=True,
    ),
    "retry": lambda link, retries, _d: _rejected(
        link,
        _again(link),
        "retry",
        body_of("turn.retrying", {"attempt": link.attempt + 1, "reason": "rejected"}),
        retries=retries + 1,
    ),
    "fall back": lambda link, _r, _d: _rejected(
        link,
        ChainTask(FALLBACK, link.attempt),
        "fallback",
        body_of("turn.fallback", {"attempt": link.attempt, "codes": []}),
    ),
    "reject": lambda link, _r, _d: _rejected(link, ChainTask(FAIL, link.attempt), "fail"),
    "accept at once": lambda link, retries, delay: _at_once("accept", link, retries, delay),
    "retry at once": lambda link, retries, delay: _at_once("retry", link, retries, delay),
    "repaired": lambda link, _r, _d: _ended(
        link, Outcome.PASSED_BY_FALLBACK, body_of("turn.mended", {"attempt": link.attempt})
    ),
    "not mended": lambda link, _r, _d: Transition(attempt=link.attempt, next=ChainTask(FAIL, link.attempt)),
    "suspend": lambda link, _r, delay: _suspended(link, delay / 100),
    "ask again": lambda link, _r, _d: Transition(
        attempt=link.attempt,
        next=ChainTask(RETRY, link.attempt + 1),
        state=TurnState.QUEUED,
        events=[body_of("turn.retrying", {"attempt": link.attempt + 1, "reason": "decided"})],
    ),
    "let pass": lambda link, _r, _d: _ended(link, Outcome.PASSED_BY_HUMAN),
    "fail": lambda link, _r, _d: _ended(
        link,
        Outcome.FAILED,
        end_counters={"validator.gave_up|step_marker": 1, "code.gave_up|MISSING_STEP_MARKER": 1},
    ),
}


def _at_once(name: str, link: ChainTask, retries: int, delay: int) -> Transition:
    """Build the transition for a run and its validation in one step."""
    run = link if link.task in RUNS else ChainTask(RUN, link.attempt)
    return ValidatedRun.of(_MOVES["complete"](run, retries, delay), _MOVES[name](run, retries, delay)).transition


#: What may follow a link, some more often than others.
CHOICES = {
    RUN: ("complete", "complete", "complete", "incomplete", "transient", "unable", "hand over"),
    VALIDATE: ("accept", "accept", "retry", "fall back", "reject", "suspend"),
    PHASE_VERIFY: ("accept", "retry", "reject", "suspend"),
    RESUME: ("let pass", "ask again", "fail"),
    FALLBACK: ("repaired", "not mended"),
    FAIL: ("fail",),
}
CHOICES[PHASE_RUN] = CHOICES[RUN]
CHOICES[RUN] = CHOICES[RETRY] = (*CHOICES[RUN], "accept at once", "retry at once")
#: The shortest way to an end.
STRAIGHT = {
    RUN: "complete",
    RETRY: "complete",
    PHASE_RUN: "complete",
    VALIDATE: "accept",
    PHASE_VERIFY: "accept",
    FALLBACK: "repaired",
    FAIL: "fail",
    RESUME: "let pass",
}
