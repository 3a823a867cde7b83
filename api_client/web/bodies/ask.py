"""From a request's body and headers to the turn that is asked for. Pure: no store, no clock.

A request is refused with all its problems at once (``errors.Problems``).
"""

from __future__ import annotations

import binascii
import hashlib
import json
import re
import unicodedata
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from starlette.datastructures import Headers

from api_client.contract.error_codes import sentence
from api_client.contract.policy import askable
from api_client.contract.settings import Settings
from api_client.contract.turn import MAX_IMAGES, DoubleText, Image, TurnRequest, new_session_id, read_image
from api_client.policies import CallersPolicy, flow_of
from api_client.tracing import traceparent_of
from api_client.turns.submitter import asked_of
from api_client.web.bodies.models import (
    MAX_ID_CHARS,
    ResponseBody,
    StreamMode,
    TurnBody,
    Wishes,
    read,
    read_escalation,
    read_model,
    read_validators,
)
from api_client.web.errors import HEADER as LOCALE_HEADER
from api_client.web.errors import ApiError, Problems, bad_request, is_open_webui, locale_of, say, shown, spoken_in
from api_client.web.openwebui.answers import detached, unfenced
from api_client.web.openwebui.background import background_task

# Reading the messages of a request: roles, texts, sizes, and each one's content: a text, or a list of parts. Images and
# files become text, or are refused. A chat sends its whole history with each message. So what cannot be read is refused
# in a new message only; in an earlier one it is left out with a note to the agent: else one image would end the chat
# for good.

_IMAGES, _FILES = frozenset({"image_url", "input_image"}), frozenset({"file", "input_file"})
#: Files whose content is text, by the media type in their ``data:`` address.
_TEXT_FILE = re.compile(
    r"data:(?:text/[\w.+-]{1,80}|application/(?:json|(?:x-)?ya?ml|xml))(?:;[^,;]{0,80}){0,4};base64,"
)


@dataclass(frozen=True, slots=True)
class ConversationRules:
    """What a conversation may be.

    Attributes:
        roles, messages, chars: the roles in it, how many messages at most, characters of each.
        text: types of its parts that are texts. vision: the model reads images. locale: the language of our words.
        go_on: what the user says after the assistant's last text (Open WebUI's Continue); empty: none may end with it.
    """

    roles: tuple[str, ...]
    messages: int
    chars: int
    text: tuple[str, ...] = ("text",)
    vision: bool = False
    locale: str = "en"
    go_on: str = ""


#: A text and the images that belong to it: the text names each image's file.
_Content: TypeAlias = "tuple[str, tuple[Image, ...]]"
#: A conversation, oldest first, each message with role and text.
Messages: TypeAlias = tuple[dict[str, str], ...]


def _content(content: Any, name: str, rules: ConversationRules, problems: Problems, *, new: bool) -> _Content:
    """The content of the field ``name``; ``new``: it is part of what is asked now, not of an earlier message.

    Raises ``ApiError``: 400 with the name of the field that is wrong.
    """
    if content is None:
        raise bad_request(f"{name}: is missing", param=name, code="missing_required_parameter")
    if not isinstance(content, list):
        # Not what came: it may be a user's text in the wrong wrapping.
        raise bad_request(f"{name}: must be a text or a list of parts", param=name, code="invalid_type")
    texts: list[str] = []
    images: dict[Image, None] = {}
    for index, part in enumerate(content):
        with problems:
            text, found = _part(part, f"{name}[{index}]", rules, new)
            texts.append(text)
            images |= dict.fromkeys(found)
    if new and len(images) > MAX_IMAGES:
        raise bad_request(f"{name}: {sentence('image_unreadable', 'en')}", param=name, code="image_unreadable")
    return "\n".join(texts), tuple(images)


def _part(part: Any, name: str, rules: ConversationRules, new: bool) -> _Content:
    given = part.get("type") if isinstance(part, dict) else None
    kind = given if isinstance(given, str) else ""
    if kind in rules.text:
        text = part.get("text")
        if isinstance(text, str):
            return text, ()
        raise bad_request(f"{name}.text: must be a text; got {shown(text)}", param=f"{name}.text", code="invalid_type")
    if kind in _IMAGES:
        given = part.get("image_url")  # chat completions wrap it in an object, responses do not
        url = given.get("url") if isinstance(given, dict) else given
        try:
            image = read_image(url if isinstance(url, str) else "") if rules.vision else None
        except ValueError:
            if new:
                message = f"{name}: {sentence('image_unreadable', 'en')}"
                raise bad_request(message, param=name, code="image_unreadable") from None
            image = None
        if image is not None:
            return say("image_here", rules.locale, path=image.path), (image,)
        if new:
            raise bad_request(f"{name}: {sentence('image_not_read', 'en')}", param=name, code="image_not_read")
        return say("image_left_out", rules.locale), ()
    if kind in _FILES and (text := _text_of(part)) is not None:
        return text, ()
    if not new:
        return say("part_left_out", rules.locale), ()
    got = shown(part) if not isinstance(part, dict) else f"type {shown(given)}"
    message = f"{name}: only parts of type {' or '.join(rules.text)}, images and text files are supported; got {got}"
    raise bad_request(message, param=name, code="unsupported_content")


