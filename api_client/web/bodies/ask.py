"""From a request's body and headers to the turn that is asked for. Pure: no store, no clock."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.datastructures import Headers

from api_client.contract.settings import Settings
from api_client.contract.turn import DoubleText, TurnRequest, new_session_id
from api_client.contract.values.setting_values import STREAM_MODES
from api_client.tracing.caller import traceparent_of
from api_client.turns.submission import asked_of
from api_client.web.bodies import fields
from api_client.web.bodies.conversation import Conversation, Limits, read_messages
from api_client.web.bodies.parts import PartRules
from api_client.web.errors import bad_request, shown
from api_client.web.language import HEADER as LOCALE_HEADER
from api_client.web.language import LOCALES, is_open_webui, locale_of
from api_client.web.openwebui.background import background_task
from api_client.web.openwebui.front_matter import unfenced
from api_client.web.streaming.page import StreamMode
from api_client.web.streaming.words import say

MAX_ID_CHARS = 255
MAX_ATTEMPTS = 20
MAX_DEADLINE_SECONDS = 604_800
#: Where a chat's id may stand, best first.
CHAT_ID_HEADERS = ("x-owui-chat-id", "x-openwebui-chat-id", "x-conversation-id")
#: The note of a turn that names the message of a chat it answers.
USER_MESSAGE = "user_message_id"
#: Headers of Open WebUI kept as notes in the turn, for operators.
_NOTED_HEADERS = {"x-owui-message-id": "message_id", "x-owui-user-message-id": USER_MESSAGE}

#: Fields that a policy fills in where the body has none.
_BY_POLICY = ("validators", "policy", "max_attempts", "locale")
#: Takes the messages out of a body, within limits; the last argument is what a Continue says in the user's name.
ReadMessages = Callable[[Mapping[str, Any], Limits, PartRules, str], Conversation]


class PolicyFor:
    """The policy files as they are for one caller. This one has none; ``routes.policy_for`` has the settings'."""

    def askable(self, model: str) -> tuple[str, ...]:
        """The rules that a request for the model may name; empty where no policy file says."""
        return ()

    def apply(self, request: TurnRequest, named: Collection[str]) -> TurnRequest:
        """The request with what its policy gives it; ``named`` are the fields that the body has itself."""
        return request


