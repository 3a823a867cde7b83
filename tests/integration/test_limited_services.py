"""Two services and real workers: what limits the one burns no retry, and holds up no turn of the other."""

import asyncio
import itertools
import json
import time
from dataclasses import replace

import pytest

from api_client.contract.settings.load import load
from api_client.contract.turn import Turn
from tests.http_service import Asked, HttpService, Reply
from tests.installation import Installation, asked, environ_of, run
from tests.integration.engine import GOOD

#: How long the sick service refuses all that come, and how many turns ask it meanwhile.
SICK_SECONDS, TURNS = 8.0, 40
#: Between the sender of two requests and the service lies a process that starts: it may come so much sooner.
JITTER = 0.3


def _piece(**choice: object) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": None} | choice]})


class _Limited:
    """A service that answers 429 for a while from its first request on."""

    def __init__(self, retry_after: str) -> None:
        self.retry_after = retry_after
        self.refused: list[float] = []
        self.began = 0.0

    def __call__(self, _: Asked) -> Reply:
        self.began = self.began or time.monotonic()
        if time.monotonic() - self.began < SICK_SECONDS:
            self.refused.append(time.monotonic())
            return Reply(429, b'{"error": {"message": "slow down"}}', {"retry-after": self.retry_after})
        return _answer(_)


def _answer(_: Asked) -> Reply:
    lines = [_piece(delta={"content": GOOD}), _piece(finish_reason="stop"), "data: [DONE]", ""]
    return Reply(200, "\n\n".join(lines).encode(), {"content-type": "text/event-stream"})


@pytest.mark.parametrize("retry_after", ["1", ""])
async def test_a_service_that_limits_us_fails_no_turn_and_is_asked_at_most_once_a_second(
    installation: Installation, retry_after: str
) -> None:
    sick = _Limited(retry_after)
    with HttpService(sick) as one, HttpService(_answer) as other:
        used = installation.settings
        folder = used.root / ".helix"
        folder.mkdir(exist_ok=True)
        urls = {"sick": one.url, "well": other.url}
        blocks = [f'[model.{name}]\nrunner = "openai_http:m"\nurl = "{url}/v1"' for name, url in urls.items()]
        (folder / "helix.toml").write_text("\n".join(blocks))
        used = replace(used, models=dict.fromkeys(urls, "openai_http:m"))
        installation.settings = used = load(environ_of(used))
        installation.worker()
        installation.worker()
        client = installation.client
        # The first of them finds out; what is at work by then comes through as well.
        first = await client.submitter.submit(asked("Hallo", "first", model="sick"))
        while not (limits := await client.pauses.in_force()):
            await asyncio.sleep(0.02)
        assert [each.title for each in limits] == [f"limit {used.upstream_of('sick')}"]
        assert "limit 127.0.0.1" in run(used, "paused").stdout
        before = len(sick.refused)
        asks = [asked("Hallo", f"s{number}", model="sick") for number in range(TURNS - 1)]
        ids = [first, *[await client.submitter.submit(each) for each in asks]]
        well = [await client.submitter.submit(asked("Hallo", f"w{n}", model="well")) for n in range(8)]
        for turn_id in well:
            assert (await client.reader.result(turn_id, timeout=60)).outcome == "passed"
        assert await client.pauses.in_force(), "the other service is asked while this one is limited"
        ended: list[Turn] = [await client.reader.result(turn_id, timeout=120) for turn_id in ids]
        assert {turn.outcome for turn in ended} == {"passed"}
        assert {(turn.transients, turn.attempt, turn.strikes) for turn in ended} == {(0, 1, 0)}
        tries = sick.refused[before - 1 :]
        assert len(tries) > 2, "it was tried again"
        assert all(later - earlier > 1 - JITTER for earlier, later in itertools.pairwise(tries))
        assert await client.pauses.in_force() == []
