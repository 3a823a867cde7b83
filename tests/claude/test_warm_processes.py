"""A process of the CLI that is kept for its session's next message: what happens to it, and whose text is whose.

Whole turns through a real worker: three messages of one chat, and something goes wrong from the second one on. Whatever
it is, each message gets its own answer, and the model hears each message and each answer once.
"""

import contextlib
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn, TurnRequest
from tests.claude.stub import Reply, Stub, fails, says, told
from tests.claude.tap import Tap, Tapped, Tell
from tests.installation import WorkerProcess
from tests.support import processes_with, wait_until

#: Set where processes are kept at all.
WARM, COLD = {"claude_warm_seconds": 120.0}, {"claude_warm_seconds": 0.0}
QUESTIONS = ("A", "B", "C")


def answer(letter: str, delay: float = 0.0) -> Reply:
    return says(f"Antwort {letter} ", "ist ", "ganz.\n\n<!-- STEP: done -->", delay=delay)


class Model(Stub):
    """Answers the last question of a conversation; to B it first says ``first``, reply by reply."""

    first: tuple[Reply, ...] = ()

    def take(self, request: dict[str, Any]) -> Reply:
        with self._lock:
            self.requests.append(request)
            letter = re.findall(r"Frage (\w)", "\n".join(told(request)))[-1]
            if letter == "B" and self.first:
                reply, *rest = self.first
                self.first = tuple(rest)
                return reply
            return answer(letter)


def _second(tapped: Tapped) -> bool:
    return tapped.results == 1


def _started(line: bytes) -> bool:
    return b'"command_lifecycle"' in line and b'"started"' in line


def late_text(tapped: Tapped, line: bytes) -> bytes:
    if not tapped.results and b"text_delta" in line:
        tapped.kept = tapped.kept or line
    return line + tapped.kept if not tapped.results and b'"type":"result"' in line else line


def text_in_the_next(tapped: Tapped, line: bytes) -> bytes:
    if not tapped.results and b"text_delta" in line:
        tapped.kept = tapped.kept or line
    return line + tapped.kept if _second(tapped) and _started(line) else line


def result_in_the_next(tapped: Tapped, line: bytes) -> bytes:
    if not tapped.results and b'"type":"result"' in line:
        tapped.kept = line
    return line + tapped.kept if _second(tapped) and _started(line) else line


def result_lost(tapped: Tapped, line: bytes) -> bytes:
    return b"" if _second(tapped) and b'"type":"result"' in line else line


def end_lost(tapped: Tapped, line: bytes) -> bytes:
    return b"" if tapped.results == 2 and b'"command_lifecycle"' in line else line


def compacted(tapped: Tapped, line: bytes) -> bytes:
    boundary = b'{"type":"system","subtype":"compact_boundary","compact_metadata":{"trigger":"auto"}}\n'
    return boundary + line if _second(tapped) and b'"type":"result"' in line else line


def cut_before(tapped: Tapped, line: bytes) -> bytes:
    tapped.cut = _second(tapped) and b'"queued"' in line
    return line


