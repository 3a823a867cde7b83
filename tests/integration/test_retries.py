"""What the engine makes of answers that are asked for again: as the economy bench plays it."""

import pytest

from api_client.contract.completion import Completion, ErrorKind, IncompleteReason, Verdict
from api_client.contract.turn import Outcome
from tests.integration.engine import FIRST, Bench, Play
from tests.lab.bench.economy.behaviours import AGENTS
from tests.lab.bench.economy.corpus import Case, cases
from tests.lab.bench.economy.play import lay_out, play
from tests.support import wait_until
from worker.enforcement.feedback import continuation_feedback
from worker.runners.base import AgentEvent, Emit, Order, RunResult, Stop


def agent(case: Case, behaviour: str) -> list[Play]:
    """A runner's runs that behave as a model of the bench: it sees its prompt, and nothing else."""

    def run(order: Order, emit: Emit, stop: Stop) -> RunResult:
        first = order.attempt == 1
        text, complete = (
            (case.first, case.complete) if first else AGENTS[behaviour](case, order.prompt, order.attempt - 1)
        )
        for at in range(0, len(text), 700):
            emit(AgentEvent(kind="output", text=text[at : at + 700]))
        verdict, why = (Verdict.COMPLETE, None) if complete else (Verdict.INCOMPLETE, IncompleteReason.BROKE_OFF)
        return RunResult(completion=Completion(verdict=verdict, why=why, reason="r"), text=text)

    return [run] * 3


@pytest.mark.parametrize("behaviour", AGENTS)
async def test_the_engine_comes_to_the_same_answers_as_the_economy_bench(behaviour: str, bench: Bench) -> None:
    lay_out(bench.settings.root)
    for case in list(cases())[5::17]:
        bench.runner.plays.clear()
        session = f"s{case.number}"
        turn_id = await bench.submit(
            *agent(case, behaviour), session_id=session, locale=case.good.lang, policy={}, max_attempts=3,
            validators=("step_marker", "adr_structure", "file_existence"),
        )  # fmt: skip
        bench.carry_out(turn_id, FIRST, session)
        turn, expected = (
            await bench.client.reader.read_turn(turn_id),
            play(case, AGENTS[behaviour], bench.settings.root),
        )
        assert turn.outcome is not None
        assert (turn.outcome.success, turn.attempt) == (expected.success, expected.runs), case.name
        if expected.success:
            assert turn.response == expected.answer, case.name


async def test_an_agent_gets_the_answer_that_the_feedback_is_about(bench: Bench) -> None:
    texts, given = ["Ein Cache.", "Fertig!", "<!-- STEP: done -->"], []

    def run(order: Order, emit: Emit, stop: Stop) -> RunResult:
        given.append(order.rejected)
        text = texts[order.attempt - 1]
        emit(AgentEvent(kind="output", text=text))
        return RunResult(completion=Completion(verdict=Verdict.COMPLETE, reason="r"), text=text)

    turn_id = await bench.submit(*[run] * 3, session_id="s", policy={}, max_attempts=3, validators=("step_marker",))
    bench.carry_out(turn_id, FIRST, "s")
    assert (await bench.client.reader.read_turn(turn_id)).response == "Ein Cache.\n\n<!-- STEP: done -->"
    assert given == ["", "Ein Cache.", "Ein Cache."]


async def test_a_connection_lost_in_mid_answer_costs_no_attempt_and_the_answer_goes_on_from_there(bench: Bench) -> None:
    so_far = "Der Cache liegt vor dem Index und hält sechzig Sekunden. Er wird geleert, sobald der Schreiber sp"
    lost = Completion(verdict=Verdict.ERROR, kind=ErrorKind.TRANSIENT, reason="connection lost", retry_after=0.01)

    def breaks(order: Order, emit: Emit, stop: Stop) -> RunResult:
        emit(AgentEvent(kind="output", text=so_far))
        return RunResult(completion=lost, text=so_far)

    def rest(order: Order, emit: Emit, stop: Stop) -> RunResult:
        assert (order.so_far, order.attempt) == (so_far, 1)
        assert order.prompt == continuation_feedback(so_far)
        text = f"{so_far}eichert.\n\n<!-- STEP: done -->"
        return RunResult(completion=Completion(verdict=Verdict.COMPLETE, reason="exit 0"), text=text)

    turn_id = await bench.submit(breaks, rest)

    async def finished() -> bool:
        bench.carry_out(turn_id)
        return (await bench.client.reader.read_turn(turn_id)).outcome is not None

    await wait_until(finished)
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.outcome, turn.attempt) == (Outcome.PASSED, 1)
    assert turn.response == f"{so_far}eichert.\n\n<!-- STEP: done -->"


async def test_a_reply_that_repeats_its_feedback_below_the_heading_is_no_section(bench: Bench) -> None:
    lay_out(bench.settings.root)
    case = next(case for case in cases() if case.kind == "section_missing" and case.good.lang == "en")

    def echo(order: Order, emit: Emit, stop: Stop) -> RunResult:
        heading = next(line for line in order.prompt.splitlines() if line.startswith("## "))
        said = max(order.prompt.splitlines(), key=len)
        text = f"{heading}\n\n{said}\n"
        emit(AgentEvent(kind="output", text=text))
        return RunResult(completion=Completion(verdict=Verdict.COMPLETE, reason="r"), text=text)

    turn_id = await bench.submit(
        agent(case, "obedient, framed part")[0], echo, session_id="echo", locale="en", policy={}, max_attempts=2,
        validators=("step_marker", "adr_structure", "file_existence"),
    )  # fmt: skip
    bench.carry_out(turn_id, FIRST, "echo")
    attempts = await bench.client.reader.read_attempts(turn_id)
    assert attempts[1].decision != "accept", attempts[1].answer
    assert attempts[1].text.strip() not in attempts[1].answer
