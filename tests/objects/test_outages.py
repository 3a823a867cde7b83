"""The object store is away when a run has ended: its holder keeps what was paid for until the store is back."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.session_files import SessionFilesAway
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, TurnState
from tests.installation import Installation, asked
from tests.integration.engine import FIRST, GOOD, NO_MARKER, Bench, Play, says
from tests.objects.gate import Gate
from tests.objects.seaweedfs import ObjectServer
from tests.support import wait_until
from worker.plugins.object_store import snapshot_store
from worker.plugins.object_store.objects import ObjectStoreClient
from worker.turns.transitions.backoff import MOST_HAND_OVERS

#: So often the store is asked in vain before it comes back: as in an outage of so many seconds.
OUTAGES = {5: 2, 40: 6, 90: 12}


@pytest.fixture
def gate(server: ObjectServer) -> Gate:
    return Gate(server.url)


@pytest.fixture
async def bench(away: Settings, gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """A worker that asks a store that is away again after a blink."""
    monkeypatch.setattr(snapshot_store, "_FIRST_WAIT", 0.01)
    monkeypatch.setattr(snapshot_store, "_LONGEST_WAIT", 0.05)
    monkeypatch.setattr(
        snapshot_store,
        "ObjectStoreClient",
        lambda settings, patience=0.2: ObjectStoreClient(settings, min(patience, 0.2)),
    )
    through = replace(away, files_endpoint=gate.url, root=tmp_path / "host")
    through.root.mkdir()
    async with TurnsClient(through) as client:
        made = Bench(through, client)
        yield made
        made.close()


class Outage:
    """The store goes away when an agent has ended. ``asked``: so often it was asked in vain since."""

    def __init__(self, bench: Bench, gate: Gate) -> None:
        self._gate, self.asked = gate, 0
        files: Any = bench.service.parts.files
        trouble = files.find_trouble

        def counted() -> str:
            why: str = trouble()
            self.asked += bool(why)
            return why

        files.find_trouble = counted

    def after(self, play: Play) -> Play:
        def played(*given: Any) -> Any:
            result = play(*given)
            self._gate.shut()
            return result

        return played


@pytest.fixture
def outage(bench: Bench, gate: Gate) -> Outage:
    return Outage(bench, gate)


def writes_then(text: str) -> Play:
    def play(order: Any, emit: Any, stop: Any) -> Any:
        (order.workdir / "memory.txt").write_text("kept")
        return says(text)(order, emit, stop)

    return play


async def told(bench: Bench, outage: Outage, text: str = GOOD, **more: Any) -> tuple[str, asyncio.Future[None]]:
    """A turn whose run has ended while the store is away."""
    turn_id = await bench.submit(outage.after(writes_then(text)), **more)
    working = asyncio.ensure_future(asyncio.to_thread(bench.carry_out, turn_id))
    await wait_until(lambda: outage.asked >= 1 or working.done())
    assert not working.done(), "nobody waits"
    return turn_id, working


@pytest.mark.parametrize("seconds", OUTAGES)
@pytest.mark.parametrize("text", [GOOD, NO_MARKER])
async def test_a_finished_run_is_kept_until_the_store_is_back(
    bench: Bench, outage: Outage, gate: Gate, seconds: int, text: str
) -> None:
    turn_id, working = await told(bench, outage, text)
    await wait_until(lambda: outage.asked >= OUTAGES[seconds])
    if text == NO_MARKER:
        bench.runner.plays.append(writes_then(GOOD))
    gate.open()
    await working
    turn = await bench.client.reader.read_turn(turn_id)
    assert turn.outcome in (Outcome.PASSED, Outcome.PASSED_AFTER_RETRY)
    assert (len(bench.runner.orders), turn.strikes) == (1 + (text == NO_MARKER), 0), "nothing was paid for twice"
    assert turn.delivery == len(bench.runner.orders)
    assert (await bench.client.session_files.of("s")).manifest.files["memory.txt"]  # type: ignore[union-attr]


async def test_a_turn_that_is_cancelled_meanwhile_ends_as_cancelled(bench: Bench, outage: Outage) -> None:
    turn_id, working = await told(bench, outage)
    await bench.client.canceller.cancel(turn_id)
    await working
    assert (await bench.client.reader.read_turn(turn_id)).outcome is Outcome.CANCELLED


async def test_a_turn_whose_time_is_over_meanwhile_expires(bench: Bench, outage: Outage) -> None:
    turn_id, working = await told(bench, outage, deadline_seconds=3.0)
    await working
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.outcome, len(bench.runner.orders)) == (Outcome.EXPIRED, 1)


async def test_a_worker_that_ends_meanwhile_hands_the_turn_over(bench: Bench, outage: Outage, gate: Gate) -> None:
    turn_id, working = await told(bench, outage)
    bench.leases.stop_all("shutdown")
    await working
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.state, turn.handed_over, turn.strikes) == (TurnState.QUEUED, 1, 0)
    gate.open()


async def test_a_run_that_was_stored_waits_as_long_as_its_turn_may(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    """Its answer is judged by others, who cannot bring the session: beyond the hand-overs of a run that did not end."""
    turn_id = await bench.submit(writes_then(GOOD))
    with monkeypatch.context() as patched:
        patched.setattr("worker.turns.service.validate_at_once", _not_at_once)
        patched.setattr(bench.service, "_runs_in_place", lambda *_: False)
        await asyncio.to_thread(bench.carry_out_one, FIRST, turn_id)
    link = bench.announced.pop(0)[0]

    async def never(_lease: object) -> None:
        raise SessionFilesAway("not now")

    with monkeypatch.context() as patched:
        patched.setattr(bench.service.parts.files, "restore_files", never)
        for _ in range(MOST_HAND_OVERS + 2):
            bench.store.hset(bench.keys.turn(turn_id), "not_before", 0)
            await asyncio.to_thread(bench.carry_out_one, link, turn_id)
            assert (await bench.client.reader.read_turn(turn_id)).state is TurnState.RAN
    bench.store.hset(bench.keys.turn(turn_id), "not_before", 0)
    await asyncio.to_thread(bench.carry_out, turn_id, link)
    assert (await bench.client.reader.read_turn(turn_id)).outcome is Outcome.PASSED
    assert len(bench.runner.orders) == 1


async def _not_at_once(*_: object) -> None:
    return None


async def test_the_turn_of_a_worker_that_dies_meanwhile_ends_when_the_store_is_back(
    installation: Installation, server: ObjectServer, gate: Gate, away: Settings
) -> None:
    """A real worker is killed while it waits; another one on its disk goes on."""
    action_log = installation.settings.root / "action_log.jsonl"
    installation.settings = replace(away, files_endpoint=gate.url, action_log=str(action_log), lease_seconds=2.0)
    script = [
        {"attempts": [[{"write": {"path": "memory.txt", "content": "kept"}}, {"say": {"text": GOOD, "seconds": 1}}]]}
    ]
    installation.play(json.dumps(script))
    worker = installation.worker()
    turn_id = await installation.client.submitter.submit(asked("hi"))
    await wait_until(lambda: action_log.exists() and "start" in action_log.read_text())
    gate.shut()
    await wait_until(lambda: "session.waits" in worker.log_file.read_text())
    worker.kill()
    installation.worker()
    gate.open()
    assert (await installation.result(turn_id)).outcome is Outcome.PASSED