def cut_within(tapped: Tapped, line: bytes) -> bytes:
    tapped.cut = _second(tapped) and b"text_delta" in line
    return line


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What happens. ``between``: a signal once A is answered. ``within``: one when B's answer begins.

    ``tell``: what standard output makes of its lines. ``first``: what the model says to B before its answer.
    ``warm``: the attempts of all three in order, as they began. ``kept``: whether a process is kept at all.
    """

    name: str
    between: signal.Signals | None = None
    within: signal.Signals | None = None
    tell: Tell | None = None
    first: tuple[Reply, ...] = ()
    warm: tuple[str, ...] = ()
    kept: bool = True


SLOW = (answer("B", 0.4),)
#: Each process is disturbed at its second message, and is trusted no more.
NEVER = ("cold", "cold", "cold")
SITUATIONS = (
    Situation(name="nothing happens", warm=("cold", "warm", "warm")),
    Situation(name="killed between two messages", between=signal.SIGKILL, warm=("cold", "cold", "warm")),
    Situation(name="ended between two messages", between=signal.SIGTERM, warm=("cold", "cold", "warm")),
    Situation(name="stopped between two messages", between=signal.SIGSTOP),
    Situation(name="killed within a message", within=signal.SIGKILL, first=SLOW),
    Situation(name="ended within a message", within=signal.SIGTERM, first=SLOW),
    Situation(name="interrupted within a message", within=signal.SIGINT, first=SLOW),
    Situation(name="stopped within a message", within=signal.SIGSTOP, first=SLOW),
    Situation(name="text behind its result", tell=late_text, kept=False),
    Situation(name="text of the last message in the next", tell=text_in_the_next, warm=NEVER, kept=False),
    Situation(name="result of the last message in the next", tell=result_in_the_next, warm=NEVER, kept=False),
    Situation(name="result lost", tell=result_lost),
    Situation(name="end of a message lost", tell=end_lost),
    Situation(name="context compacted", tell=compacted, warm=("cold", "warm", "cold")),
    Situation(name="stdout cut between two messages", tell=cut_before, warm=NEVER, kept=False),
    Situation(name="stdout cut within a message", tell=cut_within),
    Situation(name="an API error, then success", first=(fails(500),), warm=("cold", "warm", "warm")),
    Situation(name="API errors until the CLI gives up", first=(fails(529),) * 2),
    Situation(name="an empty answer", first=(says(""),) * 2),
)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("mode", ["cold", "warm"])
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.name)
async def test_each_message_gets_its_own_answer_and_is_heard_once(
    situation: Situation, mode: str, claude_settings: Settings, worker_process: Callable[..., WorkerProcess]
) -> None:
    if mode == "cold" and not situation.within and not situation.first:
        pytest.skip("happens to a kept process only")
    with contextlib.ExitStack() as stack:
        model = Model()
        model.first = situation.first
        stack.enter_context(model)
        settings = replace(claude_settings, claude_api_url=model.url, sandbox="off", idle_seconds=15.0)
        settings = replace(settings, **(WARM if mode == "warm" else COLD))
        if situation.tell:
            tap = stack.enter_context(Tap(settings.root, Path(settings.claude_path), situation.tell))
            settings = replace(settings, claude_path=str(tap.program))
        worker_process(settings=settings)
        async with TurnsClient(settings) as client:
            chat = Chat(client, model)
            for letter in QUESTIONS:
                await chat.ask(letter, situation.within if letter == "B" else None)
                if letter == "A" and situation.between:
                    await chat.send(situation.between)
            await chat.check(situation, mode)
            if not situation.within:
                heard = "\n".join(told(model.requests[-1]))
                said = re.findall(r"(?:Frage|Antwort) [ABC]\b", heard)
                assert said == ["Frage A", "Antwort A", "Frage B", "Antwort B", "Frage C"], heard


@pytest.mark.timeout(240)
async def test_with_two_worker_processes_each_message_finds_its_process_also_after_one_was_killed(
    claude_settings: Settings, worker_process: Callable[..., WorkerProcess]
) -> None:
    with Model() as model:
        settings = replace(claude_settings, claude_api_url=model.url, sandbox="off", **WARM)
        settings = replace(settings, affinity_patience=10.0)
        worker = worker_process("--processes", "2", settings=settings)
        async with TurnsClient(settings) as client:
            chat = Chat(client, model)
            for letter in "ABCDE":
                await chat.ask(letter, None)
            attempts = [each for turn in chat.turns for each in await client.reader.read_attempts(turn.turn_id)]
            assert [each.completion["evidence"]["start"] for each in attempts] == ["cold", *["warm"] * 4]
            [keeper] = {each.worker for each in attempts}
            pid = worker.named(keeper)
            assert pid
            os.kill(pid, signal.SIGKILL)
            for letter in "FG":
                await chat.ask(letter, None)
            attempts = [each for turn in chat.turns[5:] for each in await client.reader.read_attempts(turn.turn_id)]
            assert [each.completion["evidence"]["start"] for each in attempts] == ["cold", "warm"]
            assert [turn.delivery for turn in chat.turns] == [1] * 7
            for letter, turn in zip("ABCDEFG", chat.turns, strict=True):
                assert turn.response == "".join(answer(letter).chunks), letter
            said = re.findall(r"(?:Frage|Antwort) [A-G]\b", "\n".join(told(model.requests[-1])))
            assert said == [f"{who} {each}" for each in "ABCDEF" for who in ("Frage", "Antwort")] + ["Frage G"]


class Chat:
    """A chat of one session, and what became of it."""

    def __init__(self, client: TurnsClient, model: Model) -> None:
        self._client, self._model = client, model
        self._messages: list[dict[str, str]] = []
        self.turns: list[Turn] = []
        self.shown: list[str] = []
        self._asked: list[str] = []

    async def ask(self, letter: str, within: signal.Signals | None) -> None:
        """Ask, and wait for the answer; a signal goes to the CLI when that begins."""
        self._messages.append({"role": "user", "content": f"Frage {letter}"})
        request = TurnRequest(model="helix-consultant", messages=tuple(self._messages), session_id="s", locale="de")
        turn_id = await self._client.submitter.submit(request)
        self._asked.append(turn_id)
        shown = ""
        async for event in self._client.reader.follow_turn(turn_id):
            shown += str(event.data.get("text", "")) if event is not None else ""
            if within and event is not None and event.kind == "attempt.output":
                await self.send(within)
                within = None
        self.shown.append(shown)
        self.turns.append(await self._client.reader.await_result(turn_id, timeout=120))
        self._messages.append({"role": "assistant", "content": f"Antwort {letter} ist ganz."})

    async def send(self, number: signal.Signals) -> None:
        """Send a signal to the CLI of this chat, where one lives."""
        ours = [
            pid
            for turn in self._asked
            for pid, command in processes_with(f"HELIX_AGENT_MARK={turn}.").items()
            if "--session-id" in command
        ]
        for pid in ours:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                if number in (signal.SIGKILL, signal.SIGTERM):
                    await wait_until(lambda pid=pid: pid not in processes_with("HELIX_AGENT_MARK="))  # type: ignore[misc]

    async def check(self, situation: Situation, mode: str) -> None:
        """Nothing is complete that is not, and nothing is another message's."""
        began = []
        for letter, turn, shown in zip(QUESTIONS, self.turns, self.shown, strict=True):
            assert turn.response == "".join(answer(letter).chunks), (letter, turn)
            others = {f"Antwort {other}" for other in QUESTIONS if other != letter}
            assert not any(other in shown for other in others), (letter, shown)
            for attempt in await self._client.reader.read_attempts(turn.turn_id):
                began.append(attempt.completion["evidence"].get("start", "cold"))
                assert not any(other in (attempt.text or "") for other in others), (letter, attempt.text)
                if attempt.completion["verdict"] == "complete":
                    assert (attempt.text or "").strip() in ("", turn.response), (letter, attempt.text)
        counted = Counter(began)
        if mode == "warm":
            assert situation.warm in ((), tuple(began))
            assert situation.between or not situation.kept or counted["warm"], "no process was kept"
        else:
            assert not counted["warm"]
