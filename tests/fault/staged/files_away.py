"""The object store is away for 5, 40 and 90 s when runs have ended: none of them is thrown away, or paid for again."""

import asyncio
import json
import os
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest import mock

from api_client.contract.turn import Outcome
from tests.fault.staged import Seen
from tests.installation import Installation, asked, settings_on
from tests.integration.engine import GOOD
from tests.objects.gate import Gate
from tests.objects.seaweedfs import ObjectServer, seaweedfs
from tests.support import wait_until
from worker.processes.embedded_broker import EmbeddedBroker

_TURNS = 6


async def _outage(folder: Path, server: ObjectServer, broker: EmbeddedBroker, seconds: float) -> tuple[int, str]:
    """Turns whose agents end while the store is away: how many did not pass with one run, and what is to be said."""
    gate, root = Gate(server.url), folder / f"{seconds:g}"
    made = settings_on(broker, root, files=server.files, files_endpoint=gate.url)
    installation = Installation(replace(made, action_log=str(root / "action_log.jsonl")))
    steps = [{"write": {"path": "memory.txt", "content": "kept"}}, {"say": {"text": GOOD, "seconds": 1.5}}]
    installation.play(json.dumps([{"attempts": [steps]}]))
    worker = installation.worker()
    try:
        ids = [await installation.client.submitter.submit(asked("hi", f"s{number}")) for number in range(_TURNS)]
        await wait_until(lambda: _starts(root) == _TURNS)
        with gate.closed():
            await wait_until(lambda: worker.log_file.read_text().count("session.waits") >= 1)
            await asyncio.sleep(seconds)
        turns = [await installation.result(turn_id) for turn_id in ids]
    finally:
        await installation.close()
    bad = [each for each in turns if each.outcome is not Outcome.PASSED or each.delivery != 1]
    return len(
        bad
    ), f"{seconds:g} s: {_starts(root)} runs for {_TURNS} turns, {Counter(t.outcome for t in turns)['passed']} passed"


def _starts(root: Path) -> int:
    action_log = root / "action_log.jsonl"
    return action_log.read_text().count('"start"') if action_log.exists() else 0


def stage(long: bool) -> Seen:
    """Three outages, the longest of which is longer than a request is tried again; in a test a short one."""
    lengths = (5.0, 40.0, 90.0) if long else (5.0,)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        server = stack.enter_context(seaweedfs(folder / "objects"))
        broker = stack.enter_context(EmbeddedBroker(folder / "broker"))
        stack.enter_context(mock.patch.dict(os.environ, server.environment))
        found = [asyncio.run(_outage(folder, server, broker, seconds)) for seconds in lengths]
    return Seen(
        _TURNS * len(lengths), "finished runs", sum(bad for bad, _ in found), "; ".join(said for _, said in found)
    )
