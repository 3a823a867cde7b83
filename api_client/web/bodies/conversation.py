"""Reading the messages of a request: roles, texts, sizes; what one message holds is read in ``parts``."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any

from api_client.contract.values.image import MAX_IMAGES, Image
from api_client.web.bodies.parts import PartRules, read_content
from api_client.web.errors import ApiError, bad_request, shown

MAX_TEXT_CHARS = 4 * 2**20
_PIECE_CHARS = 4_096


@dataclass(frozen=True, slots=True)
class Limits:
    """What a conversation may be: roles, number of messages, characters of each."""

    roles: tuple[str, ...]
    messages: int
    chars: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages, oldest first, each with role and text, and the images that belong to what is asked now."""

    messages: tuple[dict[str, str], ...]
    images: tuple[Image, ...] = ()


def read_list(raw: Any, field: str, limits: Limits, rules: PartRules, go_on: str = "") -> Conversation:
    """The conversation in the list ``raw``, which the caller calls ``field``; its last message is the user's.

    With ``go_on`` a conversation may end with the assistant's text: that is Open WebUI's Continue, and ``go_on`` is
    then what the user says to it.

    Raises:
        ApiError: 400 with the name of the field that is wrong.
    """
    if not isinstance(raw, list) or not raw:
        code = "missing_required_parameter" if raw is None else "invalid_value"
        raise bad_request(f"{field}: must be a list of at least one; got {shown(raw)}", param=field, code=code)
    if len(raw) > limits.messages:
        message = f"{field}: at most {limits.messages} are allowed; got {len(raw)}"
        raise bad_request(message, param=field, code="too_many_messages")
    messages: list[dict[str, str]] = []
    images: dict[Image, None] = {}
    size = 0
    for index, given in enumerate(raw):
        said, found = _message(given, f"{field}[{index}]", limits, rules, new=index == len(raw) - 1)
        messages.append(said)
        # A question that failed stands before this one without an answer; its images were perhaps never stored.
        images = {} if said["role"] == "assistant" else images | dict.fromkeys(found)
        size += len(said["content"])
    if size > MAX_TEXT_CHARS:
        raise _too_long(field, size, MAX_TEXT_CHARS)
    if go_on and messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": go_on})
    _check_last(messages[-1], f"{field}[{len(messages) - 1}]")
    return Conversation(tuple(messages), tuple(images)[-MAX_IMAGES:])


def _message(
    raw: Any, name: str, limits: Limits, rules: PartRules, *, new: bool
) -> tuple[dict[str, str], tuple[Image, ...]]:
    if not isinstance(raw, dict):
        raise bad_request(f"{name}: must be an object; got {shown(raw)}", param=name, code="invalid_type")
    role = raw.get("role")
    if not isinstance(role, str) or role not in limits.roles:
        raise bad_request(
            f"{name}.role: must be one of {', '.join(limits.roles)}; got {shown(role)}", param=f"{name}.role"
        )
    given = raw.get("content")
    if given is None and role == "assistant" and isinstance(raw.get("tool_calls"), list):
        given = ""  # a call of a tool by another model, earlier in this chat
    content = read_content(given, f"{name}.content", rules, new=new)
    if len(content.text) > limits.chars:
        raise _too_long(f"{name}.content", len(content.text), limits.chars)
    return {"role": role, "content": content.text}, content.images


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
