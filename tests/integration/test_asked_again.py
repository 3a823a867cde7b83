"""What the engine makes of answers that are asked for again: as the economy bench plays it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from tests.bench.economy.agents import AGENTS
from tests.bench.economy.corpus import Case, cases
from tests.bench.economy.play import lay_out, play
from tests.integration.test_engine import FIRST, Bench, Play
from worker.runners.base import AgentEvent, Completion, Emit, Order, RunResult, Stop, Verdict, Why


@pytest.fixture
async def bench(settings: Settings) -> AsyncIterator[Bench]:
    async with TurnsClient(settings) as client:
        made = Bench(replace(settings, transient_delay_seconds=0.01), client)
        yield made
        made.leases.close()


def agent(case: Case, behaviour: str) -> list[Play]:
    """A runner's runs that behave as a model of the bench: it sees its prompt, and nothing else."""

    def run(order: Order, emit: Emit, stop: Stop) -> RunResult:
        first = order.attempt == 1
        text, complete = (
            (case.first, case.complete) if first else AGENTS[behaviour](case, order.prompt, order.attempt - 1)
        )
        for at in range(0, len(text), 700):
            emit(AgentEvent(kind="output", text=text[at : at + 700]))
        verdict, why = (Verdict.COMPLETE, None) if complete else (Verdict.INCOMPLETE, Why.BROKE_OFF)
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
        turn, expected = await bench.client.get(turn_id), play(case, AGENTS[behaviour], bench.settings.root)
        assert turn.outcome is not None
        assert (turn.outcome.success, turn.attempt) == (expected.success, expected.runs), case.name
        if expected.success:
            assert turn.response == expected.answer, case.name
