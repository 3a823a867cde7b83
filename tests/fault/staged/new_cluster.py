"""New installations on an empty Redis Cluster of three masters: turns are taken and end, and doctor agrees."""

import asyncio
import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.fault.clusters import ClusterSetUp
from tests.fault.staged import Seen
from tests.installation import Installation, settings_on
from worker.processes.embedded_broker import EmbeddedBroker

_SCRIPT = '- attempts: [[say: "Hi. <!-- STEP: done -->"]]'


async def _begin(installation: Installation) -> bool:
    """Submit before anything else runs, then start a worker; whether the turn passed and doctor finds nothing."""
    said = installation.command("submit", "hello")
    if said.returncode:
        return False
    installation.worker()
    turn = await installation.result(said.stdout.split()[0])
    return turn.outcome == "passed" and "submit: the store can carry out" in installation.command("doctor").stdout


async def _stage(folder: Path, names: list[str]) -> Seen:
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(folder / "broker"))
        cluster = ClusterSetUp(folder)
        stack.callback(cluster.stop)
        wrong = []
        for number, name in enumerate(names):
            made = settings_on(broker, folder / f"{number}")
            installation = Installation(replace(made, store_url=cluster.url, namespace=name))
            installation.play(_SCRIPT)
            try:
                wrong += [] if await _begin(installation) else [name]
            finally:
                await installation.close()
    return Seen(len(names), "new installations", len(wrong), ", ".join(wrong))


def stage(long: bool) -> Seen:
    """The default namespace, and others, each in a slot of its own or not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        names = ["helix", "team-a", "a", "b", "c", "d-1", "e", "helix-turns"]
        return asyncio.run(_stage(Path(folder), names[: len(names) if long else 2]))
