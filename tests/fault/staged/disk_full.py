"""The disk of the embedded broker fills up, and the broker is killed: what was acknowledged or shown is there.

One installation for all rounds: a broker on a small file system of its own, a real worker, and clients. In each round
the file system is filled at some moment under load, the broker is killed some moment later, room is made, and the
broker started again; then each acknowledged turn is looked up, and each end that a client was shown is compared.
"""

import asyncio
import contextlib
import logging
import random
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.errors import StoreUnavailable, TurnNotFound
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn, TurnRequest
from tests.fault.staged import Seen
from tests.installation import WorkerProcess, environ_of, turns
from tests.support import playing, wait_until
from worker.processes.embedded_broker import EmbeddedBroker

_SCRIPT = '- attempts:\n  - - say: "Done.\\n\\n<!-- STEP: done -->"\n'
#: Longest time between a full disk and the broker's death, in seconds; and how long before the disk is full.
_FULL_SECONDS, _LOAD_SECONDS = 0.4, 0.6
#: Unfinished turns of one client.
_AT_ONCE = 15


@dataclass
class Promised:
    """What clients were told: turns that were taken, ends that were shown, and how often the store refused."""

    taken: list[str] = field(default_factory=list)
    shown: dict[str, tuple[str, str]] = field(default_factory=dict)
    refused: int = 0
    lost: int = 0
    changed: int = 0


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of that size; a test is skipped where none can be mounted."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path: Path) -> None:
    """Take all the room there is, to the last byte of a page."""
    with path.open("wb", buffering=0) as file:
        for size in (2**20, 4096):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass


async def _load(client: TurnsClient, promised: Promised, over: asyncio.Event, number: int) -> None:
    """Submit turns as fast as they are taken, a few unfinished ones at once, and wait for the end of each."""
    ends: set[asyncio.Task[None]] = set()
    while not over.is_set():
        request = _request("x" * (1 + 200 * number))
        try:
            turn_id = await client.submitter.submit(request)
        except (StoreUnavailable, OSError):
            promised.refused += 1
            await asyncio.sleep(0.01)
            continue
        promised.taken.append(turn_id)
        ends.add(asyncio.create_task(_end_of(client, promised, turn_id)))
        await asyncio.sleep(random.uniform(0, 0.05))
        while not over.is_set() and sum(not each.done() for each in ends) >= _AT_ONCE:
            await asyncio.sleep(0.01)
    for each in ends:
        each.cancel()
    await asyncio.gather(*ends, return_exceptions=True)


async def _end_of(client: TurnsClient, promised: Promised, turn_id: str) -> None:
    while turn_id not in promised.shown:
        with contextlib.suppress(StoreUnavailable, TurnNotFound, OSError):
            promised.shown[turn_id] = _told(await client.reader.await_result(turn_id))
        await asyncio.sleep(0.02)


def _request(text: str) -> TurnRequest:
    return TurnRequest(
        model="scripted", messages=({"role": "user", "content": text},), session_id=f"s{random.getrandbits(64):x}"
    )


def _told(turn: Turn) -> tuple[str, str]:
    return str(turn.outcome), f"{turn.finished_at} {turn.response}"


async def _round(
    settings: Settings,
    broker: EmbeddedBroker,
    disk: Path,
    promised: Promised,
    rng: random.Random,
    *,
    answers: bool,
    heals: bool = False,
) -> None:
    """Fill, kill, make room, start, and look everything of this round up. With ``answers`` the worker is at work.

    ``heals``: room is made while the server runs, so that it goes on, and it is killed soon after.
    """
    over, filler = asyncio.Event(), disk / "filler"
    first, shown = len(promised.taken), set(promised.shown)
    async with TurnsClient(settings) as client:
        loads = [asyncio.create_task(_load(client, promised, over, number)) for number in range(4)]
        await wait_until(lambda: len(promised.taken) > first and len(promised.shown) >= len(shown) + 5 * answers)
        await asyncio.sleep(rng.uniform(0, _LOAD_SECONDS))
        await asyncio.to_thread(fill, filler)
        await asyncio.sleep(rng.uniform(0, _FULL_SECONDS))
        if heals:
            filler.unlink()
            again = len(promised.taken)
            await wait_until(lambda: len(promised.taken) > again)
            await asyncio.sleep(rng.choice((0, rng.uniform(0, _LOAD_SECONDS))))
        broker.kill()
        over.set()
        await asyncio.gather(*loads)
    filler.unlink(missing_ok=True)
    broker.start()
    async with TurnsClient(settings) as client:
        await wait_until(lambda: _taken_again(client))
        for turn_id in promised.taken[first:]:
            try:
                found = await client.reader.read_turn(turn_id)
            except TurnNotFound:
                promised.lost += 1
                continue
            if turn_id in promised.shown and turn_id not in shown:
                promised.changed += promised.shown[turn_id] != _told(found)


