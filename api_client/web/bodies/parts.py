"""Reading the content of one message: a text, or a list of parts. Images and files become text, or are refused.

A chat sends its whole history with each message. So what cannot be read is refused in a new message only; in an earlier
one it is left out with a note to the agent: else one image would end the chat for good.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api_client.contract.values.image import MAX_IMAGES, Image, read_image
from api_client.contract.words.error_codes import sentence
from api_client.web.errors import bad_request, shown
from api_client.web.streaming.words import say

_IMAGES, _FILES = frozenset({"image_url", "input_image"}), frozenset({"file", "input_file"})
#: Files whose content is text, by the media type in their ``data:`` address.
_TEXT_FILE = re.compile(
    r"data:(?:text/[\w.+-]{1,80}|application/(?:json|(?:x-)?ya?ml|xml))(?:;[^,;]{0,80}){0,4};base64,"
)


@dataclass(frozen=True, slots=True)
class PartRules:
    """What content may be: its types of text parts, whether the model reads images, the language of what is said."""

    text: tuple[str, ...] = ("text",)
    vision: bool = False
    locale: str = "de"


@dataclass(frozen=True, slots=True)
class Content:
    """What a message says. The text names each image's file; ``images`` are those that could be read."""

    text: str
    images: tuple[Image, ...] = ()


def read_content(content: Any, name: str, rules: PartRules, *, new: bool) -> Content:
    """The content of the field ``name``; ``new``: it is part of what is asked now, not of an earlier message.

    Raises:
        ApiError: 400 with the name of the field that is wrong.
    """
    if isinstance(content, str):
        return Content(content)
    if content is None:
        raise bad_request(f"{name}: is missing", param=name, code="missing_required_parameter")
    if not isinstance(content, list):
        # Not what came: it may be a user's text in the wrong wrapping.
        raise bad_request(f"{name}: must be a text or a list of parts", param=name, code="invalid_type")
    read = [_part(part, f"{name}[{index}]", rules, new) for index, part in enumerate(content)]
    images = tuple(dict.fromkeys(image for part in read for image in part.images))
    if new and len(images) > MAX_IMAGES:
        raise bad_request(f"{name}: {sentence('image_unreadable', 'en')}", param=name, code="image_unreadable")
    return Content("\n".join(part.text for part in read), images)


def _part(part: Any, name: str, rules: PartRules, new: bool) -> Content:
    given = part.get("type") if isinstance(part, dict) else None
    kind = given if isinstance(given, str) else ""
    if kind in rules.text:
        text = part.get("text")
        if isinstance(text, str):
            return Content(text)
        raise bad_request(f"{name}.text: must be a text; got {shown(text)}", param=f"{name}.text", code="invalid_type")
    if kind in _IMAGES:
        return _image(_address(part, "image_url", "url"), name, rules, new)
    if kind in _FILES and (text := _text_of(part)) is not None:
        return Content(text)
    if not new:
        return Content(say("part_left_out", rules.locale))
    got = shown(part) if not isinstance(part, dict) else f"type {shown(given)}"
    message = f"{name}: only parts of type {' or '.join(rules.text)}, images and text files are supported; got {got}"
    raise bad_request(message, param=name, code="unsupported_content")


def _image(url: str, name: str, rules: PartRules, new: bool) -> Content:
    try:
        image = read_image(url) if rules.vision else None
    except ValueError:
        if new:
            message = f"{name}: {sentence('image_unreadable', 'en')}"
            raise bad_request(message, param=name, code="image_unreadable") from None
        image = None
    if image is not None:
        return Content(say("image_here", rules.locale, path=image.path), (image,))
    if new:
        raise bad_request(f"{name}: {sentence('image_not_read', 'en')}", param=name, code="image_not_read")
    return Content(say("image_left_out", rules.locale))


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
