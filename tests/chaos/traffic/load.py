"""The clients of a chaos run: real HTTP, over either relay, repeating and reconnecting as good clients do.

Each writes what it asked and what it saw into the history. A request without an answer is ``info``: it may have worked.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2

from tests.chaos.history import Recorder
from tests.chaos.traffic.clients import PATIENCE, PAUSE_SECONDS, Clients, code_of, events_of
from tests.chaos.traffic.deciders import Deciders
from tests.chaos.traffic.escalations import ESCALATING
from tests.chaos.traffic.phase_load import PhaseLoad
from tests.chaos.traffic.plan import PlannedSession, PlannedTurn
from tests.chaos.traffic.repertoire import KINDS, message

_LONG_PATIENCE = httpx2.Timeout(5.0, read=45.0)
_BROKEN = "broken: "


class Load:
    """All users of a run. ``play`` sends everything that is planned; readers go on until their turn's end."""

    def __init__(self, relays: Sequence[str], recorder: Recorder, seed: int, root: Path, token: str) -> None:
        self._clients = Clients(relays, recorder, seed, token)
        self._deciders = Deciders(self._clients, seed, root)
        self._phases = PhaseLoad(self._clients, self._deciders)

    @property
    def waiting(self) -> int:
        """How many users still do something."""
        return len(self._clients.tasks)

    async def play(self, sessions: Sequence[PlannedSession], begun: float) -> None:
        """Begin every session at its time; returns when all have begun."""
        for session in sessions:
            await asyncio.sleep(max(0.0, begun + session.at - time.monotonic()))
            self._clients.begin(self._phases.carry(session) if session.phases else self._talk(session))

    async def finish(self, seconds: float) -> int:
        """Wait for all users; when none has ended for ``seconds``, the rest are sent home. Returns how many."""
        return await self._clients.finish(seconds)

    async def _talk(self, session: PlannedSession) -> None:
        for turn in session.turns:
            if turn.way != "turn":
                await self._chat(session, turn)
            elif turn_id := await self._submit(session, turn):
                self._clients.accompany(turn, turn_id)
                if turn.kind in ESCALATING:
                    hear = self._deciders.hearing(turn, turn_id, ESCALATING[turn.kind].decisions)
                    self._clients.begin(self._clients.follow(turn_id, hear))
                if session.hasty:
                    await asyncio.sleep(self._clients.draw(0.0, 0.2, 1.0))
                else:
                    await self._clients.follow(turn_id)

    def _body(self, turn: PlannedTurn) -> dict[str, Any]:
        content = message(turn.key, turn.kind)
        return {
            "model": "scripted",
            "messages": [{"role": "user", "content": content}],
            "double_text": turn.double_text,
            **(ESCALATING[turn.kind].asked() if turn.kind in ESCALATING else {}),
        }

    def _told(self, session: PlannedSession, turn: PlannedTurn) -> dict[str, Any]:
        """What the checker must know of a submit."""
        answers = list((KINDS | ESCALATING)[turn.kind].answers)
        return {"key": turn.key, "chat": session.chat, "kind": turn.kind, "way": turn.way, "answers": answers}

    def _headers(self, session: PlannedSession, turn: PlannedTurn) -> dict[str, str]:
        return {"X-Conversation-ID": session.chat, "Idempotency-Key": turn.key}

    async def _submit(self, session: PlannedSession, turn: PlannedTurn) -> str:
        """Hand a turn in, again and again under the same key until a relay says yes or no."""
        told = self._told(session, turn)
        while True:
            relay = self._clients.relay()
            self._clients.recorder.write("submit", "invoke", **told, relay=relay)
            try:
                answer = await self._clients.http.post(
                    f"{relay}/v1/turns", json=self._body(turn), headers=self._headers(session, turn)
                )
            except httpx2.HTTPError as error:
                self._clients.recorder.write("submit", "info", **told, error=type(error).__name__)
            else:
                if answer.status_code == httpx2.codes.ACCEPTED:
                    turn_id = str(answer.json()["turn_id"])
                    self._clients.recorder.write("submit", "ok", **told, turn=turn_id)
                    return turn_id
                refused = answer.status_code < httpx2.codes.INTERNAL_SERVER_ERROR
                self._clients.recorder.write("submit", "fail" if refused else "info", **told, error=code_of(answer))
                if refused:
                    return ""
            await asyncio.sleep(PAUSE_SECONDS)

    async def _chat(self, session: PlannedSession, turn: PlannedTurn) -> None:
        """One message through /v1/chat/completions; a broken answer is asked for again under the same key."""
        while True:
            if await self._complete(session, turn):
                return
            await asyncio.sleep(PAUSE_SECONDS)

    async def _complete(self, session: PlannedSession, turn: PlannedTurn) -> bool:
        """One try; True when it brought the answer or the final error."""
        told, relay, known = self._told(session, turn), self._clients.relay(), ""
        streamed = turn.way == "stream"
        self._clients.recorder.write("submit", "invoke", **told, relay=relay)
        try:
            async with self._clients.http.stream(
                "POST",
                f"{relay}/v1/chat/completions",
                json=self._body(turn) | {"stream": streamed},
                headers=self._headers(session, turn),
                timeout=PATIENCE if streamed else _LONG_PATIENCE,
            ) as answer:
                known = answer.headers.get("x-turn-id", "")
                if known:
                    self._clients.recorder.write("submit", "ok", **told, turn=known)
                    self._clients.accompany(turn, known)
                text, error = await (_streamed(answer) if streamed else _whole(answer))
        except (httpx2.HTTPError, ValueError) as problem:
            text, error = "", _BROKEN + type(problem).__name__
        if error in _AGAIN or error.startswith(_BROKEN):
            self._clients.recorder.write("chat" if known else "submit", "info", **told, turn=known, error=error)
            return False
        self._clients.recorder.write("chat", "ok", key=turn.key, turn=known, text=text, error=error)
        if not known:
            self._clients.recorder.write("submit", "fail", **told, error=error)
        return True


#: Errors after which the same request is sent again: the turn, if there is one, goes on.
_AGAIN = {"stream_lost", "store_unavailable", "internal_error", "cut"}


async def _streamed(answer: httpx2.Response) -> tuple[str, str]:
    """The text a streamed completion told, and its error code: ``cut`` when it just ended."""
    if not answer.is_success:
        await answer.aread()
        return "", code_of(answer)
    text, error = "", "cut"
    async for _, _, data in events_of(answer):
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
        return "", code_of(answer)
    return str(answer.json()["choices"][0]["message"]["content"]), ""
