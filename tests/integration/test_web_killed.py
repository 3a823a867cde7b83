"""A relay killed in the middle of an answer on a page: Regenerate brings the answer of the one run there was."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx2

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from tests.conftest import WorkerProcess, environ_of, turns
from tests.fault.conftest import Meeting, with_script
from tests.integration.test_web_pages import PAGE, REGENERATE
from tests.ports import free_port
from tests.relay import relay_answers
from tests.support import wait_for
from tests.unit.web.openwebui import Reader

BODY = {"model": "scripted", "stream": True, "messages": [{"role": "user", "content": "held"}]}
ANSWER = "Ich fange an ... und bin fertig."


def start_relay(settings: Settings) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(turns("web"), env=environ_of(settings), stdin=subprocess.DEVNULL)
    wait_for(lambda: relay_answers(settings))
    return process


def payloads(answer: httpx2.Response) -> Iterator[Any]:
    for line in answer.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


async def test_regenerate_after_the_relay_was_killed(
    settings: Settings, tmp_path: Any, worker_process: Callable[..., WorkerProcess]
) -> None:
    meeting = Meeting(tmp_path / "meet")
    settings = replace(with_script(settings, meeting), web_port=free_port())
    url = f"http://127.0.0.1:{settings.web_port}/v1/chat/completions"
    worker_process(settings=settings)
    relay, page = start_relay(settings), Reader()
    try:
        with (
            suppress(httpx2.TransportError),
            httpx2.stream("POST", url, json=BODY, headers=PAGE, timeout=60) as answer,
        ):
            turn_id = answer.headers["x-turn-id"]
            for payload in payloads(answer):
                if "Ich fange an" in page.read([payload]).text:
                    relay.kill()
        relay.wait(60)
        relay = start_relay(settings)
        seen = Reader()
        with httpx2.stream("POST", url, json=BODY, headers=REGENERATE, timeout=60) as answer:
            assert answer.headers["x-turn-id"] == turn_id
            for payload in payloads(answer):
                if "Ich fange an" in seen.read([payload]).text:
                    meeting.go()
        assert seen.text == ANSWER
        assert len(meeting.runs()) == 1
        with httpx2.stream("POST", url, json=BODY, headers=REGENERATE, timeout=60) as answer:
            assert answer.headers["x-turn-id"] != turn_id, "that answer was delivered"
            list(payloads(answer))
        assert len(meeting.runs()) == 2
    finally:
        relay.kill()
        relay.wait(60)
    async with TurnsClient(settings) as client:
        assert (await client.reader.get(turn_id)).delivery == 1
