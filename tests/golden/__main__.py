"""Write what this version stores, for later versions to read: ``python -m tests.golden FILE``.

For each state of a turn, all keys of a namespace with its one turn in it:
``{state: {"turn": ID, "keys": {key: [kind, value]}}}``.
Run it when a version lands, and name the file in ``tests/integration/test_golden_records.py``.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import redis

from api_client.client import TurnsClient
from api_client.contract.completion import ErrorKind, Verdict
from api_client.contract.keys import Keys
from api_client.contract.tool_calls import WaitingCall
from tests.golden import stored
from tests.installation import settings_on
from tests.integration.engine import FIRST, GOOD, NO_MARKER, Bench, Play, asks, ends, says
from worker.processes.embedded_broker import EmbeddedBroker
from worker.runners.base import AgentEvent, Emit, Order, RunResult, Stop

_CALL = WaitingCall(call="c1", tool="Bash", arguments={"command": "git push"}, digest="d1", wait_seconds=600_000)


class _Golden:
    """Plays a turn to a state and keeps what is stored then."""

    def __init__(self, broker: EmbeddedBroker, root: Path) -> None:
        self._broker, self._root = broker, root
        self.found: dict[str, Any] = {}

    @asynccontextmanager
    async def _bench(self, state: str) -> AsyncIterator[Bench]:
        settings = settings_on(self._broker, self._root, namespace=f"golden-{state}")
        async with TurnsClient(settings) as client:
            made = Bench(settings, client)
            yield made
            made.close()

    def _keep(self, state: str, turn_id: str) -> None:
        with redis.Redis.from_url(self._broker.url) as store:
            self.found[state] = {"turn": turn_id, "keys": stored(store, Keys(f"golden-{state}").prefix)}

    def _while_running(self, state: str) -> Play:
        def play(order: Order, emit: Emit, stop: Stop) -> RunResult:
            emit(AgentEvent(kind="output", text="Alles"))
            self._keep(state, order.turn_id)
            return says(GOOD)(order, emit, stop)

        return play

    async def of(self, state: str, *plays: Play, links: int = 100, **more: object) -> None:
        """Submit, carry out at most ``links`` links, and keep what is stored, unless a play kept it."""
        async with self._bench(state) as bench:
            turn_id = await bench.submit(*plays, session_id="s", **more)
            bench.announced.append((FIRST, turn_id, "s"))
            carry_out: Callable[..., None] = bench.carry_out_one
            while bench.announced and links:
                links -= 1
                await asyncio.to_thread(carry_out, *bench.announced.pop(0))
            if state not in self.found:
                self._keep(state, turn_id)


async def _all(broker: EmbeddedBroker, root: Path) -> dict[str, Any]:
    golden = _Golden(broker, root)
    await golden.of("queued", links=0)
    await golden.of("running", golden._while_running("running"))
    await golden.of("retrying", says(NO_MARKER), golden._while_running("retrying"))
    await golden.of("held", ends(Verdict.ERROR, ErrorKind.TRANSIENT), links=1)
    await golden.of("suspended", says(NO_MARKER), policy={"step_marker": ("retry", "escalate")}, max_attempts=1)
    await golden.of("asking", asks(_CALL, "Ich habe es gebaut."))
    await golden.of("finished", says(NO_MARKER), says(GOOD))
    return golden.found


def main() -> None:
    """Write the file."""
    with tempfile.TemporaryDirectory() as name:
        broker = EmbeddedBroker(Path(name, "broker"))
        broker.start()
        try:
            found = asyncio.run(_all(broker, Path(name, "root")))
        finally:
            broker.stop()
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    print({state: len(each["keys"]) for state, each in found.items()})


if __name__ == "__main__":
    main()