def _text_of(part: Mapping[str, Any]) -> str | None:
    """The text of a text file, behind its name; None for any other file."""
    wrapped = part.get("file")
    file = wrapped if isinstance(wrapped, dict) else part
    data = file.get("file_data")
    if not isinstance(data, str) or not (head := _TEXT_FILE.match(data)):
        return None
    try:
        text = b64decode(data[head.end() :], validate=True).decode("utf-8-sig")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return f"{file.get('filename') or 'file'}:\n\n{text}" if "\0" not in text else None


MAX_TEXT_CHARS = 4 * 2**20
_PIECE_CHARS = 4_096
_INVISIBLE = frozenset({"Zs", "Zl", "Zp", "Cc", "Cf"})


def read_conversation(
    raw: Any, field: str, rules: ConversationRules, problems: Problems
) -> tuple[Messages, tuple[Image, ...]]:
    """The conversation in the list ``raw``, which the caller calls ``field``, and the images of its new part.

    Its last message is the user's. ``problems`` takes the faults of each message.
    """
    if not isinstance(raw, list) or not raw:
        code = "missing_required_parameter" if raw is None else "invalid_value"
        problems.add(bad_request(f"{field}: must be a list of at least one; got {shown(raw)}", param=field, code=code))
        return (), ()
    if len(raw) > rules.messages:
        message = f"{field}: at most {rules.messages} are allowed; got {len(raw)}"
        problems.add(bad_request(message, param=field, code="too_many_messages"))
        return (), ()
    messages: list[dict[str, str]] = []
    images: dict[Image, None] = {}
    size = 0
    for index, given in enumerate(raw):
        with problems:
            said, found = _message(given, f"{field}[{index}]", rules, problems, last=index == len(raw) - 1)
            messages.append(said)
            # A question that failed is before this one without an answer; its images were perhaps never stored.
            images = {} if said["role"] == "assistant" else images | dict.fromkeys(found)
            size += len(said["content"])
    if size > MAX_TEXT_CHARS:
        problems.add(_too_long(field, size, MAX_TEXT_CHARS))
    if rules.go_on and messages and messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": rules.go_on})
    return tuple(messages), tuple(images)[-MAX_IMAGES:]


def _message(
    raw: Any, name: str, rules: ConversationRules, problems: Problems, *, last: bool
) -> tuple[dict[str, str], tuple[Image, ...]]:
    if not isinstance(raw, dict):
        raise bad_request(f"{name}: must be an object; got {shown(raw)}", param=name, code="invalid_type")
    role, given = raw.get("role"), raw.get("content")
    if not isinstance(role, str) or role not in rules.roles:
        message = f"{name}.role: must be one of {', '.join(rules.roles)}; got {shown(role)}"
        problems.add(bad_request(message, param=f"{name}.role"))
        role = "user"
    if given is None and role == "assistant" and isinstance(raw.get("tool_calls"), list):
        given = ""  # a call of a tool by another model, earlier in this chat
    known, images = len(problems.found), tuple[Image, ...]()
    if not isinstance(given, str):
        given, images = _content(given, f"{name}.content", rules, problems, new=last)
    # An answer that was delivered may come back in the history, so only the whole conversation bounds it.
    most = MAX_TEXT_CHARS if role == "assistant" else rules.chars
    if len(given) > most:
        raise _too_long(f"{name}.content", len(given), most)
    if last and role != "user" and not (rules.go_on and role == "assistant"):
        message = f"{name}.role: the last message must be the user's; got {shown(role)}"
        raise bad_request(message, param=f"{name}.role", code="last_message_not_user")
    if last and role == "user" and len(problems.found) == known and not _says_something(given):
        raise bad_request(f"{name}.content: says nothing", param=f"{name}.content", code="empty_message")
    return {"role": role, "content": given}, images


def _says_something(text: str) -> bool:
    """True if a letter is not white space, a control, or of no width. By pieces, since it may be a million spaces."""
    for start in range(0, len(text), _PIECE_CHARS):
        for letter in set(text[start : start + _PIECE_CHARS]):
            if unicodedata.category(letter) not in _INVISIBLE:
                return True
    return False


