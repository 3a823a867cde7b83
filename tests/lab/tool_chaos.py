"""Runs turns of five tool calls each, half of them writes, while agent, guard, gateway, worker and broker are killed.

``TURNS=200 python -m tests.lab.tool_chaos`` prints a table. After every tenth answer that an agent got, the next of the
five is killed. A write that an agent was told of must have been executed once, and one of unknown outcome at most once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from api_client.contract.settings import Settings
from api_client.contract.turn import Turn
from tests.installation import Installation, WorkerProcess, children_of, settings_on
from tests.support import command_of, wait_until
from tests.tools.persistent_agent import CALLS
from tests.tools.running import HERE, PYTHON, counting, equip, rows
from worker.logs import configure_logging
from worker.processes.embedded_broker import EmbeddedBroker

VICTIMS = {
    "agent": "persistent_agent.py",
    "guard": "worker.runners.sandbox.guard",
    "gateway": "worker.plugins.tools.gateway_process",
    "worker": "worker.celery_worker",
    "broker": "",
}
#: Turns at the same time, and answers between two kills.
SLOTS, EVERY = 4, 10
#: How long all turns may take, in seconds.
_END_SECONDS = 3_000.0
#: States of rows whose call may have been executed.
_EXECUTED = {"begun", "done", "unknown"}


@dataclass(slots=True)
class Campaign:
    """The figures of a campaign."""

    turns: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    deliveries: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    writes: int = 0
    acknowledged: int = 0
    recorded: int = 0
    unknown: int = 0
    executed_unknown: int = 0
    twice: list[str] = field(default_factory=list)
    lost_writes: list[str] = field(default_factory=list)
    lost_rows: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def problems(self) -> list[str]:
        """Return what must not be."""
        found = [f"executed twice: {note}" for note in self.twice]
        found += [f"acknowledged and not executed once: {note}" for note in self.lost_writes]
        found += [f"without its row: {note}" for note in self.lost_rows]
        if self.outcomes != {"passed": self.turns}:
            found.append(f"outcomes {dict(self.outcomes)} of {self.turns} turns")
        if self.unknown > self.kills.total() * SLOTS:
            found.append(f"{self.unknown} unknown outcomes of {self.kills.total()} kills")
        return found

    def table(self) -> str:
        """Return the figures as a Markdown table."""
        killed = ", ".join(f"{name} {count}" for name, count in sorted(self.kills.items()))
        lines = {
            "turns passed, deliveries": f"{self.outcomes['passed']} of {self.turns}, {self.deliveries}",
            "kills": f"{self.kills.total()} ({killed})",
            "tool calls in the turns' last answers, writes among them": f"{self.calls}, {self.writes}",
            "writes acknowledged": str(self.acknowledged),
            "answers from the call log": str(self.recorded),
            "writes of unknown outcome, executed among them": f"{self.unknown}, {self.executed_unknown}",
            "writes executed twice": str(len(self.twice)),
            "acknowledged writes not executed once": str(len(self.lost_writes)),
            "executed or acknowledged writes without their row": str(len(self.lost_rows)),
            "seconds": f"{self.seconds:.0f}",
        }
        return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in lines.items())])


async def run_campaign(turns: int, directory: Path, *, every: int = EVERY) -> Campaign:
    """Run the turns while processes are killed, and compare answers, counting file and call log."""
    found, begun = Campaign(turns=turns), time.monotonic()
    with EmbeddedBroker(directory / "broker") as broker:
        installation = Installation(settings_on(broker, directory / "root", locale="en"))
        try:
            counts, answers = _equip(installation)
            worker = installation.worker()
            asked = [
                await installation.ask(f"turn:{number}", f"s-{number}", model="m", validators=())
                for number in range(turns)
            ]
            killing = asyncio.create_task(_kill_often(worker, broker, answers, every, found.kills))
            ended = [await installation.client.reader.await_result(turn_id, timeout=_END_SECONDS) for turn_id in asked]
            killing.cancel()
            with suppress(asyncio.CancelledError):
                await killing
            _judge(installation, ended, counts, answers, found)
            await installation.client.close()
        finally:
            installation.stop()
    found.seconds = time.monotonic() - begun
    return found


def _equip(installation: Installation) -> tuple[Path, Path]:
    root = installation.settings.root
    answers = root / "answers"
    often = {"lease_seconds": 3.0, "transient_delay_seconds": 0.1, "transient_retries": 50, "strikes": 50}
    counts = equip(installation, counting(root, writes="allow"), run_slots=SLOTS, **often)
    agent = (
        f"program: {PYTHON}\narguments: [{HERE / 'persistent_agent.py'}, {answers}]\ncomplete: {{exit_codes: [0]}}\n"
    )
    (root / "agent.yaml").write_text(agent)
    return counts, answers


async def _kill_often(
    worker: WorkerProcess, broker: EmbeddedBroker, answers: Path, every: int, kills: Counter[str]
) -> None:
    """Kill the next victim after each ``every`` answers."""
    names, due = list(VICTIMS), every
    while True:
        await wait_until(partial(_has_lines, answers, due), _END_SECONDS)
        name = names[kills.total() % len(names)]
        if name == "broker":
            broker.kill()
            await asyncio.sleep(0.3)
            await asyncio.to_thread(broker.start)
        else:
            found = await wait_until(partial(_find_victims, worker.pid, VICTIMS[name]), _END_SECONDS)
            with suppress(ProcessLookupError):
                os.kill(found[0], signal.SIGKILL)
        kills[name] += 1
        due = max(due + every, len(_lines(answers)) + every)


def _find_victims(top: int, word: str) -> list[int]:
    """Return the processes below ``top`` whose command contains the word, oldest first."""
    found, open_ = [], [top]
    while open_:
        with suppress(OSError):
            for child in sorted(children_of(open_.pop(0))):
                open_.append(child)
                found += [child] if word.encode() in command_of(child) else []
    return found


def _has_lines(path: Path, most: int) -> bool:
    return len(_lines(path)) >= most


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _judge(installation: Installation, turns: list[Turn], counts: Path, answers: Path, found: Campaign) -> None:
    executed = Counter(_lines(counts))
    found.twice = [note for note, times in executed.items() if times > 1]
    told = [line.split() for line in _lines(answers)]
    acknowledged = {note for note, kind, said in told if kind == "write" and said == "ok"}
    found.lost_writes = sorted(note for note in acknowledged if executed[note] != 1)
    logged = set[str]()
    for turn in turns:
        found.outcomes[str(turn.outcome)] += 1
        found.deliveries += turn.delivery
        said = dict(
            line.split() for line in turn.response.splitlines() if line.count("-") == 1 and line.count(" ") == 1
        )
        found.calls += len(said)
        writes = {note: word for note, word in said.items() if sum(map(int, note.split("-"))) % 2 == 0}
        found.writes += len(writes)
        found.acknowledged += list(writes.values()).count("ok")
        unknown = [note for note, word in writes.items() if word == "unknown"]
        found.unknown += len(unknown)
        found.executed_unknown += sum(executed[note] for note in unknown)
        for row in rows(installation, turn.turn_id):
            found.recorded += row["state"] == "recorded"
            if row["tool"] == "write" and row["state"] in _EXECUTED and not row["earlier"]:
                logged.add(row["arguments"].partition('"note": "')[2].partition('"')[0])
        if len(said) != CALLS:
            found.lost_writes.append(f"{turn.turn_id} answers {said}")
    found.lost_rows = sorted((acknowledged | set(executed)) - logged)


def main() -> int:
    """Print the table; return 1 if something happened that must not."""
    configure_logging(Settings(log_level="error"))
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(run_campaign(int(os.environ.get("TURNS", "200")), Path(directory)))
    print(found.table(), *found.problems, sep="\n", flush=True)
    return int(bool(found.problems))


if __name__ == "__main__":
    sys.exit(main())
