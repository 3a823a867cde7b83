"""The Python client: submit a turn, read its events, resume, cancel (``python library.py "Where is the invoice?"``)."""

import asyncio
import sys

from api_client.client import TurnsClient
from api_client.contract.settings import load_settings
from api_client.contract.turn import TurnRequest, new_session_id


def asked(message: str) -> TurnRequest:
    """A request in a new session; turns of one session run in order."""
    return TurnRequest(model="invoices", messages=({"role": "user", "content": message},), session_id=new_session_id())


async def main() -> None:
    async with TurnsClient(load_settings()) as client:  # finds the `turns up` of this folder, or REDIS_URL
        turn_id = await client.submitter.submit(asked(sys.argv[1]))
        seen = 0
        async for event in client.reader.follow_turn(turn_id):
            if event is not None:  # None: nothing happened for a while
                print(event.seq, event.kind)
                seen = event.seq
            if seen == 2:
                break  # as if this program died here: the turn goes on
        async for event in client.reader.follow_turn(turn_id, after=seen):
            if event is not None:
                print(event.seq, event.kind)
        turn = await client.reader.read_turn(turn_id)
        print(turn.outcome, turn.response, sep="\n")

        other = await client.submitter.submit(asked("Where is the other one?"))
        await client.canceller.cancel(other)  # of a finished turn: changes nothing
        print((await client.reader.await_result(other, timeout=60)).outcome)

        # A turn that waits for a person (`client.inbox.suspended()` lists them):
        # await client.inbox.decide(turn_id, "approve", by="anna")


asyncio.run(main())