@dataclass(frozen=True, slots=True)
class Ask:
    """What one HTTP request asks for.

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

    def without_text(self) -> Ask:
        """The same without the conversation: who waits for an answer needs no memory for it."""
        return replace(self, request=replace(self.request, messages=(), images=()))


def read_ask(
    body: Mapping[str, Any],
    headers: Headers,
    settings: Settings,
    owner: str,
    read: ReadMessages = read_messages,
    policy: PolicyFor | None = None,
) -> Ask:
    """Read a turn from a request; ``read`` takes the messages out of the body.

    Raises:
        ApiError: 400 with the field's name, or 404 for an unknown model. SettingsError: the policy was never usable.
    """
    policy = policy or PolicyFor()
    key = read_idempotency_key(headers)
    page = _is_page(headers)
    retries = headers.get("x-stainless-retry-count", "")
    chat_id = _chat_id(body, headers)
    limits = Limits(settings.roles, settings.max_messages, settings.max_message_chars)
    locale = fields.choice(body, "locale", LOCALES, locale_of(headers, settings.locale))
    model = fields.read_model(body, settings)
    settings = settings.of_model(model)
    rules = PartRules(vision=model in settings.vision_models, locale=locale)
    said = read(body, limits, rules, say("go_on", locale) if page else "")
    if is_open_webui(headers):
        said = _as_accepted(said)
    request = TurnRequest(
        model=model,
        messages=said.messages,
        images=said.images,
        session_id=_session_id(owner, chat_id, key),
        owner=owner,
        validators=fields.read_validators(body, settings, policy.askable(model)),
        locale=locale,
        max_attempts=int(fields.number(body, "max_attempts", 1, MAX_ATTEMPTS, settings.max_attempts, whole=True)),
        deadline_seconds=fields.number(body, "deadline_seconds", 1, MAX_DEADLINE_SECONDS, settings.deadline_seconds),
        double_text=DoubleText(fields.choice(body, "double_text", tuple(DoubleText), DoubleText.QUEUE)),
        token_budget=int(fields.number(body, "token_budget", 0, 10**9, settings.token_budget, whole=True)),
        cost_budget_usd=fields.number(body, "cost_budget_usd", 0, 10**6, settings.cost_budget_usd),
        metadata=_metadata(chat_id, headers),
        policy=fields.read_policy(body) or settings.policy_orders,
        escalation=fields.read_escalation(body, settings),
        traceparent=traceparent_of(headers.getlist("traceparent")),
    )
    request = policy.apply(request, _named(body, headers))
    fields.number(body, "n", 1, 1, 1, whole=True)
    fields.check_plain_text(body)
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        fields.number(body, name, 1, 10**9, 1, whole=True)
    return Ask(
        request=request,
        stream=fields.flag(body, "stream"),
        open_webui=is_open_webui(headers),
        page=page,
        mode=_mode(body, settings, request.model, page=page),
        task=background_task(headers, request.messages),
        include_usage=fields.include_usage(body),
        idempotency_key=key,
        question=_question(request, headers, chat_id, page=page) if not key and (page or retries) else "",
        first=retries == "0" and not page,
        again=retries.isdecimal() and retries != "0",
    )


def _named(body: Mapping[str, Any], headers: Headers) -> list[str]:
    """The fields that the request names itself, of those that a policy may fill in."""
    named = [name for name in _BY_POLICY if body.get(name) is not None]
    return [*named, "locale"] if LOCALE_HEADER in headers else named


def _as_accepted(said: Conversation) -> Conversation:
    """The conversation with its answers as the agent wrote them, not as a page showed them."""
    shown = [
        {**message, "content": unfenced(message["content"])} if message["role"] == "assistant" else message
        for message in said.messages
    ]
    return replace(said, messages=tuple(shown))


def _is_page(headers: Headers) -> bool:
    """True when a message on a page of Open WebUI is to be answered: it has a message id, or at least a chat."""
    return bool(headers.get("x-owui-message-id", headers.get("x-openwebui-chat-id", "")))


def _question(request: TurnRequest, headers: Headers, chat_id: str, *, page: bool) -> str:
    """A hash of everything that makes the question: the request, its chat, and the message it answers.

    Open WebUI's Regenerate has a new message id but the same id of the user's message; an edited message has another.
    """
    same = replace(asked_of(request), metadata={}, session_id=request.session_id if chat_id else "")
    return _digest(headers.get("x-owui-user-message-id", "") if page else "client", same.to_json())


def _mode(body: Mapping[str, Any], settings: Settings, model: str, *, page: bool) -> StreamMode:
    default = settings.stream_modes.get(model, StreamMode.LIVE if page else StreamMode.VALIDATED)
    return StreamMode(fields.choice(body, "stream_mode", STREAM_MODES, default))


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


def _chat_id(body: Mapping[str, Any], headers: Headers) -> str:
    """The chat's id in the caller's words: any text, because only its hash is ever used as a name."""
    for name in CHAT_ID_HEADERS:
        named = headers.get(name, "")
        if named:
            return named
    value = body.get("session_id")
    if value is None:
        return ""
    if not isinstance(value, str) or not _is_id(value):
        message = f"session_id: must be 1 to {MAX_ID_CHARS} printable ASCII characters; got {shown(value)}"
        raise bad_request(message, param="session_id")
    return value


def _session_id(owner: str, chat_id: str, key: str) -> str:
    """The session: of the owner and the chat, so that another owner's chat id opens nothing.

    Without a chat the session is new; with an idempotency key it is the same new one for each repeat, because the
    repeat must be the same request.
    """
    if chat_id:
        return f"chat-{_digest(owner, chat_id)}"
    return f"session-{_digest(owner, key)}" if key else new_session_id()


def _digest(owner: str, text: str) -> str:
    return hashlib.sha256(f"{owner}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _metadata(chat_id: str, headers: Headers) -> dict[str, str]:
    notes = {"conversation_id": chat_id}
    notes |= {note: headers.get(name, "") for name, note in _NOTED_HEADERS.items()}
    return {name: value for name, value in notes.items() if value and _is_id(value)}
