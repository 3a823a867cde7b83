"""Read a chat request from the body and headers of an HTTP request."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.datastructures import Headers

from api_client.contract.offered import askable
from api_client.contract.settings import Settings
from api_client.contract.turn import DoubleText, TurnRequest, new_session_id
from api_client.policies import CallersPolicy
from api_client.policies.flows import FLOW, flow_of
from api_client.tracing import traceparent_of
from api_client.turns.submission import asked_of
from api_client.web.bodies.conversation import ConversationRules, Messages, read_conversation
from api_client.web.bodies.models import (
    MAX_ID_CHARS,
    StreamMode,
    TurnBody,
    Wishes,
    read,
    read_escalation,
    read_model,
    read_validators,
)
from api_client.web.errors import Problems, bad_request
from api_client.web.language import HEADER as LOCALE_HEADER
from api_client.web.language import is_open_webui, locale_of, spoken_in
from api_client.web.openwebui.attached import detached
from api_client.web.openwebui.background import background_task
from api_client.web.openwebui.front_matter import unfenced
from api_client.web.words import say

#: Headers with a chat's id, best first.
CHAT_ID_HEADERS = ("x-owui-chat-id", "x-openwebui-chat-id", "x-conversation-id")
#: Metadata of a turn: the chat message that it answers.
USER_MESSAGE = "user_message_id"
#: Headers of Open WebUI that are kept in the turn's metadata, for operators.
_NOTED_HEADERS = {"x-owui-message-id": "message_id", "x-owui-user-message-id": USER_MESSAGE}
#: Fields that a policy sets if the body does not.
_BY_POLICY = ("validators", "policy", "max_attempts", "locale")


@dataclass(frozen=True, slots=True)
class Ask:
    """A chat request, parsed from the body and headers of an HTTP request.

    Attributes:
        page: a page of Open WebUI shows the answer as it arrives.
        mode: how much of a streamed answer is shown before the answer is accepted.
        task: kind of background request, or '' for a user's message.
        include_usage: end the stream with the usage.
        question: hash that repeats of this request share; '' if a repeat counts as a new question.
        first: a client that counts its retries sends the request for the first time.
        again: a client that counts its retries sends the request again.
    """

    request: TurnRequest
    stream: bool
    open_webui: bool
    page: bool
    mode: StreamMode
    task: str = ""
    include_usage: bool = False
    idempotency_key: str = ""
    question: str = ""
    first: bool = False
    again: bool = False


@dataclass(frozen=True, slots=True)
class AskedBy:
    """The sender of a chat request: the request's headers, and the settings and policies that apply to the sender."""

    headers: Headers
    settings: Settings
    owner: str
    policy: CallersPolicy | None = None
    problems: Problems = field(default_factory=Problems)


def read_ask(
    body: Mapping[str, Any], headers: Headers, settings: Settings, owner: str, policy: CallersPolicy | None = None
) -> Ask:
    """Parse a chat request from the body and headers of an HTTP request.

    Raises ``ApiError`` with all problems: 400 with the field's name, 404 for an unknown model. Raises
    ``SettingsError`` if the policy files cannot be used.
    """
    by = AskedBy(headers, settings, owner, policy)
    wished = read(TurnBody, body, by.problems)
    return ask_for(wished, wished.messages, spoken_in(body), by)


