"""From a request to the turn that is asked for: sessions, owners, defaults."""

import itertools
import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk
from starlette.datastructures import Headers
from starlette.requests import Request

from api_client.contract.error_codes import ERROR_CODES, error_words
from api_client.contract.image import MAX_IMAGES, find_image_names, read_image
from api_client.contract.settings import Settings
from api_client.contract.turn import DoubleText, TurnRequest
from api_client.relay_state.submission_limits import LimitRefusal
from api_client.turns.submission import hash_request
from api_client.web.bodies.chat_request import ChatRequest, read_chat_request
from api_client.web.bodies.response_input import read_response_request
from api_client.web.errors import ApiError
from api_client.web.language import localize_error
from api_client.web.openwebui.background_tasks import TITLE_CHARS, answer_task, detect_task, make_title
from api_client.web.sentences import translate
from tests.constants import Constants
from tests.unit.web.conftest import caller
from tests.unit.web.fake import FakeTurns, app_with
from worker.cli.installation.openwebui import draw_icon

SETTINGS = Settings(validators=("step_marker", "house_style"), max_attempts=4, deadline_seconds=90)


def ask(owner: str = "local", headers: dict[str, str] | None = None, **more: Any) -> ChatRequest:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}], **more}
    return read_chat_request(body, Headers(headers or {}), SETTINGS, owner)


def session(owner: str = "local", headers: dict[str, str] | None = None, **more: Any) -> str:
    return ask(owner, headers, **more).request.session_id


def test_defaults_come_from_the_settings() -> None:
    given = ask()
    assert given.request.validators == ("step_marker", "house_style")
    assert (given.request.max_attempts, given.request.deadline_seconds, given.request.locale) == (4, 90, "de")
    assert given.request.double_text is DoubleText.QUEUE
    assert (given.wants_stream, given.from_open_webui, given.idempotency_key) == (False, False, "")


@pytest.mark.parametrize(("locale", "other"), [("en", "de"), ("de", "en")])
def test_a_question_is_answered_in_its_language(locale: str, other: str) -> None:
    settings = replace(SETTINGS, locale=locale)
    asked = {"de": "Wo ist die Rechnung?", "en": "Where is the invoice?"}

    def spoken(*said: str, headers: Mapping[str, str] = {}, **more: Any) -> str:
        roles = itertools.cycle(["user", "assistant"])
        messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
        return read_chat_request(
            {"model": "scripted", "messages": messages, **more}, Headers(headers), settings, "o"
        ).request.locale

    assert (spoken(asked["de"]), spoken(asked["en"])) == ("de", "en")
    assert spoken("INV-7") == locale  # it shows no language
    assert spoken(asked[other], "Which?", "INV-7") == other  # what the user said before does
    assert spoken(asked[other], asked[locale], asked[other]) == other  # not what the agent says
    assert spoken(asked[other], locale=locale) == spoken(asked[other], headers={"x-helix-locale": locale}) == locale
    parts = [{"type": "text", "text": asked[other]}]
    assert spoken("", messages=[{"role": "user", "content": parts}]) == other
    given = read_response_request({"model": "scripted", "input": asked[other]}, Headers({}), settings, "o")
    assert given.request.locale == other


def test_a_request_may_narrow_and_choose() -> None:
    given = ask(
        validators=["file_existence", "file_existence"],
        max_attempts=1,
        deadline_seconds=2.5,
        double_text="interrupt",
        locale="en",
        stream=True,
    )
    assert given.request.validators == ("file_existence",)
    assert (given.request.max_attempts, given.request.deadline_seconds) == (1, 2.5)
    assert isinstance(given.request.max_attempts, int)
    assert (given.request.locale, given.request.double_text, given.wants_stream) == ("en", DoubleText.INTERRUPT, True)
    assert ask(validators=[]).request.validators == ()


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "eins"}, {"type": "text", "text": "zwei"}]
    assert ask(messages=[{"role": "user", "content": parts}]).request.prompt == "eins\nzwei"


