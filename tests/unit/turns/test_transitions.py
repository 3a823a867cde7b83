"""What follows from verifications that come to no end: the tries of one attempt are not the next one's."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.completion import Completion, ErrorKind, IncompleteReason, ProviderFault, Verdict
from api_client.contract.decision import DecisionKind, TurnDecision
from api_client.contract.errors import BadRequest, SettingsError
from api_client.contract.escalation import Escalation, check_escalation
from api_client.contract.event_kinds import TurnRetrying, TurnSuspended
from api_client.contract.interruption import Interruption
from api_client.contract.issue import ValidationIssue
from api_client.contract.messages import explain_break, format_issue
from api_client.contract.phase_work import PHASE_RUN, PHASE_VERIFY
from api_client.contract.settings import Settings
from api_client.contract.tasks import FAIL, RETRY, RUN, ChainTask
from api_client.contract.tool_calls import WaitingCall
from api_client.contract.turn import Outcome, PendingFailure, Turn, TurnRequest, TurnState
from api_client.interruptions.escalation_question import VERDICT
from api_client.turns.record.transition import Transition, attempt_facts
from worker.enforcement.feedback import continuation_feedback, incomplete_feedback
from worker.phases.after_verification import VERIFIER_TRIES, transition_after_verification
from worker.runners.base import RunResult
from worker.turns.folders import may_be_recorded, may_write_files
from worker.turns.transitions.after_run import after_run, classify_service
from worker.turns.transitions.after_validation import after_giving_up
from worker.turns.transitions.backoff import Delays
from worker.turns.transitions.interruptions import resume_turn
from worker.verification import ResultGround, VerificationResult
from worker.verification.gates.gate import GateReport, GateResult
from worker.verification.gates.gate_codes import build_gate_issue
from worker.verification.phase_loop import compose_feedback
from worker.verification.result import build_gates_result

_SILENT = VerificationResult(success=False, errors=["no verdict"], ground=ResultGround.NO_VERDICT)
_REJECTED = VerificationResult(success=False, errors=["no docstring"], ground=ResultGround.VERDICT)


@pytest.fixture
def turn() -> Turn:
    request = TurnRequest(model="m", messages=(), session_id="s", work="phase", max_attempts=3)
    return Turn(turn_id="turn-" + "0" * 32, epoch="e", state=TurnState.VALIDATING, request=request)


def verified(turn: Turn, *results: VerificationResult) -> tuple[Turn, Transition]:
    """The turn after these verifications of its attempt, as far as its record tells of their tries; the last move."""
    for result in results:
        record = AttemptRecord(number=turn.attempt, text="Fertig.")
        transition = transition_after_verification(turn, ChainTask(PHASE_VERIFY, turn.attempt), record, result, stop="")
        turn = replace(turn, unverified=transition.fields.values.get("unverified", turn.unverified))
    return turn, transition


def test_verifiers_without_a_verdict_do_not_cost_the_next_attempt_its_tries(turn: Turn) -> None:
    silent = [_SILENT] * (VERIFIER_TRIES - 1)
    turn, transition = verified(turn, *silent, _REJECTED)
    assert transition.next == ChainTask(PHASE_RUN, 2)
    turn, transition = verified(replace(turn, attempt=2), *silent)
    assert transition.next == ChainTask(PHASE_VERIFY, 2), "attempt 2 has all its tries"
    _, transition = verified(turn, _SILENT)
    assert transition.next == ChainTask(FAIL, 2)


def test_a_verifier_is_asked_again_later_and_later(turn: Turn) -> None:
    delays = [verified(replace(turn, unverified=tries), _SILENT)[1].delay_ms for tries in range(VERIFIER_TRIES - 1)]
    assert delays == [1000, 2000]


def test_gates_that_may_not_run_on_this_worker_end_the_turn_with_the_reason_and_cost_no_attempt(turn: Turn) -> None:
    refused = VerificationResult(success=False, errors=["no sandbox here"], ground=ResultGround.REFUSED)
    _, transition = verified(turn, refused)
    assert (transition.next, transition.validated) == (ChainTask(FAIL, 1), False)
    assert transition.fields.values["failing"] == PendingFailure(
        outcome=Outcome.ERROR, code="config", reason="no sandbox here"
    )


# What was found, told with file and line: in the end message, to the model of an escalation, after a person's note.

SYNTAX = build_gate_issue("PYTHON_SYNTAX", "en", file="add.py", line=1, problem="'(' was never closed")
MISSING = build_gate_issue("MISSING_FILE", "en", file="b.py", path="b.py", suggestion="")
TOLD = f"PYTHON_SYNTAX: add.py:1: {SYNTAX.message}"


def gates(*found: ValidationIssue) -> VerificationResult:
    return build_gates_result(GateReport(results=(GateResult(gate="syntax", issues=found),)))


def turn_to_escalate(escalation: Escalation | None = None) -> Turn:
    request = TurnRequest(
        model="m",
        messages=(),
        session_id="s",
        work="phase",
        max_attempts=1,
        locale="en",
        attached=escalation.attached if escalation else {},
    )
    return Turn(turn_id="turn-" + "0" * 32, epoch="e", state=TurnState.VALIDATING, request=request)


def verified_by_gates(escalation: Escalation | None) -> Transition:
    record = AttemptRecord(number=1, text="Done.")
    return transition_after_verification(
        turn_to_escalate(escalation), ChainTask(PHASE_VERIFY, 1), record, gates(SYNTAX), stop=""
    )


def test_a_finding_is_told_with_code_place_and_message() -> None:
    assert format_issue(SYNTAX) == TOLD
    assert format_issue(MISSING) == f"MISSING_FILE: {MISSING.message}"  # the message names the file
    assert format_issue(ValidationIssue("X", "y", "", line=3)) == "X: y"  # a line of an answer nobody sees
    assert format_issue(ValidationIssue("X", "", "")) == "X: "


def test_the_model_of_an_escalation_is_told_file_and_line() -> None:
    transition = verified_by_gates(Escalation(model="big"))
    assert transition.next == ChainTask(PHASE_RUN, 2)
    assert f"- {TOLD}" in transition.facts.values["feedback"]


def test_the_end_message_names_file_and_line() -> None:
    failing = PendingFailure(code="phase_not_verified", reason="rejected")
    ended = after_giving_up(turn_to_escalate(), ChainTask(FAIL, 1), failing, [SYNTAX])
    assert f"- {TOLD}" in ended.answer.error.message


@pytest.mark.parametrize("kind", [DecisionKind.RETRY, DecisionKind.REJECT])
def test_a_persons_decision_carries_file_and_line(kind: DecisionKind) -> None:
    decision = TurnDecision(kind=kind, by="me", note="Close it.")
    asked = Interruption(kind=VERDICT)
    suspended = replace(turn_to_escalate(Escalation()), best=1, decision=decision, interruption=asked)
    record = AttemptRecord(number=1, text="Done.", issues=(SYNTAX,))
    transition = resume_turn(suspended, 1, record)
    told = transition.facts.values["feedback"] if kind == "retry" else transition.answer.error.message
    assert f"- {TOLD}" in told


def test_feedback_tells_each_finding_of_a_gate_once() -> None:
    told = compose_feedback(gates(SYNTAX, MISSING))
    for found in (SYNTAX, MISSING):
        assert told.count(found.message) == 1
        assert told.count(found.fix_hint) == 1


def test_feedback_of_a_verifier_keeps_errors_and_advice() -> None:
    told = compose_feedback(VerificationResult(success=False, errors=["no docstring", "no test"], feedback="Add both."))
    assert told == "- no docstring\n- no test\n\nAdd both."
    same = compose_feedback(VerificationResult(success=False, errors=["no docstring"], feedback="no docstring"))
    assert same == "- no docstring"


@pytest.mark.parametrize("escalation", [Escalation(model="big", runs=0), Escalation(model="", runs=3)])
def test_no_runs_or_no_model_leave_stage_one_out(escalation: Escalation) -> None:
    check_escalation(escalation, {"big": "scripted"})
    assert verified_by_gates(escalation).state is TurnState.SUSPENDED
    assert verified_by_gates(replace(escalation, human=False)).next == ChainTask(FAIL, 1)


def test_runs_beyond_the_limits_are_refused_with_what_zero_means() -> None:
    for runs in (-1, 11):
        with pytest.raises(BadRequest, match=rf"from 0 \(no stage 1\) to 10, not {runs}"):
            check_escalation(Escalation(model="big", runs=runs), {"big": "scripted"})


# Whether agents of a turn may have left something on disk, as a worker that knows its model says, and as another.

SETTINGS = Settings(models={"scripted": "scripted:x.yaml"})
REQUEST = TurnRequest(model="scripted", messages=({"role": "user", "content": "x"},), session_id="s")
TURN = Turn(turn_id="turn-" + "a" * 32, epoch="e", state=TurnState.RUNNING, request=REQUEST)


def builds(**runner: Any) -> Any:
    return lambda _model: (SimpleNamespace(**runner), "")


def cannot_build(_model: str) -> Any:
    raise SettingsError(["no such file"])


@pytest.mark.parametrize(
    ("runner", "files", "recorded"),
    [
        ({"needs_folder": True, "adopt": lambda order: None}, True, True),
        ({"needs_folder": True}, True, False),
        ({"needs_folder": False, "adopt": lambda order: None}, False, False),
    ],
    ids=["adopts", "works in files", "talks only"],
)
def test_its_runner_says_what_a_turn_may_have_left(runner: Any, files: bool, recorded: bool) -> None:
    assert may_write_files(SETTINGS, TURN, builds(**runner)) is files
    assert may_be_recorded(SETTINGS, TURN, builds(**runner)) is recorded


@pytest.mark.parametrize(
    ("turn", "runners"),
    [
        (replace(TURN, request=replace(REQUEST, model="of another worker")), builds(needs_folder=False)),
        (replace(TURN, stage=1), builds(needs_folder=False)),
        (TURN, cannot_build),
    ],
    ids=["model of another worker", "escalated", "set up wrongly here"],
)
def test_what_a_worker_does_not_know_may_have_left_anything(turn: Turn, runners: Any) -> None:
    assert may_write_files(SETTINGS, turn, runners)
    assert may_be_recorded(SETTINGS, turn, runners)


# What follows from a run that broke off: a chat's agent goes on from its text, a phase's begins with its files.

TEXT = "Der Cache liegt vor dem Index und hält sechzig Sekunden. Er wird geleert, sobald der Schreiber sp"


DIED = Completion(verdict=Verdict.INCOMPLETE, why=IncompleteReason.BROKE_OFF, reason="died")


def broke_off(text: str, *before: AttemptRecord, work: str = "", completion: Completion = DIED) -> Transition:
    request = TurnRequest(model="m", messages=({"role": "user", "content": "?"},), session_id="s", work=work)
    turn = Turn(turn_id="turn-" + "0" * 32, epoch="e", state=TurnState.RUNNING, request=request)
    link = ChainTask(PHASE_RUN if work else RUN, len(before) + 1)
    result = RunResult(completion=completion, text=text)
    return after_run(
        turn, link, result, prompt="?", history=before, transient_retries=3, delays=Delays(first=1, left=9)
    )


def goes_on(transition: Transition) -> bool:
    [told] = [body for body in transition.events if isinstance(body, TurnRetrying)]
    assert transition.facts.values["goes_on"] is told.goes_on
    return bool(told.goes_on)


def test_the_text_of_a_chat_is_gone_on_from() -> None:
    transition = broke_off(TEXT)
    assert (transition.next, transition.facts.values["text"], transition.facts.values["feedback"]) == (
        ChainTask(RETRY, 2),
        TEXT,
        continuation_feedback(TEXT),
    )
    assert goes_on(transition)


@pytest.mark.parametrize("text", ["", "Halb"])
def test_next_to_nothing_is_asked_for_in_full(text: str) -> None:
    transition = broke_off(text)
    assert transition.facts.values["feedback"] == incomplete_feedback()
    assert not goes_on(transition)


def test_a_phase_is_asked_for_in_full_whatever_its_agent_said() -> None:
    assert not goes_on(broke_off(TEXT, work="phase"))


def test_a_second_break_is_gone_on_from_with_the_longer_text() -> None:
    first = AttemptRecord(number=1, text=TEXT, completion={"verdict": "incomplete"}, goes_on=True, decision="retry")
    transition = broke_off(f"{TEXT}eichert. Danach wird neu gel", first)
    assert "> Der Cache liegt vor dem Index" in transition.facts.values["feedback"]
    assert "Danach wird neu gel" in transition.facts.values["feedback"]
    assert goes_on(transition)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (ErrorKind.TRANSIENT, TEXT, True),
        (ErrorKind.TRANSIENT, "Halb", False),
        (ErrorKind.SESSION_LOST, TEXT, False),
    ],
)
def test_a_passing_error_in_mid_answer_leaves_its_text_to_the_same_attempt(
    kind: ErrorKind, text: str, expected: bool
) -> None:
    transition = broke_off(text, completion=Completion(verdict=Verdict.ERROR, kind=kind, reason="connection lost"))
    assert transition.next == ChainTask(RUN, 1)
    assert [body.goes_on for body in transition.events if isinstance(body, TurnRetrying)] == [expected]
    assert transition.facts == (attempt_facts(text=text, goes_on=True) if expected else attempt_facts())


def test_a_run_that_ends_otherwise_leaves_nothing_to_go_on_from() -> None:
    done = Completion(verdict=Verdict.COMPLETE, reason="exit 0")
    assert broke_off(TEXT, completion=done).facts.values["goes_on"] is False


# What a user reads when a turn ends without an answer: every sentence in their language.

REASON = "the agent was killed by signal 9"


def end(completion: Completion, locale: str) -> str:
    """The message of a turn whose only run ended so."""
    messages = ({"role": "user", "content": "x"},)
    request = TurnRequest(model="m", messages=messages, session_id="s", locale=locale, max_attempts=1)
    turn = Turn(turn_id="turn-1", epoch="e", state=TurnState.RUNNING, request=request, delivery=1)
    ran = after_run(
        turn,
        ChainTask("turn.run", 1),
        RunResult(completion=completion),
        prompt="x",
        transient_retries=0,
        delays=Delays(first=1.0),
    )
    given_up = after_giving_up(turn, ChainTask("turn.fail", 1), ran.fields.values["failing"], [])
    assert given_up.answer
    assert given_up.answer.error.reason == completion.reason
    return str(given_up.answer.error.message)


@pytest.mark.parametrize("why", [*IncompleteReason, None])
def test_a_reader_of_german_gets_no_english_sentence(why: IncompleteReason | None) -> None:
    message = end(Completion(verdict=Verdict.INCOMPLETE, why=why, reason=REASON), "de")
    assert REASON not in message
    assert message.splitlines()[1].startswith("- ")
    assert REASON in end(Completion(verdict=Verdict.INCOMPLETE, why=why, reason=REASON), "en")


@pytest.mark.parametrize("kind", [kind for kind in ErrorKind if kind is not ErrorKind.HOST])  # that ends no turn
def test_nor_when_the_agent_could_not_work(kind: ErrorKind) -> None:
    message = end(Completion(verdict=Verdict.ERROR, kind=kind, reason=REASON), "de")
    assert REASON not in message


def test_each_why_has_words_of_its_own() -> None:
    assert len({explain_break(why.value, "de", REASON) for why in IncompleteReason}) == len(IncompleteReason)


# What a run reports about its model's service: only errors that the request did not cause open the breaker.


@pytest.mark.parametrize(
    ("verdict", "kind", "busy", "said"),
    [
        (Verdict.COMPLETE, None, False, "answered"),
        (Verdict.ERROR, ErrorKind.TRANSIENT, False, "failed"),  # 5xx, a lost connection
        (Verdict.ERROR, ErrorKind.TRANSIENT, True, "limited"),  # 429, 529
        (Verdict.ERROR, ErrorKind.PERMANENT, False, "answered"),  # 400, 413, a refusal
        (Verdict.ERROR, ErrorKind.LIMIT, False, "answered"),
        (Verdict.ERROR, ErrorKind.CONFIG, False, ""),
        (Verdict.ERROR, ErrorKind.HOST, False, ""),
        (Verdict.ERROR, ErrorKind.SESSION_LOST, False, ""),
        (Verdict.INCOMPLETE, None, False, ""),
    ],
)
def test_only_an_error_that_the_request_did_not_cause_counts_against_the_service(
    verdict: Verdict, kind: ErrorKind | None, busy: bool, said: str
) -> None:
    assert classify_service(Completion(verdict=verdict, reason="r", kind=kind, busy=busy)) == said


# A person is asked about a tool call, and answers.

CALL = WaitingCall(call="c1", tool="Bash", arguments={"command": "git push"}, digest="d", wait_seconds=60)
ASKS = RunResult(
    completion=Completion(verdict=Verdict.ASKS, reason="asks"),
    text="Nun.",
    agent_session="agent-1",
    interruption=CALL.to_interruption(),
)
DELAYS = Delays(first=1.0)


@pytest.fixture
def working() -> Turn:
    request = TurnRequest(model="m", messages=(), session_id="s", max_attempts=2)
    return Turn(turn_id="turn-" + "0" * 32, epoch="e", state=TurnState.RUNNING, request=request, attempt=1, delivery=1)


def ran(turn: Turn, result: RunResult, stop: str = "") -> Transition:
    more = {"prompt": "p", "transient_retries": 2, "delays": DELAYS, "stop": stop}
    return after_run(turn, ChainTask(RUN, 1), result, **more)


def asked(turn: Turn, **answer: object) -> Turn:
    """The turn with its question, and an answer to it."""
    question = replace(CALL.to_interruption(), delivery=turn.delivery, **answer)
    return replace(turn, interruption=question, agent_session="agent-1", delivery=turn.delivery + 1)


def test_a_call_that_a_person_is_asked_about_suspends_the_turn_and_no_is_its_default(working: Turn) -> None:
    transition = ran(working, ASKS)
    assert (transition.state, transition.next, transition.suspend_seconds, transition.run_ended) == (
        TurnState.SUSPENDED,
        None,
        60.0,
        True,
    )
    asks = transition.fields.values["interruption"]
    assert (asks.silence, asks.delivery, transition.fields.values["agent_session"]) == ("reject", 1, "agent-1")
    suspended = transition.events[-1]
    assert isinstance(suspended, TurnSuspended)
    assert (suspended.reason, suspended.interruption.asked["arguments"]) == ("tool_call", {"command": "git push"})
    assert transition.facts.values["text"] == "Nun."


def test_a_call_that_may_have_run_is_asked_about_in_other_words(working: Turn) -> None:
    said_yes = asked(working, answer="approve")
    assert ran(said_yes, ASKS).events[-1].reason == "asked_again"
    another = replace(ASKS, interruption=replace(CALL, call="c2").to_interruption())
    assert ran(said_yes, another).events[-1].reason == "tool_call"
    assert ran(asked(working, answer="reject"), ASKS).events[-1].reason == "tool_call"


def test_a_turn_that_was_called_off_asks_nobody(working: Turn) -> None:
    assert ran(working, ASKS, stop="cancelled").outcome is Outcome.CANCELLED
    assert ran(working, ASKS, stop="shutdown").state is TurnState.QUEUED


@pytest.mark.parametrize(
    ("kind", "timed_out", "answer"),
    [
        (DecisionKind.APPROVE, False, "approve"),
        (DecisionKind.APPROVE, True, "reject"),
        (DecisionKind.REJECT, False, "reject"),
        (DecisionKind.REJECT, True, "reject"),
        (DecisionKind.EDIT, False, "reject"),
    ],
)
def test_only_the_yes_of_a_person_is_a_yes_and_it_is_for_the_next_delivery(
    kind: DecisionKind, timed_out: bool, answer: str, working: Turn
) -> None:
    by = "timeout" if timed_out else "alice"
    decision = TurnDecision(kind=kind, by=by, note="bitte nicht")
    transition = resume_turn(replace(asked(working), decision=decision), 1, None)
    assert (transition.state, transition.next, transition.outcome) == (TurnState.QUEUED, ChainTask(RETRY, 1), None)
    question = transition.fields.values["interruption"]
    assert (question.answer, question.note) == (answer, "bitte nicht")


@pytest.mark.parametrize(("text", "refused"), [("x" * 20_000, "too_long"), ("x\u200b", "")])
def test_a_call_that_nobody_can_be_shown_is_a_no_with_its_reason_and_the_agent_goes_on(
    text: str, refused: str, working: Turn
) -> None:
    transition = ran(working, replace(ASKS, interruption=replace(CALL, arguments={"command": text}).to_interruption()))
    assert transition.state is (TurnState.QUEUED if refused else TurnState.SUSPENDED)
    assert transition.fields.values["interruptions"] == {"tool_call": {"asked": 1}}
    if refused:
        assert (transition.next, transition.fields.values["interruption"].answer) == (ChainTask(RETRY, 1), "reject")
        assert "too long to show" in transition.events[-1].text


@pytest.mark.parametrize(
    ("before", "used", "call", "unused"),
    [
        ("", "", None, 1),
        ("n1", "", None, 0),
        ("", "n1", None, 0),
        ("", "", "c2", 1),
        ("", "", "c1", 0),
        ("n1", "", "c2", 0),
    ],
)
def test_a_call_that_was_allowed_and_never_ran_is_counted_and_noted(
    before: str, used: str, call: str | None, unused: int, working: Turn
) -> None:
    """Whether its run ends with an answer or with another question."""
    turn = replace(asked(working, answer="approve"), answer_used=before)
    done = RunResult(completion=Completion(verdict=Verdict.COMPLETE, reason="r"), text="Nun.", agent_session="n")
    result = (
        replace(
            ASKS, interruption=replace(CALL, call=call, digest=CALL.digest if call == "c1" else "d2").to_interruption()
        )
        if call
        else done
    )
    more = {"prompt": "p", "transient_retries": 2, "delays": DELAYS}
    transition = after_run(turn, ChainTask(RUN, 1), result, answer_used=used, **more)
    counted = transition.fields.values.get("interruptions", {}).get("tool_call", {})
    assert counted.get("unused", 0) == unused
    assert any("Allowed, but never run: Bash" in getattr(each, "text", "") for each in transition.events) == bool(
        unused
    )


def test_a_question_is_over_with_its_attempt_and_not_before(working: Turn) -> None:
    going_on = asked(working, answer="approve")

    def after(verdict: Verdict, kind: ErrorKind | None = None) -> dict[str, Any]:
        result = RunResult(
            completion=Completion(verdict=verdict, kind=kind, reason="r"), text="Nun.", agent_session="n"
        )
        return dict(ran(going_on, result).fields.values)

    assert after(Verdict.COMPLETE) | {"interruption": None, "agent_session": "n"} == after(Verdict.COMPLETE)
    broken = after(Verdict.INCOMPLETE)
    assert (broken["interruption"], broken["agent_session"]) == (None, ""), "its session ends with a call that waits"
    assert "interruption" not in after(Verdict.ERROR, ErrorKind.TRANSIENT), "the same attempt goes on from the question"


def test_a_text_that_broke_off_after_a_question_is_not_gone_on_from(working: Turn) -> None:
    """Its session goes on with the question, and says all that again."""
    text = "Das ist ein langer Anfang. " * 40
    result = RunResult(completion=Completion(verdict=Verdict.ERROR, kind=ErrorKind.TRANSIENT, reason="529"), text=text)
    assert ran(working, result).facts.values.get("goes_on")
    assert not ran(asked(working, answer="approve"), result).facts.values.get("goes_on")


# Another model takes over, by what the service of the one before had against the run.

LISTS = {"limit": ("b", "c"), "auth": ("c", "b"), "overloaded": ("b",)}


def failed(
    turn: Turn, fault: ProviderFault, *, kind: ErrorKind = ErrorKind.PERMANENT, busy: bool = False, lists: Any = LISTS
) -> Transition:
    completion = Completion(verdict=Verdict.ERROR, reason="HTTP", kind=kind, fault=fault, busy=busy)
    more: dict[str, Any] = {"prompt": "p", "transient_retries": 2, "delays": Delays(first=1, left=99)}
    return after_run(turn, ChainTask(RUN, 1), RunResult(completion=completion), fallbacks=lists, **more)


def test_the_models_of_a_list_take_over_one_after_the_other_and_none_twice() -> None:
    asks = TurnRequest(model="a", messages=(), session_id="s")
    turn = Turn(turn_id="turn-" + "0" * 32, epoch="e", state=TurnState.RUNNING, request=asks)
    found = []
    for fault, kind in ((ProviderFault.LIMIT, ErrorKind.TRANSIENT), (ProviderFault.AUTH, ErrorKind.PERMANENT)):
        transition = failed(turn, fault, kind=kind, busy=kind is ErrorKind.TRANSIENT)
        changed = transition.fields.values
        found.append((changed["stage_model"], transition.next))
        turn = replace(turn, stage_model=changed["stage_model"], fell=changed["fell"])
    assert found == [("b", ChainTask(RUN, 1)), ("c", ChainTask(RUN, 1))]
    assert turn.models == "a (limit), b (auth), c"
    assert failed(turn, ProviderFault.AUTH).next == ChainTask(FAIL, 1), "all have been tried"


def test_models_that_name_each_other_do_not_pass_a_turn_round() -> None:
    asks = TurnRequest(model="a", messages=(), session_id="s")
    turn = Turn(turn_id="turn-" + "0" * 32, epoch="e", state=TurnState.RUNNING, request=asks)
    lists = {fault.value: ("a", "b", "c", "b", "a") for fault in ProviderFault}
    asked = ["a"]
    for fault in [*ProviderFault] * 5:
        fields = failed(turn, fault, lists=lists).fields.values
        if "stage_model" in fields:
            asked.append(fields["stage_model"])
            turn = replace(turn, stage_model=fields["stage_model"], fell=fields["fell"])
    assert asked == ["a", "b", "c"]


def test_only_an_error_that_was_tried_again_and_has_a_list_goes_to_another_model() -> None:
    asks = TurnRequest(model="a", messages=(), session_id="s")
    turn = Turn(turn_id="turn-" + "0" * 32, epoch="e", state=TurnState.RUNNING, request=asks)
    passing = failed(turn, ProviderFault.OVERLOADED, kind=ErrorKind.TRANSIENT)
    assert (passing.fields.values["transients"], "stage_model" in passing.fields.values) == (1, False)
    tried = failed(replace(turn, transients=2), ProviderFault.OVERLOADED, kind=ErrorKind.TRANSIENT)
    assert tried.fields.values["stage_model"] == "b"
    assert failed(turn, ProviderFault.CONTEXT_LENGTH).next == ChainTask(FAIL, 1), "no list"
    assert failed(replace(turn, stage=1, stage_model="x"), ProviderFault.AUTH).next == ChainTask(FAIL, 1), (
        "an escalation's model"
    )