def ask_for(
    wished: Wishes, said: Any, spoken: str, by: AskedBy, *, system: str | None = None, notes: Mapping[str, str] = {}
) -> Ask:
    """Build a chat request from a validated body; raises the errors of ``read_ask``.

    ``said`` is the unvalidated conversation, ``spoken`` the language of the user's messages or '', ``notes`` the
    turn's metadata.
    """
    headers, policy, problems = by.headers, by.policy, by.problems
    # Open WebUI has a page for the chat if it sends a message id, or at least a chat id.
    page = bool(headers.get("x-owui-message-id", headers.get("x-openwebui-chat-id", "")))
    locale = wished.locale or locale_of(headers, spoken or by.settings.locale)
    model, key, escalation = "", "", None
    if "idempotency-key" in headers:
        with problems:
            key = read_idempotency_key(headers)
    with problems:
        model = read_model(wished.model, by.settings)
    if wished.response_format not in (None, {"type": "text"}):  # prose would be taken for the schema's object
        message = "response_format: is not supported here; ask for the form in the message, and check it by a validator"
        problems.add(bad_request(message, param="response_format", code="unsupported_parameter"))
    settings = by.settings.of_model(model)
    messages, images = read_conversation(said, wished.SAID, _rules(wished, settings, model, locale, page), problems)
    validators = settings.validators
    if wished.validators is not None:
        offered = (policy.askable(model) if policy else ()) or askable(validators)
        validators = read_validators(wished.validators, offered, problems)
    if wished.escalation is not None:
        with problems:
            escalation = read_escalation(wished.escalation, settings)
    problems.end()
    if is_open_webui(headers):
        messages = _as_accepted(messages)
    chat_id = next(filter(None, map(headers.get, CHAT_ID_HEADERS)), wished.session_id or "")
    noted = {"conversation_id": chat_id} | {note: headers.get(name, "") for name, note in _NOTED_HEADERS.items()}
    request = TurnRequest(
        model=model,
        messages=messages if system is None else ({"role": "system", "content": system}, *messages),
        images=images,
        session_id=(session_id := _session_id(by.owner, chat_id, key)),
        owner=by.owner,
        key=policy.owner if policy else "",
        labels={FLOW: flow_of(session_id, policy.flows)} if policy else {},
        validators=validators,
        locale=locale,
        max_attempts=wished.max_attempts or settings.max_attempts,
        deadline_seconds=wished.deadline_seconds or settings.deadline_seconds,
        double_text=wished.double_text or DoubleText.QUEUE,
        token_budget=settings.token_budget if wished.token_budget is None else wished.token_budget,
        cost_budget_usd=settings.cost_budget_usd if wished.cost_budget_usd is None else wished.cost_budget_usd,
        metadata={name: value for name, value in noted.items() if _is_id(value)} | dict(notes),
        policy={name: tuple(o) for name, o in wished.policy.items()} if wished.policy else settings.policy_orders,
        attached=escalation.attached if escalation else {},
        traceparent=traceparent_of(headers.getlist("traceparent")) if "traceparent" in headers else "",
        priority=wished.priority.value if wished.priority else "",
    )
    if policy and policy.policies.named:
        named = [name for name in _BY_POLICY if getattr(wished, name) is not None]
        request = policy.apply(request, [*named, "locale"] if LOCALE_HEADER in headers else named)
    return _ask(request, wished, headers, settings, chat_id=chat_id, key=key, page=page)


def _rules(wished: Wishes, settings: Settings, model: str, locale: str, page: bool) -> ConversationRules:
    return ConversationRules(
        settings.roles,
        settings.max_messages,
        settings.max_message_chars,
        text=wished.PARTS,
        vision=not model or settings.of_model(model).vision,  # without a known model vision is unknown
        locale=locale,
        go_on=say("go_on", locale) if page else "",
    )


def _ask(
    request: TurnRequest, wished: Wishes, headers: Headers, settings: Settings, *, chat_id: str, key: str, page: bool
) -> Ask:
    retries = headers.get("x-stainless-retry-count", "")
    shown_by = StreamMode.LIVE if page else StreamMode.VALIDATED
    question = ""
    if not key and (page or retries):
        # A question is identified by the request, its chat, and the message it answers. Open WebUI's Regenerate
        # has a new message id but the same id of the user's message; an edited message has another.
        session_id = request.session_id if chat_id else ""
        same = replace(asked_of(request), metadata={}, key="", session_id=session_id).to_json()
        question = _digest(headers.get("x-owui-user-message-id", "") if page else "client", same)
    return Ask(
        request=request,
        stream=bool(wished.stream),
        open_webui=is_open_webui(headers),
        page=page,
        mode=wished.stream_mode or StreamMode(settings.of_model(request.model).stream or shown_by),
        task=background_task(headers, request.messages),
        include_usage=bool(wished.stream_options and wished.stream_options.include_usage),
        idempotency_key=key,
        question=question,
        first=retries == "0" and not page,
        again=retries.isdecimal() and retries != "0",
    )


def _as_accepted(messages: Messages) -> Messages:
    """Undo the changes that the chat page made to earlier answers, and return the conversation."""
    return tuple(
        {**message, "content": unfenced(detached(message["content"]))} if message["role"] == "assistant" else message
        for message in messages
    )


def read_idempotency_key(headers: Headers) -> str:
    """Return the idempotency key in the headers of a request, or an empty string if there is none.

    Raises ``ApiError``: 400 ``invalid_idempotency_key``.
    """
    given = headers.getlist("idempotency-key")
    if not given:
        return ""
    if len(given) > 1 or not _is_id(given[0]):
        message = f"Idempotency-Key: must be 1 to {MAX_ID_CHARS} printable ASCII characters, once"
        raise bad_request(message, param="Idempotency-Key", code="invalid_idempotency_key")
    return given[0]


def _is_id(text: str) -> bool:
    return text.isascii() and text.isprintable() and 1 <= len(text) <= MAX_ID_CHARS


def _session_id(owner: str, chat_id: str, key: str) -> str:
    """Return the id of a chat's session, which contains the owner so that no other owner can continue the session.

    Without a chat, the session is new, but repeats with the same idempotency key share it.
    """
    if chat_id:
        return f"chat-{_digest(owner, chat_id)}"
    return f"session-{_digest(owner, key)}" if key else new_session_id()


def _digest(owner: str, text: str) -> str:
    return hashlib.sha256(f"{owner}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