def _too_long(name: str, size: int, limit: int) -> ApiError:
    message = f"{name}: {size} characters, but at most {limit} are allowed"
    return bad_request(message, param=name, code="content_too_long")


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
        flow=flow_of(session_id, policy.flows) if policy else "",
        validators=validators,
        locale=locale,
        max_attempts=wished.max_attempts or settings.max_attempts,
        deadline_seconds=wished.deadline_seconds or settings.deadline_seconds,
        double_text=wished.double_text or DoubleText.QUEUE,
        token_budget=settings.token_budget if wished.token_budget is None else wished.token_budget,
        cost_budget_usd=settings.cost_budget_usd if wished.cost_budget_usd is None else wished.cost_budget_usd,
        metadata={name: value for name, value in noted.items() if _is_id(value)} | dict(notes),
        policy={name: tuple(o) for name, o in wished.policy.items()} if wished.policy else settings.policy_orders,
        escalation=escalation,
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
        vision=not model or model in settings.vision_models,  # without a model nobody knows
        locale=locale,
        go_on=say("go_on", locale) if page else "",
    )


def _ask(
    request: TurnRequest, wished: Wishes, headers: Headers, settings: Settings, *, chat_id: str, key: str, page: bool
) -> Ask:
    """The turn, and how its caller wants to read it."""
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
        mode=wished.stream_mode or StreamMode(settings.stream_modes.get(request.model, shown_by)),
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


# Reading the body of ``/v1/responses``: the part of OpenAI's Responses API that a turn can keep its word on. What would
# change the answer's meaning if it were ignored (tools, a stored conversation, a schema) is refused by name; what only
# tunes a model (temperature, reasoning effort, ...) means nothing to an agent and is ignored.

#: Fields that may be there only when they ask for nothing, and what to do instead.
_REFUSED = {
    "previous_response_id": "send the whole conversation in input",
    "conversation": "send the whole conversation in input, and name it by the field session_id",
    "prompt": "send the text itself in input",
    "tools": "the agent brings its own tools",
    "stream_mode": "a response shows the accepted answer only",
}
#: Notes in the turn's metadata, from which the response is made again when it is read later.
BACKGROUND, METADATA, INSTRUCTIONS = "background", "metadata", "instructions"


def read_response_ask(
    body: Mapping[str, Any], headers: Headers, settings: Settings, owner: str, policy: CallersPolicy | None = None
) -> Ask:
    """Read a turn from the body of a response, as ``read_ask``.

    Raises ``ApiError``: 400 with the field's name, or 404 for an unknown model; it lists all that is wrong.
    """
    by = AskedBy(headers, settings, owner, policy)
    problems = by.problems
    for name, instead in _REFUSED.items():
        if body.get(name) not in (None, [], "validated"):
            problems.add(_unsupported(name, instead))
    if body.get("store") is False:
        problems.add(_unsupported("store", "every turn is stored, for HELIX_RETENTION_SECONDS after its end"))
    wished = read(ResponseBody, {name: body[name] for name in body if name != "stream_mode"}, problems)
    chosen = (wished.text or {}).get("format")
    if not (chosen is None or isinstance(chosen, dict)):
        message = f"text.format: must be an object; got {shown(chosen)}"
        problems.add(bad_request(message, param="text.format", code="invalid_type"))
    elif chosen and chosen.get("type") != "text":
        problems.add(_unsupported("text.format", "only the type text is supported"))
    if wished.instructions and len(wished.instructions) > (most := settings.max_message_chars):
        message = f"instructions: {len(wished.instructions)} characters, but at most {most} are allowed"
        problems.add(bad_request(message, param="instructions", code="content_too_long"))
    said = [{"role": "user", "content": wished.input}] if isinstance(wished.input, str) else wished.input
    for index, item in enumerate(said if isinstance(said, list) else ()):
        kind = item.get("type", "message") if isinstance(item, dict) else "message"
        if kind != "message":
            name = f"input[{index}].type"
            problems.add(bad_request(f"{name}: only messages are supported; got {shown(kind)}", param=name))
    notes = {
        BACKGROUND: "true" if wished.background else "",
        METADATA: json.dumps(wished.metadata or {}, ensure_ascii=False),
        INSTRUCTIONS: "true" if wished.instructions is not None else "",
    }
    return ask_for(wished, said, spoken_in(body), by, system=wished.instructions, notes=notes)


def _unsupported(field: str, instead: str) -> ApiError:
    return bad_request(f"{field}: is not supported here; {instead}", param=field, code="unsupported_parameter")
