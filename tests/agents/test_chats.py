"""A chat of five messages through the relay, with each real agent: continued, killed in its middle, gone on with."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.agents.running import RUNNERS, program_of
from tests.agents.stub import Services, StubReply, said_in, says
from tests.installation import Installation
from tests.integration.served import Served, serving
from tests.support import processes_with

pytestmark = pytest.mark.long

_WORD = re.compile(r"word\d")
_MESSAGES, _KILLED = 5, 3


class Answering(Services):
    """Answers the last message of the chat with its own word; the one that is to be killed takes its time."""

    def __init__(self) -> None:
        super().__init__([])
        self.killed = False

    def take(self, request: dict[str, Any]) -> StubReply:
        asked = words(request)[-1:] or ["word0"]
        slow = asked == [f"word{_KILLED}"] and not self.killed
        return says(f"Answer {asked[0]}. ", *(["More. "] * 200 if slow else []), "Whole.", delay=0.05)


def words(request: dict[str, Any]) -> list[str]:
    """The words of the user's messages in a model call, the last one last."""
    return _WORD.findall(json.dumps([each for each in said_in(request) if each.get("role") == "user"]))


@pytest.fixture
async def chat(name: str, installation: Installation) -> AsyncIterator[tuple[Answering, Served]]:
    with Answering() as service:
        claude = {"claude_path": str(program_of(name)), "claude_api_url": service.url, "claude_api_key": "sk-stub"}
        url = service.url if name == "gemini" else f"{service.url}/v1"
        other = {"agent_path": str(program_of(name)), "openai_url": url, "openai_api_key": "sk-stub"}
        given: dict[str, Any] = claude if name == "claude" else other
        runner = "claude_cli" if name == "claude" else RUNNERS[name]
        used = replace(installation.settings, models={"m": runner}, validators=(), sandbox="off", **given)
        installation.settings = used
        installation.worker()
        async with serving(used, models=used.models) as served:
            yield service, served


@pytest.mark.parametrize("name", ["claude", *RUNNERS], indirect=True)
async def test_a_chat_goes_on_over_five_messages_and_a_kill_in_its_middle(
    name: str, chat: tuple[Answering, Served]
) -> None:
    service, served = chat
    messages: list[dict[str, str]] = []
    marks: list[str] = []
    for number in range(1, _MESSAGES + 1):
        messages.append({"role": "user", "content": f"Say word{number}"})
        asked = {"model": "m", "messages": messages}
        sent = await served.http.post("/v1/turns", json=asked, headers={"X-Conversation-ID": "chat"})
        assert sent.status_code == 202, sent.text
        turn_id = sent.json()["turn_id"]
        marks.append(f"HELIX_AGENT_MARK={turn_id}.")
        if number == _KILLED:
            await _kill(service, served, turn_id, marks, live=name != "codex")
        turn = await served.client.reader.await_result(turn_id, timeout=120)
        assert turn.outcome in {"passed", "passed_after_retry"}, (number, turn.error)
        assert turn.response.endswith(f"Answer word{number}. Whole."), (number, turn.response)
        (*_, last) = [words(each) for each in service.requests if words(each)[-1:] == [f"word{number}"]]
        assert list(dict.fromkeys(last)) == [f"word{each}" for each in range(1, number + 1)], "it knows the whole chat"
        ended = [each for each in await served.client.reader.read_events(turn_id) if each.kind == "attempt.completed"]
        again = len(ended) > 1 or turn.delivery > 1
        assert again == (number == _KILLED), "the killed one, and no other, ran again"
        messages.append({"role": "assistant", "content": turn.response})
        left = [process for mark in marks for process in processes_with(mark).values()]
        assert len(left) <= (name == "claude"), f"none but Claude's is kept for the next message: {left}"


async def _kill(service: Answering, served: Served, turn_id: str, marks: list[str], *, live: bool) -> None:
    """SIGKILL every process of the run in the middle of its answer; a kept one has the mark of an earlier turn.

    ``live``: its text comes as it is written, and is waited for. Others bring it just before they end.
    """
    async with asyncio.timeout(60):
        while not any(words(each)[-1:] == [f"word{_KILLED}"] for each in service.requests):
            await asyncio.sleep(0.05)
        async for event in served.client.reader.follow_turn(turn_id):
            if not live or (event is not None and event.kind == "attempt.output"):
                break
    service.killed = True
    running = [pid for mark in marks for pid in processes_with(mark)]
    assert running
    for pid in running:
        with suppress(ProcessLookupError):  # it ended with its guard
            os.kill(pid, signal.SIGKILL)
