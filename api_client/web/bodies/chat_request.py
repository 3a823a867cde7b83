"""Builds a chat request from the body and headers of an HTTP request."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from starlette.datastructures import Headers

from api_client.contract.answer_format import RESPONSE_FORMAT, AnswerFormat
from api_client.contract.settings import Settings
from api_client.contract.settings.setting_values import ROLES
from api_client.contract.settings.turn_limits import limit_turn
from api_client.contract.turn import DoubleText, TurnRequest, new_session_id
from api_client.contract.validator_names import requestable_validators
from api_client.policies.flows import FLOW, choose_flow
from api_client.policies.policy_files import CallerPolicy
from api_client.tracing.trace_spans import select_traceparent
from api_client.turns.submission import strip_filled
from api_client.web.bodies.body_model import read_added_fields
from api_client.web.bodies.conversation import ConversationRules, Messages, read_conversation
from api_client.web.bodies.models import (
    MAX_ID_CHARS,
    AnswerBody,
    StreamMode,
    TurnBody,
    read_model_body,
    read_model_name,
    read_validators,
)
from api_client.web.bodies.response_format import read_response_format, refuse_parameters, select_for_json
from api_client.web.errors import Problems, bad_request
from api_client.web.language import LOCALE_HEADER as LOCALE_HEADER
from api_client.web.language import detect_body_language, is_open_webui, requested_locale
from api_client.web.openwebui.answer_additions import strip_additions
from api_client.web.openwebui.background_tasks import detect_task
from api_client.web.openwebui.front_matter import unfence_headers
from api_client.web.sentences import translate

CHAT_ID_HEADERS = ("x-owui-chat-id", "x-openwebui-chat-id", "x-conversation-id")
#: Metadata of a turn: the chat message that it answers.
USER_MESSAGE_ID = "user_message_id"
#: Headers of Open WebUI that are kept in the turn's metadata, for operators.
_NOTED_HEADERS = {"x-owui-message-id": "message_id", "x-owui-user-message-id": USER_MESSAGE_ID}
#: Fields that a policy sets if the body does not.
_POLICY_FIELDS = ("validators", "policy", "max_attempts", "locale")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request, parsed from the body and headers of an HTTP request.

    ``has_page`` says that a page of Open WebUI shows the answer as it arrives. ``background_kind`` is empty for a
    user's message. Repeats share ``question_hash``, which is empty if a repeat is a new question. Clients that count
    their retries set ``is_first_try`` and ``is_retry``.
    """

    request: TurnRequest
    wants_stream: bool
    has_page: bool
    mode: StreamMode
    from_open_webui: bool = False
    background_kind: str = ""
    include_usage: bool = False
    idempotency_key: str = ""
    question_hash: str = ""
    is_first_try: bool = False
    is_retry: bool = False


@dataclass(frozen=True)
class RequestContext:
    """The context for parsing a request: its headers and body, and the caller's settings and policy."""

    headers: Headers
    settings: Settings
    owner: str
    policy: CallerPolicy | None = None
    problems: Problems = field(default_factory=Problems)
    body: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def from_open_webui(self) -> bool:
        return is_open_webui(self.headers)


def read_chat_request(
    body: Mapping[str, Any], headers: Headers, settings: Settings, owner: str, policy: CallerPolicy | None = None
) -> ChatRequest:
    """Parse a chat request from the body and headers of an HTTP request.

    Raises ``ApiError`` with all problems: 400 with the field's name, 404 for an unknown model. Raises ``SettingsError``
    if the policy files cannot be used.
    """
    context = RequestContext(headers, settings, owner, policy, body=body)
    turn_body = read_model_body(TurnBody, body, context.problems)
    chosen = read_response_format(turn_body.response_format, RESPONSE_FORMAT, context.problems)
    language = detect_body_language(body)
    return build_chat_request(turn_body, turn_body.messages, language, context, answer_format=chosen)


