"""Turns played by hand: no worker process, no agent; the test itself claims and commits."""

from api_client.client import TurnsClient
from api_client.contract.events import Event
from api_client.contract.tasks import RUN, ChainTask
from api_client.contract.turn import Outcome, TurnRequest
from api_client.turns.record.claim import LeaseClaim
from api_client.turns.record.transition import Answer, Transition
from tests.on_loop import Ledger

FIRST = ChainTask(RUN, 1)
PASSED = Transition(attempt=1, outcome=Outcome.PASSED, answer=Answer(response="Ja.", step="done", step_source="marker"))


def request(text: str = "Hallo", **more: object) -> TurnRequest:
    values = {"model": "scripted", "messages": ({"role": "user", "content": text},), "session_id": "s-1", **more}
    return TurnRequest(**values)  # type: ignore[arg-type]


def claimed(ledger: Ledger, turn_id: str, link: ChainTask = FIRST, session_id: str = "s-1") -> LeaseClaim:
    claim = ledger.claim_turn(turn_id, session_id, link)
    assert isinstance(claim, LeaseClaim), claim
    return claim


async def log_of(client: TurnsClient, turn_id: str) -> list[Event]:
    return [event async for event in client.reader.follow_turn(turn_id) if event is not None]
