"""Readers of this version over what a later version wrote: they skip what they cannot read, and crash over nothing.

The later version is played by hand: words, fields, events and whole forms of the log that this one does not know.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.decision import DecisionKind
from api_client.contract.events import Event
from api_client.contract.keys import keys_for_turn
from api_client.contract.settings import Settings
from api_client.contract.turn import DoubleText, Outcome, TurnRequest, TurnState
from tests.installation import run, web
from tests.integration.lua.by_hand import PASSED, claimed, request
from tests.on_loop import Ledger
from tests.support import wait_until

LATER = "iced"
#: When it ended, in ms: lists show the last week.
ENDED = int(time.time() * 1000)


class Future:
    """A later worker's hand in a turn's record and log."""

    def __init__(self, settings: Settings, turn_id: str) -> None:
        self._redis = redis.Redis.from_url(settings.redis_url)
        self._keys, self._id = keys_for_turn(settings.namespace, turn_id), turn_id
        self.seq = int(self._redis.hget(self._keys.turn(turn_id), "seq") or 0)  # type: ignore[arg-type]

    def event(self, kind: str, **data: Any) -> str:
        self.seq += 1
        told = {"seq": self.seq, "epoch": self._epoch, "at": 1_795_000_000_000 + self.seq, "kind": kind, "data": data}
        return json.dumps({**told, "signed": "by a later version"})

    @property
    def _epoch(self) -> str:
        return (self._redis.hget(self._keys.turn(self._id), "epoch") or b"").decode()  # type: ignore[union-attr]

    def unreadable(self) -> str:
        """The next event, in a form of another kind."""
        self.seq += 1
        return f"\x02{self.seq}\x1fpacked"

    def write(self, *lines: str, name: str = "e") -> None:
        """Put an entry into the log, and ring."""
        text = "\n".join(lines)
        self._redis.xadd(self._keys.log(self._id), {name: text}, id=f"{self.seq}-0")
        self._redis.hset(self._keys.turn(self._id), mapping={"seq": self.seq})
        self._redis.publish(self._keys.wake_up_channel(self._id), text)

    def end(self) -> None:
        """End the turn with an outcome of a later version, and with facts that this one does not know."""
        changed = {"state": "finished", "outcome": LATER, "finished_at": ENDED, "response": "", "next": ""}
        self._redis.hset(self._keys.turn(self._id), mapping={**changed, "double_text": "later", "colour": "blue"})
        self._redis.hset(self._keys.attempts(self._id), mapping={"1:text": "Ein Entwurf.", "1:colour": "blue"})
        self._redis.zadd(self._keys.finished, {self._id: ENDED})
        self._redis.rpush(self._keys.pending, f"{int(time.time() * 1000)}\nturn.finished|{LATER}|scripted|v2|none|0\t1")


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[TurnsClient]:
    async with TurnsClient(settings) as made:
        yield made


@pytest.fixture
async def ended(settings: Settings, client: TurnsClient) -> str:
    """A turn that a later version carried out and ended."""
    turn_id = await client.submitter.submit(request())
    future = Future(settings, turn_id)
    future.write(future.event("attempt.started", attempt=1, delivery=1, max_attempts=3, worker="w", colour="blue"))
    future.write(future.event("attempt.weighed", attempt=1, grams=7))
    future.write(future.unreadable(), future.event("attempt.output", attempt=1, text="Ein Entwurf."))
    future.write(future.unreadable(), name="z")
    future.write(future.unreadable())
    future.end()
    return turn_id


def test_a_word_of_a_later_version_equals_none_of_ours_is_no_success_and_is_shown_as_its_text() -> None:
    for kind in (Outcome, TurnState, DecisionKind):
        word = kind(LATER)
        assert (word, word.value, str(word), word in list(kind)) == (LATER, LATER, LATER, False)
    assert not Outcome(LATER).success
    assert {Outcome(LATER), Outcome(LATER)} == {LATER}
    with pytest.raises(ValueError, match="not a valid"):
        Outcome("")
    asked = json.loads(request().to_json())
    assert TurnRequest.from_json(json.dumps(asked | {"double_text": LATER})).double_text is DoubleText.QUEUE


def test_of_an_entry_with_lines_that_are_no_events_the_others_are_read() -> None:
    lines = ['{"seq":1,"epoch":"a","at":1,"kind":"x","data":{}}', "", "\x02packed", "[]", '{"seq":"two"}']
    assert [event.seq for event in Event.decode_entry("\n".join(lines).encode() + b"\n\xff")] == [1]


async def test_a_reader_of_a_later_versions_log_gets_what_it_can_read_and_the_end_by_the_record(
    client: TurnsClient, ended: str
) -> None:
    turn = await client.reader.read_turn(ended)
    assert (turn.outcome, turn.state) == (LATER, TurnState.FINISHED)
    async with asyncio.timeout(60):
        followed = [event async for event in client.reader.follow_turn(ended, ping_seconds=0.1) if event is not None]
    kinds = [event.kind for event in followed]
    assert kinds == ["turn.queued", "attempt.started", "attempt.weighed", "attempt.output", "turn.finished"]
    assert (followed[-1].data["outcome"], followed[-1].data["success"]) == (LATER, False)
    assert [event.kind for event in await client.reader.read_events(ended)] == kinds[:-1]
    assert (await client.reader.await_result(ended, timeout=60)).outcome == LATER
    resumed = followed[3]
    async with asyncio.timeout(60):
        again = client.reader.follow_turn(ended, after=resumed.seq, epoch=resumed.epoch, at_ms=resumed.at_ms)
        assert [event.kind async for event in again if event is not None] == ["turn.finished"]


async def test_pages_of_a_log_in_which_nothing_can_be_read_come_to_their_end(
    settings: Settings, client: TurnsClient
) -> None:
    turn_id = await client.submitter.submit(request())
    future = Future(settings, turn_id)
    for _ in range(120):
        future.write(future.unreadable())
    future.end()
    async with asyncio.timeout(60):
        assert [event.kind for event in await client.reader.read_events(turn_id)] == ["turn.queued"]
        followed = [event.kind async for event in client.reader.follow_turn(turn_id) if event is not None]
    assert followed == ["turn.queued", "turn.finished"]


async def test_every_page_route_and_command_shows_a_turn_of_a_later_version(
    settings: Settings, client: TurnsClient, ended: str
) -> None:
    Ledger(settings, "w").fold_counters()
    async with web(settings) as http:
        shown = (await http.get(f"/v1/turns/{ended}")).json()
        assert (shown["outcome"], shown["success"]) == (LATER, False)
        for path in (f"/v1/turns/{ended}/attempts", "/v1/turns", "/metrics", "/overview", f"/turns/{ended}", "/turns"):
            found = await http.get(path)
            assert found.status_code == 200, (path, found.text[:500])
            assert LATER in found.text or not path.endswith(("turns", ended)), path
        async with asyncio.timeout(60):
            events = await http.get(f"/v1/turns/{ended}/events")
        assert '"turn.finished"' in events.text
    for words in (
        ("turn", "show", ended),
        ("turn", "list"),
        ("turn", "attempts", ended),
        ("turn", "watch", ended),
        ("stats", "summary"),
    ):
        told = run(settings, *words)
        assert "Traceback" not in told.stderr, told.stderr[-1000:]
        assert LATER in told.stdout or words[1] in {"attempts", "summary"}, (words, told.stdout, told.stderr)
        assert told.returncode in {0, 1}, (words, told.stderr)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_chat_whose_turn_a_later_version_carries_out_ends_and_says_how(
    stream: bool, settings: Settings, client: TurnsClient
) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}], "stream": stream}
    async with web(settings) as http:
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=body, timeout=120))
        store = redis.Redis.from_url(settings.redis_url)
        [(turn_id, _)] = await wait_until(
            lambda: store.zrange(keys_for_turn(settings.namespace, "turn-" + "0" * 32).due, 0, -1, withscores=True)
        )
        future = Future(settings, turn_id.decode())
        future.write(future.event("attempt.weighed", attempt=1), future.unreadable())
        future.end()
        future.write(future.unreadable())
        answer = await asking
    assert "internal_error" not in answer.text
    assert LATER in answer.text


async def test_a_worker_leaves_a_turn_alone_whose_next_link_only_a_later_version_knows(
    settings: Settings, client: TurnsClient
) -> None:
    strange, ours = [await client.submitter.submit(request(session_id=name)) for name in ("s-1", "s-2")]
    store, keys = redis.Redis.from_url(settings.redis_url), keys_for_turn(settings.namespace, strange)
    store.hset(keys.turn(strange), mapping={"next": "turn.polish/1", "state": "polishing"})
    ledger = Ledger(settings, "w")
    ledger.commit_transition(claimed(ledger, ours, session_id="s-2"), PASSED)
    found = await client.reader.read_turn(strange)
    assert (found.state, found.outcome, found.next) == ("polishing", None, "turn.polish/1")