def build_chat_request(
    body: AnswerBody,
    conversation: Any,
    language: str,
    context: RequestContext,
    *,
    answer_format: AnswerFormat | None = None,
    system: str | None = None,
    notes: Mapping[str, str] = {},
) -> ChatRequest:
    """Build a chat request from a body whose simple fields have been validated.

    ``conversation`` is unvalidated, ``language`` the user's or '', ``notes`` metadata. Raises as ``read_chat_request``.
    """
    headers, policy, problems = context.headers, context.policy, context.problems
    # Open WebUI has a page for the chat if it sends a message id, or at least a chat id.
    page = bool(headers.get("x-owui-message-id", headers.get("x-openwebui-chat-id", "")))
    locale = body.locale or requested_locale(headers, language or context.settings.locale)
    model, key, attached = "", "", dict[str, Any]()
    with problems:
        key = read_idempotency_key(headers) if "idempotency-key" in headers else ""
    with problems:
        model = read_model_name(body.model, context.settings)
    settings = context.settings.for_model(model)
    messages, images = read_conversation(
        conversation, body.CONVERSATION_FIELD, _conversation_rules(body, settings, model, locale, page), problems
    )
    validators = _choose_validators(body, settings, policy, model, problems)
    validators = select_for_json(validators, body.validators, problems) if answer_format else validators
    messages = _restore_answers(messages) if context.from_open_webui else messages
    messages = messages if system is None else ({"role": "system", "content": system}, *messages)
    background_kind = detect_task(headers, messages)
    if not background_kind:  # the relay answers Open WebUI's tasks itself
        refuse_parameters(context.body, problems, from_open_webui=context.from_open_webui)
    with problems:
        attached = read_added_fields(body, settings)
    problems.raise_problems()
    chat_id = next(filter(None, map(headers.get, CHAT_ID_HEADERS)), body.session_id or "")
    noted = {"conversation_id": chat_id} | {note: headers.get(name, "") for name, note in _NOTED_HEADERS.items()}
    request = TurnRequest(
        model=model,
        messages=messages,
        images=images,
        session_id=(session_id := _derive_session_id(context.owner, chat_id, key)),
        owner=context.owner,
        key=policy.owner if policy else "",
        labels={FLOW: choose_flow(session_id, policy.flows)} if policy else {},
        validators=validators,
        locale=locale,
        double_text=body.double_text or DoubleText.QUEUE,
        **limit_turn(settings, vars(body)),
        metadata={name: value for name, value in noted.items() if _is_id(value)} | dict(notes),
        policy={name: tuple(o) for name, o in body.policy.items()} if body.policy else settings.policy_orders,
        attached=attached,
        traceparent=select_traceparent(headers.getlist("traceparent")) if "traceparent" in headers else "",
        priority=body.priority.value if body.priority else "",
    )
    request = _apply_rules(request, body, context, answer_format)
    chat_request = _make_chat_request(request, body, headers, settings, chat_id=chat_id, key=key, page=page)
    return replace(chat_request, from_open_webui=context.from_open_webui, background_kind=background_kind)


def _apply_rules(
    request: TurnRequest, body: AnswerBody, context: RequestContext, answer_format: AnswerFormat | None
) -> TurnRequest:
    policy = context.policy
    if answer_format:
        orders = {name: order for name, order in request.policy.items() if body.policy or name in request.validators}
        request = answer_format.attach_to(replace(request, policy=orders))
    if not policy or not policy.policies.named:
        return request
    named = [name for name in _POLICY_FIELDS if getattr(body, name) is not None]
    return policy.apply_policy(request, [*named, "locale"] if LOCALE_HEADER in context.headers else named)


def _choose_validators(
    body: AnswerBody, settings: Settings, policy: CallerPolicy | None, model: str, problems: Problems
) -> tuple[str, ...]:
    if body.validators is None:
        return settings.validators
    offered = (policy.list_askable(model) if policy else ()) or requestable_validators(settings.validators)
    return read_validators(body.validators, offered, problems)


def _conversation_rules(
    wished: AnswerBody, settings: Settings, model: str, locale: str, page: bool
) -> ConversationRules:
    return ConversationRules(
        ROLES,
        settings.max_messages,
        settings.max_message_chars,
        text_types=wished.TEXT_TYPES,
        reads_images=not model or settings.for_model(model).vision,  # without a known model vision is unknown
        locale=locale,
        continue_text=translate("go_on", locale) if page else "",
    )


def _make_chat_request(
    request: TurnRequest,
    wished: AnswerBody,
    headers: Headers,
    settings: Settings,
    *,
    chat_id: str,
    key: str,
    page: bool,
) -> ChatRequest:
    retries = headers.get("x-stainless-retry-count", "")
    shown_by = StreamMode.LIVE if page else StreamMode.VALIDATED
    question = ""
    if not key and (page or retries):
        # The chat and the message that it answers identify a question. Open WebUI's Regenerate has a new message id but
        # the same id of the user's message.
        session_id = request.session_id if chat_id else ""
        same = replace(strip_filled(request), metadata={}, key="", session_id=session_id).to_json()
        question = _hash_for_owner(headers.get("x-owui-user-message-id", "") if page else "client", same)
    return ChatRequest(
        request=request,
        wants_stream=bool(wished.stream),
        has_page=page,
        mode=wished.stream_mode or StreamMode(settings.stream or shown_by),
        include_usage=bool(wished.stream_options and wished.stream_options.include_usage),
        idempotency_key=key,
        question_hash=question,
        is_first_try=retries == "0" and not page,
        is_retry=retries.isdecimal() and retries != "0",
    )


def _restore_answers(messages: Messages) -> Messages:
    return tuple(
        {**message, "content": unfence_headers(strip_additions(message["content"]))}
        if message["role"] == "assistant"
        else message
        for message in messages
    )


def read_idempotency_key(headers: Headers) -> str:
    """Return the idempotency key in a request's headers, or an empty string if there is none.

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


def _derive_session_id(owner: str, chat_id: str, key: str) -> str:
    """Derive the session id from owner and chat, so that no other owner can continue the session.

    Without a chat, the session is new, but repeats with the same idempotency key share it.
    """
    if chat_id:
        return f"chat-{_hash_for_owner(owner, chat_id)}"
    return f"session-{_hash_for_owner(owner, key)}" if key else new_session_id()


def _hash_for_owner(owner: str, text: str) -> str:
    return hashlib.sha256(f"{owner}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
