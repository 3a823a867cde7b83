"""The move after an agent run: a pure function from its result to a move. No clock, no store, no file.

Counting: incomplete runs use up attempts, passing errors do not. A turn whose last run was
incomplete ends ``incomplete``; a permanent error ends it as ``error``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from api_client.contract.attempt import AttemptFacts, AttemptRecord
from api_client.contract.counters import counter, model_of
from api_client.contract.event_kinds import AttemptCompleted, AttemptLost, Body
from api_client.contract.issues.issue import ValidationIssue
from api_client.contract.issues.turn_error import TurnError
from api_client.contract.record import FieldChanges
from api_client.contract.tasks import FAIL, PHASE_VERIFY, VALIDATE, Link
from api_client.contract.turn import Failing, Outcome, Turn, TurnState
from api_client.contract.words.messages import GIVEN_UP
from api_client.turns.record.moves import (
    Answer,
    Move,
    again,
    asked_for,
    attempt_facts,
    judged,
    policy_of,
    progress,
    retrying,
)
from worker.enforcement.going_on import LEAST, known
from worker.enforcement.policy import Attempt, Retry, decide
from worker.runners.base import Completion, ErrorKind, RunResult, Verdict, Why
from worker.turns.transitions.backoff import MOST_HAND_OVERS, Delays, delay_after, hand_over_delay
from worker.turns.transitions.escalation import escalated
from worker.turns.transitions.usage import Usage

Facts = FieldChanges[AttemptFacts]

#: Errors that pass by themselves.
_PASSING = frozenset({ErrorKind.TRANSIENT, ErrorKind.SESSION_LOST})
#: Errors by which a service shows that it works.
_ANSWERS = frozenset({ErrorKind.PERMANENT, ErrorKind.LIMIT})
#: Longest reason that is shown while turns wait, in characters.
_QUOTED = 200
#: Why a run was stopped, where that ends the turn.
_CALLED_OFF = {"cancelled": Outcome.CANCELLED, "expired": Outcome.EXPIRED}


def after_run(
    turn: Turn,
    link: Link,
    result: RunResult,
    *,
    prompt: str,
    sent: Mapping[str, Any] | None = None,
    history: Sequence[AttemptRecord] = (),
    stop: str = "",
    unsent: Sequence[Body] = (),
    transient_retries: int,
    delays: Delays,
    strikes: int = 5,
) -> Move:
    """Return what follows from an agent run.

    ``sent`` is what the agent was really sent (``Sent.to_dict``) beyond ``prompt``; ``stop`` why the run was stopped;
    ``unsent`` its events that are not logged yet; ``history`` the attempts before; ``delays`` after passing errors;
    ``strikes`` how often others may kill it.
    """
    completion, usage = result.completion, Usage.of(result.usage)
    facts = attempt_facts(
        prompt=prompt,
        text=result.text,
        completion=completion.to_dict(),
        usage=dict(result.usage),
        last_delivery=result.adopted or turn.delivery,
        goes_on=False,
    )
    facts |= attempt_facts(sent=dict(sent)) if sent else attempt_facts()
    ended = AttemptCompleted(
        attempt=link.attempt, verdict=completion.verdict.value, reason=completion.reason, usage=usage.reported()
    )
    if completion.verdict is Verdict.COMPLETE:
        move = _complete(turn, link, result.agent_session, facts, ended)
    elif stop in _CALLED_OFF and completion.verdict is not Verdict.ERROR:
        move = _called_off(turn, link, _CALLED_OFF[stop], facts, ended)
    elif stop or completion.verdict is Verdict.CANCELLED or completion.lost:
        move = _not_kept(turn, link, completion, stop, usage, facts, ended, strikes)
    elif completion.kind is ErrorKind.HOST:
        move = _handed_over(turn, link, "host", usage)
    elif completion.kind in _PASSING and turn.transients < transient_retries:
        move = _passing(turn, link, result, facts, ended, delays)
    elif completion.verdict is Verdict.ERROR:
        move = _cannot_work(turn, link, completion, facts, ended)
    else:
        move = _incomplete(turn, link, result, facts, ended, history)
    tokens, cost = _uncharged(turn, result.adopted)
    used = progress(tokens_used=tokens + usage.tokens, cost_used=cost + usage.microdollars)
    if move.run_ended:
        used |= progress(handed_over=0, avoid="")
    said = service_said(completion) if not stop else ""
    return replace(
        move,
        fields=move.fields | used,
        events=[*unsent, *move.events],
        counters=move.counters | _counted(turn, move, completion, usage),
        service=said,
        service_reason=completion.reason[:_QUOTED] if said == "failed" else "",
    )


def _passing(turn: Turn, link: Link, result: RunResult, facts: Facts, ended: AttemptCompleted, delays: Delays) -> Move:
    """An error that passes by itself: the run is repeated, unless that would be too late."""
    completion = result.completion
    delay = delay_after(completion, turn.transients, delays)
    if delay is None:
        return _cannot_work(turn, link, _too_late(completion, delays), facts, ended)
    return _again_later(turn, link, result, ended, delay)


def service_said(completion: Completion) -> str:
    """Return what a run reports about its model's service: ``answered``, ``failed``, or nothing.

    Only errors that the request did not cause are failures: 5xx, a lost connection. A limit (429, 529), a bad request
    and a refusal are answers of a service that works.
    """
    if completion.verdict in {Verdict.COMPLETE, Verdict.REFUSED}:
        return "answered"
    if completion.kind is ErrorKind.TRANSIENT and not completion.busy:
        return "failed"
    return "answered" if completion.busy or completion.kind in _ANSWERS else ""


def _uncharged(turn: Turn, adopted: int) -> tuple[int, int]:
    """Tokens and money used before this run; without what reapers charged for an adopted one, whose usage is known.

    Those who held the turn after it and were lost as well started no agent.
    """
    lost = min(turn.strikes, turn.delivery - adopted) if adopted else 0
    tokens, cost = turn.request.reserve
    return max(0, turn.tokens_used - lost * tokens), max(0, turn.cost_used - lost * cost)


def _counted(turn: Turn, move: Move, completion: Completion, usage: Usage) -> dict[str, int]:
    """Return what a run that ended is counted as; a complete one is wasted only when its answer is rejected."""
    model = model_of(turn)
    counted = usage.counted(model)
    if completion.verdict is not Verdict.COMPLETE or not move.run_ended:
        counted |= usage.wasted(model)
    if move.run_ended:
        again = completion.verdict is Verdict.ERROR and move.state is TurnState.QUEUED
        counted[counter("attempt.ended", "transient" if again else completion.verdict.value, model)] = 1
    return counted


def _complete(turn: Turn, link: Link, agent_session: str, facts: Facts, ended: AttemptCompleted) -> Move:
    return Move(
        attempt=link.attempt,
        next=Link(VALIDATE if turn.request.phase is None else PHASE_VERIFY, link.attempt),
        fields=progress(agent_session=agent_session),
        facts=facts,
        events=[ended],
        run_ended=True,
    )


def _handed_over(turn: Turn, link: Link, reason: str, usage: Usage) -> Move:
    """The worker shuts down, could not keep its lease, or its machine is sick: the attempt is delivered again.

    No strike: nothing says that the turn is to blame. A worker whose lease another one has by now is refused.
    """
    lost = AttemptLost(attempt=link.attempt, delivery=turn.delivery, during=reason or "stopped", usage=usage.reported())
    return Move(
        attempt=link.attempt,
        state=TurnState.QUEUED,
        next=link,
        events=[lost],
        counters={"delivery.handed_over": 1},
    )


def _not_kept(
    turn: Turn,
    link: Link,
    completion: Completion,
    stop: str,
    usage: Usage,
    facts: Facts,
    ended: AttemptCompleted,
    strikes: int,
) -> Move:
    """The run was stopped for a reason that is not the agent's: the attempt is delivered again.

    A worker that ends hands over at once. One that lost its lease or its guard would lose it again: so each further
    run waits longer, and after ``MOST_HAND_OVERS`` the turn ends as an error. So does one that others killed
    ``strikes`` times; before that it goes on elsewhere.
    """
    if stop == "shutdown":
        return _handed_over(turn, link, stop, usage)
    number = turn.handed_over + 1
    if number > (strikes - 1 if completion.lost else MOST_HAND_OVERS):
        reason = f"the worker could not keep the agent running, {number} times in a row: {completion.reason}"
        return _cannot_work(turn, link, replace(completion, reason=reason), facts, ended, code="not_kept")
    move = _handed_over(turn, link, stop or _cause(completion), usage)
    move = replace(move, fields=progress(handed_over=number), delay_ms=int(1000 * hand_over_delay(number)))
    return elsewhere(turn, move, f"@{turn.worker.partition('@')[2]}$") if completion.lost else move


def _cause(completion: Completion) -> str:
    """Return why a run ended that nobody asked to stop."""
    if completion.lost:
        return "killed"
    return "guard died" if completion.evidence.get("stopped") == "guard died" else "stopped"


def elsewhere(turn: Turn, move: Move, avoid: str) -> Move:
    """A hand-over that leaves the turn to others than ``avoid`` (see ``Progress``), besides those it avoids already."""
    words = " ".join(dict.fromkeys([*turn.avoid.split(), avoid]))
    return replace(move, fields=move.fields | progress(avoid=words), delay_ms=max(move.delay_ms, 1))


def given_back(turn: Turn, link: Link, reason: str) -> Move:
    """A link that this machine cannot carry out, whatever it does: another worker carries it out. No strike."""
    move = _handed_over(turn, link, reason, Usage())
    return move if turn.state is TurnState.RUNNING else replace(move, state=TurnState.RAN)


def _called_off(turn: Turn, link: Link, outcome: Outcome, facts: Facts, ended: AttemptCompleted) -> Move:
    texts = GIVEN_UP[outcome.value]
    message = texts.get(turn.request.locale, texts["en"])
    return Move(
        attempt=link.attempt,
        facts=facts,
        events=[ended],
        outcome=outcome,
        answer=Answer(error=TurnError(code=outcome.value, message=message)),
        run_ended=True,
    )


def _too_late(completion: Completion, delays: Delays) -> Completion:
    """The wait that the service asks for ends after the turn's deadline: better said at once than found out then."""
    asked = (
        f"the service asks to wait {completion.retry_after:.0f} s, and the turn has {max(0.0, delays.left):.0f} s left"
    )
    return replace(completion, reason=f"{completion.reason}; {asked}")


