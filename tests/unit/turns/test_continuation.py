"""A run that goes on from a break: the log holds the whole text, each piece once, and so does the result."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.runners.base import AgentEvent, Completion, RunResult, Verdict, Why
from worker.turns.continuation import Continuation

SO_FAR = "Der Cache liegt vor dem Index und hält sechzig Sekunden.\n\nEr wird geleert, sobald der Schreiber sp"
REPEATED = "Er wird geleert, sobald der Schreiber sp"
REST = "eichert. " + "Danach wird neu gelesen. " * 60 + "\n\n<!-- STEP: done -->"
AGAIN = SO_FAR + REST


class Log:
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


def run(*pieces: str, verdict: Verdict = Verdict.COMPLETE, result: str | None = None) -> tuple[Log, RunResult]:
    """What comes of an agent that says these pieces; ``!`` is a reset, ``*`` a tool."""
    log = Log()
    continuation = Continuation(SO_FAR, log.take)
    said = ""
    for piece in pieces:
        kind = {"!": "reset", "*": "tool"}.get(piece, "output")
        said = "" if kind == "reset" else said + piece if kind == "output" else said
        continuation.emit(AgentEvent(kind=kind, text=piece))  # type: ignore[arg-type]
    text = said if result is None else result
    return log, continuation.ended(RunResult(completion=Completion(verdict=verdict, reason="r"), text=text))


def test_the_text_so_far_is_told_first_and_stays() -> None:
    log = Log()
    Continuation(SO_FAR, log.take)
    assert log.text == SO_FAR


@settings(max_examples=100, deadline=None)
@given(
    reply=st.sampled_from([REPEATED + REST, REST, f"Gern, hier geht es weiter:\n\n{REPEATED}{REST}", AGAIN]),
    cuts=st.lists(st.integers(0, 1500), max_size=8),
)
def test_however_it_is_cut_into_pieces_log_and_result_are_the_same_text(reply: str, cuts: list[int]) -> None:
    places = sorted({0, *(min(cut, len(reply)) for cut in cuts), len(reply)})
    log, result = run(*(reply[a:b] for a, b in itertools.pairwise(places)))
    assert log.text == result.text == SO_FAR + REST
    assert result.completion.verdict is Verdict.COMPLETE
    assert log.resets <= (reply == AGAIN)


def test_a_rest_in_many_pieces_flows_before_the_run_is_over() -> None:
    log = Log()
    continuation = Continuation(SO_FAR, log.take)
    for word in f"{REPEATED}{REST}"[:900].split(" "):
        continuation.emit(AgentEvent(kind="output", text=f"{word} "))
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
    assert (result.completion.verdict, result.completion.why) == (Verdict.INCOMPLETE, Why.BROKE_OFF)
    assert log.text == result.text == SO_FAR
    assert result.completion.evidence["went_on"] == {"kept": len(SO_FAR), "added": 0, "fits": False}


@pytest.mark.parametrize("verdict", [Verdict.INCOMPLETE, Verdict.CANCELLED, Verdict.ERROR])
def test_a_run_that_breaks_off_again_keeps_its_verdict_and_adds_what_it_said(verdict: Verdict) -> None:
    log, result = run(REPEATED + "eichert. Danach", verdict=verdict)
    assert result.completion.verdict is verdict
    assert log.text == result.text == SO_FAR + "eichert. Danach"
    assert result.completion.evidence["went_on"] == {"kept": len(SO_FAR), "added": 15, "fits": True}
