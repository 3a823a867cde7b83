"""An agent's events on their way into the log: at once while it runs, and with the commit when it has ended."""

import asyncio
import itertools
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api_client.contract.completion import Completion, IncompleteReason, Verdict
from api_client.contract.event_kinds import AttemptOutput, AttemptTool, TurnMended
from api_client.contract.events import Body
from api_client.contract.issue import ValidationIssue
from api_client.contract.record import build_attempt, build_attempts
from api_client.contract.settings import Settings
from api_client.contract.tasks import FALLBACK, RETRY, RUN, VALIDATE, ChainTask
from api_client.contract.turn import Outcome, Turn, TurnRequest, TurnState
from api_client.turns.record.accepted import AcceptedAnswer
from api_client.turns.record.claim import LeaseClaim
from api_client.turns.record.encoding import decode_transition, encode_transition, find_orphaned
from api_client.turns.record.transition import Answer, Transition, attempt_facts, progress
from worker.enforcement.documents.step import marker_spans
from worker.runners.base import AgentEvent, RunResult
from worker.turns import folders
from worker.turns.continued_output import Continuation
from worker.turns.event_writer import EventWriter
from worker.turns.transitions.validated_run import ValidatedRun


class Log:
    """A log whose appends end when they are let."""

    def __init__(self) -> None:
        self.appends: list[list[Body]] = []
        self.open = asyncio.Event()

    async def append_events(self, _claim: LeaseClaim, events: list[Body]) -> None:
        self.appends.append(events)
        await self.open.wait()


def writer_of(log: Log) -> EventWriter:
    request = TurnRequest(model="scripted", messages=({"role": "user", "content": "x"},), session_id="s")
    turn = Turn(turn_id="turn-" + "a" * 32, epoch="e", state=TurnState.RUNNING, request=request)
    return EventWriter(log, LeaseClaim(turn, ChainTask(RUN, 1), "token", time.monotonic(), 60.0))


async def begun() -> None:
    """The loop turns twice: it sees that the run goes on, and begins to append."""
    for _ in range(2):
        await asyncio.sleep(0)


def says(text: str) -> AgentEvent:
    return AgentEvent(kind="output", text=text)


def text_of(events: list[Body]) -> str:
    return "".join(event.text for event in events if isinstance(event, AttemptOutput))


async def test_a_piece_is_sent_while_the_agent_runs() -> None:
    log = Log()
    writer = writer_of(log)
    writer.queue_event(says("a"))
    await begun()
    assert log.appends == [[AttemptOutput(attempt=1, text="a")]]
    log.open.set()
    assert await writer.close() == []


async def test_what_waits_when_the_agent_ends_is_left_to_the_commit() -> None:
    log = Log()
    writer = writer_of(log)
    writer.queue_event(says("a"))
    await begun()
    for event in (says("b"), says("c"), AgentEvent(kind="tool", text="Read"), says("d")):
        writer.queue_event(event)
    closing = asyncio.create_task(writer.close())
    await asyncio.sleep(0)
    assert not closing.done(), "an append is in flight, and its events come first"
    log.open.set()
    left = await closing
    assert log.appends == [[AttemptOutput(attempt=1, text="a")]]
    tool = AttemptTool(attempt=1, name="Read", detail="")
    assert left == [AttemptOutput(attempt=1, text="bc"), tool, AttemptOutput(attempt=1, text="d")]


async def test_what_a_run_says_that_ends_at_once_needs_no_task() -> None:
    log = Log()
    writer = writer_of(log)
    writer.queue_event(says("a"))
    assert await writer.close() == [AttemptOutput(attempt=1, text="a")]
    await begun()
    assert log.appends == []
    assert len(asyncio.all_tasks()) == 1, "the test's"


async def test_a_long_rest_is_appended_in_pieces_and_not_left_to_the_commit() -> None:
    log = Log()
    log.open.set()
    writer = writer_of(log)
    text = "".join(f"{number:07}\n" for number in range(25_000))
    writer.queue_event(says(text))
    writer.queue_event(says("end"))
    assert await writer.close() == []
    assert [len(text_of(events)) for events in log.appends] == [65_536, 65_536, 65_536, 3_395]
    assert "".join(map(text_of, log.appends)) == text + "end"