def _again_later(turn: Turn, link: Link, result: RunResult, ended: AttemptCompleted, delay: float) -> Move:
    """A passing error: the same attempt again after a while; it goes on from a text that broke off with the error."""
    kind = result.completion.kind
    text = result.text if policy_of(turn).go_on and kind is ErrorKind.TRANSIENT else ""
    goes_on = len(known(text)) >= LEAST
    fields = progress(transients=turn.transients + 1)
    if kind is ErrorKind.SESSION_LOST:
        fields |= progress(agent_session="")
    asking = replace(retrying(turn, link.attempt, "transient", goes_on=goes_on), delay_seconds=delay)
    return Move(
        attempt=link.attempt,
        state=TurnState.QUEUED,
        next=link,
        fields=fields,
        facts=attempt_facts(text=text, goes_on=True) if goes_on else attempt_facts(),
        events=[ended, asking],
        delay_ms=int(delay * 1000),
        run_ended=True,
    )


def _cannot_work(
    turn: Turn,
    link: Link,
    completion: Completion,
    facts: Facts,
    ended: AttemptCompleted,
    code: str = "",
) -> Move:
    code = code or (completion.kind.value if completion.kind else "error")
    return Move(
        attempt=link.attempt,
        next=Link(FAIL, link.attempt),
        facts=facts,
        fields=progress(failing=Failing(outcome=Outcome.ERROR, code=code, reason=completion.reason)),
        events=[ended],
        run_ended=True,
    )


