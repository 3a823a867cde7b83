"""From a request to the turn that is asked for: sessions, owners, defaults."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from starlette.datastructures import Headers

from api_client.contract.settings import Settings
from api_client.contract.turn import DoubleText, TurnRequest
from api_client.turns.submission import digest
from api_client.web.bodies.ask import Ask, read_ask
from api_client.web.bodies.response_input import read_response_ask
from api_client.web.errors import ApiError

SETTINGS = Settings(validators=("step_marker", "house_style"), max_attempts=4, deadline_seconds=90)


def ask(owner: str = "local", headers: dict[str, str] | None = None, **more: Any) -> Ask:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}], **more}
    return read_ask(body, Headers(headers or {}), SETTINGS, owner)


def session(owner: str = "local", headers: dict[str, str] | None = None, **more: Any) -> str:
    return ask(owner, headers, **more).request.session_id


def test_defaults_come_from_the_settings() -> None:
    given = ask()
    assert given.request.validators == ("step_marker", "house_style")
    assert (given.request.max_attempts, given.request.deadline_seconds, given.request.locale) == (4, 90, "de")
    assert given.request.double_text is DoubleText.QUEUE
    assert (given.stream, given.open_webui, given.idempotency_key) == (False, False, "")


@pytest.mark.parametrize(("locale", "other"), [("en", "de"), ("de", "en")])
def test_a_question_is_answered_in_its_language(locale: str, other: str) -> None:
    settings = replace(SETTINGS, locale=locale)
    asked = {"de": "Wo ist die Rechnung?", "en": "Where is the invoice?"}

    def spoken(*said: str, headers: Mapping[str, str] = {}, **more: Any) -> str:
        roles = itertools.cycle(["user", "assistant"])
        messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
        return read_ask(
            {"model": "scripted", "messages": messages, **more}, Headers(headers), settings, "o"
        ).request.locale

    assert (spoken(asked["de"]), spoken(asked["en"])) == ("de", "en")
    assert spoken("INV-7") == locale  # it shows no language
    assert spoken(asked[other], "Which?", "INV-7") == other  # what the user said before does
    assert spoken(asked[other], asked[locale], asked[other]) == other  # not what the agent says
    assert spoken(asked[other], locale=locale) == spoken(asked[other], headers={"x-helix-locale": locale}) == locale
    parts = [{"type": "text", "text": asked[other]}]
    assert spoken("", messages=[{"role": "user", "content": parts}]) == other
    given = read_response_ask({"model": "scripted", "input": asked[other]}, Headers({}), settings, "o")
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
    assert (given.request.locale, given.request.double_text, given.stream) == ("en", DoubleText.INTERRUPT, True)
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
    given = read_ask({"model": "scripted", "messages": [{"role": "user", "content": "a"}]}, headers, SETTINGS, "o")
    prefix, _, digest = given.request.session_id.partition("-")
    assert (prefix, len(digest), digest.isalnum()) == ("chat", 32, True)
    assert all(value.isprintable() for value in given.request.metadata.values())


def test_ids_that_only_differ_in_odd_characters_are_different_sessions() -> None:
    assert len({session(headers={"x-conversation-id": name}) for name in ("a/b", "a_b", "a-b", "a.b")}) == 4


@pytest.mark.parametrize(
    ("header", "expected"), [("x-owui-task", True), ("x-openwebui-user-id", True), ("x-conversation-id", False)]
)
def test_open_webui_is_known_by_its_headers(header: str, expected: bool) -> None:
    assert ask(headers={header: "x"}).open_webui is expected


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
    assert ask(headers=headers).page is (mode == "live")


def test_the_stream_mode_is_of_the_request_then_of_the_model_then_of_the_client() -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}]}
    settings = replace(SETTINGS, stream_modes={"scripted": "draft"})
    assert read_ask(body, Headers(MESSAGE), settings, "o").mode == "draft"
    assert read_ask({**body, "stream_mode": "validated"}, Headers(MESSAGE), settings, "o").mode == "validated"
    with pytest.raises(ApiError, match="stream_mode: must be one of live, draft, validated"):
        ask(stream_mode="loud")


def test_only_a_page_may_end_with_the_assistants_text() -> None:
    messages = [{"role": "user", "content": "Hallo"}, {"role": "assistant", "content": "Guten"}]
    assert ask(headers=MESSAGE, messages=messages, locale="en").request.prompt.startswith("Continue your last answer")
    with pytest.raises(ApiError, match="last message must be the user's"):
        ask(messages=messages)


def test_a_question_is_told_only_where_repeats_can_be_told_from_new_ones() -> None:
    assert ask().question == ""
    assert (
        ask(headers={"x-stainless-retry-count": "0"}).question == ask(headers={"x-stainless-retry-count": "3"}).question
    )
    assert ask(headers={"x-stainless-retry-count": "0", "idempotency-key": "k"}).question == ""
    assert (
        ask(headers={"x-stainless-retry-count": "0"}).first,
        ask(headers={"x-stainless-retry-count": "1"}).again,
    ) == (
        True,
        True,
    )
    assert ask(headers={"x-stainless-retry-count": "-1"}).again is False


def test_the_callers_trace_is_kept_and_is_no_part_of_the_question() -> None:
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    page = {"x-owui-chat-id": "c", "x-owui-message-id": "m", "x-owui-user-message-id": "u"}
    with_one, without = ask(headers={**page, "traceparent": caller}), ask(headers=page)
    assert (with_one.request.traceparent, without.request.traceparent) == (caller, "")
    assert with_one.question == without.question
    assert digest(with_one.request, Settings()) == digest(without.request, Settings()), "a repeat has another span"
    assert ask(headers={"traceparent": "nonsense"}).request.traceparent == ""


def test_another_default_language_makes_no_other_request_and_another_wish_does() -> None:
    def body(text: str, locale: str, default: str) -> str:
        request = TurnRequest(model="m", messages=({"role": "user", "content": text},), session_id="s", locale=locale)
        return digest(request, Settings(locale=default))

    plain = TurnRequest(model="m", messages=({"role": "user", "content": "1+1"},), session_id="s", locale="de")
    assert body("1+1", "de", "de") == body("1+1", "en", "en") != body("1+1", "en", "de")
    assert body("1+1", "en", "en") == hashlib.sha256(plain.to_json().encode()).hexdigest(), "as earlier releases did"
    assert body("what is the time", "en", "de") == body("what is the time", "en", "en")


def test_what_a_request_leaves_open_is_as_its_models_block_says() -> None:
    orders = {"step_marker": ("fail",)}
    block = {"validators": ("step_marker",), "max_attempts": 7, "policy_orders": orders, "token_budget": 9}
    settings = Settings(models={"scripted": "scripted", "other": "scripted"}, model_settings={"other": block})
    body = {"messages": [{"role": "user", "content": "a"}]}
    other = read_ask({**body, "model": "other"}, Headers({}), settings, "o").request
    assert (other.validators, other.max_attempts, other.token_budget) == (("step_marker",), 7, 9)
    assert other.policy == {"step_marker": ("fail",)}
    assert read_ask({**body, "model": "scripted"}, Headers({}), settings, "o").request.max_attempts == 3
    assert read_ask({**body, "model": "other", "max_attempts": 1}, Headers({}), settings, "o").request.max_attempts == 1
