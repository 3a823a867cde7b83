"""Reading the messages of a request: roles, texts, sizes, and each one's content: a text, or a list of parts.

Images and files become text, or are refused. A chat sends its whole history with each message. So what cannot be read
is refused in a new message only; in an earlier one it is left out with a note to the agent: else one image would end
the chat for good.
"""

from __future__ import annotations

import binascii
import re
import unicodedata
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api_client.contract.values.image import MAX_IMAGES, Image, read_image
from api_client.contract.words.error_codes import sentence
from api_client.web.errors import ApiError, bad_request, shown
from api_client.web.words import say

_IMAGES, _FILES = frozenset({"image_url", "input_image"}), frozenset({"file", "input_file"})
#: Files whose content is text, by the media type in their ``data:`` address.
_TEXT_FILE = re.compile(
    r"data:(?:text/[\w.+-]{1,80}|application/(?:json|(?:x-)?ya?ml|xml))(?:;[^,;]{0,80}){0,4};base64,"
)


@dataclass(frozen=True, slots=True)
class PartRules:
    """Rules for content: its types of text parts, whether the model reads images, the language of our words."""

    text: tuple[str, ...] = ("text",)
    vision: bool = False
    locale: str = "en"


@dataclass(frozen=True, slots=True)
class MessageContent:
    """The content of a message. The text names each image's file; ``images`` are those that could be read."""

    text: str
    images: tuple[Image, ...] = ()


def read_content(content: Any, name: str, rules: PartRules, *, new: bool) -> MessageContent:
    """The content of the field ``name``; ``new``: it is part of what is asked now, not of an earlier message.

    Raises:
        ApiError: 400 with the name of the field that is wrong.
    """
    if isinstance(content, str):
        return MessageContent(content)
    if content is None:
        raise bad_request(f"{name}: is missing", param=name, code="missing_required_parameter")
    if not isinstance(content, list):
        # Not what came: it may be a user's text in the wrong wrapping.
        raise bad_request(f"{name}: must be a text or a list of parts", param=name, code="invalid_type")
    read = [_part(part, f"{name}[{index}]", rules, new) for index, part in enumerate(content)]
    images = tuple(dict.fromkeys(image for part in read for image in part.images))
    if new and len(images) > MAX_IMAGES:
        raise bad_request(f"{name}: {sentence('image_unreadable', 'en')}", param=name, code="image_unreadable")
    return MessageContent("\n".join(part.text for part in read), images)


def _part(part: Any, name: str, rules: PartRules, new: bool) -> MessageContent:
    given = part.get("type") if isinstance(part, dict) else None
    kind = given if isinstance(given, str) else ""
    if kind in rules.text:
        text = part.get("text")
        if isinstance(text, str):
            return MessageContent(text)
        raise bad_request(f"{name}.text: must be a text; got {shown(text)}", param=f"{name}.text", code="invalid_type")
    if kind in _IMAGES:
        return _image(_address(part, "image_url", "url"), name, rules, new)
    if kind in _FILES and (text := _text_of(part)) is not None:
        return MessageContent(text)
    if not new:
        return MessageContent(say("part_left_out", rules.locale))
    got = shown(part) if not isinstance(part, dict) else f"type {shown(given)}"
    message = f"{name}: only parts of type {' or '.join(rules.text)}, images and text files are supported; got {got}"
    raise bad_request(message, param=name, code="unsupported_content")


def _image(url: str, name: str, rules: PartRules, new: bool) -> MessageContent:
    try:
        image = read_image(url) if rules.vision else None
    except ValueError:
        if new:
            message = f"{name}: {sentence('image_unreadable', 'en')}"
            raise bad_request(message, param=name, code="image_unreadable") from None
        image = None
    if image is not None:
        return MessageContent(say("image_here", rules.locale, path=image.path), (image,))
    if new:
        raise bad_request(f"{name}: {sentence('image_not_read', 'en')}", param=name, code="image_not_read")
    return MessageContent(say("image_left_out", rules.locale))


def _address(part: Mapping[str, Any], field: str, inner: str) -> str:
    """The address in a part: chat completions wrap it in an object, responses do not."""
    given = part.get(field)
    url = given.get(inner) if isinstance(given, dict) else given
    return url if isinstance(url, str) else ""


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


@dataclass(frozen=True, slots=True)
class ConversationLimits:
    """The limits of a conversation: roles, number of messages, characters of each."""

    roles: tuple[str, ...]
    messages: int
    chars: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages, oldest first, each with role and text, and the images that belong to what is asked now."""

    messages: tuple[dict[str, str], ...]
    images: tuple[Image, ...] = ()


def read_list(raw: Any, field: str, limits: ConversationLimits, rules: PartRules, go_on: str = "") -> Conversation:
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
        # A question that failed is before this one without an answer; its images were perhaps never stored.
        images = {} if said["role"] == "assistant" else images | dict.fromkeys(found)
        size += len(said["content"])
    if size > MAX_TEXT_CHARS:
        raise _too_long(field, size, MAX_TEXT_CHARS)
    if go_on and messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": go_on})
    _check_last(messages[-1], f"{field}[{len(messages) - 1}]")
    return Conversation(tuple(messages), tuple(images)[-MAX_IMAGES:])


def _message(
    raw: Any, name: str, limits: ConversationLimits, rules: PartRules, *, new: bool
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
    """True if there is any visible letter. It goes by pieces, each letter once: a text may be a million spaces."""
    pieces = (text[start : start + _PIECE_CHARS] for start in range(0, len(text), _PIECE_CHARS))
    return any(any(map(_visible, set(piece))) for piece in pieces)


def _visible(letter: str) -> bool:
    """Not white space, not a control, not a zero-width character."""
    return unicodedata.category(letter) not in {"Zs", "Zl", "Zp", "Cc", "Cf"}


def _too_long(name: str, size: int, limit: int) -> ApiError:
    message = f"{name}: {size} characters, but at most {limit} are allowed"
    return bad_request(message, param=name, code="content_too_long")