def _refused(link: Link, completion: Completion, facts: Facts, ended: AttemptCompleted) -> Move:
    """The provider says that the model refused: to ask again would be paid for and bring the same."""
    why = completion.why.value if completion.why else Why.REFUSED.value
    failing = Failing(outcome=Outcome.REFUSED, code="refused", reason=completion.reason, why=why)
    return Move(
        attempt=link.attempt,
        next=Link(FAIL, link.attempt),
        facts=facts | attempt_facts(decision="fail"),
        fields=progress(failing=failing),
        events=[ended],
        run_ended=True,
    )


def _incomplete(
    turn: Turn,
    link: Link,
    result: RunResult,
    facts: Facts,
    ended: AttemptCompleted,
    history: Sequence[AttemptRecord],
) -> Move:
    if result.completion.verdict is Verdict.REFUSED:
        return _refused(link, result.completion, facts, ended)
    this = Attempt(number=link.attempt, text=result.text, answer="", complete=False, issues=())
    decision = decide([*judged(history), this], policy_of(turn))
    if isinstance(decision, Retry):
        return Move(
            attempt=link.attempt,
            state=TurnState.QUEUED,
            next=again(turn, link.attempt + 1),
            fields=progress(transients=0),
            facts=facts | attempt_facts(decision="retry", feedback=decision.feedback, goes_on=decision.goes_on),
            events=[ended, asked_for(turn, link, "incomplete", decision)],
            run_ended=True,
        )
    reason, why = result.completion.reason, result.completion.why or Why.BROKE_OFF
    failing = Failing(outcome=Outcome.INCOMPLETE, code="incomplete", reason=reason, why=why.value)
    move = Move(
        attempt=link.attempt,
        next=Link(FAIL, link.attempt),
        facts=facts | attempt_facts(decision="fail"),
        fields=progress(failing=failing),
        events=[ended],
        run_ended=True,
    )
    if turn.request.phase is None:
        return move
    found = ValidationIssue(code="INCOMPLETE_RESPONSE", message=reason, fix_hint="")
    return escalated(turn, move, best=link.attempt, reason="incomplete", issues=[found]) or move
