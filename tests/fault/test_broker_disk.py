"""The broker's disk: full, its file cut or damaged, its last writes lost."""

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.errors import StoreUnavailable, TurnNotFound
from api_client.contract.keys import Keys, keys_for_turn
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, Turn, TurnState
from api_client.contract.worker_reports import WorkerReport
from tests.fault.staged import disk_full
from tests.installation import asked, command
from tests.support import wait_for, wait_until
from worker.processes.append_only_file import remove_holes
from worker.processes.embedded_broker import BrokerError, EmbeddedBroker


def settings_on(settings: Settings, broker: EmbeddedBroker) -> Settings:
    return replace(settings, broker_url=broker.url, store_url=broker.url)


def log_of(broker: EmbeddedBroker) -> Path:
    [found] = (broker.directory / "appendonlydir").glob("*.incr.aof")
    return found


async def submitted(client: TurnsClient, size: int = 1000) -> str:
    """Submit a turn and return its id, or an empty string if the turn cannot be stored."""
    try:
        return await client.submitter.submit(asked("x" * size, secrets.token_hex(4)))
    except StoreUnavailable:
        return ""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Provide a file system of 1 MB."""
    with disk_full.small_disk(tmp_path / "disk", 1) as folder:
        yield folder


async def test_while_the_brokers_disk_is_full_nothing_is_stored_by_half_and_afterwards_all_goes_on(
    settings: Settings, small_disk: Path
) -> None:
    filler = small_disk / "filler"
    with EmbeddedBroker(small_disk / "b") as broker:
        async with TurnsClient(settings_on(settings, broker)) as client:
            before = await client.submitter.submit(asked("before"))
            disk_full.fill(filler)
            stored: list[str] = []
            while turn_id := await submitted(client):  # what fits into the file's last page is still taken
                stored.append(turn_id)
                assert len(stored) < 100, "a full disk is not noticed"
            filler.unlink()
            after = await wait_until(lambda: submitted(client), tick=0.2)
            for turn_id in (before, *stored, after):
                assert (await client.reader.read_turn(turn_id)).state is TurnState.QUEUED


async def test_a_turn_that_a_full_disk_took_by_half_is_named_so_that_nobody_asks_twice(
    settings: Settings, small_disk: Path
) -> None:
    with EmbeddedBroker(small_disk / "b") as broker:
        on = settings_on(settings, broker)
        assert command(on, "submit", "before").returncode == 0
        disk_full.fill(small_disk / "filler")
        refused = await wait_until(lambda: _submit_until_refused(on), tick=0.01)
        assert "may be stored" in refused, refused
        [named] = re.findall(r"(turn-\w+) may be stored: see `turns turn show \1`", refused)
        (small_disk / "filler").unlink()
        async with TurnsClient(on) as client:
            turn = await wait_until(lambda: _read_turn(client, named), tick=0.2)
            assert turn.state is TurnState.QUEUED


async def _submit_until_refused(settings: Settings) -> str:
    done = await asyncio.to_thread(command, settings, "submit", "x" * 3000)
    return done.stderr if done.returncode else ""


async def _read_turn(client: TurnsClient, turn_id: str) -> Turn | None:
    with contextlib.suppress(StoreUnavailable):
        return await client.reader.read_turn(turn_id)
    return None


def rewritten(broker: EmbeddedBroker) -> None:
    """Have the broker's file rewritten, as the server does by itself when the file has grown."""
    store = redis.Redis.from_url(broker.url)
    store.execute_command("BGREWRITEAOF")
    wait_for(lambda: not store.info("persistence")["aof_rewrite_in_progress"])


def has_holes(broker: EmbeddedBroker) -> bool:
    content = log_of(broker).read_bytes()
    return remove_holes(content) != content


def keeper_of(broker: EmbeddedBroker) -> int:
    """Return the id of the process that looks after the broker's file."""
    [found] = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split()
    return int(found)


