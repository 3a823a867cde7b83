"""Helpers for tests in which a person approves a tool call, shared by the tests of all agents."""

from collections.abc import Callable
from pathlib import Path

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn, TurnRequest, TurnState
from tests.installation import WorkerProcess
from tests.support import put, wait_until

Workers = Callable[..., WorkerProcess]


async def submitted(client: TurnsClient, text: str = "Push it", **more: object) -> str:
    values = {"model": "helix", "messages": ({"role": "user", "content": text},), "session_id": "s", "locale": "en"}
    asked = client.policies.apply_policy(TurnRequest(**(values | more)), owner="", named=())  # type: ignore[arg-type]
    return await client.submitter.submit(asked)


async def waiting(client: TurnsClient, turn_id: str) -> Turn:
    """Wait until the turn is suspended by a question, and return the turn."""

    async def suspended() -> bool:
        turn = await client.reader.read_turn(turn_id)
        assert turn.outcome is None, [a.completion for a in await client.reader.read_attempts(turn_id)]
        return turn.state is TurnState.SUSPENDED

    await wait_until(suspended)
    return await client.reader.read_turn(turn_id)


async def killed_before_the_call(
    settings: Settings, workers: Workers, points: Path, point: str = "agent.started", **more: object
) -> Turn:
    """Kill the worker when its agent continues after the approval, before the tool call has run; return the turn.

    An agent that lives longer than its worker may end by itself, told that its call could not be checked.
    """
    workers(settings=settings)
    async with TurnsClient(settings) as client:
        turn = await waiting(client, await submitted(client, **more))  # type: ignore[arg-type]
        put(points / point, "kill")
        await client.inbox.decide_turn(turn.turn_id, "approve", by="alice")
        await wait_until((points / f"{point}.1").exists)
        workers(settings=settings)
        turn = await client.reader.await_result(turn.turn_id, timeout=120)
        asked = [event for event in await client.reader.read_events(turn.turn_id) if event.kind == "turn.suspended"]
    assert (len(asked), turn.delivery) == (1, 3), "one asked, one was lost, one let it run"
    return turn


async def killed_after_the_call(
    settings: Settings, workers: Workers, ran: Callable[[], object], **more: object
) -> Turn:
    """Kill the worker after the approved call has run, and check that a person is asked before a second run."""
    first = workers(settings=settings)
    async with TurnsClient(settings) as client:
        turn = await waiting(client, await submitted(client, **more))  # type: ignore[arg-type]
        before = turn.interruption
        await client.inbox.decide_turn(turn.turn_id, "approve", by="alice")
        await wait_until(ran)
        found = ran()
        first.kill()
        workers(settings=settings)
        turn = await waiting(client, turn.turn_id)
        assert turn.interruption.asked["call"] == before.asked["call"]
        assert ran() == found, "nobody has said yes to a second time"
        asked = [event for event in await client.reader.read_events(turn.turn_id) if event.kind == "turn.suspended"]
        assert asked[-1].data["reason"] == "asked_again"
        await client.inbox.decide_turn(turn.turn_id, "reject", by="alice")
        return await client.reader.await_result(turn.turn_id, timeout=120)
