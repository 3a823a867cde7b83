"""An agent that dies in mid-answer goes on from there: a real relay, real workers, real agents that really die."""

import itertools
import json

import httpx2
import openai
import pytest
import yaml

from api_client.client import TurnsClient
from api_client.contract.events import Event
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome
from tests.installation import Installation, RelayProcess, asked
from tests.lab.bench.economy.answers import adr
from tests.lab.bench.economy.play import lay_out
from tests.unit.web.openwebui import Reader

WHOLE = adr(40, "de", 4000).text()
#: Breaks in the header, in prose, in a table, in code.
BREAKS = {
    "header": WHOLE.index("cache.py"),
    "prose": WHOLE.index("## Kontext") + 60,
    "table": WHOLE.index("| 2 |") + 20,
    "code": WHOLE.index("return cache") + 9,
}
SHOWN = WHOLE.removesuffix("\n\n<!-- STEP: generate -->\n")


def line_at(place: int) -> int:
    """Where the line begins that holds this place."""
    return WHOLE.rindex("\n", 0, place) + 1


def script() -> str:
    rules = [
        {
            "when": name,
            "attempts": [
                [{"say": {"text": WHOLE[:place], "pieces": 9}}, "die"],
                [{"say": {"text": WHOLE[line_at(place) :], "pieces": 9}}],
            ],
        }
        for name, place in BREAKS.items()
    ]
    first, second = BREAKS["prose"], BREAKS["code"]
    rules += [
        {
            "when": "twice",
            "attempts": [
                [{"say": WHOLE[:first]}, "die"],
                [{"say": WHOLE[line_at(first) : second]}, "cut"],
                [{"say": WHOLE[line_at(second) :]}],
            ],
        },
        {"when": "again", "attempts": [[{"say": WHOLE[:second]}, "die"], [{"say": WHOLE}]]},
        {"when": "refuses", "attempts": [[{"say": WHOLE[:second]}, "die"], [{"say": "Nein.\n\n<!-- STEP: done -->"}]]},
    ]
    return yaml.safe_dump(rules, allow_unicode=True)


@pytest.fixture
def relay(installation: Installation) -> RelayProcess:
    lay_out(installation.settings.root)
    installation.play(script())
    installation.worker()
    return installation.relay()


async def log_of(settings: Settings, text: str) -> tuple[Outcome | None, str, list[Event]]:
    async with TurnsClient(settings) as client:
        request = asked(text, text)
        turn = await client.reader.await_result(await client.submitter.submit(request), timeout=60)
        return turn.outcome, turn.response, [e async for e in client.reader.follow_turn(turn.turn_id) if e is not None]


async def test_whatever_broke_is_gone_on_from_and_every_reader_gets_the_whole_answer(relay: RelayProcess) -> None:
    client = openai.OpenAI(base_url=f"{relay.url}/v1", api_key="none", max_retries=0, timeout=60)
    for name in BREAKS:
        asked: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": name}]
        answer = client.chat.completions.create(model="scripted", messages=asked)
        assert answer.choices[0].message.content == SHOWN, name
        streamed = client.chat.completions.create(model="scripted", messages=asked, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == SHOWN, name
        body = {"model": "scripted", "messages": asked, "stream": True, "stream_mode": "live"}
        sent = httpx2.post(f"{relay.url}/v1/chat/completions", json=body, timeout=60).text.split("\n\n")
        frames = [frame.removeprefix("data: ") for frame in sent if frame.startswith("data: {")]
        reader = Reader().read(json.loads(frame) for frame in frames)
        assert reader.completed == [SHOWN], name
        for earlier, later in itertools.pairwise(reader.seen):
            assert later.startswith(earlier), "no draft is taken back"

    outcome, response, events = await log_of(relay.settings, "twice")
    assert (outcome, response) == (Outcome.PASSED_AFTER_RETRY, WHOLE)
    asked_again = [event.data for event in events if event.kind == "turn.retrying"]
    assert [data["goes_on"] for data in asked_again] == [True, True]

    outcome, response, events = await log_of(relay.settings, "again")
    assert (outcome, response) == (Outcome.PASSED_AFTER_RETRY, WHOLE)

    outcome, response, events = await log_of(relay.settings, "refuses")
    assert (outcome, response) == (Outcome.INCOMPLETE, "")
    assert [event.data["verdict"] for event in events if event.kind == "attempt.completed"] == ["incomplete"] * 3
