"""Images and files in a chat: what reaches the turn, what is refused, and that the chat goes on."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import httpx2
import pytest
from starlette.requests import Request

from api_client.contract.turn import TurnRequest
from api_client.contract.values.image import MAX_IMAGES, images_named, read_image
from api_client.contract.words.error_codes import ERROR_CODES, words_of
from api_client.relay_state.allowances import NoAllowance
from api_client.web.errors import ApiError
from api_client.web.language import readable
from tests.unit.web.conftest import caller
from tests.unit.web.fake import FakeTurns, app_with
from worker.cli.installation.openwebui import icon

PAGE = {"x-owui-chat-id": "c", "x-owui-message-id": "m", "x-owui-task": ""}
PNG = "data:image/png;base64," + b64encode(icon("a")).decode()


def image(url: str = PNG) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def user(*parts: dict[str, Any], text: str = "Was ist das?") -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}, *parts]}


async def ask(turns: FakeTurns, *messages: dict[str, Any], vision: bool = False, **more: Any) -> httpx2.Response:
    app = app_with(turns, vision_models=("scripted",) if vision else ())
    async with caller(app, **PAGE) as http:
        return await http.post("/v1/chat/completions", json={"model": "scripted", "messages": messages, **more})


async def test_an_image_to_a_model_without_eyes_is_refused_in_the_users_language(turns: FakeTurns) -> None:
    refused = await ask(turns, user(image()))
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("image_not_read", "messages[0].content[1]")
    assert error["message"].startswith("Dieses Modell liest keine Bilder.")
    english = await ask(turns, user(image()), locale="en")
    assert english.json()["error"]["message"].startswith("This model does not read images.")
    assert turns.submitted == []


async def test_a_chat_goes_on_after_an_image_that_was_refused(turns: FakeTurns) -> None:
    answer = await ask(turns, user(image()), {"role": "user", "content": "Dann ohne Bild"})
    assert answer.status_code == 200
    [request] = turns.submitted
    assert [message["content"] for message in request.messages] == [
        "Was ist das?\n[Hier stand ein Bild. Es liegt dir nicht vor.]",
        "Dann ohne Bild",
    ]
    assert request.images == ()


async def test_other_parts_of_earlier_messages_are_left_out_with_a_note(turns: FakeTurns) -> None:
    await ask(turns, user({"type": "input_audio"}), {"role": "user", "content": "Weiter"}, locale="en")
    assert "[Something other than text stood here." in turns.submitted[0].messages[0]["content"]


async def test_a_model_with_eyes_gets_the_image_and_the_message_names_its_file(turns: FakeTurns) -> None:
    await ask(turns, user(image()), vision=True)
    [request] = turns.submitted
    [found] = request.images
    assert found.content == icon("a")
    assert images_named(request.prompt) == [found.name]
    assert TurnRequest.from_json(request.to_json()) == request


async def test_an_earlier_image_keeps_its_name_and_is_not_stored_again(turns: FakeTurns) -> None:
    said = [user(image()), {"role": "assistant", "content": "Ein Ring."}, {"role": "user", "content": "Welche Farbe?"}]
    await ask(turns, said[0], vision=True)
    await ask(turns, *said, vision=True)
    first, second = turns.submitted
    assert second.messages[0] == first.messages[0]
    assert second.images == ()


async def test_an_image_of_a_question_that_failed_comes_with_the_next_one(turns: FakeTurns) -> None:
    await ask(turns, user(image()), {"role": "user", "content": "Noch einmal"}, vision=True)
    assert len(turns.submitted[0].images) == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/secret.png",
        "file:///etc/passwd",
        "data:image/png;base64,!!!",
        "data:image/png;base64," + b64encode(b"<svg onload=alert(1)>").decode(),
        "data:image/png;base64," + "A" * (7 * 2**20),
        "",
    ],
)
async def test_what_is_no_image_is_refused_and_never_fetched(turns: FakeTurns, url: str) -> None:
    refused = await ask(turns, user(image(url)), vision=True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "image_unreadable")
    later = await ask(turns, user(image(url)), {"role": "user", "content": "Weiter"}, vision=True)
    assert later.status_code == 200, "the chat goes on"


async def test_the_images_of_one_message_are_bounded(turns: FakeTurns) -> None:
    many = [image("data:image/png;base64," + b64encode(icon(str(one))).decode()) for one in range(MAX_IMAGES + 1)]
    assert (await ask(turns, user(*many), vision=True)).json()["error"]["code"] == "image_unreadable"
    assert (await ask(turns, user(*many[1:]), vision=True)).status_code == 200
    assert len(turns.submitted[0].images) == MAX_IMAGES


def test_the_kind_of_an_image_is_read_from_its_bytes() -> None:
    wrong = PNG.replace("image/png", "image/jpeg")
    assert read_image(wrong).name == read_image(PNG).name
    assert read_image(PNG).name.endswith(".png")
    webp = "data:image/webp;base64," + b64encode(b"RIFF\0\0\0\0WEBPVP8 ").decode()
    assert read_image(webp).name.endswith(".webp")


async def test_a_text_file_reaches_the_turn(turns: FakeTurns) -> None:
    data = "data:text/markdown;base64," + b64encode("# Plan\nGrün".encode()).decode()
    await ask(turns, user({"type": "file", "file": {"filename": "plan.md", "file_data": data}}))
    assert turns.submitted[0].prompt == "Was ist das?\nplan.md:\n\n# Plan\nGrün"
    binary = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}}
    refused = await ask(turns, user(binary))
    assert refused.json()["error"]["code"] == "unsupported_content"


async def test_a_file_that_open_webui_puts_into_its_prompt_is_a_turn(turns: FakeTurns) -> None:
    """Open WebUI 0.12.4 sends a text file inside a prompt that begins like those of its background requests."""
    inlined = (
        "### Task:\nRespond to the user query using the provided context\n\n<context>Plan</context>\n\nWas steht da?"
    )
    await ask(turns, {"role": "user", "content": inlined})
    assert turns.submitted[0].prompt == inlined


async def test_the_responses_api_reads_images_too(turns: FakeTurns) -> None:
    said = [
        {"role": "user", "content": [{"type": "input_text", "text": "?"}, {"type": "input_image", "image_url": PNG}]}
    ]
    body = {"model": "scripted", "input": said}
    async with caller(app_with(turns, vision_models=("scripted",))) as http:
        assert (await http.post("/v1/responses", json=body)).status_code == 200
    assert len(turns.submitted[0].images) == 1
    async with caller(app_with(turns)) as http:
        assert (await http.post("/v1/responses", json=body)).json()["error"]["code"] == "image_not_read"


async def test_the_models_list_says_who_reads_images() -> None:
    app = app_with(FakeTurns(), models={"blind": "scripted", "eyes": "scripted"}, vision_models=("eyes",))
    async with caller(app) as http:
        models = (await http.get("/v1/models")).json()["data"]
        one = (await http.get("/v1/models/eyes")).json()
    assert {model["id"]: model["info"]["meta"]["capabilities"]["vision"] for model in models} == {
        "blind": False,
        "eyes": True,
    }
    assert one == models[1]


async def test_errors_before_an_answer_speak_the_callers_language(turns: FakeTurns) -> None:
    empty = {"model": "scripted", "messages": [{"role": "user", "content": " "}]}
    async with caller(app_with(turns)) as http:

        async def said(body: dict[str, Any], **headers: str) -> str:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            answer = await http.post("/v1/chat/completions", json=body, headers=named)
            return str(answer.json()["error"]["message"])

        assert await said(empty) == "messages[0].content: says nothing"
        assert (await said(empty, x_owui_chat_id="c")).startswith("The last message is empty.")
        german = {**empty, "messages": [{"role": "user", "content": "Wo ist die Rechnung?"}, *empty["messages"]]}
        assert (await said(german, x_owui_chat_id="c")).startswith("Die letzte Nachricht ist leer.")
        assert await said(german) == "messages[1].content: says nothing"
        assert await said({**german, "locale": "en"}, x_owui_chat_id="c") == await said(empty, x_owui_chat_id="c")
        assert (await said({**empty, "locale": "de"})).startswith("Die letzte Nachricht ist leer.")
        assert (await said(empty, x_helix_locale="de")).startswith("Die letzte Nachricht ist leer.")
        assert await said(german, x_helix_locale="en", x_owui_chat_id="c") == await said(empty, x_owui_chat_id="c")
        unknown = await said({**german, "model": "x"}, x_owui_chat_id="c")
        assert unknown.startswith("Dieses Modell wird nicht angeboten.")
        assert unknown.endswith("there is: scripted)")


@pytest.mark.parametrize("code", sorted(ERROR_CODES))
def test_every_error_before_a_stream_speaks_the_language_of_the_chat(code: str) -> None:
    asked = Request({"type": "http", "method": "POST", "headers": [(b"x-owui-chat-id", b"c")]})
    happened = words_of(code, "de")[0]
    said = readable(ApiError(400, "details", code=code), asked, "de")
    filled_in = any("{" in words for words in words_of(code, "de"))  # by who raises it, in the turn's language
    assert said == "details" if filled_in else said.startswith(happened)
    assert not readable(ApiError(400, "details", code=code), asked, "en").startswith(happened)


async def test_a_limit_is_told_in_words_a_user_can_act_on(turns: FakeTurns) -> None:
    turns.allowances.refusal = NoAllowance("rate", 4.2)
    settings = {"api_keys": ("k",), "turns_per_minute": 1}
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}]}
    async with caller(app_with(turns, **settings), authorization="Bearer k") as http:
        page = await http.post("/v1/chat/completions", json=body, headers=PAGE)
        program = await http.post("/v1/chat/completions", json=body)
    assert (page.status_code, program.status_code) == (429, 429)
    assert page.json()["error"]["message"] == "Zu viele Anfragen in kurzer Zeit. Versuche es in 5 s erneut."
    assert program.json()["error"]["message"] == "at most 1 turns a minute are allowed; try again in 5 s"