def test_a_tool_call_of_another_model_is_an_empty_text() -> None:
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]},
        {"role": "tool", "content": "42"},
        {"role": "user", "content": "Hallo"},
    ]
    assert ask(messages=messages).request.messages[0] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": None, "refusal": "Nein."}, "Nein."),
        ({"content": [{"type": "refusal", "refusal": "Nein."}]}, "Nein."),
        ({"content": [{"type": "refusal", "refusal": None}]}, translate("part_left_out", "de")),
        ({"content": None, "function_call": {"name": "f", "arguments": "{}"}}, ""),
        ({"content": None, "audio": {"id": "x"}}, ""),
    ],
)
def test_an_earlier_answer_without_a_content_does_not_end_the_conversation(message: dict[str, Any], text: str) -> None:
    said = {"role": "user", "content": "Hallo"}
    messages = [said, {"role": "assistant", **message}, said]
    assert ask(messages=messages).request.messages[1] == {"role": "assistant", "content": text}


def test_without_a_chat_each_request_has_its_own_session() -> None:
    assert session().startswith("session-")
    assert session() != session()


def test_a_repeat_with_an_idempotency_key_is_the_same_request() -> None:
    first, second = (ask(headers={"idempotency-key": "k"}) for _ in range(2))
    assert first.request.to_json() == second.request.to_json()
    assert first.request.session_id != session(headers={"idempotency-key": "other"})
    assert first.request.session_id != session("someone", headers={"idempotency-key": "k"})


@pytest.mark.parametrize(
    "headers",
    [
        {"x-owui-chat-id": "chat", "x-openwebui-chat-id": "b", "x-conversation-id": "c"},
        {"x-openwebui-chat-id": "chat", "x-conversation-id": "c"},
        {"x-conversation-id": "chat"},
        {"x-owui-chat-id": "", "x-conversation-id": "chat"},
    ],
)
def test_the_best_header_names_the_chat(headers: dict[str, str]) -> None:
    assert session(headers=headers) == session(session_id="chat")
    assert session(headers=headers).startswith("chat-")


def test_another_owners_chat_id_opens_nothing() -> None:
    assert session("one", {"x-conversation-id": "chat"}) != session("two", {"x-conversation-id": "chat"})


@pytest.mark.parametrize("chat_id", ["../../etc", "a/b", ".", "x" * 10_000, "temporary:abc", "\u202eabc", "a\x00"])
def test_any_chat_id_becomes_a_harmless_name(chat_id: str) -> None:
    headers = Headers(raw=[(b"x-owui-chat-id", chat_id.encode())])
    given = read_chat_request(
        {"model": "scripted", "messages": [{"role": "user", "content": "a"}]}, headers, SETTINGS, "o"
    )
    prefix, _, digest = given.request.session_id.partition("-")
    assert (prefix, len(digest), digest.isalnum()) == ("chat", 32, True)
    assert all(value.isprintable() for value in given.request.metadata.values())


def test_ids_that_only_differ_in_odd_characters_are_different_sessions() -> None:
    assert len({session(headers={"x-conversation-id": name}) for name in ("a/b", "a_b", "a-b", "a.b")}) == 4


@pytest.mark.parametrize(
    ("header", "expected"), [("x-owui-task", True), ("x-openwebui-user-id", True), ("x-conversation-id", False)]
)
def test_open_webui_is_known_by_its_headers(header: str, expected: bool) -> None:
    assert ask(headers={header: "x"}).from_open_webui is expected


def test_ids_of_open_webui_are_kept_as_notes() -> None:
    headers = {"x-owui-chat-id": "c1", "x-owui-message-id": "m1", "x-owui-user-message-id": "u1"}
    notes = {"conversation_id": "c1", "message_id": "m1", "user_message_id": "u1"}
    assert ask(headers=headers).request.metadata == notes


MESSAGE = {"x-owui-chat-id": "c", "x-owui-message-id": "m"}