# A run that goes on from a break: the log holds the whole text, each piece once, and so does the result.

SO_FAR = "Der Cache liegt vor dem Index und hält sechzig Sekunden.\n\nEr wird geleert, sobald der Schreiber sp"
REPEATED = "Er wird geleert, sobald der Schreiber sp"
REST = "eichert. " + "Danach wird neu gelesen. " * 60 + "\n\n<!-- STEP: done -->"
AGAIN = SO_FAR + REST


class ReadLog:
    """What the log's readers make of a run's events."""

    def __init__(self) -> None:
        self.text = ""
        self.resets = 0
        self.others: list[str] = []

    def take(self, event: AgentEvent) -> None:
        if event.kind == "output":
            self.text += event.text
        elif event.kind == "reset":
            self.text, self.resets = "", self.resets + 1
        else:
            self.others.append(event.text)


def run(*pieces: str, verdict: Verdict = Verdict.COMPLETE, result: str | None = None) -> tuple[ReadLog, RunResult]:
    """What comes of an agent that says these pieces; ``!`` is a reset, ``*`` a tool."""
    log = ReadLog()
    continuation = Continuation(SO_FAR, log.take)
    said = ""
    for piece in pieces:
        kind = {"!": "reset", "*": "tool"}.get(piece, "output")
        said = "" if kind == "reset" else said + piece if kind == "output" else said
        continuation.handle_event(AgentEvent(kind=kind, text=piece))  # type: ignore[arg-type]
    text = said if result is None else result
    return log, continuation.join_result(RunResult(completion=Completion(verdict=verdict, reason="r"), text=text))


def test_the_text_so_far_is_told_first_and_stays() -> None:
    log = ReadLog()
    Continuation(SO_FAR, log.take)
    assert log.text == SO_FAR


@settings(max_examples=100, deadline=None)
@given(
    reply=st.sampled_from([REPEATED + REST, f"> {REPEATED}{REST}", AGAIN]),
    cuts=st.lists(st.integers(0, 1500), max_size=8),
)
def test_however_it_is_cut_into_pieces_log_and_result_are_the_same_text(reply: str, cuts: list[int]) -> None:
    places = sorted({0, *(min(cut, len(reply)) for cut in cuts), len(reply)})
    log, result = run(*(reply[a:b] for a, b in itertools.pairwise(places)))
    assert log.text == result.text == SO_FAR + REST
    assert result.completion.verdict is Verdict.COMPLETE
    assert log.resets <= (reply == AGAIN)


def test_a_rest_in_many_pieces_flows_before_the_run_is_over() -> None:
    log = ReadLog()
    continuation = Continuation(SO_FAR, log.take)
    for word in f"{REPEATED}{REST}"[:900].split(" "):
        continuation.handle_event(AgentEvent(kind="output", text=f"{word} "))
    assert len(log.text) > len(SO_FAR) + 500


def test_tools_are_told_at_once_and_a_reset_takes_back_what_this_run_said() -> None:
    log, result = run(REPEATED, "*", " und mehr " * 100, "!", REPEATED + REST)
    assert log.others == ["*"]
    assert log.text == result.text == SO_FAR + REST


def test_the_result_wins_over_what_was_told() -> None:
    log, result = run(REPEATED + REST, result=REPEATED + "eichert.\n\n<!-- STEP: done -->")
    assert log.text == result.text == SO_FAR + "eichert.\n\n<!-- STEP: done -->"


@pytest.mark.parametrize(
    "reply", ["Das kann ich nicht.\n\n<!-- STEP: done -->", "<!-- STEP: done -->", "", "Nein. " * 300]
)
def test_a_complete_run_whose_text_does_not_fit_is_incomplete_and_its_text_is_not_in_the_answer(reply: str) -> None:
    log, result = run(reply)
    assert (result.completion.verdict, result.completion.why) == (Verdict.INCOMPLETE, IncompleteReason.BROKE_OFF)
    assert log.text == result.text == SO_FAR
    assert result.completion.evidence["continuation"] == {"kept": len(SO_FAR), "added": 0, "fits": False}


