"""A store that lost the end of its log: killed, and started again on an earlier copy of its file.

This happens when the power fails under a server that syncs every second, or when a replica takes over that lagged.
Broker, worker and readers are real: whatever the store forgot, a reader's text is right in the end and has nothing
twice.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from api_client.client import TurnsClient
from api_client.contract.errors import TurnNotFound
from api_client.contract.event_kinds import AttemptOutput
from api_client.contract.events import RESET, Event
from api_client.contract.keys import keys_for_turn
from api_client.contract.settings import Settings
from api_client.contract.tasks import RUN, ChainTask
from api_client.contract.turn import Outcome
from api_client.store.connecting import open_blocking_store
from api_client.turns.record.claim import LeaseClaim
from api_client.turns.record.transition import Transition
from tests.fault.conftest import Meeting, judged
from tests.fault.scripts import FORGET
from tests.installation import Installation, asked
from tests.on_loop import Ledger
from tests.support import wait_until
from tests.unit.web.test_reconnects import text_after
from worker.processes.embedded_broker import EmbeddedBroker

#: Three pieces; before each of the last two the agent waits for the test.
SCRIPT = """
- when: pieces
  attempts:
    - - say: "Eins, "
      - wait_for: {meet}/second
      - say: "zwei, "
      - wait_for: {meet}/third
      - say: "drei.\\n\\n<!-- STEP: done -->"
"""
PIECES = ["Eins, ", "Eins, zwei, ", "Eins, zwei, drei.\n\n<!-- STEP: done -->"]


@dataclass(slots=True)
class Reader:
    """A reader of a turn that keeps every event and every text that was shown."""

    text: str = ""
    events: list[Event] = field(default_factory=list)
    shown: set[str] = field(default_factory=set)

    async def read(self, client: TurnsClient, turn_id: str) -> None:
        async for event in client.reader.follow_turn(turn_id):
            if event is not None:
                self.events.append(event)
                self.text = text_after(self.text, event.to_dict())
                self.shown.add(self.text)


class ForgetfulStore:
    """A broker that can be brought back to an earlier state."""

    def __init__(self, broker: EmbeddedBroker, copy: Path) -> None:
        self._broker = broker
        self._kept = broker.directory / "appendonlydir"
        self._copy = copy

    def remember(self) -> None:
        """Save the current state."""
        shutil.copytree(self._kept, self._copy)

    def forget(self) -> None:
        """Lose everything since the saved state."""
        self._broker.kill()
        shutil.rmtree(self._kept)
        shutil.copytree(self._copy, self._kept)
        self._broker.start()


@pytest.fixture
def store(private_broker: EmbeddedBroker, tmp_path: Path) -> ForgetfulStore:
    return ForgetfulStore(private_broker, tmp_path / "copy")


@pytest.fixture
def pieces(installation: Installation, private_broker: EmbeddedBroker, meeting: Meeting) -> Installation:
    """Provide an installation whose model answers in ``PIECES``; leases outlast the store's absence."""
    meeting.script.write_text(SCRIPT.format(meet=meeting.directory))
    url = private_broker.url
    installation.change(**meeting.settings(), broker_url=url, store_url=url, lease_seconds=30.0)
    return installation


@asynccontextmanager
async def read_along(client: TurnsClient, turn_id: str) -> AsyncIterator[Reader]:
    """Read a turn's events during the ``async with`` block and on to the turn's end."""
    reader = Reader()
    task = asyncio.create_task(reader.read(client, turn_id))
    yield reader
    await asyncio.wait_for(task, 60)


async def until(reader: Reader, text: str) -> None:
    await wait_until(lambda: reader.text == text)


async def test_the_holder_tells_again_what_the_store_forgot(
    pieces: Installation, store: ForgetfulStore, meeting: Meeting
) -> None:
    worker = pieces.worker()
    client = pieces.client
    turn_id = await pieces.ask("pieces")
    async with read_along(client, turn_id) as reader:
        await until(reader, PIECES[0])
        store.remember()
        (meeting.directory / "second").touch()
        await until(reader, PIECES[1])
        store.forget()
        (meeting.directory / "third").touch()
    turn, events = await judged(client, turn_id)
    assert (turn.outcome, turn.delivery) == (Outcome.PASSED, 1)
    told = "".join(event.data["text"] for event in events if event.kind == "attempt.output")
    assert told == reader.text == PIECES[-1], "the log has a hole"
    assert reader.shown == {"", *PIECES}, "a reader saw a text with a hole, or something twice"
    assert worker.log_file.read_text().count("store.forgot") == 1