@pytest.mark.parametrize(
    ("headers", "mode"),
    [
        (MESSAGE, "live"),
        ({"x-openwebui-chat-id": "c"}, "live"),
        ({"x-owui-message-id": "", "x-openwebui-chat-id": "c"}, "validated"),  # a program, through Open WebUI
        ({"x-openwebui-user-id": "u"}, "validated"),
        ({"x-conversation-id": "c"}, "validated"),
        ({}, "validated"),
    ],
)
def test_a_page_of_open_webui_streams_live_and_everybody_else_waits(headers: dict[str, str], mode: str) -> None:
    assert ask(headers=headers).mode == mode
    assert ask(headers=headers).has_page is (mode == "live")


def test_the_stream_mode_is_of_the_request_then_of_the_model_then_of_the_client() -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}]}
    settings = replace(SETTINGS, stream="draft")
    assert read_chat_request(body, Headers(MESSAGE), settings, "o").mode == "draft"
    assert read_chat_request({**body, "stream_mode": "validated"}, Headers(MESSAGE), settings, "o").mode == "validated"
    with pytest.raises(ApiError, match="stream_mode: must be one of live, draft, validated"):
        ask(stream_mode="loud")


def test_only_a_page_may_end_with_the_assistants_text() -> None:
    messages = [{"role": "user", "content": "Hallo"}, {"role": "assistant", "content": "Guten"}]
    assert ask(headers=MESSAGE, messages=messages, locale="en").request.prompt.startswith("Continue your last answer")
    with pytest.raises(ApiError, match="last message must be the user's"):
        ask(messages=messages)


def test_a_question_is_told_only_where_repeats_can_be_told_from_new_ones() -> None:
    assert ask().question_hash == ""
    assert (
        ask(headers={"x-stainless-retry-count": "0"}).question_hash
        == ask(headers={"x-stainless-retry-count": "3"}).question_hash
    )
    assert ask(headers={"x-stainless-retry-count": "0", "idempotency-key": "k"}).question_hash == ""
    assert (
        ask(headers={"x-stainless-retry-count": "0"}).is_first_try,
        ask(headers={"x-stainless-retry-count": "1"}).is_retry,
    ) == (
        True,
        True,
    )
    assert ask(headers={"x-stainless-retry-count": "-1"}).is_retry is False


def test_the_callers_trace_is_kept_and_is_no_part_of_the_question() -> None:
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    page = {"x-owui-chat-id": "c", "x-owui-message-id": "m", "x-owui-user-message-id": "u"}
    with_one, without = ask(headers={**page, "traceparent": caller}), ask(headers=page)
    assert (with_one.request.traceparent, without.request.traceparent) == (caller, "")
    assert with_one.question_hash == without.question_hash
    assert hash_request(with_one.request, Settings()) == hash_request(without.request, Settings()), (
        "a repeat has another span"
    )
    assert ask(headers={"traceparent": "nonsense"}).request.traceparent == ""


def test_another_default_language_makes_no_other_request_and_another_wish_does() -> None:
    def body(text: str, locale: str, default: str) -> str:
        request = TurnRequest(model="m", messages=({"role": "user", "content": text},), session_id="s", locale=locale)
        return hash_request(request, Settings(locale=default))

    assert body("1+1", "de", "de") == body("1+1", "en", "en") != body("1+1", "en", "de")
    assert body("what is the time", "en", "de") == body("what is the time", "en", "en")


def test_what_a_request_leaves_open_is_as_its_models_block_says() -> None:
    orders = {"step_marker": ("fail",)}
    block = {"validators": ("step_marker",), "max_attempts": 7, "policy_orders": orders, "token_limit": 9}
    settings = Settings(models={"scripted": "scripted", "other": "scripted"}, model_settings={"other": block})
    body = {"messages": [{"role": "user", "content": "a"}]}
    other = read_chat_request({**body, "model": "other"}, Headers({}), settings, "o").request
    assert (other.validators, other.max_attempts, other.token_limit) == (("step_marker",), 7, 9)
    assert other.policy == {"step_marker": ("fail",)}
    assert read_chat_request({**body, "model": "scripted"}, Headers({}), settings, "o").request.max_attempts == 3
    assert (
        read_chat_request(
            {**body, "model": "other", "max_attempts": 1}, Headers({}), settings, "o"
        ).request.max_attempts
        == 1
    )