async def _taken_again(client: TurnsClient) -> bool:
    try:
        return bool(await client.submitter.submit(_request("hi")))
    except StoreUnavailable:
        return False


async def _truth_on_a_full_disk(settings: Settings, disk: Path) -> list[str]:
    """What is told wrong while the disk is full for longer than a worker may be silent."""
    wrong = []
    async with TurnsClient(settings) as client:
        fill(disk / "filler")
        await wait_until(lambda: _refusing(client))
        until = asyncio.get_running_loop().time() + 18.0
        await wait_until(lambda: asyncio.get_running_loop().time() > until)
        standing = await client.workers.read_state()
        states = {line.state for line in standing.workers}
        if "gone" in states or not standing.fleet.agents:
            wrong.append(f"live workers are {states}, {standing.fleet.agents} of them run agents")
        for what, said in (("overview", str(standing.alerts)), ("doctor", await _doctor(settings))):
            if "disk" not in said:
                wrong.append(f"{what} does not name the disk: {said[:200]}")
        (disk / "filler").unlink()
        await wait_until(lambda: _taken_again(client))
    return wrong


async def _refusing(client: TurnsClient) -> bool:
    standing = await client.workers.read_state()
    return standing.refusal is not None and standing.refusal.word == "MISCONF"


async def _doctor(settings: Settings) -> str:
    command = await asyncio.create_subprocess_exec(
        *turns("doctor"), env=environ_of(settings), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    return (await command.communicate())[0].decode()


async def _rewritten(broker: EmbeddedBroker) -> bool:
    """Have the broker's file rewritten, as the server does by itself when it has grown."""
    with redis.Redis.from_url(broker.url) as server:
        if not server.info("persistence")["aof_rewrites"]:
            server.execute_command("BGREWRITEAOF")
        return not server.info("persistence")["aof_rewrite_in_progress"]


async def _stage(folder: Path, rounds: int, *, rewrites: bool = False) -> Seen:
    rng, promised, root = random.Random(25), Promised(), folder / "root"
    root.mkdir()
    with small_disk(folder / "disk", 96) as disk, EmbeddedBroker(disk / "b") as broker:
        settings = playing(Settings(root=root, broker_url=broker.url, store_url=broker.url), _SCRIPT)
        (root / ".helix").mkdir()
        worker = WorkerProcess(settings, 1)
        try:
            worker.wait_ready()
            wrong = [] if rewrites else await _truth_on_a_full_disk(settings, disk)
            for number in range(rounds):
                if rewrites:
                    await wait_until(lambda: _rewritten(broker))
                await _round(settings, broker, disk, promised, rng, answers=number % 3 == 0, heals=rewrites)
        finally:
            worker.ask_to_end()
            worker.await_end()
        broker_log = broker.log_file.read_text()
    lost = promised.lost + promised.changed
    beside = [f"{rounds} rounds", f"{len(promised.shown)} ends shown", f"{promised.lost} turns lost"]
    beside += [f"{promised.changed} ends changed", f"{promised.refused} refused", *wrong]
    if rewrites:
        said = broker_log.count("cut out; it was"), broker_log.count("Background AOF rewrite finished successfully")
        beside += [f"{said[0]} starts repaired a hole", f"{said[1]} rewrites"]
    return Seen(len(promised.taken), "acknowledged turns", lost + len(wrong), ", ".join(beside))


def stage(long: bool) -> Seen:
    """Kill the broker on a full disk, again and again."""
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it tells of each write to a killed server
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        return asyncio.run(_stage(Path(folder), 50 if long else 4))
