"""From a request's body and headers to the turn that is asked for. Pure: no store, no clock."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from starlette.datastructures import Headers

from api_client.contract.settings import Settings
from api_client.contract.turn import DoubleText, TurnRequest, new_session_id
from api_client.policies.files import CallersPolicy
from api_client.tracing.caller import traceparent_of
from api_client.turns.submission import asked_of
from api_client.web.bodies.conversation import Conversation, ConversationLimits, PartRules, read_list
from api_client.web.bodies.models import (
    MAX_ID_CHARS,
    StreamMode,
    TurnBody,
    Wishes,
    check_plain_text,
    read,
    read_escalation,
    read_model,
    read_validators,
)
from api_client.web.errors import bad_request
from api_client.web.language import HEADER as LOCALE_HEADER
from api_client.web.language import is_open_webui, locale_of, spoken_in
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
#: Reads what is said, within limits; the last argument is what a Continue says in the user's name.
ReadConversation: TypeAlias = Callable[[ConversationLimits, PartRules, str], Conversation]
_T = TypeVar("_T", int, float)


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
        size: bytes of the request's body.
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
    size: int = 0


def read_ask(
    body: Mapping[str, Any], headers: Headers, settings: Settings, owner: str, policy: CallersPolicy | None = None
) -> Ask:
    """Read a turn from a request.

    Raises:
        ApiError: 400 with the field's name, or 404 for an unknown model. SettingsError: the policy was never usable.
    """
    wished = read(TurnBody, body)
    said = partial(read_list, wished.messages, "messages")
    return ask_for(wished, said, spoken_in(body), headers, settings, owner, policy)


def ask_for(
    wished: Wishes,
    conversation: ReadConversation,
    spoken: str,
    headers: Headers,
    settings: Settings,
    owner: str,
    policy: CallersPolicy | None = None,
) -> Ask:
    """The turn that a body wishes. Raises as ``read_ask``.

    ``conversation`` reads what is said in it; ``spoken`` is the language that its user writes, or empty.
    """
    origin = _origin(wished, headers)
    locale = wished.locale or locale_of(headers, spoken or settings.locale)
    model = read_model(wished.model, settings)
    check_plain_text(wished.response_format)
    settings = settings.of_model(model)
    rules = PartRules(vision=model in settings.vision_models, locale=locale)
    limits = ConversationLimits(settings.roles, settings.max_messages, settings.max_message_chars)
    said = conversation(limits, rules, say("go_on", locale) if origin.page else "")
    if is_open_webui(headers):
        said = _as_accepted(said)
    request = TurnRequest(
        model=model,
        messages=said.messages,
        images=said.images,
        session_id=_session_id(owner, origin),
        owner=owner,
        validators=read_validators(wished.validators, settings, policy.askable(model) if policy else ()),
        locale=locale,
        max_attempts=_or(wished.max_attempts, settings.max_attempts),
        deadline_seconds=_or(wished.deadline_seconds, settings.deadline_seconds),
        double_text=wished.double_text or DoubleText.QUEUE,
        token_budget=_or(wished.token_budget, settings.token_budget),
        cost_budget_usd=_or(wished.cost_budget_usd, settings.cost_budget_usd),
        metadata=_metadata(origin.chat_id, headers),
        policy={name: tuple(order) for name, order in (wished.policy or settings.policy_orders).items()},
        escalation=read_escalation(wished.escalation, settings),
        traceparent=traceparent_of(headers.getlist("traceparent")),
    )
    if policy:
        request = policy.apply(request, _named(wished, headers))
    return _ask(request, wished, origin, headers, settings)


def _or(given: _T | None, usual: _T) -> _T:
    return usual if given is None else given


def _ask(request: TurnRequest, wished: Wishes, origin: _Origin, headers: Headers, settings: Settings) -> Ask:
    """The turn, and how its caller wants to read it."""
    retries = headers.get("x-stainless-retry-count", "")
    shown_by = StreamMode.LIVE if origin.page else StreamMode.VALIDATED
    repeatable = not origin.key and (origin.page or retries)
    return Ask(
        request=request,
        stream=bool(wished.stream),
        open_webui=is_open_webui(headers),
        page=origin.page,
        mode=wished.stream_mode or StreamMode(settings.stream_modes.get(request.model, shown_by)),
        task=background_task(headers, request.messages),
        include_usage=bool(wished.stream_options and wished.stream_options.include_usage),
        idempotency_key=origin.key,
        question=_question(request, headers, origin) if repeatable else "",
        first=retries == "0" and not origin.page,
        again=retries.isdecimal() and retries != "0",
    )


@dataclass(frozen=True, slots=True)
class _Origin:
    """The origin of a request: the chat in the caller's words and the idempotency key, '' without one."""

    chat_id: str
    key: str
    page: bool


def _origin(wished: Wishes, headers: Headers) -> _Origin:
    """The chat's id is any text, because only its hash is ever used as a name.

    The page of a chat is there when Open WebUI sends a message id, or at least a chat.
    """
    named = (headers.get(name, "") for name in CHAT_ID_HEADERS)
    return _Origin(
        chat_id=next(filter(None, named), wished.session_id or ""),
        key=read_idempotency_key(headers),
        page=bool(headers.get("x-owui-message-id", headers.get("x-openwebui-chat-id", ""))),
    )


def _named(wished: Wishes, headers: Headers) -> list[str]:
    """The fields that the request names itself, of those that a policy may fill in."""
    named = [name for name in _BY_POLICY if getattr(wished, name) is not None]
    return [*named, "locale"] if LOCALE_HEADER in headers else named


def _as_accepted(said: Conversation) -> Conversation:
    """The conversation with its answers as the agent wrote them, not as a page showed them."""
    shown = [
        {**message, "content": unfenced(message["content"])} if message["role"] == "assistant" else message
        for message in said.messages
    ]
    return replace(said, messages=tuple(shown))


def _question(request: TurnRequest, headers: Headers, origin: _Origin) -> str:
    """A hash of everything that makes the question: the request, its chat, and the message it answers.

    Open WebUI's Regenerate has a new message id but the same id of the user's message; an edited message has another.
    """
    same = replace(asked_of(request), metadata={}, session_id=request.session_id if origin.chat_id else "")
    return _digest(headers.get("x-owui-user-message-id", "") if origin.page else "client", same.to_json())


def read_idempotency_key(headers: Headers) -> str:
    """The key that makes a repeat of a request find what the first one made; '' without one.

    Raises:
        ApiError: 400 ``invalid_idempotency_key``.
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


def _session_id(owner: str, origin: _Origin) -> str:
    """The session: of the owner and the chat, so that another owner's chat id opens nothing.

    Without a chat the session is new; with an idempotency key it is the same new one for each repeat, because the
    repeat must be the same request.
    """
    if origin.chat_id:
        return f"chat-{_digest(owner, origin.chat_id)}"
    return f"session-{_digest(owner, origin.key)}" if origin.key else new_session_id()


def _digest(owner: str, text: str) -> str:
    return hashlib.sha256(f"{owner}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _metadata(chat_id: str, headers: Headers) -> dict[str, str]:
    notes = {"conversation_id": chat_id}
    notes |= {note: headers.get(name, "") for name, note in _NOTED_HEADERS.items()}
    return {name: value for name, value in notes.items() if value and _is_id(value)}
