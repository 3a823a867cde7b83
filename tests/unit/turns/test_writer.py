"""An agent's events on their way into the log: at once while it runs, and with the commit when it has ended."""

from __future__ import annotations

import asyncio
import time

from api_client.contract.event_kinds import AttemptOutput, AttemptTool, Body
from api_client.contract.tasks import RUN, Link
from api_client.contract.turn import Turn, TurnRequest, TurnState
from worker.runners.base import AgentEvent
from worker.turns.record.claim import Claim
from worker.turns.writer import EventWriter


class Log:
    """A log whose appends end when they are let."""

    def __init__(self) -> None:
        self.appends: list[list[Body]] = []
        self.open = asyncio.Event()

    async def append(self, _claim: Claim, events: list[Body]) -> None:
        self.appends.append(events)
        await self.open.wait()


def writer_of(log: Log) -> EventWriter:
    request = TurnRequest(model="scripted", messages=({"role": "user", "content": "x"},), session_id="s")
    turn = Turn(turn_id="t0-" + "a" * 32, epoch="e", state=TurnState.RUNNING, request=request)
    return EventWriter(log, Claim(turn, Link(RUN, 1), "token", time.monotonic(), 60.0))


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
    writer.emit(says("a"))
    await begun()
    assert log.appends == [[AttemptOutput(attempt=1, text="a")]]
    log.open.set()
    assert await writer.close() == []


async def test_what_waits_when_the_agent_ends_is_left_to_the_commit() -> None:
    log = Log()
    writer = writer_of(log)
    writer.emit(says("a"))
    await begun()
    for event in (says("b"), says("c"), AgentEvent(kind="tool", text="Read"), says("d")):
        writer.emit(event)
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
    writer.emit(says("a"))
    assert await writer.close() == [AttemptOutput(attempt=1, text="a")]
    await begun()
    assert log.appends == []
    assert len(asyncio.all_tasks()) == 1, "the test's"


async def test_a_long_rest_is_appended_in_pieces_and_not_left_to_the_commit() -> None:
    log = Log()
    log.open.set()
    writer = writer_of(log)
    text = "".join(f"{number:07}\n" for number in range(25_000))
    writer.emit(says(text))
    writer.emit(says("end"))
    assert await writer.close() == []
    assert [len(text_of(events)) for events in log.appends] == [65_536, 65_536, 65_536, 3_395]
    assert "".join(map(text_of, log.appends)) == text + "end"
