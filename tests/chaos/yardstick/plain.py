"""The yardstick: the same load and the same faults on a plain Celery chain, judged on loss and doubles alone."""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from celery import Celery, chain
from kombu.exceptions import OperationalError

from api_client.contract.settings import Settings, load_settings
from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from tests.chaos.history import ACTION_LOG, LOGS, Recorder, read
from tests.chaos.nemesis import Nemesis
from tests.chaos.options import FAULTY, Options
from tests.chaos.run import QUIET_SECONDS, workplace
from tests.chaos.stage import RELAYS, WORKERS, Stage, build, settings_for
from tests.chaos.traffic import plan
from tests.chaos.traffic.repertoire import KINDS
from worker.processes import own_programs
from worker.processes.program import Program
from worker.processes.supervisor import Supervisor

_CHECK_SECONDS = 0.5
VARIANTS = ("defaults", "best")


def run_plain(options: Options, variant: str, history: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    """One run of the yardstick; returns its figures.

    Raises:
        NotReady: the installation does not start. BrokerError: there is no server.
    """
    told = {"HELIX_AGENT_PLAIN": variant, "HELIX_AGENT_PLAIN_ACTION_LOG": str(history / ACTION_LOG)}
    os.environ |= told  # the producer's application is the workers'
    with workplace() as directory, Recorder(history) as recorder:
        whole = build(settings_for(directory, history), directory, told)
        stage = replace(whole, programs=[_plain(program) for program in whole.programs if program.name not in RELAYS])
        (history / LOGS).mkdir()
        tell(f"plain Celery, {variant}: starting broker, proxy, 2 workers")
        with Supervisor(stage.programs, logs=history / LOGS) as supervisor:
            asyncio.run(_play(options, stage, supervisor, recorder, tell))
    return {"variant": variant, **_judged(history)}


def work() -> None:
    """Two workers of plain Celery, one for each queue, under the supervisor of ``turns run worker``."""
    settings = load_settings()
    queues = {RUN_QUEUE: settings.run_slots, CHECK_QUEUE: own_programs.CHECK_SLOTS}
    started = [
        replace(program, command=_celery(queue, slots))
        for program, (queue, slots) in zip(
            own_programs.worker_programs(settings, processes=2), queues.items(), strict=True
        )
    ]
    Supervisor(started).run(Path(os.environ[own_programs.READY_VARIABLE]).touch)


def _celery(queue: str, slots: int) -> list[str]:
    name = f"{queue}-{os.getpid()}@%h"
    command = [sys.executable, "-P", "-m", "celery", "-q", "-A", "tests.chaos.yardstick.plain_app", "worker"]
    return [*command, *("-P", "threads", "-c", str(slots), "-Q", queue, "-n", name, "--loglevel", "info")]


def _plain(program: Program) -> Program:
    if program.name not in WORKERS:
        return program
    return replace(
        program, command=[sys.executable, "-P", "-c", "from tests.chaos.yardstick.plain import work; work()"]
    )


async def _play(
    options: Options, stage: Stage, supervisor: Supervisor, recorder: Recorder, tell: Callable[[str], None]
) -> None:
    sessions = plan.chats(options.seed, options.turns, options.seconds)
    faults = plan.faults(options.seed, options.seconds * FAULTY, stage.settings.lease_seconds)
    nemesis = Nemesis(stage, supervisor, recorder)
    begun = time.monotonic()
    tell(f"{options.turns} turns over {options.seconds:g} s, {len(faults)} faults")
    sending = asyncio.create_task(_send(stage.settings, sessions, begun, recorder))
    await nemesis.play(faults, begun)
    await asyncio.sleep(max(0.0, begun + options.seconds * FAULTY - time.monotonic()))
    await nemesis.heal()
    acknowledged = await sending
    tell(f"all turns are sent; waiting for {len(acknowledged)}")
    until = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < until:
        if acknowledged <= _finished(Path(stage.settings.action_log)).keys():
            break
        await asyncio.sleep(_CHECK_SECONDS)


async def _send(settings: Settings, sessions: list[plan.PlannedSession], begun: float, recorder: Recorder) -> set[str]:
    """Publish each turn's chain at its session's time; one that cannot be published is not acknowledged."""
    from tests.chaos.yardstick.plain_app import create_app

    app, acknowledged = create_app(settings.celery_url, os.environ["HELIX_AGENT_PLAIN"]), set()
    for session in sessions:
        await asyncio.sleep(max(0.0, begun + session.at - time.monotonic()))
        for turn in session.turns:
            recorder.write("submit", "invoke", key=turn.key, kind=turn.kind)
            try:
                await asyncio.to_thread(_publish, app, turn)
            except (OperationalError, OSError) as error:
                recorder.write("submit", "info", key=turn.key, kind=turn.kind, error=repr(error)[:120])
                continue
            recorder.write("submit", "ok", key=turn.key, kind=turn.kind)
            acknowledged.add(turn.key)
    return acknowledged


def _publish(app: Celery, turn: plan.PlannedTurn) -> None:
    links = []
    runs = KINDS[turn.kind].attempts or KINDS[turn.kind].deliveries
    for number, steps in enumerate(runs, 1):
        seconds = sum(float(step["say"]["seconds"]) for step in steps if isinstance(step, dict) and "say" in step)
        links.append(app.signature("plain.run", (turn.key, number, seconds), queue="helix.run", immutable=True))
        last = number == len(runs)
        links.append(app.signature("plain.validate", (turn.key, last), queue="helix.check", immutable=True))
    chain(*links).apply_async()


def _finished(action_log: Path) -> Counter[str]:
    if not action_log.exists():
        return Counter()
    lines = [json.loads(line) for line in action_log.read_text().splitlines()]
    return Counter(line["key"] for line in lines if line["event"] == "finished")


def _judged(history: Path) -> dict[str, Any]:
    lines = read(history)
    finished = _finished(history / ACTION_LOG)
    acknowledged = {line["key"] for line in lines if line["f"] == "submit" and line["type"] == "ok"}
    starts = Counter(
        (line["key"], line["run"]) for line in lines if line["f"] == "execution" and line["type"] == "start"
    )
    missed = {line["name"] for line in lines if line["f"] == "fault" and line["type"] == "fail"}
    hits = [
        line["kind"]
        for line in lines
        if line["f"] == "fault" and line["type"] == "invoke" and line["name"] not in missed
    ]
    return {
        "submitted": len({line["key"] for line in lines if line["f"] == "submit"}),
        "acknowledged": len(acknowledged),
        "finished": len(finished),
        "lost": len(acknowledged - finished.keys()),
        "finished_twice": sum(count > 1 for count in finished.values()),
        "run_more_than_once": sum(count > 1 for count in starts.values()),
        "agent_runs": sum(starts.values()),
        "kills": dict(Counter(hits)),
    }
