"""Agents killed from outside on one of two hosts: their runs are lost deliveries, and the host draws no more work.

The second host is a worker with a host name of its own in a memory cgroup that has room for hardly any agent, so the
kernel kills them. Where no cgroup can be made, each agent there gets a real SIGKILL as soon as it has begun.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from api_client.client import TurnsClient
from api_client.contract.turn import Outcome
from tests.fault.matrix import Stage, guard_of
from tests.fault.staged import Seen
from tests.installation import WorkerProcess, asked
from tests.support import json_lines, wait_until
from worker.turns.leases.machine_health import find_oom_counter, read_oom_kills

_HOST = "starving"
#: Room for agents in the cgroup, in bytes: less than two of them need.
_ROOM = 12 * 2**20
#: Turns that are submitted in a second.
_RATE = 4.0
_SCRIPT = """
- when: ""
  attempts:
    - - say: {text: "Eine Antwort, die etwas dauert.\\n\\n<!-- STEP: done -->", pieces: 5, seconds: 1}
"""


@dataclass(frozen=True, slots=True)
class _Group:
    """A memory cgroup: where processes enter it, where its limit is set, and where its use is read."""

    folder: Path
    limit: str
    used: str

    def tighten(self) -> None:
        """Leave room for hardly any agent above what its worker uses."""
        (self.folder / self.limit).write_text(str(int((self.folder / self.used).read_text()) + _ROOM))


def stage(long: bool) -> Seen:
    """Submit turns to a healthy host and a starving one; wrong is a turn that did not pass with its first attempt."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--uts", "true"], check=False).returncode:
        pytest.skip("no host name of its own can be given to a process here (unshare, util-linux)")
    with (
        tempfile.TemporaryDirectory() as folder,
        _group() as group,
        Stage(Path(folder), _SCRIPT, lease_seconds=6.0, run_slots=6) as made,
    ):
        made.start(1)
        starving = made.worker(wait=False, within=_within(group))
        starving.wait_ready()
        return asyncio.run(_starved(made, starving, group, 200 if long else 40))


@contextlib.contextmanager
def _group() -> Iterator[_Group | None]:
    """A memory cgroup below our own; None where none can be made."""
    own = find_oom_counter().parent
    folder = own / f"helix-{secrets.token_hex(4)}"
    try:
        folder.mkdir()
    except OSError:
        yield None
        return
    try:
        found = [
            _Group(folder, limit, used)
            for limit, used in (("memory.limit_in_bytes", "memory.usage_in_bytes"), ("memory.max", "memory.current"))
            if (folder / limit).exists()
        ]
        yield found[0] if found else None
    finally:
        folder.rmdir()


def _within(group: _Group | None) -> list[str]:
    """The beginning of a command: in the group, with a host name of its own."""
    enter = f"echo $$ > {group.folder}/cgroup.procs && " if group else ""
    return ["unshare", "--uts", "sh", "-c", f'{enter}hostname {_HOST} && exec "$@"', "sh"]


async def _starved(made: Stage, starving: WorkerProcess, group: _Group | None, turns: int) -> Seen:
    watching = asyncio.create_task(_doom(made, starving, group))
    await asyncio.sleep(0)
    if group:
        group.tighten()
    try:
        async with TurnsClient(made.settings) as client:
            turn_ids, begun = [], time.monotonic()
            for number in range(turns):
                await wait_until(lambda due=begun + number / _RATE: time.monotonic() >= due)  # type: ignore[misc]
                turn_ids.append(await client.submitter.submit(asked("frag", f"s{number}")))
            ended = [await client.reader.await_result(turn_id, timeout=240) for turn_id in turn_ids]
    finally:
        watching.cancel()
    wrong = sum(turn.outcome is not Outcome.PASSED or turn.attempt != 1 for turn in ended)
    lost = sum(turn.delivery - 1 for turn in ended)
    kills = (
        (read_oom_kills(group.folder / "memory.oom_control") or read_oom_kills(group.folder / "memory.events"))
        if group
        else lost
    )
    sick = sum(line.get("event") == "host.sick" for line in json_lines(starving.log_file))
    if not kills or not sick:
        wrong += 1  # nothing was staged, or the host was never known as sick
    how = f"{kills} killed by the kernel for want of memory" if group else "killed by SIGKILL from outside"
    return Seen(
        turns, "turns beside a host whose agents are killed", wrong, f"{how}; {lost} lost deliveries; sick {sick}×"
    )


async def _doom(made: Stage, starving: WorkerProcess, group: _Group | None) -> None:
    """Have the kernel take the agents of the starving host first; or kill them, where it does not."""
    [engine] = starving.children().values()
    space, told = Path(f"/proc/{engine}/ns/uts").readlink(), set[int]()
    if group:  # agents inherit it, until they are told apart from their guard
        Path(f"/proc/{guard_of(engine)}/oom_score_adj").write_text("900")
    while True:
        for pid in {int(line["pid"]) for line in json_lines(made.action_log) if line["event"] == "start"} - told:
            told.add(pid)
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/ns/uts").readlink() != space:
                    continue
                if group:
                    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
                else:
                    os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.02)
