"""One chaos run: load and faults, heal, load without faults, quiet, final reads. Writes a history; judges nothing."""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from redis.exceptions import RedisError

from api_client.contract.keys import Keys
from tests.chaos import aftermath, backup
from tests.chaos.history import LOGS, Recorder
from tests.chaos.nemesis import Nemesis
from tests.chaos.options import FAULTY, Options
from tests.chaos.stage import WORKERS, Stage, build, settings_for
from tests.chaos.store import connected
from tests.chaos.targets import Target, below
from tests.chaos.traffic import plan
from tests.chaos.traffic.load import Load
from worker.processes.supervisor import Supervisor
from worker.runners.sandbox.process_tags import process_tags

#: So long after the load's end everybody must have their answer, in seconds.
QUIET_SECONDS = 90.0
_SAMPLE_SECONDS = 0.5
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Tell = Callable[[str], None]


def run(options: Options, history: Path, tell: Tell, environ: Mapping[str, str] | None = None) -> None:
    """Carry out one run and leave its history in ``history``.

    Raises:
        NotReady: the installation does not start. BrokerError: there is no server. OSError: no room for the history.
        Interrupted: a signal asked to end; nothing that was started is left.
    """
    with workplace() as directory, Recorder(history) as recorder:
        settings = settings_for(directory, history)
        stage = build(settings, directory, environ or {})
        told = {name: value for name, value in asdict(settings).items() if isinstance(value, int | float | str)}
        recorder.write("run", **asdict(options), settings=told, processors=os.cpu_count(), load=os.getloadavg()[0])
        tell("starting broker, proxy, 2 workers, 2 relays")
        logs = history / LOGS
        logs.mkdir()
        with Supervisor(stage.programs, logs=logs) as supervisor:
            guards = asyncio.run(_play(options, stage, supervisor, recorder, tell))
            tell("reading what is left")
            turns = aftermath.dump_store(stage.settings, recorder)
            aftermath.ask_relays(stage.relays, turns, recorder)
        tell("restoring the backup")
        backup.restore(stage.settings, directory, recorder)
        aftermath.look_at_files(stage.settings, recorder)
        aftermath.look_at_phases(stage.settings, recorder)
        aftermath.count_log_events(logs, recorder)
        aftermath.look_at_processes(directory, guards, recorder)
        recorder.write("phase", name="end", load=os.getloadavg()[0])


class Interrupted(SystemExit):
    """The run was asked to end by a signal. A ``SystemExit``, because an event loop lets only that pass."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


def _interrupt(number: int) -> None:
    raise Interrupted(number)


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A folder for everything but the history. Its path is short: sockets lie in it.

    SIGINT, SIGTERM and SIGHUP raise ``Interrupted`` in the block, once, so that all that was started is ended. A loop
    that runs raises it between two steps: within one, a finalizer or a library could swallow it.
    """

    def on_signal(number: int, _frame: FrameType | None) -> None:
        for one in _ENDING:
            signal.signal(one, lambda *_: None)  # not SIG_IGN, which what is started now would inherit
        try:
            asyncio.get_running_loop().call_soon_threadsafe(_interrupt, number)
        except RuntimeError:  # none runs
            _interrupt(number)

    before = {number: signal.signal(number, on_signal) for number in _ENDING}
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)


async def _play(options: Options, stage: Stage, supervisor: Supervisor, recorder: Recorder, tell: Tell) -> set[Target]:
    """Returns the guards that were seen."""
    sessions = plan.sessions(options.seed, options.turns, options.seconds)
    faults = plan.faults(options.seed, options.seconds * FAULTY, stage.settings.lease_seconds)
    token = stage.settings.token_path.read_text().strip()  # the relays made it; without it nobody decides
    load = Load(stage.relays, recorder, options.seed, stage.settings.root, token)
    nemesis = Nemesis(stage, supervisor, recorder)
    guards: set[Target] = set()
    sampling = asyncio.create_task(_sample(supervisor, guards, recorder))
    begun = time.monotonic()
    folders = [session.chat for session in sessions if session.phases]
    for folder in folders:
        (stage.settings.root / folder).mkdir()
    counted = f"{len(sessions) - len(folders)} chats and {len(folders)} folders of phases with {options.turns} turns"
    tell(f"{counted} over {options.seconds:g} s, {len(faults)} faults")
    recorder.write("phase", name="load and faults")
    playing = asyncio.create_task(load.play(sessions, begun))
    halfway = begun + options.seconds * FAULTY / 2
    archive = stage.settings.root.parent / backup.ARCHIVE
    saving = asyncio.create_task(backup.take(stage.settings, archive, recorder, halfway))
    await nemesis.play(faults, begun)
    await asyncio.sleep(max(0.0, begun + options.seconds * FAULTY - time.monotonic()))
    tell("healing")
    recorder.write("phase", name="heal")
    await nemesis.heal()
    recorder.write("phase", name="load without faults")
    await playing
    await saving
    tell(f"all turns are sent; waiting for {load.waiting} clients")
    recorder.write("phase", name="quiet")
    left = await load.finish(QUIET_SECONDS)
    await _settle(stage, time.monotonic() + QUIET_SECONDS)
    recorder.write("phase", name="final reads", clients_left=left)
    sampling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await sampling
    return guards


async def _settle(stage: Stage, until: float) -> None:
    """Wait until no turn is going on: not every turn has a client that waits for it."""
    async with connected(stage.settings.redis_url, socket_timeout=QUIET_SECONDS / 10) as store:
        while time.monotonic() < until:
            with contextlib.suppress(RedisError, OSError):
                if not await store.zcard(Keys(stage.settings.namespace).due):
                    return
            await asyncio.sleep(_SAMPLE_SECONDS)


async def _sample(supervisor: Supervisor, guards: set[Target], recorder: Recorder) -> None:
    """Which agents run, twice a second: two of one turn at once show in their marks. And how late we ourselves are.

    Adds the guards that run to ``guards``.
    """
    while True:
        began, looked = time.monotonic(), time.time()
        found = await asyncio.to_thread(lambda: sorted({mark for _, mark in process_tags() if mark}))
        if found:
            recorder.write("alive", marks=found, looked=looked)
        for name in WORKERS:
            guards.update(each for each in below(supervisor.pid(name)) if each.role == "guard")
        await asyncio.sleep(_SAMPLE_SECONDS)
        late = time.monotonic() - began - _SAMPLE_SECONDS
        if late > _SAMPLE_SECONDS:
            recorder.write("late", seconds=round(late, 3))
