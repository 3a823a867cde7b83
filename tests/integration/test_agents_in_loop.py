"""Agents that are watched by the worker's event loop: they cost no thread, and none holds up the loop."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.completion import Completion, Verdict
from tests.runs import Asked, order_in
from tests.support import wait_until
from worker.runners.base import AgentEvent, Order, RunResult
from worker.runners.event_reader import EventReader
from worker.runners.sandbox import loop_watch, process_tags
from worker.runners.sandbox.guard_client import AgentProcesses
from worker.runners.sandbox.process_runner import PreparedRun
from worker.runners.scripted.runner import ScriptedRunner

AGENTS = 20


@pytest.fixture
def order(tmp_path: Path) -> Order:
    (tmp_path / "script.yaml").write_text(
        f"- attempts: [[{{say: 'Ja. '}}, {{wait_for: {tmp_path}/go}}, {{say: Gut.}}]]"
    )
    option = str(tmp_path / "script.yaml")
    return order_in(tmp_path, f"loop-{tmp_path.name}", option=option, deadline=time.monotonic() + 600)


def many(order: Order) -> list[Order]:
    values = {name: getattr(order, name) for name in Order.__slots__}
    return [Order(**{**values, "delivery": number}) for number in range(1, AGENTS + 1)]


async def test_agents_at_work_have_no_thread_each_and_all_are_heard(agents: AgentProcesses, order: Order) -> None:
    runner, said, before = ScriptedRunner(agents), list[AgentEvent](), threading.active_count()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    runs = [asyncio.create_task(runner.run_async(each, said.append, Asked())) for each in many(order)]
    await wait_until(lambda: len(said) == AGENTS)
    assert threading.active_count() - before <= 5, "two of the executor, the guard's, orders and footprints"
    (order.workdir / "go").touch()
    for result in await asyncio.gather(*runs):
        assert (result.completion.verdict, result.text) == (Verdict.COMPLETE, "Ja. Gut.")
    assert loop_watch._rounds == {}, "nobody is watched any more"


class Clearing(ScriptedRunner):
    """Counts how often what a run needs no more is removed."""

    cleared = 0

    def prepare_run(self, order: Order) -> PreparedRun | RunResult:
        def clear() -> None:
            self.cleared += 1

        play = super().prepare_run(order)
        assert isinstance(play, PreparedRun)
        return replace(play, clear=clear)


async def test_a_run_hands_two_things_to_threads_its_start_and_its_end(
    agents: AgentProcesses, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed, hand, runner = list[str](), asyncio.to_thread, Clearing(agents)

    async def counted(work: Callable[..., object], *rest: object) -> object:
        handed.append(work.__name__)
        return await hand(work, *rest)

    monkeypatch.setattr(asyncio, "to_thread", counted)
    (order.workdir / "go").touch()
    result = await runner.run_async(order, lambda _: None, Asked())
    assert (result.text, runner.cleared) == ("Ja. Gut.", 1)
    assert handed == ["_start_run", "_conclude_run"]


async def test_a_run_that_cannot_be_started_or_read_is_cleared_too(
    agents: AgentProcesses, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object, **__: object) -> list[AgentEvent]:
        raise ZeroDivisionError

    for broken, name in ((AgentProcesses, "spawn_agent"), (EventReader, "take_line")):
        runner = Clearing(agents)
        with monkeypatch.context() as patch:
            patch.setattr(broken, name, breaks)
            with pytest.raises(ZeroDivisionError):
                await runner.run_async(order, lambda _: None, Asked())
        assert runner.cleared == 1


async def test_a_guard_that_takes_no_orders_holds_up_no_loop(
    agents: AgentProcesses, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, stop, said = ScriptedRunner(agents), Asked(), list[AgentEvent]()
    asked, free, ended = threading.Event(), threading.Event(), list[bool]()
    guard = agents._running_guard()
    send = guard.send

    def hangs(request: dict[str, Any], fds: Sequence[int] = ()) -> str:
        if fds:
            return send(request, fds)
        asked.set()
        ended.append(free.wait(300))
        return ""

    monkeypatch.setattr(guard, "send", hangs)
    run = asyncio.create_task(runner.run_async(order, said.append, stop))
    await wait_until(lambda: said and asked.is_set())
    assert ended == [], "the loop waited for the guard"
    free.set()
    (order.workdir / "go").touch()
    assert (await run).text == "Ja. Gut."


async def test_what_breaks_while_an_agent_is_heard_ends_it_and_is_not_swallowed(
    agents: AgentProcesses, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(_self: EventReader, _line: bytes) -> list[AgentEvent]:
        raise ZeroDivisionError

    monkeypatch.setattr(EventReader, "take_line", breaks)
    with pytest.raises(ZeroDivisionError):
        await ScriptedRunner(agents).run_async(order, lambda _: None, Asked())
    assert loop_watch._rounds == {}


async def test_an_agent_whose_run_is_cancelled_is_ended(agents: AgentProcesses, order: Order) -> None:
    said = list[AgentEvent]()
    run = asyncio.create_task(ScriptedRunner(agents).run_async(order, said.append, Asked()))
    await wait_until(lambda: said)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await wait_until(lambda: agents._running_guard().agent_of(order.process_tag) is None)
    assert order.process_tag not in [mark for _, mark in process_tags.process_tags()]
    assert loop_watch._rounds == {}


async def test_events_of_the_end_come_before_the_result(agents: AgentProcesses, order: Order) -> None:
    """What a runner tells in a thread, once its agent has ended, is in the log before the run is over."""

    class Telling(ScriptedRunner):
        def prepare_run(self, order: Order):  # type: ignore[no-untyped-def]
            play = super().prepare_run(order)

            def conclude(_ending: object, emit) -> RunResult:  # type: ignore[no-untyped-def]
                emit(AgentEvent(kind="note", text="late"))
                return RunResult(completion=Completion(verdict=Verdict.COMPLETE, reason=""))

            return type(play)(launch=play.launch, take_line=play.take_line, conclude=conclude)  # type: ignore[union-attr, call-arg]

    (order.workdir / "go").touch()
    said: list[AgentEvent] = []
    await Telling(agents).run_async(order, said.append, Asked())
    assert said[-1].text == "late"
