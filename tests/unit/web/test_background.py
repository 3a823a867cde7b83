"""Titles, tags and the like are answered without a turn; what somebody wrote always becomes one."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from openai.types.chat import ChatCompletionChunk
from starlette.datastructures import Headers

from api_client.web.openwebui.background import answer_task, background_task
from tests.unit.web.fake import FakeTurns

TITLE = """### Task:
Generate a concise title summarizing the chat history.
### Chat History:
<chat_history>
USER: **Warum** gehen uns bei einem Neustart Nachrichten verloren? Es eilt.
ASSISTANT: Weil der Worker zu früh bestätigt.
</chat_history>"""
OTHERS = 'You have been provided with a set of responses from various models to the latest user query: "a"\n\n...\n\n'


def messages(text: str) -> tuple[dict[str, str], ...]:
    return ({"role": "user", "content": text},)


def kind_of(text: str, **headers: str) -> str:
    return background_task(Headers({name.replace("_", "-"): value for name, value in headers.items()}), messages(text))


def answer(kind: str, text: str = TITLE) -> Any:
    return json.loads(answer_task(kind, messages(text)))


def test_the_header_decides() -> None:
    assert kind_of("anything", x_owui_task="tags_generation") == "tags_generation"
    assert kind_of(TITLE, x_owui_task="", x_owui_message_id="m") == ""
    assert kind_of(TITLE, x_owui_task="") == ""  # somebody's program, through Open WebUI


def test_without_the_header_the_prompt_decides() -> None:
    assert kind_of(TITLE) == "title_generation"
    assert kind_of("You have been provided with a set of responses from") == "moa_response_generation"
    assert kind_of("Your task is to reflect the speaker's likely facial expression") == "emoji_generation"
    assert kind_of("### Task:\nSchreibe einen Titel") == ""
    assert background_task(Headers(), messages(TITLE) * 2) == ""


def test_librechat_gets_a_bare_title_without_a_turn() -> None:
    start = "Provide a concise, 5-word-or-less title for the conversation, using title case conventions. "
    prompt = f"{start}Only return the title itself.\n\nConversation:\nUser: Hallo! Wie gehen Leases?\nAI: So."
    assert kind_of(prompt) == "librechat_title"
    assert answer_task("librechat_title", messages(prompt)) == "Wie gehen Leases"
    assert answer_task("librechat_title", messages(start)) == "Chat"


def test_what_a_user_wrote_is_a_turn_whatever_it_looks_like() -> None:
    assert kind_of(TITLE, x_owui_message_id="m") == ""


def test_the_title_is_the_users_first_sentence() -> None:
    assert answer("title_generation") == {"title": "Warum gehen uns bei einem Neustart Nachrichten…"}


def test_each_kind_is_answered_in_its_form() -> None:
    assert answer("tags_generation") == {"tags": ["General"]}
    assert answer("tags_generation", TITLE.replace("Nachrichten", "ADRs")) == {"tags": ["Architecture"]}
    assert answer("follow_up_generation") == {"follow_ups": []}
    assert answer("query_generation") == {"queries": ["Warum gehen uns bei einem Neustart Nachrichten…"]}
    assert answer("autocomplete_generation") == {"text": ""}
    assert answer("title_generation", "no history") == {"title": "Chat"}
    assert answer("image_prompt_generation")["prompt"].startswith("**Warum**")
    assert answer_task("emoji_generation", messages(TITLE)) == "💬"
    assert answer_task("memory_review", messages(TITLE)) == ""
    both = f'{OTHERS}Responses from models: """kurz"""\n\n"""die längere"""'
    assert answer_task("moa_response_generation", messages(both)) == "die längere"


@pytest.mark.parametrize("stream", [False, True])
async def test_no_turn_is_made(http: httpx2.AsyncClient, turns: FakeTurns, stream: bool) -> None:
    body = {"model": "scripted", "stream": stream, "messages": [{"role": "user", "content": TITLE}]}
    headers = {"x-owui-task": "title_generation", "x-owui-chat-id": "c", "x-owui-user-message-id": "u"}
    answer = await http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200
    assert turns.submitted == []
    if stream:
        *frames, done, _ = answer.text.split("\n\n")
        chunks = [ChatCompletionChunk.model_validate_json(frame.removeprefix("data: ")) for frame in frames]
        assert done == "data: [DONE]"
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    else:
        text = answer.json()["choices"][0]["message"]["content"]
    assert json.loads(text)["title"].startswith("Warum")