@pytest.mark.parametrize("verdict", [Verdict.INCOMPLETE, Verdict.CANCELLED, Verdict.ERROR])
def test_a_run_that_breaks_off_again_keeps_its_verdict_and_adds_what_it_said(verdict: Verdict) -> None:
    log, result = run(REPEATED + "eichert. Danach", verdict=verdict)
    assert result.completion.verdict is verdict
    assert log.text == result.text == SO_FAR + "eichert. Danach"
    assert result.completion.evidence["continuation"] == {"kept": len(SO_FAR), "added": 15, "fits": True}


# A long text is stored once, and found again by whoever reads the record.

LONG = "Ein Satz.\n" * 4000 + "<!-- STEP: done -->\n"
OTHER = "Etwas anderes.\n" * 4000


def ending(response: str, **facts: Any) -> Transition:
    answer = Answer(response=response, step="done", step_source="marker")
    return Transition(attempt=2, outcome=Outcome.PASSED, facts=attempt_facts(**facts), answer=answer)


def test_short_texts_stay_where_they_are() -> None:
    transition = ending("Ja.", answer="Ja.")
    wire = encode_transition(transition, {"text": "Ja."})
    assert (wire.facts, wire.response, wire.response_in) == ({"answer": "Ja."}, "Ja.", "")


@pytest.mark.parametrize(
    ("transition", "stored", "place", "sent"),
    [
        (ending(LONG, answer=LONG), {"text": LONG}, "2:text", 0),
        (ending(LONG, answer=LONG), {"text": OTHER}, "2:answer", 1),
        (ending(LONG, mended=LONG), {"text": OTHER, "answer": OTHER}, "2:mended", 1),
        (ending(LONG, decision="accept"), {"text": LONG, "answer_in": "text"}, "2:text", 0),
        (ending(LONG, decision="accept"), {"text": OTHER}, "2:response", 1),
    ],
    ids=["as the agent said it", "spliced", "by the fallback", "by a person", "edited by a person"],
)
def test_a_long_answer_is_sent_once_at_most_and_read_again(
    transition: Transition, stored: dict[str, str], place: str, sent: int
) -> None:
    wire = encode_transition(transition, stored)
    assert (wire.response_in, wire.response) == (place, "")
    assert wire.transition.texts.spans == marker_spans(LONG)
    words = [str(word) for word in (*wire.build_arguments().values(), *wire.build_rest())]
    assert sum(len(word) > 20_000 for word in words) == sent
    assert decode_transition(wire.to_dict(), [], stored).answer == transition.answer
    [record] = build_attempts({2: {**stored, **wire.facts}})
    if "answer" in transition.facts.values:
        assert record.answer == LONG


def test_a_seal_does_not_hold_the_text_either() -> None:
    accepted = AcceptedAnswer(transition=ending(LONG, answer=LONG), delivery="d")
    stored = {"text": LONG}
    sealed = accepted.to_json(stored)
    assert len(sealed) < 1000
    found = AcceptedAnswer.from_json(sealed, lambda _: stored)
    assert found == accepted
    assert found.to_json(stored) == sealed


def test_a_seal_of_a_run_that_was_judged_at_once_says_all_of_the_run() -> None:
    run = Transition(
        attempt=2, facts=attempt_facts(text="Ja."), counters={"a": 1}, service="answered", service_reason="why"
    )
    verdict = replace(ending("Ja.", answer="Ja."), counters={"a": 1, "b": 2}, validated=True)
    transition = ValidatedRun.of(run, verdict, validation_ms=7).transition
    assert (transition.run_ended, transition.validated, transition.validation_ms, transition.counters) == (
        True,
        True,
        7,
        {"a": 2, "b": 2},
    )
    found = AcceptedAnswer.from_json(AcceptedAnswer(transition=transition, delivery="d").to_json({}), lambda _: {})
    assert found.transition == transition