# Images and files in a chat: what reaches the turn, what is refused, and that the chat goes on.

PAGE = {"x-owui-chat-id": "c", "x-owui-message-id": "m", "x-owui-task": ""}
PNG = "data:image/png;base64," + b64encode(draw_icon("a")).decode()


def image(url: str = PNG) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def user(*parts: dict[str, Any], text: str = "Was ist das?") -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}, *parts]}


async def post(turns: FakeTurns, *messages: dict[str, Any], vision: bool = False, **more: Any) -> httpx2.Response:
    app = app_with(turns, vision=vision)
    async with caller(app, **PAGE) as http:
        return await http.post("/v1/chat/completions", json={"model": "scripted", "messages": messages, **more})


async def test_an_image_to_a_model_without_eyes_is_refused_in_the_users_language(turns: FakeTurns) -> None:
    refused = await post(turns, user(image()))
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("image_not_read", "messages[0].content[1]")
    assert error["message"].startswith("Dieses Modell liest keine Bilder.")
    english = await post(turns, user(image()), locale="en")
    assert english.json()["error"]["message"].startswith("This model does not read images.")
    assert turns.submitted == []


async def test_a_chat_goes_on_after_an_image_that_was_refused(turns: FakeTurns) -> None:
    answer = await post(turns, user(image()), {"role": "user", "content": "Dann ohne Bild"})
    assert answer.status_code == 200
    [request] = turns.submitted
    assert [message["content"] for message in request.messages] == [
        "Was ist das?\n[Hier stand ein Bild. Es liegt dir nicht vor.]",
        "Dann ohne Bild",
    ]
    assert request.images == ()


async def test_other_parts_of_earlier_messages_are_left_out_with_a_note(turns: FakeTurns) -> None:
    await post(turns, user({"type": "input_audio"}), {"role": "user", "content": "Weiter"}, locale="en")
    assert "[There was something other than text here." in turns.submitted[0].messages[0]["content"]


async def test_a_model_with_eyes_gets_the_image_and_the_message_names_its_file(turns: FakeTurns) -> None:
    await post(turns, user(image()), vision=True)
    [request] = turns.submitted
    [found] = request.images
    assert found.content == draw_icon("a")
    assert find_image_names(request.prompt) == [found.name]
    assert TurnRequest.from_json(request.to_json()) == request


async def test_an_earlier_image_keeps_its_name_and_is_not_stored_again(turns: FakeTurns) -> None:
    said = [user(image()), {"role": "assistant", "content": "Ein Ring."}, {"role": "user", "content": "Welche Farbe?"}]
    await post(turns, said[0], vision=True)
    await post(turns, *said, vision=True)
    first, second = turns.submitted
    assert second.messages[0] == first.messages[0]
    assert second.images == ()


async def test_an_image_of_a_question_that_failed_comes_with_the_next_one(turns: FakeTurns) -> None:
    await post(turns, user(image()), {"role": "user", "content": "Noch einmal"}, vision=True)
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
    refused = await post(turns, user(image(url)), vision=True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "image_unreadable")
    later = await post(turns, user(image(url)), {"role": "user", "content": "Weiter"}, vision=True)
    assert later.status_code == 200, "the chat goes on"


async def test_the_images_of_one_message_are_bounded(turns: FakeTurns) -> None:
    many = [image("data:image/png;base64," + b64encode(draw_icon(str(one))).decode()) for one in range(MAX_IMAGES + 1)]
    assert (await post(turns, user(*many), vision=True)).json()["error"]["code"] == "image_unreadable"
    assert (await post(turns, user(*many[1:]), vision=True)).status_code == 200
    assert len(turns.submitted[0].images) == MAX_IMAGES


def test_the_kind_of_an_image_is_read_from_its_bytes() -> None:
    wrong = PNG.replace("image/png", "image/jpeg")
    assert read_image(wrong).name == read_image(PNG).name
    assert read_image(PNG).name.endswith(".png")
    webp = "data:image/webp;base64," + b64encode(b"RIFF\0\0\0\0WEBPVP8 ").decode()
    assert read_image(webp).name.endswith(".webp")


