"""What fail-overs lose, with ``everysec`` and with ``replicated``: ``python -m tests.fault.failovers [ROUNDS]``.

A master, two replicas and three sentinels. In each round the master is frozen or killed, and comes back on its old data
once another one has taken over; meanwhile turns are submitted all the time. At the end each acknowledged turn is looked
up. Real processes; no worker, since what is judged is the acknowledgement.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from api_client.client import TurnsClient
from api_client.contract.errors import StoreUnavailable, TurnNotFound
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from tests.fault.sentinels import SentinelSetUp
from tests.support import wait_until
from worker.logs import configure_logging

#: How long an old master is there again before the next fault: sentinels make it a replica after about ten seconds.
_BACK_SECONDS = (0.5, 4.0, 12.0)
_GUARDS = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "10")


@dataclass(slots=True)
class Seen:
    """What was submitted, and what became of it."""

    failovers: int = 0
    acknowledged: list[str] = field(default_factory=list)
    refused: int = 0
    lost: int = 0


async def fail_over(durability: str, rounds: int, directory: Path) -> Seen:
    """Fail over so many times under load, and count what is lost of what was acknowledged."""
    guards: Sequence[str] = _GUARDS if durability == "replicated" else ()
    servers = SentinelSetUp(directory, replicas=2, options=tuple(guards))
    seen, over = Seen(), asyncio.Event()
    settings = Settings(root=directory, store_url=servers.url, broker_url=servers.url, durability=durability)
    try:
        async with TurnsClient(settings) as client:
            loads = [asyncio.create_task(_submit(client, seen, over, number)) for number in range(4)]
            for number in range(rounds):
                await _fault(servers, number)
                seen.failovers += 1
                await asyncio.sleep(_BACK_SECONDS[number % len(_BACK_SECONDS)])
            await asyncio.sleep(15)  # the last old master becomes a replica
            over.set()
            await asyncio.gather(*loads)
        async with TurnsClient(settings) as client:  # asks the sentinels who is the master now
            for turn_id in seen.acknowledged:
                try:
                    await client.reader.get(turn_id)
                except TurnNotFound:
                    seen.lost += 1
    finally:
        servers.stop()
    return seen


async def _submit(client: TurnsClient, seen: Seen, over: asyncio.Event, load: int) -> None:
    """Submit turns one after the other; one that got no answer is repeated once, as a client does, then given up."""
    number = 0
    while not over.is_set():
        number += 1
        session = f"{load}-{number}"
        request = TurnRequest(model="scripted", messages=({"role": "user", "content": "hi"},), session_id=session)
        turn_id = client.submitter.new_id(session)
        for _ in range(2):
            try:
                await client.submitter.submit(request, turn_id=turn_id)
                seen.acknowledged.append(turn_id)
                break
            except StoreUnavailable:
                seen.refused += 1
        await asyncio.sleep(0.05)


async def _fault(servers: SentinelSetUp, number: int) -> None:
    """Freeze (in even rounds) or kill the master, and bring it back once another one has taken over."""
    master = await wait_until(servers.master)
    with suppress(AssertionError):  # a master without replicas cannot be failed over: wait for one, as an operator does
        await wait_until(lambda: servers.replicas_of(master), 30)
    servers.signal(master, signal.SIGSTOP if number % 2 == 0 else signal.SIGKILL)
    await wait_until(lambda: servers.master() not in {0, master}, 120)
    if number % 2 == 0:
        servers.signal(master, signal.SIGCONT)
    else:
        servers.start(master)


def main() -> None:
    """Print a line for each durability."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    configure_logging(Settings(log_level="error"))
    for durability in ("everysec", "replicated"):
        with tempfile.TemporaryDirectory() as directory:
            seen = asyncio.run(fail_over(durability, rounds, Path(directory)))
        print(
            f"{durability}: {seen.failovers} fail-overs, {len(seen.acknowledged)} turns acknowledged,"
            f" {seen.lost} of these lost, {seen.refused} refusals"
        )


if __name__ == "__main__":
    main()
