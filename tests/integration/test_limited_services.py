"""Two services and real workers: what limits the one burns no retry, and holds up no turn of the other."""

import asyncio
import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from api_client.contract.settings import Settings
from api_client.contract.settings.load import load_settings
from api_client.contract.turn import Turn
from api_client.workers.reason import Reason
from tests.http_service import Asked, HttpService, Reply
from tests.installation import Installation, asked, environ_of, run
from tests.integration.engine import GOOD

#: How long the sick service refuses all that come, and how many turns ask it meanwhile.
SICK_SECONDS, TURNS = float(os.environ.get("SICK_SECONDS", "8")), 40
#: Between the sender of two requests and the service lies a process that starts: it may come so much sooner.
JITTER = 0.3


def _piece(**choice: object) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": None} | choice]})


class _Limited:
    """A service that answers 429 for a while from its first request on, and to ``least`` requests or more."""

    def __init__(self, retry_after: str) -> None:
        self.retry_after = retry_after
        self.least = 4
        self.refused: list[float] = []
        self.began = 0.0

    def __call__(self, _: Asked) -> Reply:
        self.began = self.began or time.monotonic()
        if time.monotonic() - self.began < SICK_SECONDS or len(self.refused) < self.least:
            self.refused.append(time.monotonic())
            return Reply(429, b'{"error": {"message": "slow down"}}', {"retry-after": self.retry_after})
        return _answer(_)


def _answer(_: Asked) -> Reply:
    lines = [_piece(delta={"content": GOOD}), _piece(finish_reason="stop"), "data: [DONE]", ""]
    return Reply(200, "\n\n".join(lines).encode(), {"content-type": "text/event-stream"})


def configure(installation: Installation, urls: Mapping[str, str], **more: Mapping[str, object]) -> Settings:
    """Models of ``openai_http`` at these addresses, each with what ``more`` says."""
    used = installation.settings
    folder = used.root / ".helix"
    folder.mkdir(exist_ok=True)
    lines = [
        line
        for name, url in urls.items()
        for line in (
            f'[model.{name}]\nrunner = "openai_http:m"\nurl = "{url}/v1"',
            *(f"{key} = {value}" for key, value in more.get(name, {}).items()),
        )
    ]
    (folder / "helix.toml").write_text("\n".join(lines))
    installation.settings = load_settings(environ_of(replace(used, models=dict.fromkeys(urls, "openai_http:m"))))
    return installation.settings


@pytest.mark.parametrize("retry_after", ["1", ""])
async def test_a_service_that_limits_us_fails_no_turn_and_is_asked_at_most_once_a_second(
    installation: Installation, retry_after: str
) -> None:
    sick = _Limited(retry_after)
    with HttpService(sick) as one, HttpService(_answer) as other:
        used = configure(installation, {"sick": one.url, "well": other.url})
        installation.worker()
        installation.worker()
        client = installation.client
        # The first of them finds out; what is at work by then comes through as well.
        first = await client.submitter.submit(asked("Hallo", "first", model="sick"))
        while not (limits := await client.pauses.list_active()):
            await asyncio.sleep(0.02)
        assert [each.title for each in limits] == [f"limit {used.find_service('sick')}"]
        assert "limit 127.0.0.1" in run(used, "pause", "list").stdout
        before = len(sick.refused)
        sick.least = before + 2
        asks = [asked("Hallo", f"s{number}", model="sick") for number in range(TURNS - 1)]
        ids = [first, *[await client.submitter.submit(each) for each in asks]]
        well = [await client.submitter.submit(asked("Hallo", f"w{n}", model="well")) for n in range(8)]
        for turn_id in well:
            assert (await client.reader.await_result(turn_id, timeout=60)).outcome == "passed"
        assert await client.pauses.list_active(), "the other service is asked while this one is limited"
        ended: list[Turn] = [await client.reader.await_result(turn_id, timeout=120) for turn_id in ids]
        assert {turn.outcome for turn in ended} == {"passed"}
        assert {(turn.transients, turn.attempt, turn.strikes) for turn in ended} == {(0, 1, 0)}
        tries = sick.refused[before - 1 :]
        assert len(tries) > 2, "it was tried again"
        assert all(later - earlier > 1 - JITTER for earlier, later in itertools.pairwise(tries))
        assert await client.pauses.list_active() == []


def _frame(**error: object) -> bytes:
    return f"data: {json.dumps({'error': {'message': 'no', **error}})}\n\n".encode()


async def test_what_a_caller_did_wrong_opens_no_breaker_and_a_limit_in_the_stream_is_one_whatever_its_form(
    installation: Installation,
) -> None:
    """LiteLLM writes the status of an error in the stream as a text (look4-reports M3)."""
    stream = {"content-type": "text/event-stream"}
    replies = {
        "bad": Reply(200, _frame(code="400"), stream),
        "long": Reply(500, b'{"error": {"message": "litellm.ContextWindowExceededError: x", "code": "400"}}'),
        "http": Reply(422, b'{"detail": "unprocessable"}'),
        "busy": Reply(200, _frame(code="429", message="Please try again in 90s."), stream),
    }
    answers = {name: HttpService(lambda _, reply=reply: reply) for name, reply in replies.items()}  # type: ignore[misc]
    with contextlib.ExitStack() as stack:
        urls = {name: stack.enter_context(service).url for name, service in answers.items()}
        configure(installation, urls)
        installation.settings = replace(installation.settings, breaker_errors=1)
        installation.worker()
        client = installation.client
        for name, code in (("bad", "permanent"), ("long", "limit"), ("http", "permanent")):
            for number in range(2):
                asks = asked("Hallo", f"{name}{number}", model=name)
                turn = await client.reader.await_result(await client.submitter.submit(asks), timeout=60)
                assert turn.error
                assert (turn.outcome, turn.error.code, turn.transients) == ("error", code, 0)
        assert await client.pauses.list_active() == []
        turn_id = await client.submitter.submit(asked("Hallo", "busy", model="busy"))
        while not (limits := await client.pauses.list_active()):
            await asyncio.sleep(0.02)
        assert [(each.what, each.until - each.since > 80) for each in limits] == [("limit", True)]
        await client.canceller.cancel(turn_id)


class _Narrow:
    """A service that counts how many ask it at the same time; an answer takes a moment."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> Reply:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.2)  # so long does an answer take
        with self._lock:
            self.now -= 1
        return _answer(asked)


async def test_a_service_is_asked_by_as_many_agents_at_once_as_it_has_places_and_who_waits_holds_no_slot(
    installation: Installation,
) -> None:
    narrow = _Narrow()
    with HttpService(narrow) as one, HttpService(_answer) as other:
        configure(installation, {"narrow": one.url, "well": other.url}, narrow={"service_at_once": 2})
        installation.worker()
        killed = installation.worker()
        client = installation.client
        asks = [asked("Hallo", f"s{number}", model="narrow") for number in range(12)]
        ids = [await client.submitter.submit(each) for each in asks]
        while narrow.now < 2:
            await asyncio.sleep(0.01)
        well = await client.submitter.submit(asked("Hallo", "w", model="well"))
        assert (await client.reader.await_result(well, timeout=60)).outcome == "passed"
        assert Reason.SERVICE in {group.wait.reason for group in (await client.workers.read_state()).waits}
        killed.kill()
        installation.worker()
        ended = [await client.reader.await_result(turn_id, timeout=120) for turn_id in ids]
        assert {turn.outcome for turn in ended} == {"passed"}
        assert narrow.most == 2