async def test_a_text_file_reaches_the_turn(turns: FakeTurns) -> None:
    data = "data:text/markdown;base64," + b64encode("# Plan\nGrün".encode()).decode()
    await post(turns, user({"type": "file", "file": {"filename": "plan.md", "file_data": data}}))
    assert turns.submitted[0].prompt == "Was ist das?\nplan.md:\n\n# Plan\nGrün"
    binary = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}}
    refused = await post(turns, user(binary))
    assert refused.json()["error"]["code"] == "unsupported_content"


async def test_a_file_that_open_webui_puts_into_its_prompt_is_a_turn(turns: FakeTurns) -> None:
    """Open WebUI 0.12.4 sends a text file inside a prompt that begins like those of its background requests."""
    inlined = (
        "### Task:\nRespond to the user query using the provided context\n\n<context>Plan</context>\n\nWas steht da?"
    )
    await post(turns, {"role": "user", "content": inlined})
    assert turns.submitted[0].prompt == inlined


async def test_the_responses_api_reads_images_too(turns: FakeTurns) -> None:
    said = [
        {"role": "user", "content": [{"type": "input_text", "text": "?"}, {"type": "input_image", "image_url": PNG}]}
    ]
    body = {"model": "scripted", "input": said}
    async with caller(app_with(turns, vision=True)) as http:
        assert (await http.post("/v1/responses", json=body)).status_code == 200
    assert len(turns.submitted[0].images) == 1
    async with caller(app_with(turns)) as http:
        assert (await http.post("/v1/responses", json=body)).json()["error"]["code"] == "image_not_read"


async def test_the_models_list_says_who_reads_images() -> None:
    models = {"blind": "scripted", "eyes": "scripted"}
    app = app_with(FakeTurns(), models=models, model_settings={"eyes": {"vision": True}})
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
        assert unknown.endswith("there is: scripted (2) messages[1].content: says nothing)")


@pytest.mark.parametrize("code", sorted(ERROR_CODES))
def test_every_error_before_a_stream_speaks_the_language_of_the_chat(code: str) -> None:
    asked = Request({"type": "http", "method": "POST", "headers": [(b"x-owui-chat-id", b"c")]})
    happened = error_words(code, "de")[0]
    said = localize_error(ApiError(400, "details", code=code), asked, "de")
    filled_in = any("{" in words for words in error_words(code, "de"))  # by who raises it, in the turn's language
    assert said == "details" if filled_in else said.startswith(happened)
    assert not localize_error(ApiError(400, "details", code=code), asked, "en").startswith(happened)


async def test_a_limit_is_told_in_words_a_user_can_act_on(turns: FakeTurns, constants: Constants) -> None:
    turns.allowances.refusal = LimitRefusal("rate", 4.2)
    constants("api_client.web.identity.access", TURNS_PER_MINUTE=1)
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}]}
    async with caller(app_with(turns, api_keys=("k",)), authorization="Bearer k") as http:
        page = await http.post("/v1/chat/completions", json=body, headers=PAGE)
        program = await http.post("/v1/chat/completions", json=body)
    assert (page.status_code, program.status_code) == (429, 429)
    assert page.json()["error"]["message"] == "Zu viele Anfragen in kurzer Zeit. Versuche es in 5 s erneut."
    assert program.json()["error"]["message"] == "at most 1 turns a minute are allowed; try again in 5 s"


# The title of a chat by its first message: 60 first messages as people write them, German and English.