def test_a_changed_copy_of_a_move_has_texts_of_its_own() -> None:
    transition = replace(ending("Ja.", answer="Ja."), events=[AttemptOutput(attempt=2, text="Ja.")])
    assert transition.texts.events == ["attempt.output", '{"attempt": 2, "text": "Ja."}']
    assert replace(transition, events=[]).texts.events == []
    assert replace(transition, facts=attempt_facts(answer="Nein.")).texts.facts == {"answer": "Nein."}


def test_an_answer_that_is_written_anew_is_no_longer_that_of_another_fact() -> None:
    stored = {"text": LONG, "answer_in": "text"}
    facts = {**stored, **encode_transition(Transition(attempt=2, facts=attempt_facts(answer="kurz")), stored).facts}
    [record] = build_attempts({2: facts})
    assert record.answer == "kurz"


def test_the_users_message_is_no_fact_of_the_attempt_that_was_asked_with_it() -> None:
    asked = encode_transition(Transition(attempt=1, facts=attempt_facts(prompt=LONG, text=LONG)), {}, LONG)
    assert asked.facts == {"prompt_in": "request", "text": LONG}
    [record] = build_attempts({1: asked.facts}, LONG)
    assert (record.prompt, record.text) == (LONG, LONG)


def test_a_run_that_is_asked_to_go_on_is_no_longer_shown_with_the_users_message() -> None:
    stored = {"prompt_in": "request"}
    facts = {
        **stored,
        **encode_transition(Transition(attempt=1, facts=attempt_facts(prompt=OTHER)), stored, LONG).facts,
    }
    [record] = build_attempts({1: facts}, LONG)
    assert record.prompt == OTHER


VERY_LONG = LONG * 3


@pytest.mark.parametrize(
    ("transition", "stored", "facts", "ahead", "place"),
    [
        (Transition(attempt=2, facts=attempt_facts(text=VERY_LONG)), {}, {"text_in": "text~me"}, ["text~me"], ""),
        (
            ending(VERY_LONG, answer=VERY_LONG),
            {"text": OTHER},
            {"answer_in": "answer~me"},
            ["answer~me"],
            "2:answer~me",
        ),
        (
            ending(VERY_LONG, decision="accept"),
            {"text": OTHER},
            {"decision": "accept"},
            ["response~me"],
            "2:response~me",
        ),
        (
            ending(VERY_LONG, answer=VERY_LONG),
            {"text_in": "text~other", "text~other": VERY_LONG},
            {"answer_in": "text~other"},
            [],
            "2:text~other",
        ),
        (ending(VERY_LONG, answer=VERY_LONG), {"text": VERY_LONG}, {"answer_in": "text"}, [], "2:text"),
        (Transition(attempt=2, facts=attempt_facts(text=LONG)), {}, {"text": LONG}, [], ""),
    ],
    ids=["a run's", "spliced", "edited by a person", "as the agent said it", "of the landed format", "not that long"],
)
def test_a_very_long_text_is_written_before_its_move_under_the_writers_token(
    transition: Transition, stored: dict[str, str], facts: dict[str, str], ahead: list[str], place: str
) -> None:
    wire = encode_transition(transition, stored, token="me")
    assert (wire.facts, list(wire.ahead), wire.response_in) == (facts, ahead, place)
    assert wire.build_arguments()["ahead"] == " ".join(ahead)
    assert not any(len(word) > len(LONG) for word in map(str, (*wire.build_arguments().values(), *wire.build_rest())))
    known = {**stored, **wire.ahead, **wire.facts}
    [record] = build_attempts({2: known})
    if "answer" in transition.facts.values:
        assert record.answer == VERY_LONG
    if "text" in transition.facts.values:
        assert record.text == transition.facts.values["text"]
    assert find_orphaned(known) == ["response~me"] * (place == "2:response~me")
    assert encode_transition(transition, known, token="me").ahead == {}


