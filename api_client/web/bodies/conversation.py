"""Reads the conversation of a request: roles, texts, images, files and their limits.

Unreadable content is rejected only in the new message; in earlier messages, a note to the agent replaces it.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from api_client.contract.error_codes import error_sentence
from api_client.contract.image import MAX_IMAGES, Image, read_image
from api_client.contract.visible_text import has_visible_text
from api_client.web.errors import ApiError, Problems, bad_request, display_value
from api_client.web.sentences import translate

_IMAGES, _FILES = frozenset({"image_url", "input_image"}), frozenset({"file", "input_file"})
#: Fields of an earlier assistant's message, one of which may stand in place of its content.
_CONTENT_SUBSTITUTES = ("refusal", "tool_calls", "function_call", "audio")
_TEXT_FILE = re.compile(
    r"data:(?:text/[\w.+-]{1,80}|application/(?:json|(?:x-)?ya?ml|xml))(?:;[^,;]{0,80}){0,4};base64,"
)


@dataclass(frozen=True, slots=True)
class ConversationRules:
    """The limits that the conversation of a request must observe.

    ``locale`` is the language of notes to the agent. ``continue_text`` is appended as a user message after a final
    assistant message (Open WebUI's Continue); if it is empty, such a conversation is rejected.
    """

    roles: tuple[str, ...]
    max_messages: int
    max_chars: int
    text_types: tuple[str, ...] = ("text",)
    reads_images: bool = False
    locale: str = "en"
    continue_text: str = ""


#: A text and its images: the text names each image's file.
_Content: TypeAlias = "tuple[str, tuple[Image, ...]]"
Messages: TypeAlias = tuple[dict[str, str], ...]


def _read_content(content: Any, name: str, rules: ConversationRules, problems: Problems, *, new: bool) -> _Content:
    if content is None:
        raise bad_request(f"{name}: is missing", param=name, code="missing_required_parameter")
    if not isinstance(content, list):
        raise bad_request(f"{name}: must be a text or a list of parts", param=name, code="invalid_type")
    texts: list[str] = []
    images: dict[Image, None] = {}
    for index, part in enumerate(content):
        with problems:
            text, found = _read_part(part, f"{name}[{index}]", rules, new)
            texts.append(text)
            images |= dict.fromkeys(found)
    if new and len(images) > MAX_IMAGES:
        raise bad_request(f"{name}: {error_sentence('image_unreadable', 'en')}", param=name, code="image_unreadable")
    return "\n".join(texts), tuple(images)


def _read_part(part: Any, name: str, rules: ConversationRules, new: bool) -> _Content:
    given = part.get("type") if isinstance(part, dict) else None
    kind = given if isinstance(given, str) else ""
    if kind == "refusal" and not new and isinstance(refusal := part.get("refusal"), str):
        return refusal, ()
    if kind in rules.text_types:
        text = part.get("text")
        if isinstance(text, str):
            return text, ()
        raise bad_request(
            f"{name}.text: must be a text; got {display_value(text)}", param=f"{name}.text", code="invalid_type"
        )
    if kind in _IMAGES:
        given = part.get("image_url")  # an object in chat completions, a text in responses
        url = given.get("url") if isinstance(given, dict) else given
        try:
            image = read_image(url if isinstance(url, str) else "") if rules.reads_images else None
        except ValueError:
            if new:
                message = f"{name}: {error_sentence('image_unreadable', 'en')}"
                raise bad_request(message, param=name, code="image_unreadable") from None
            image = None
        if image is not None:
            return translate("image_here", rules.locale, path=image.path), (image,)
        if new:
            raise bad_request(f"{name}: {error_sentence('image_not_read', 'en')}", param=name, code="image_not_read")
        return translate("image_left_out", rules.locale), ()
    if kind in _FILES and (text := _read_text_file(part)) is not None:
        return text, ()
    if not new:
        return translate("part_left_out", rules.locale), ()
    got = display_value(part) if not isinstance(part, dict) else f"type {display_value(given)}"
    message = (
        f"{name}: only parts of type {' or '.join(rules.text_types)}, images and text files are supported; got {got}"
    )
    raise bad_request(message, param=name, code="unsupported_content")


def _read_text_file(part: Mapping[str, Any]) -> str | None:
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


def read_conversation(
    raw: Any, field: str, rules: ConversationRules, problems: Problems
) -> tuple[Messages, tuple[Image, ...]]:
    """Read the messages of a conversation and its current images. Errors are added to ``problems``.

    ``field`` is the name of the conversation in errors.
    """
    if not isinstance(raw, list) or not raw:
        code = "missing_required_parameter" if raw is None else "invalid_value"
        problems.add(
            bad_request(f"{field}: must be a list of at least one; got {display_value(raw)}", param=field, code=code)
        )
        return (), ()
    if len(raw) > rules.max_messages:
        message = f"{field}: at most {rules.max_messages} are allowed; got {len(raw)}"
        problems.add(bad_request(message, param=field, code="too_many_messages"))
        return (), ()
    messages: list[dict[str, str]] = []
    images: dict[Image, None] = {}
    size = 0
    for index, given in enumerate(raw):
        with problems:
            said, found = _read_message(given, f"{field}[{index}]", rules, problems, last=index == len(raw) - 1)
            messages.append(said)
            # The message before may be a failed question without an answer, whose images were perhaps never
            # stored.
            images = {} if said["role"] == "assistant" else images | dict.fromkeys(found)
            size += len(said["content"])
    if size > MAX_TEXT_CHARS:
        problems.add(_make_length_error(field, size, MAX_TEXT_CHARS))
    if rules.continue_text and messages and messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": rules.continue_text})
    return tuple(messages), tuple(images)[-MAX_IMAGES:]


def _read_message(
    raw: Any, name: str, rules: ConversationRules, problems: Problems, *, last: bool
) -> tuple[dict[str, str], tuple[Image, ...]]:
    if not isinstance(raw, dict):
        raise bad_request(f"{name}: must be an object; got {display_value(raw)}", param=name, code="invalid_type")
    role, given = raw.get("role"), raw.get("content")
    if not isinstance(role, str) or role not in rules.roles:
        message = f"{name}.role: must be one of {', '.join(rules.roles)}; got {display_value(role)}"
        problems.add(bad_request(message, param=f"{name}.role"))
        role = "user"
    if given is None and role == "assistant" and any(raw.get(name) is not None for name in _CONTENT_SUBSTITUTES):
        given = refusal if isinstance(refusal := raw.get("refusal"), str) else ""
    known, images = len(problems.errors), tuple[Image, ...]()
    if not isinstance(given, str):
        given, images = _read_content(given, f"{name}.content", rules, problems, new=last)
    most = MAX_TEXT_CHARS if role == "assistant" else rules.max_chars
    if len(given) > most:
        raise _make_length_error(f"{name}.content", len(given), most)
    if last and role != "user" and not (rules.continue_text and role == "assistant"):
        message = f"{name}.role: the last message must be the user's; got {display_value(role)}"
        raise bad_request(message, param=f"{name}.role", code="last_message_not_user")
    if last and role == "user" and len(problems.errors) == known and not has_visible_text(given):
        raise bad_request(f"{name}.content: says nothing", param=f"{name}.content", code="empty_message")
    return {"role": role, "content": given}, images


def _make_length_error(name: str, size: int, limit: int) -> ApiError:
    message = f"{name}: {size} characters, but at most {limit} are allowed"
    return bad_request(message, param=name, code="content_too_long")