FIRST_MESSAGES = [
    # The prompts of the imported model, and what people make of them.
    ("Schreibe ein ADR: Caching", "Schreibe ein ADR: Caching"),
    ("Schreibe ein ADR: Wahl der Datenbank für die Stückliste", "Schreibe ein ADR: Wahl der Datenbank für die…"),
    ("Prüfe diesen Entwurf: https://example.org/adr.md", "Prüfe diesen Entwurf"),
    ("Write an ADR: message queue", "Write an ADR: message queue"),
    ("Review this design: we keep sessions in Redis. Is that safe?", "Review this design: we keep sessions in Redis"),
    # Colons, semicolons and introductions.
    ("Frage: Wie lösche ich einen Branch?", "Frage: Wie lösche ich einen Branch"),
    ("Question: how do I undo a commit?", "Question: how do I undo a commit"),
    ("Kurze Frage:\nWie starte ich den Worker?", "Kurze Frage: Wie starte ich den Worker"),
    ("Aufgabe: Tests; Umfang: nur die API", "Aufgabe: Tests; Umfang: nur die API"),
    ("TODO: Log aufräumen", "TODO: Log aufräumen"),
    # Greetings.
    ("Hallo! Wie richte ich Celery ein?", "Wie richte ich Celery ein"),
    ("Hallo zusammen, warum ist der Build rot?", "warum ist der Build rot"),
    ("Hi, can you explain leases?", "can you explain leases"),
    ("Guten Morgen! Ich brauche ein Deployment.", "Ich brauche ein Deployment"),
    ("Good morning, what changed in Redis 8?", "what changed in Redis 8"),
    ("Hey Claude, wie geht ein Rebase?", "wie geht ein Rebase"),
    ("Hallo", "Hallo"),
    ("Hi!", "Hi"),
    ("Hallo Welt in Rust, wie geht das?", "Hallo Welt in Rust, wie geht das"),
    ("Moin,\n\ndie Queue läuft voll", "die Queue läuft voll"),
    ("Dear team, the relay is slow", "the relay is slow"),
    # Abbreviations and titles.
    ("Dr. Müller will wissen, ob wir ISO 27001 erfüllen.", "Dr. Müller will wissen, ob wir ISO 27001 erfüllen"),
    ("Kann man z.B. mit Redis Locks bauen? Und wie?", "Kann man z.B. mit Redis Locks bauen"),
    ("Was heißt d. h. im Protokoll Nr. 5 genau?", "Was heißt d. h. im Protokoll Nr. 5 genau"),
    ("Use e.g. Postgres or MySQL. Which one?", "Use e.g. Postgres or MySQL"),
    ("Compare Kafka vs. RabbitMQ for us", "Compare Kafka vs. RabbitMQ for us"),
    ("Wir haben ca. 500 Geräte usw. im Feld. Hilf mir.", "Wir haben ca. 500 Geräte usw. im Feld"),
    ("Prof. Dr. Klein fragt nach dem Encoder", "Prof. Dr. Klein fragt nach dem Encoder"),
    ("Mr. Smith wants a report. Write it.", "Mr. Smith wants a report"),
    # Numbers, versions, names with dots.
    ("1. Was ist Redis? 2. Wozu?", "Was ist Redis? 2. Wozu"),
    ("v1.2: was ist neu?", "v1.2: was ist neu"),
    ("v1.2 ist da", "v1.2 ist da"),
    ("Am 3. Mai ging der Server aus. Warum?", "Am 3. Mai ging der Server aus"),
    ("Node.js oder Python 3.13 für den Worker?", "Node.js oder Python 3.13 für den Worker"),
    ("Why does 0.1 + 0.2 fail?", "Why does 0.1 + 0.2 fail"),
    ("ISO 8601 erklären", "ISO 8601 erklären"),
    ("2024 vs 2025: costs", "2024 vs 2025: costs"),
    # Short first sentences go on.
    ("Ja. Und jetzt die Tests bitte.", "Ja. Und jetzt die Tests bitte"),
    ("Danke! Wie teste ich das?", "Danke! Wie teste ich das"),
    ("Hilfe!!! Alles ist weg", "Hilfe!!! Alles ist weg"),
    ("Stop. Start over with Flask.", "Stop. Start over with Flask"),
    ("Warum gehen uns bei einem Neustart Nachrichten verloren? Ja?", "Warum gehen uns bei einem Neustart Nachrichten…"),
    # Markup, lists, code, addresses.
    ("# Überschrift der Aufgabe\nMehr dazu", "Überschrift der Aufgabe"),
    ("**Warum** ist das `None`?", "Warum ist das None"),
    ("- Datenbank wählen\n- Schema entwerfen", "Datenbank wählen"),
    ("> Zitat aus der Mail\nWas meint er?", "Zitat aus der Mail"),
    ("```python\nprint(1)\n```\nWas tut das?", "Was tut das"),
    ("```python\ndef total(rows):\n    return sum(rows)\n```", "def total(rows)"),
    ("Sieh https://example.org/a an. Gut?", "Sieh an. Gut"),
    ("https://www.example.org/docs/leases", "example.org/docs/leases"),
    ("[Handbuch](https://example.org) zusammenfassen", "Handbuch zusammenfassen"),
    ("<b>Fett</b> gedruckter Titel", "Fett gedruckter Titel"),
    ("C# oder C++?", "C# oder C++"),
    ("Was bedeutet a_b in `x_y`?", "Was bedeutet a_b in x_y"),
    # Quotes, lengths, other letters.
    ("„Fehler 500“ beim Login", "„Fehler 500“ beim Login"),
    ('"Connection refused" on port 6379, why?', '"Connection refused" on port 6379, why'),
    ("x" * 80, "x" * 49 + "…"),
    ("¿Cómo funciona esto? Gracias.", "¿Cómo funciona esto"),
    ("请解释租约", "请解释租约"),
    ("🚀 Launch plan for Q3", "🚀 Launch plan for Q3"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "title"), FIRST_MESSAGES)
