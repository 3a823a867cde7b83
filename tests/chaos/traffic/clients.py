"""What all clients of a chaos run share: the connection, the relay they ask, following a turn, calling it off.

Each writes what it asked and what it saw into the history. A request without an answer is ``info``: it may have worked.
"""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx2

from tests.chaos.history import Recorder, digest
from tests.chaos.traffic.plan import PlannedTurn

PATIENCE = httpx2.Timeout(5.0, read=8.0)
PAUSE_SECONDS = 0.4
#: The turn is known to have no more to say.
_NO_MORE = 204

#: Told the name and the id of each event a follower sees.
Hear = Callable[[str, str], None]


def _unheard(_name: str, _event_id: str) -> None:
    """For followers who do nothing about what they see."""


class Clients:
    """All users of a run, as far as they do the same; ``begin`` has one do something, ``finish`` waits for all.

    They ask with the operator's token, because some of them decide.
    """

    def __init__(self, relays: Sequence[str], recorder: Recorder, seed: int, token: str) -> None:
        self.recorder = recorder
        self.http = httpx2.AsyncClient(
            timeout=PATIENCE,
            limits=httpx2.Limits(max_connections=None),
            headers={"authorization": f"Bearer {token}"},
        )
        self.tasks: set[asyncio.Task[Any]] = set()
        self._relays = relays
        self._draw = random.Random(f"clients {seed}")
        self._numbers = itertools.count(1)
        self._accompanied: set[str] = set()

    def begin(self, what: Any) -> asyncio.Task[Any]:
        """Have a user do something beside all others."""
        task = asyncio.create_task(what)
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.recorder.write("client", "info", error=repr(error)[:300])

    async def finish(self, seconds: float) -> int:
        """Wait for all users; when none has ended for ``seconds``, the rest are sent home. Returns how many."""
        while self.tasks:
            ended, _ = await asyncio.wait(self.tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not ended:
                break
        left = len(self.tasks)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.http.aclose()
        return left

    def relay(self) -> str:
        """The relay that is asked next."""
        return self._draw.choice(self._relays)

    def draw(self, *among: float) -> float:
        """One of some numbers."""
        return self._draw.choice(among)

    async def follow(self, turn_id: str, hear: Hear = _unheard) -> None:
        """Read a turn's events to the end, coming back with the last id as often as it takes."""
        reader, last = next(self._numbers), ""
        while True:
            relay = self.relay()
            self.recorder.write("read", "invoke", reader=reader, turn=turn_id, after=last, relay=relay)
            try:
                headers = {"Last-Event-ID": last} if last else {}
                url = f"{relay}/v1/turns/{turn_id}/events"
                async with self.http.stream("GET", url, headers=headers) as answer:
                    if answer.status_code == _NO_MORE:
                        self.recorder.write("read", "ok", reader=reader, turn=turn_id, after=last, why="no more")
                        return
                    async for name, event_id, data in events_of(answer):
                        if name in {"error", "log.reset"}:
                            self.recorder.write("event", "info", reader=reader, turn=turn_id, kind=name, data=data)
                            continue
                        last = event_id or last
                        facts = {"id": event_id, "kind": name, "sha256": digest(json.loads(data))}
                        self.recorder.write("event", "ok", reader=reader, turn=turn_id, **facts)
                        hear(name, event_id)
                        if name == "turn.finished":
                            self.recorder.write("read", "ok", reader=reader, turn=turn_id, after=last, why="end")
                            return
                why = "end of stream" if answer.is_success else code_of(answer)
            except httpx2.HTTPError as error:
                why = type(error).__name__
            self.recorder.write("read", "info", reader=reader, turn=turn_id, after=last, why=why)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _cancel(self, turn_id: str, after: float) -> None:
        await asyncio.sleep(after)
        self.recorder.write("cancel", "invoke", turn=turn_id)
        while True:
            try:
                answer = await self.http.post(f"{self.relay()}/v1/turns/{turn_id}/cancel")
                if answer.is_success:
                    self.recorder.write("cancel", "ok", turn=turn_id, state=answer.json()["state"])
                    return
            except httpx2.HTTPError as error:
                self.recorder.write("cancel", "info", turn=turn_id, error=type(error).__name__)
            await asyncio.sleep(PAUSE_SECONDS)

    def accompany(self, turn: PlannedTurn, turn_id: str) -> None:
        """Once a turn's id is known: its readers, and the user who calls it off."""
        if turn.key in self._accompanied:
            return
        self._accompanied.add(turn.key)
        for _ in range(turn.readers):
            self.begin(self.follow(turn_id))
        if turn.cancel_after:
            self.begin(self._cancel(turn_id, turn.cancel_after))


def code_of(answer: httpx2.Response) -> str:
    """The code of an error's body, or its HTTP status."""
    try:
        return str(answer.json()["error"]["code"])
    except (ValueError, KeyError, TypeError, httpx2.ResponseNotRead):
        return f"http {answer.status_code}"


async def events_of(answer: httpx2.Response) -> AsyncIterator[tuple[str, str, str]]:
    """Name, id and data of every whole event of a stream."""
    name = event_id = data = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("id: "):
            event_id = line.removeprefix("id: ")
        elif line.startswith("data: "):
            data = line.removeprefix("data: ")
        elif not line and data:
            yield name, event_id, data
            name = event_id = data = ""