async def test_a_reader_that_kept_its_connection_notifications_what_was_written_anew(settings: Settings) -> None:
    """The store is restored at once, and no connection breaks; no ping helps the reader."""
    ledger = Ledger(settings, "w")
    async with TurnsClient(replace(settings, ping_seconds=60.0)) as client:
        turn_id = await client.submitter.submit(asked("pieces"))
        claim = await asyncio.to_thread(ledger.claim_turn, turn_id, "s", ChainTask(RUN, 1))
        assert isinstance(claim, LeaseClaim)
        async with read_along(client, turn_id) as reader:
            said = [AttemptOutput(attempt=1, text=text) for text in ("eins ", "zwei ", "drei")]
            await asyncio.to_thread(ledger.append_events, claim, said[:2])
            await until(reader, "eins zwei ")
            keys = keys_for_turn(settings.namespace, turn_id)
            with open_blocking_store(settings) as store:
                store.eval(FORGET, 2, keys.turn(turn_id), keys.log(turn_id), 0, 2)
            await asyncio.to_thread(ledger.append_events, claim, said[2:])
            await until(reader, "eins zwei drei")
            await asyncio.to_thread(ledger.commit_transition, claim, Transition(attempt=1, outcome=Outcome.FAILED))
    assert [event.seq for event in reader.events] == [1, 2, 3, 4, 0, *range(1, 7)]
    assert reader.shown == {"", "eins ", "eins zwei ", "eins zwei drei"}


async def test_readers_of_a_delivery_the_store_forgot_begin_again(
    pieces: Installation, store: ForgetfulStore, meeting: Meeting
) -> None:
    """The claim itself is lost: its worker is fenced, and the turn is delivered again with the same numbers."""
    client = pieces.client
    turn_id = await pieces.ask("pieces")
    store.remember()
    pieces.worker()
    async with read_along(client, turn_id) as reader:
        (meeting.directory / "second").touch()
        await until(reader, PIECES[1])
        store.forget()
        (meeting.directory / "third").touch()
    turn, events = await judged(client, turn_id)
    assert turn.outcome is Outcome.PASSED
    assert reader.shown <= {"", *PIECES}
    kinds = [event.kind for event in reader.events]
    assert kinds[kinds.index(RESET) + 1 :] == [event.kind for event in events]


async def test_who_saw_an_end_that_the_store_forgot_is_told_so_when_it_comes_back(
    pieces: Installation, store: ForgetfulStore, meeting: Meeting
) -> None:
    pieces.change(lease_seconds=1.5)  # whose holder is gone is delivered again when its lease is over
    pieces.worker()
    client = pieces.client
    turn_id = await pieces.ask("pieces")
    async with read_along(client, turn_id) as reader:
        await until(reader, PIECES[0])
        store.remember()
        (meeting.directory / "second").touch()
        (meeting.directory / "third").touch()
    last = reader.events[-1]
    assert last.final
    store.forget()
    turn, events = await judged(client, turn_id)
    assert turn.seq > last.seq, "the new log goes on behind the number where the forgotten one ended"
    after = client.reader.follow_turn(turn_id, after=last.seq, epoch=last.epoch, at_ms=last.at_ms)
    again = [event async for event in after if event is not None]
    assert turn.outcome is Outcome.PASSED
    assert (again[0].kind, again[1:]) == (RESET, events)


async def test_readers_of_a_turn_that_the_store_forgot_do_not_wait_for_it(
    pieces: Installation, store: ForgetfulStore
) -> None:
    client = pieces.client
    await pieces.ask("pieces", "before")
    store.remember()
    turn_id = await pieces.ask("pieces")
    events = client.reader.follow_turn(turn_id)
    assert (await anext(events)).kind == "turn.queued"
    store.forget()
    with pytest.raises(TurnNotFound):
        await asyncio.wait_for(_all(events), 60)


async def _all(events: AsyncIterator[Event | None]) -> None:
    async for _ in events:
        pass