def test_a_title_is_what_a_person_would_call_the_chat(message: str, title: str) -> None:
    assert make_title(message) == title


def test_the_table_has_sixty_messages_in_two_languages() -> None:
    assert len(FIRST_MESSAGES) == len({message for message, _ in FIRST_MESSAGES}) == 60


@pytest.mark.parametrize(
    ("message", "title"),
    [
        ("请解释一下分布式租约的工作原理。然后写一个例子。", "请解释一下分布式租约的工作原理"),
        (
            "چرا پیام\u200cها هنگام راه\u200cاندازی گم می\u200cشوند؟ کمک کن.",
            "چرا پیام\u200cها هنگام راه\u200cاندازی گم می\u200cشوند",
        ),
        ("👩\u200d💻 Launch plan for Q3", "👩\u200d💻 Launch plan for Q3"),
        ("x" * 48 + "👩\u200d💻", "x" * 48 + "👩\u200d💻"[:1] + "…"),
    ],
    ids=["Chinese", "Persian", "joined emoji", "cut inside of one"],
)
def test_a_title_in_another_script_is_spelled_as_it_was_and_ends_with_its_sentence(message: str, title: str) -> None:
    assert make_title(message) == title


def test_nothing_readable_gives_no_title() -> None:
    assert make_title("<b>\u202e \x07\u200d") == ""
    assert make_title("") == ""


@given(st.text(max_size=300))
def test_any_text_gives_one_short_printable_line(text: str) -> None:
    title = make_title(text)
    assert len(title) <= TITLE_CHARS
    assert title.translate({ord(joiner): "" for joiner in "\u200c\u200d"}).isprintable()


# Titles, tags and the like are answered without a turn; what somebody wrote always becomes one.

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
    return detect_task(Headers({name.replace("_", "-"): value for name, value in headers.items()}), messages(text))


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
    assert detect_task(Headers(), messages(TITLE) * 2) == ""


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


async def test_a_header_whose_template_was_not_filled_in_counts_as_missing(
    http: httpx2.AsyncClient, turns: FakeTurns
) -> None:
    """Else every message would be a background request with an empty answer, and all chats would be one."""
    headers = {f"x-owui-{name}": f"{{{{{name.upper()}}}}}" for name in ("task", "chat-id", "message-id", "user-id")}
    for more in (headers, {"x-conversation-id": "{{LIBRECHAT_BODY_CONVERSATIONID}}"}):
        body = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}]}
        answers = [await http.post("/v1/chat/completions", json=body, headers=more) for _ in range(2)]
        assert [answer.json()["choices"][0]["message"]["content"] for answer in answers] == ["Hallo."] * 2
    assert len({request.session_id for request in turns.submitted}) == 4


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
