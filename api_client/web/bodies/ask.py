"""From a request's body and headers to the turn that is asked for."""

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

#: Where a chat's id may stand, best first.
CHAT_ID_HEADERS = ("x-owui-chat-id", "x-openwebui-chat-id", "x-conversation-id")
#: The note of a turn that names the message of a chat it answers.
USER_MESSAGE = "user_message_id"
#: Headers of Open WebUI kept as notes in the turn, for operators.
_NOTED_HEADERS = {"x-owui-message-id": "message_id", "x-owui-user-message-id": USER_MESSAGE}
#: Fields that a policy fills in where the body has none.
_BY_POLICY = ("validators", "policy", "max_attempts", "locale")


@dataclass(frozen=True, slots=True)
class Ask:
    """The meaning of one HTTP request.

    Attributes:
        stream: the answer is wanted as a stream.
        open_webui: the caller is Open WebUI, which understands status events inside chunks.
        page: a page of Open WebUI shows the answer as it comes; a program that calls through it has none.
        mode: how much of a streamed answer is shown before it is accepted.
        task: the kind of background request this is, '' for a message (``background``).
        include_usage: the stream is to end with what was used.
        idempotency_key: '' without one.
        question: a hash that a repeat of this request has too; '' where a repeat looks like a new question.
        first, again: a client that counts its retries sends this for the first time, or once more.
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
    """Who asks: the headers, the settings as they are for this caller, the turn's owner.

    ``policy``: the policy files for this caller; ``problems`` takes the faults.
    """

    headers: Headers
    settings: Settings
    owner: str
    policy: CallersPolicy | None = None
    problems: Problems = field(default_factory=Problems)


def read_ask(
    body: Mapping[str, Any], headers: Headers, settings: Settings, owner: str, policy: CallersPolicy | None = None
) -> Ask:
    """Read a turn from a request.

    Raises ``ApiError``: 400 with the field's name, or 404 for an unknown model; it lists all that is wrong.
    ``SettingsError``: the policy was never usable.
    """
    by = AskedBy(headers, settings, owner, policy)
    wished = read(TurnBody, body, by.problems)
    return ask_for(wished, wished.messages, spoken_in(body), by)


def ask_for(
    wished: Wishes, said: Any, spoken: str, by: AskedBy, *, system: str | None = None, notes: Mapping[str, str] = {}
) -> Ask:
    """The turn that a body wishes. Raises as ``read_ask``.

    ``said``: the conversation in it, as it came; ``spoken``: the language of its user, or empty; ``system``: what the
    caller puts before it; ``notes``: its metadata.
    """
    headers, policy, problems = by.headers, by.policy, by.problems
    # The page of a chat is there when Open WebUI sends a message id, or at least a chat.
    page = bool(headers.get("x-owui-message-id", headers.get("x-openwebui-chat-id", "")))
    locale = wished.locale or locale_of(headers, spoken or by.settings.locale)
    model, key, escalation = "", "", None
    if "idempotency-key" in headers:
        with problems:
            key = read_idempotency_key(headers)
    with problems:
        model = read_model(wished.model, by.settings)
    if wished.response_format not in (None, {"type": "text"}):  # who asked for a schema would take the prose for it
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
        vision=not model or settings.of_model(model).vision,  # without a model nobody knows
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
        # All that makes the question: the request, its chat, and the message it answers. Open WebUI's Regenerate has a
        # new message id but the same id of the user's message; an edited message has another.
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
    """The conversation with its answers as the agent wrote them, not as a page showed them."""
    return tuple(
        {**message, "content": unfenced(detached(message["content"]))} if message["role"] == "assistant" else message
        for message in messages
    )


def read_idempotency_key(headers: Headers) -> str:
    """The key that makes a repeat of a request find what the first one made; '' without one.

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
    """The session: of the owner and the chat, so that another owner's chat id opens nothing.

    The chat's id is any text, because only its hash is ever used as a name. Without a chat the session is new; with an
    idempotency key it is the same new one for each repeat, because the repeat must be the same request.
    """
    if chat_id:
        return f"chat-{_digest(owner, chat_id)}"
    return f"session-{_digest(owner, key)}" if key else new_session_id()


def _digest(owner: str, text: str) -> str:
    return hashlib.sha256(f"{owner}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