def test_what_was_written_ahead_of_no_move_is_known_by_its_name() -> None:
    facts = {"text_in": "text~a", "text~a": VERY_LONG, "text~b": OTHER, "answer_in": "", "answer~b": OTHER}
    assert find_orphaned(facts) == ["text~b", "answer~b"]


# What a holder knows of its attempts without asking the store again.

REQUEST = TurnRequest(model="m", messages=({"role": "user", "content": "?"},), session_id="s")
RUN_ENDED = Transition(
    attempt=1,
    facts=attempt_facts(
        prompt="?",
        text="Ja.",
        completion={"verdict": "complete", "evidence": {"exit_code": 0}},
        usage={"input_tokens": 3},
        issues=(ValidationIssue("X", "wrong", "right", line=3),),
        decision="retry",
        last_delivery=1,
    ),
)


def claim() -> LeaseClaim:
    turn = Turn(turn_id=f"turn-{'a' * 32}", epoch="e", state=TurnState.RUNNING, request=REQUEST)
    return LeaseClaim(turn, ChainTask(RUN, 1), "token", 0.0, 60.0, attempts={})


def test_what_a_holder_wrote_of_a_new_attempt_is_what_a_reader_finds() -> None:
    held = claim()
    assert held.records_after(RUN_ENDED) == {1: build_attempt(1, RUN_ENDED.texts.facts)}


def test_an_attempt_that_changes_again_is_read_again() -> None:
    held = claim()
    held.attempts = {1: RUN_ENDED.texts.facts}
    held.records = {1: build_attempt(1, RUN_ENDED.texts.facts)}
    assert held.records_after(Transition(attempt=1, facts=attempt_facts(answer="Nein."))) == {}
    assert held.records_after(Transition(attempt=2, facts=attempt_facts(text="Nein."))).keys() == {1, 2}


# Of which runs a holder removes the recordings, once what it decided is stored.


def unforgotten(link: ChainTask, *, continued: bool, recorded: bool = True) -> list[int]:
    runner = SimpleNamespace(name="r", adopt=lambda _order: None) if recorded else SimpleNamespace(name="r")
    turn = SimpleNamespace(request=SimpleNamespace(model="m", work=""), stage=0)
    claim: Any = SimpleNamespace(turn=turn, chain_task=link)
    runners: Any = lambda _spec: (runner, "")  # noqa: E731
    return list(folders.find_recorded_attempts(Settings(models={"m": "r"}), claim, runners, continued=continued))


@pytest.mark.parametrize(
    ("link", "continued", "attempts"),
    [
        (ChainTask(RUN, 1), False, [1]),
        (ChainTask(RETRY, 3), False, [1, 2, 3]),
        (ChainTask(VALIDATE, 2), False, [1, 2]),
        (ChainTask(RETRY, 3), True, [3]),
        (ChainTask(VALIDATE, 3), True, []),
        (ChainTask(FALLBACK, 3), True, []),
    ],
)
def test_a_holder_removes_what_is_recorded_of_its_own_run_and_of_those_before_it_that_others_held(
    link: ChainTask, continued: bool, attempts: list[int]
) -> None:
    assert unforgotten(link, continued=continued) == attempts


def test_of_a_runner_whose_runs_are_not_recorded_nothing_is_removed() -> None:
    assert unforgotten(ChainTask(RETRY, 3), continued=False, recorded=False) == []


def test_what_was_accepted_is_read_again_as_it_was_written() -> None:
    transition = Transition(
        attempt=2,
        facts=attempt_facts(mended="ä"),
        fields=progress(best=2),
        events=[TurnMended(attempt=2, changes=("x",), fixed=(), step="done", step_source="inferred")],
        counters={"turn.mended": 1},
        end_counters={"turn.repaired": 1},
        validated=True,
        outcome=Outcome.PASSED_BY_FALLBACK,
        answer=Answer(response="Grüße\n", step="done", step_source="inferred"),
    )
    accepted = AcceptedAnswer(transition=transition, delivery="turn-a-2-3", mended={"ADR-001.md": "# ADR"})
    assert AcceptedAnswer.from_json(accepted.to_json({}), lambda _: {}) == accepted
