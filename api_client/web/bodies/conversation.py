"""Reading the messages of a request: roles, text, sizes."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api_client.web.errors import ApiError, bad_request, shown

MAX_TEXT_CHARS = 4 * 2**20
_PIECE_CHARS = 4_096


@dataclass(frozen=True, slots=True)
class Limits:
    """What a conversation may be: roles, number of messages, characters of each."""

    roles: tuple[str, ...]
    messages: int
    chars: int


def read_messages(body: Mapping[str, Any], limits: Limits, go_on: str = "") -> tuple[dict[str, str], ...]:
    """The conversation, oldest first, each message with role and text; the last is the user's and says something.

    With ``go_on`` a conversation may end with the assistant's text: that is Open WebUI's Continue, and ``go_on`` is
    then what the user says to it.

    Raises:
        ApiError: 400 with the name of the field that is wrong.
    """
    return read_list(body.get("messages"), "messages", limits, go_on)


def read_list(
    raw: Any, field: str, limits: Limits, go_on: str = "", parts: tuple[str, ...] = ("text",)
) -> tuple[dict[str, str], ...]:
    """The conversation in the list ``raw``, which the caller calls ``field``; ``parts`` are the types of text in it.

    Raises:
        ApiError: as ``read_messages``.
    """
    if not isinstance(raw, list) or not raw:
        code = "missing_required_parameter" if raw is None else "invalid_value"
        raise bad_request(f"{field}: must be a list of at least one; got {shown(raw)}", param=field, code=code)
    if len(raw) > limits.messages:
        message = f"{field}: at most {limits.messages} are allowed; got {len(raw)}"
        raise bad_request(message, param=field, code="too_many_messages")
    messages = tuple(_message(message, f"{field}[{index}]", limits, parts) for index, message in enumerate(raw))
    size = sum(len(message["content"]) for message in messages)
    if size > MAX_TEXT_CHARS:
        raise _too_long(field, size, MAX_TEXT_CHARS)
    if go_on and messages[-1]["role"] == "assistant":
        messages += ({"role": "user", "content": go_on},)
    _check_last(messages[-1], f"{field}[{len(messages) - 1}]")
    return messages


def _message(raw: Any, name: str, limits: Limits, parts: tuple[str, ...]) -> dict[str, str]:
    if not isinstance(raw, dict):
        raise bad_request(f"{name}: must be an object; got {shown(raw)}", param=name, code="invalid_type")
    role = raw.get("role")
    if not isinstance(role, str) or role not in limits.roles:
        raise bad_request(
            f"{name}.role: must be one of {', '.join(limits.roles)}; got {shown(role)}", param=f"{name}.role"
        )
    content = raw.get("content")
    if content is None and role == "assistant" and isinstance(raw.get("tool_calls"), list):
        content = ""  # a call of a tool by another model, earlier in this chat
    text = _text(content, f"{name}.content", parts)
    if len(text) > limits.chars:
        raise _too_long(f"{name}.content", len(text), limits.chars)
    return {"role": role, "content": text}


def _text(content: Any, name: str, parts: tuple[str, ...]) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        raise bad_request(f"{name}: is missing", param=name, code="missing_required_parameter")
    if not isinstance(content, list):
        # Not what came: it may be a user's text in the wrong wrapping.
        raise bad_request(f"{name}: must be a text or a list of text parts", param=name, code="invalid_type")
    return "\n".join(_part(part, f"{name}[{index}]", parts) for index, part in enumerate(content))


def _part(part: Any, name: str, parts: tuple[str, ...]) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in parts:
        got = shown(part) if not isinstance(part, dict) else f"type {shown(kind)}"
        message = f"{name}: only parts of type {' or '.join(parts)} are supported; got {got}"
        raise bad_request(message, param=name, code="unsupported_content")
    text = part.get("text")
    if not isinstance(text, str):
        raise bad_request(f"{name}.text: must be a text; got {shown(text)}", param=f"{name}.text", code="invalid_type")
    return text


def _check_last(message: dict[str, str], name: str) -> None:
    if message["role"] != "user":
        raise bad_request(
            f"{name}.role: the last message must be the user's; got {shown(message['role'])}",
            param=f"{name}.role",
            code="last_message_not_user",
        )
    if not _says_something(message["content"]):
        raise bad_request(f"{name}.content: says nothing", param=f"{name}.content", code="empty_message")


def _says_something(text: str) -> bool:
    """Whether there is any visible letter. It goes by pieces, each letter once: a text may be a million spaces."""
    pieces = (text[start : start + _PIECE_CHARS] for start in range(0, len(text), _PIECE_CHARS))
    return any(any(map(_visible, set(piece))) for piece in pieces)


def _visible(letter: str) -> bool:
    """Not white space, not a control, not a zero-width character."""
    return unicodedata.category(letter) not in {"Zs", "Zl", "Zp", "Cc", "Cf"}


def _too_long(name: str, size: int, limit: int) -> ApiError:
    message = f"{name}: {size} characters, but at most {limit} are allowed"
    return bad_request(message, param=name, code="content_too_long")
