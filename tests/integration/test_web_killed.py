"""A relay killed in the middle of an answer on a page: Regenerate brings the answer of the one run there was."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx2

from tests.fault.conftest import Meeting
from tests.installation import Installation
from tests.integration.served import PAGE, REGENERATE
from tests.unit.web.openwebui import Reader

BODY = {"model": "scripted", "stream": True, "messages": [{"role": "user", "content": "held"}]}
ANSWER = "Ich fange an ... und bin fertig."


def payloads(answer: httpx2.Response) -> Iterator[Any]:
    for line in answer.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


async def test_regenerate_after_the_relay_was_killed(installation: Installation, tmp_path: Any) -> None:
    meeting = Meeting(tmp_path / "meet")
    installation.change(**meeting.settings())
    installation.worker()
    relay, page = installation.relay(), Reader()
    url = f"{relay.url}/v1/chat/completions"
    with (
        suppress(httpx2.TransportError),
        httpx2.stream("POST", url, json=BODY, headers=PAGE, timeout=60) as answer,
    ):
        turn_id = answer.headers["x-turn-id"]
        for payload in payloads(answer):
            if "Ich fange an" in page.read([payload]).text:
                relay.kill()
    relay.start()
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
    assert (await installation.client.reader.read_turn(turn_id)).delivery == 1
