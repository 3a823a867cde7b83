"""A backup in the middle of the faults, and its restore when all is over: what is in it, nobody is asked twice."""

import asyncio
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis

from api_client.contract.settings import Settings
from tests.chaos.history import Recorder
from tests.installation import turns
from worker.processes.embedded_broker import EmbeddedBroker
from worker.processes.own_programs import build_environ

_PAUSE_SECONDS = 0.5
ARCHIVE, RESTORED = "backup", "restored"


async def take(settings: Settings, target: Path, recorder: Recorder, at: float) -> None:
    """Take a backup ``at`` this moment (``time.monotonic()``), again and again until one is whole."""
    await asyncio.sleep(max(0.0, at - time.monotonic()))
    while True:
        began = time.monotonic_ns()
        recorder.write("backup", "invoke")
        done = await _turns(settings, "data", "backup", str(target))
        if done.returncode == 0:
            recorder.write("backup", began=began, wall_began=time.time() - (time.monotonic_ns() - began) / 1e9)
            return
        recorder.write("backup", "info", error=done.stderr.strip()[-200:])
        await asyncio.sleep(_PAUSE_SECONDS)


async def _turns(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(_run, settings, *arguments)


def _run(settings: Settings, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environ = build_environ(settings, **environ)
    return subprocess.run(turns(*arguments), env=environ, capture_output=True, text=True, check=False)


def restore(settings: Settings, directory: Path, recorder: Recorder) -> None:
    """Restore the backup into an empty installation, with a kill in the middle, and record what is there."""
    archive, root = directory / ARCHIVE, directory / RESTORED
    if not archive.exists():
        return
    root.mkdir()
    empty = replace(settings, root=root, store_url="", broker_url="")
    killed = _run(empty, "data", "restore", str(archive), HELIX_FAILPOINT="restore.keys=kill@1")
    done = _run(empty, "data", "restore", str(archive))
    found: dict[str, str] = {}
    if done.returncode == 0:
        with EmbeddedBroker(root / ".helix" / "broker") as server, redis.Redis.from_url(server.url) as store:
            found = _turns_of(store, settings.namespace)
    outputs = {
        f"{folder.parents[1].name}/{folder.name}": sorted(path.name for path in (folder / "output").glob("*"))
        for folder in sorted(root.glob("*/phases/*"))
    }
    recorder.write(
        "restored",
        killed=killed.returncode == -signal.SIGKILL,
        code=done.returncode,
        said=done.stderr.strip()[-200:],
        turns=found,
        outputs=outputs,
    )


def _turns_of(store: redis.Redis, namespace: str) -> dict[str, str]:
    """Each turn of a store, with its outcome (empty while it has none)."""
    found: dict[str, str] = {}
    for key in store.scan_iter(match=f"{namespace}:*:turn:*", _type="hash", count=1000):
        name = key.decode()
        if name.count(":") == 3:
            raw: Any = store.hget(key, "outcome")
            found[name.rpartition(":")[2]] = (raw or b"").decode()
    return found
