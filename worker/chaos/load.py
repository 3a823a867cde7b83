"""The clients of a chaos run: real HTTP, over either relay, repeating and reconnecting as good clients do.

Each writes what it asked and what it saw into the history. A request without an answer is ``info``: it may have worked.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx2

from worker.chaos.history import Recorder, digest
from worker.chaos.plan import PlannedSession, PlannedTurn
from worker.chaos.repertoire import KINDS, message

_PATIENCE = httpx2.Timeout(5.0, read=8.0)
_LONG_PATIENCE = httpx2.Timeout(5.0, read=45.0)
_PAUSE_SECONDS = 0.4
_BROKEN = "broken: "
#: The turn is known to have no more to say.
_NO_MORE = 204


class Load:
    """All users of a run. ``play`` sends everything that is planned; readers go on until their turn's end."""

    def __init__(self, relays: Sequence[str], recorder: Recorder, seed: int) -> None:
        self._relays = relays
        self._recorder = recorder
        self._draw = random.Random(f"clients {seed}")  # noqa: S311 - which relay is asked, no secret
        self._numbers = itertools.count(1)
        self._http = httpx2.AsyncClient(timeout=_PATIENCE, limits=httpx2.Limits(max_connections=None))
        self._accompanied: set[str] = set()
        self.tasks: set[asyncio.Task[Any]] = set()

    async def play(self, sessions: Sequence[PlannedSession], begun: float) -> None:
        """Begin every session at its time; returns when all have begun."""
        for session in sessions:
            await asyncio.sleep(max(0.0, begun + session.at - time.monotonic()))
            self._begin(self._talk(session))

    async def finish(self, seconds: float) -> int:
        """Wait for all users; after ``seconds`` the rest are sent home. Returns how many."""
        until = time.monotonic() + seconds
        while self.tasks and time.monotonic() < until:
            await asyncio.wait(self.tasks, timeout=until - time.monotonic())
        left = len(self.tasks)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self._http.aclose()
        return left

    def _begin(self, what: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(what)
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._recorder.write("client", "info", error=repr(error)[:300])

    def _relay(self) -> str:
        return self._draw.choice(self._relays)

    async def _talk(self, session: PlannedSession) -> None:
        for turn in session.turns:
            if turn.way != "turn":
                await self._chat(session, turn)
            elif turn_id := await self._submit(session, turn):
                self._accompany(turn, turn_id)
                if session.hasty:
                    await asyncio.sleep(self._draw.choice((0.0, 0.2, 1.0)))
                else:
                    await self._follow(turn_id)

    def _body(self, turn: PlannedTurn) -> dict[str, Any]:
        content = message(turn.key, turn.kind)
        return {
            "model": "scripted",
            "messages": [{"role": "user", "content": content}],
            "double_text": turn.double_text,
        }

    def _told(self, session: PlannedSession, turn: PlannedTurn) -> dict[str, Any]:
        """What the checker must know of a submit."""
        answers = list(KINDS[turn.kind].answers)
        return {"key": turn.key, "chat": session.chat, "kind": turn.kind, "way": turn.way, "answers": answers}

    def _headers(self, session: PlannedSession, turn: PlannedTurn) -> dict[str, str]:
        return {"X-Conversation-ID": session.chat, "Idempotency-Key": turn.key}

    async def _submit(self, session: PlannedSession, turn: PlannedTurn) -> str:
        """Hand a turn in, again and again under the same key until a relay says yes or no."""
        told = self._told(session, turn)
        while True:
            relay = self._relay()
            self._recorder.write("submit", "invoke", **told, relay=relay)
            try:
                answer = await self._http.post(
                    f"{relay}/v1/turns", json=self._body(turn), headers=self._headers(session, turn)
                )
            except httpx2.HTTPError as error:
                self._recorder.write("submit", "info", **told, error=type(error).__name__)
            else:
                if answer.status_code == httpx2.codes.ACCEPTED:
                    turn_id = str(answer.json()["turn_id"])
                    self._recorder.write("submit", "ok", **told, turn=turn_id)
                    return turn_id
                refused = answer.status_code < httpx2.codes.INTERNAL_SERVER_ERROR
                self._recorder.write("submit", "fail" if refused else "info", **told, error=_code(answer))
                if refused:
                    return ""
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _cancel(self, turn_id: str, after: float) -> None:
        await asyncio.sleep(after)
        self._recorder.write("cancel", "invoke", turn=turn_id)
        while True:
            try:
                answer = await self._http.post(f"{self._relay()}/v1/turns/{turn_id}/cancel")
                if answer.is_success:
                    self._recorder.write("cancel", "ok", turn=turn_id, state=answer.json()["state"])
                    return
            except httpx2.HTTPError as error:
                self._recorder.write("cancel", "info", turn=turn_id, error=type(error).__name__)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _follow(self, turn_id: str) -> None:
        """Read a turn's events to the end, coming back with the last id as often as it takes."""
        reader, last = next(self._numbers), ""
        while True:
            relay = self._relay()
            self._recorder.write("read", "invoke", reader=reader, turn=turn_id, after=last, relay=relay)
            try:
                headers = {"Last-Event-ID": last} if last else {}
                url = f"{relay}/v1/turns/{turn_id}/events"
                async with self._http.stream("GET", url, headers=headers) as answer:
                    if answer.status_code == _NO_MORE:
                        self._recorder.write("read", "ok", reader=reader, turn=turn_id, after=last, why="no more")
                        return
                    async for name, event_id, data in _events(answer):
                        if name in {"error", "log.reset"}:
                            self._recorder.write("event", "info", reader=reader, turn=turn_id, kind=name, data=data)
                            continue
                        last = event_id or last
                        facts = {"id": event_id, "kind": name, "sha256": digest(json.loads(data))}
                        self._recorder.write("event", "ok", reader=reader, turn=turn_id, **facts)
                        if name == "turn.finished":
                            self._recorder.write("read", "ok", reader=reader, turn=turn_id, after=last, why="end")
                            return
                why = "end of stream" if answer.is_success else _code(answer)
            except httpx2.HTTPError as error:
                why = type(error).__name__
            self._recorder.write("read", "info", reader=reader, turn=turn_id, after=last, why=why)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _chat(self, session: PlannedSession, turn: PlannedTurn) -> None:
        """One message through /v1/chat/completions; a broken answer is asked for again under the same key."""
        while True:
            if await self._complete(session, turn):
                return
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _complete(self, session: PlannedSession, turn: PlannedTurn) -> bool:
        """One try; True when it brought the answer or the final error."""
        told, relay, known = self._told(session, turn), self._relay(), ""
        streamed = turn.way == "stream"
        self._recorder.write("submit", "invoke", **told, relay=relay)
        try:
            async with self._http.stream(
                "POST",
                f"{relay}/v1/chat/completions",
                json=self._body(turn) | {"stream": streamed},
                headers=self._headers(session, turn),
                timeout=_PATIENCE if streamed else _LONG_PATIENCE,
            ) as answer:
                known = answer.headers.get("x-turn-id", "")
                if known:
                    self._recorder.write("submit", "ok", **told, turn=known)
                    self._accompany(turn, known)
                text, error = await (_streamed(answer) if streamed else _whole(answer))
        except (httpx2.HTTPError, ValueError) as problem:
            text, error = "", _BROKEN + type(problem).__name__
        if error in _AGAIN or error.startswith(_BROKEN):
            self._recorder.write("chat" if known else "submit", "info", **told, turn=known, error=error)
            return False
        self._recorder.write("chat", "ok", key=turn.key, turn=known, text=text, error=error)
        if not known:
            self._recorder.write("submit", "fail", **told, error=error)
        return True

    def _accompany(self, turn: PlannedTurn, turn_id: str) -> None:
        """Once a turn's id is known: its readers, and the user who calls it off."""
        if turn.key in self._accompanied:
            return
        self._accompanied.add(turn.key)
        for _ in range(turn.readers):
            self._begin(self._follow(turn_id))
        if turn.cancel_after:
            self._begin(self._cancel(turn_id, turn.cancel_after))


#: Errors after which the same request is sent again: the turn, if there is one, goes on.
_AGAIN = {"stream_lost", "store_unavailable", "internal_error", "cut"}


def _code(answer: httpx2.Response) -> str:
    try:
        return str(answer.json()["error"]["code"])
    except (ValueError, KeyError, TypeError, httpx2.ResponseNotRead):
        return f"http {answer.status_code}"


async def _events(answer: httpx2.Response) -> AsyncIterator[tuple[str, str, str]]:
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


async def _streamed(answer: httpx2.Response) -> tuple[str, str]:
    """The text a streamed completion told, and its error code: ``cut`` when it just ended."""
    if not answer.is_success:
        await answer.aread()
        return "", _code(answer)
    text, error = "", "cut"
    async for _, _, data in _events(answer):
        if data == "[DONE]":
            return text, error
        chunk = json.loads(data)
        if "error" in chunk:
            error = str(chunk["error"]["code"])
            continue
        for choice in chunk.get("choices", ()):
            text += choice["delta"].get("content") or ""
            error = "" if choice["finish_reason"] == "stop" else error
    return text, "cut"


async def _whole(answer: httpx2.Response) -> tuple[str, str]:
    """The text of a completion that is not streamed, and its error code."""
    await answer.aread()
    if not answer.is_success:
        return "", _code(answer)
    return str(answer.json()["choices"][0]["message"]["content"]), ""
