"""``python -m tests.browser.between ROOT STORE FILE VICTIM URL``: what happens between a question and its answer.

Adds to the file what the turn that waits for its person holds meanwhile (a lease, an announcement, processes), one line
of JSON; then kills, as ``strike.py`` does.
"""

import asyncio
import json
import sys
from pathlib import Path

from api_client.client import TurnsClient
from tests.browser.browsing import store_of
from tests.browser.strike import strike
from tests.support import processes_with


async def held(store: str) -> dict[str, list[object]]:
    """What each turn that waits for a person holds, by its id."""
    async with TurnsClient(store_of({"redis_url": store})) as client:
        return {
            turn.turn_id: [turn.lease_until, turn.next, *processes_with(f"HELIX_AGENT_MARK={turn.turn_id}.").values()]
            for turn in await client.inbox.list_suspended()
        }


def main(root: str, store: str, file: str, victim: str, url: str) -> None:
    with Path(file).open("a") as lines:
        lines.write(json.dumps(asyncio.run(held(store))) + "\n")
    strike(root, victim, url)


if __name__ == "__main__":
    main(*sys.argv[1:])