@pytest.mark.parametrize("size", [1, 700, 20_000, 60_000])
@pytest.mark.parametrize("how", ["soon", "late", "never"])
async def test_what_is_acknowledged_after_a_full_disk_is_there_at_the_next_start(
    settings: Settings, small_disk: Path, size: int, how: str
) -> None:
    """Room is made before or after the keeper has seen the full disk, or the keeper is frozen."""
    with EmbeddedBroker(small_disk / "b") as broker, redis.Redis.from_url(broker.url) as store:
        rewritten(broker)
        async with TurnsClient(settings_on(settings, broker)) as client:
            stored = [await client.submitter.submit(asked("before"))]
            if how == "never":
                os.kill(keeper_of(broker), signal.SIGSTOP)
            disk_full.fill(small_disk / "filler")
            while turn_id := await submitted(client, size):
                stored.append(turn_id)
            if how == "late":
                await wait_until(lambda: store.info("clients")["paused_actions"] == "write")
            (small_disk / "filler").unlink()
            stored.append(await wait_until(lambda: submitted(client, size), tick=0.01))
            holes = has_holes(broker)
            assert not (holes and how == "late"), "acknowledged before the file was rewritten"
            if how != "never":
                await wait_until(lambda: store.info("persistence")["aof_rewrites"] == 2)
                await wait_until(lambda: store.info("clients")["paused_actions"] == "none")
                assert not has_holes(broker)
        broker.kill()
        broker.start()
        assert bool([*broker.directory.glob("*.incr.aof.*")]) == bool(holes and how == "never")
        async with TurnsClient(settings_on(settings, broker)) as client:
            for turn_id in stored:
                assert (await client.reader.read_turn(turn_id)).state is TurnState.QUEUED
            assert await client.submitter.submit(asked("after"))


async def test_on_a_full_disk_an_end_is_shown_if_the_store_took_a_write_after_it(
    settings: Settings, small_disk: Path
) -> None:
    with EmbeddedBroker(small_disk / "b") as broker:
        on = settings_on(settings, broker)
        async with TurnsClient(on) as client:
            early, late = [await client.submitter.submit(asked("x", name)) for name in ("early", "late")]
            for turn_id in (early, late):
                await client.canceller.cancel(turn_id)
            ended = (await client.reader.read_turn(early)).finished_at
            report = WorkerReport(name="w", at=ended + 2.0)  # as a worker's heartbeat two seconds later
            await client.store.redis.hset(Keys(on.namespace).workers, "w", report.to_json())
            late_at = {"finished_at": round(ended * 1000) + 3000}  # and this one ended after that
            await client.store.redis.hset(keys_for_turn(on.namespace, late).turn(late), mapping=late_at)
            disk_full.fill(small_disk / "filler")
            while await submitted(client):
                pass
        async with TurnsClient(on) as client:  # which has shown nothing yet
            assert (await client.reader.read_turn(early)).outcome is Outcome.CANCELLED
            with pytest.raises(StoreUnavailable) as refused:
                await client.reader.read_turn(late)
            assert refused.value.refusal is not None
            assert refused.value.refusal.word == "MISCONF"


async def test_a_cut_tail_costs_the_last_write_alone(settings: Settings, private_broker: EmbeddedBroker) -> None:
    async with TurnsClient(settings_on(settings, private_broker)) as client:
        turns = [await client.submitter.submit(asked(f"{number}", f"s{number}")) for number in range(3)]
        private_broker.kill()
        log = log_of(private_broker)
        log.write_bytes(log.read_bytes()[:-7])
        private_broker.start()
        for turn_id in turns[:-1]:
            assert (await client.reader.read_turn(turn_id)).state is TurnState.QUEUED
        assert await client.submitter.submit(asked("again"))


async def test_a_damaged_file_is_refused_loudly(settings: Settings, private_broker: EmbeddedBroker) -> None:
    async with TurnsClient(settings_on(settings, private_broker)) as client:
        for number in range(3):
            await client.submitter.submit(asked(f"{number}", f"s{number}"))
    private_broker.kill()
    log = log_of(private_broker)
    damaged = bytearray(log.read_bytes())
    middle = damaged.index(b"*", len(damaged) // 2)
    damaged[middle] ^= 1
    log.write_bytes(damaged)
    with pytest.raises(BrokerError):
        private_broker.start()


async def test_a_turn_of_a_lost_last_second_is_gone_and_its_id_never_continues_its_history(
    settings: Settings, private_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    copy, kept = tmp_path / "copy", private_broker.directory / "appendonlydir"
    async with TurnsClient(settings_on(settings, private_broker)) as client:
        before = await client.submitter.submit(asked("before", "a"))
        shutil.copytree(kept, copy)
        lost = await client.submitter.submit(asked("lost", "b"))
        epoch = (await client.reader.read_turn(lost)).epoch
        private_broker.kill()
        shutil.rmtree(kept)
        shutil.copytree(copy, kept)
        private_broker.start()
        assert (await client.reader.read_turn(before)).state is TurnState.QUEUED
        with pytest.raises(TurnNotFound):
            await client.reader.read_turn(lost)
        assert await client.submitter.submit(asked("lost", "b"), turn_id=lost) == lost
        assert (await client.reader.read_turn(lost)).epoch != epoch, (
            "a reader of the lost history would miss what is new"
        )
