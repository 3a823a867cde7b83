"""OpenAI's own client for Python, as this project uses it, against a real relay and a real worker."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.clients.conftest import CLIENTS, IMAGE, agent_writes, is_accepted, needs, selected
from tests.installation import RelayProcess

pytestmark = needs(CLIENTS)


def of(url: str, **more: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key="none", **{"max_retries": 0, **more})


def user(content: Any) -> Any:
    return [{"role": "user", "content": content}]


def test_openai_for_python_answers_streams_and_says_what_was_used(url: str) -> None:
    with of(url) as client:
        whole = client.chat.completions.create(model="helix", messages=user("two attempts"))
        assert whole.choices[0].message.content == "The answer."
        assert whole.usage
        assert whole.usage.total_tokens == 16
        chunks = list(
            client.chat.completions.create(
                model="helix", messages=user("two attempts"), stream=True, stream_options={"include_usage": True}
            )
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "The answer."
        assert [chunk.usage.total_tokens for chunk in chunks if chunk.usage] == [16]
        drafted = client.chat.completions.create(model="helix", messages=user("two drafts"))
        assert is_accepted(drafted.choices[0].message.content or "")
        with pytest.raises(openai.APIStatusError) as failed:
            client.chat.completions.create(model="helix", messages=user("never ends"))
        assert failed.value.code == "incomplete"
        picture = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": IMAGE}}]
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="helix", messages=user(picture))
        assert refused.value.code == "image_not_read"


def test_a_response_shows_its_progress_before_its_answer(url: str, gate: Path) -> None:
    with of(url) as client:
        kinds = []
        for event in client.responses.create(model="helix", input="a held answer", stream=True):
            kinds.append(event.type)
            if event.type == "response.in_progress":
                assert not gate.exists()
                gate.touch()  # only now can the agent end
            if event.type == "response.completed":
                assert event.response.output_text == "Held no more."
                assert event.response.usage
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert kinds[-1] == "response.completed"


def test_a_client_whose_relay_died_joins_its_turn_by_its_own_retry(relay: RelayProcess, url: str, gate: Path) -> None:
    with of(url, max_retries=20) as client, ThreadPoolExecutor(1) as asked:
        answer = asked.submit(client.chat.completions.create, model="helix", messages=user("a held answer"))
        asyncio.run(agent_writes(relay.settings))
        relay.kill()
        relay.start()
        gate.touch()
        assert answer.result(120).choices[0].message.content == "Held no more."
    assert len(asyncio.run(selected(relay.settings))) == 1


def test_a_stream_whose_relay_died_is_an_error_and_never_a_short_answer(
    relay: RelayProcess, url: str, gate: Path
) -> None:
    with of(url) as client:
        told = client.chat.completions.create(model="helix", messages=user("a held answer"), stream=True)
        asyncio.run(agent_writes(relay.settings))
        relay.kill()
        with pytest.raises(Exception, match=r"(?i)connection|incomplete|closed"):
            list(told)
    relay.start()
    gate.touch()
    with of(url) as client:
        again = client.chat.completions.create(model="helix", messages=user("a held answer"))
        assert again.choices[0].message.content == "Held no more."
