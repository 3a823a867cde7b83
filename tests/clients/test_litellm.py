"""LiteLLM as a proxy in front of the relay: the openai client asks it, and it asks us."""

import asyncio
import json
import secrets
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml

from api_client.contract.settings import Settings
from api_client.index.search import Search
from tests.browser.webui import answers
from tests.clients.conftest import CLIENTS, IMAGE, agent_writes, environ, is_accepted, needs, selected
from tests.installation import RelayProcess
from tests.ports import free_port
from tests.support import wait_for

#: As Open WebUI asks for a title; behind LiteLLM no header says that it does.
TITLE = (
    "### Task:\nGenerate a concise title summarizing the chat history.\n### Chat History:\n"
    "<chat_history>\nUSER: Why do we lose messages?\n</chat_history>"
)
LITELLM = CLIENTS / "litellm" / "bin" / "litellm"
pytestmark = [needs(LITELLM), pytest.mark.timeout(900)]


@pytest.fixture
def proxy(url: str, tmp_path: Path) -> Iterator[openai.OpenAI]:
    """A client of a LiteLLM proxy whose one model is the relay's, as docs/clients.md sets it up."""
    port, key = free_port(), f"sk-{secrets.token_hex(24)}"
    model = {"model": "openai/helix", "api_base": url, "api_key": "none"}
    config = {
        "model_list": [{"model_name": "helix", "litellm_params": model}],
        "router_settings": {"num_retries": 0},
    }
    (tmp_path / "litellm.yaml").write_text(yaml.safe_dump(config))
    served = ("--config", "litellm.yaml", "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False")
    with (tmp_path / "litellm.log").open("wb") as log:
        process = subprocess.Popen(
            [str(LITELLM), *served],
            cwd=tmp_path,
            env=environ(tmp_path, LITELLM_MASTER_KEY=key),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        alive = f"http://127.0.0.1:{port}/health/liveliness"
        wait_for(lambda: answers(alive) or process.poll() is not None, 600, tick=0.5)
        assert process.poll() is None, (tmp_path / "litellm.log").read_text()
        yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0, timeout=120)
    finally:
        process.terminate()
        process.wait(60)


def test_litellm_passes_answers_streams_usage_and_errors_on(proxy: openai.OpenAI, relay_settings: Settings) -> None:
    messages = [{"role": "user", "content": "two attempts"}]
    assert [model.id for model in proxy.models.list()] == ["helix"]
    whole = proxy.chat.completions.create(model="helix", messages=messages)  # type: ignore[call-overload]
    assert (whole.choices[0].message.content, whole.usage.total_tokens) == ("The answer.", 16)

    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(proxy.chat.completions.create(model="helix", messages=messages, **options))  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "The answer."
    assert [chunk.usage.total_tokens for chunk in chunks if chunk.usage] == [16]

    response = proxy.responses.create(model="helix", input="two attempts")
    assert response.output_text == "The answer."
    assert response.usage
    assert response.usage.total_tokens == 16

    asked = proxy.chat.completions.create(model="helix", messages=[{"role": "user", "content": "two drafts"}])
    assert is_accepted(asked.choices[0].message.content or "")
    picture = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": IMAGE}}]
    with pytest.raises(openai.BadRequestError, match="does not read images"):
        proxy.chat.completions.create(model="helix", messages=[{"role": "user", "content": picture}])  # type: ignore[list-item,misc]

    with pytest.raises(openai.APIStatusError, match="The agent did not finish its answer"):
        proxy.chat.completions.create(model="helix", messages=[{"role": "user", "content": "never ends"}])
    failed = Search(statuses=("incomplete",))
    assert len(asyncio.run(selected(relay_settings, failed))) == 1, "with num_retries: 0 it asks once"

    made = len(asyncio.run(selected(relay_settings)))
    asked = proxy.chat.completions.create(model="helix", messages=[{"role": "user", "content": TITLE}])
    assert json.loads(asked.choices[0].message.content or "") == {"title": "Why do we lose messages"}
    assert len(asyncio.run(selected(relay_settings))) == made, "a title of Open WebUI's is no turn here either"


@pytest.mark.parametrize("streams", [False, True])
def test_litellm_says_that_its_relay_died_and_is_answered_when_asked_again(
    proxy: openai.OpenAI, relay: RelayProcess, gate: Path, streams: bool
) -> None:
    def ask(stream: bool) -> str:
        asked: dict[str, Any] = {"model": "helix", "messages": [{"role": "user", "content": "a held answer"}]}
        if not stream:
            return str(proxy.chat.completions.create(**asked).choices[0].message.content)
        chunks = proxy.chat.completions.create(**asked, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(ask, streams)
        asyncio.run(agent_writes(relay.settings))
        relay.kill()
        with pytest.raises(openai.APIError, match=r"(?i)connection|error"):
            answer.result(240)
    relay.start()
    gate.touch()
    assert ask(streams) == "Held no more."
