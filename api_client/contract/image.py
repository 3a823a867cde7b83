"""Images in a user's message, and the names by which the message refers to them."""

from __future__ import annotations

import binascii
import hashlib
import re
from base64 import b64decode, b64encode
from dataclasses import dataclass

#: The limits of the Messages API of the Claude CLI.
MAX_IMAGES, MAX_IMAGE_BYTES = 8, 5 * 2**20
#: First bytes of a file -> its type. Providers refuse a wrong type, so the type that a client states is ignored.
_BEGINNINGS = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpg", b"GIF8": "gif"}
_MEDIA = {"png": "image/png", "jpg": "image/jpeg", "gif": "image/gif", "webp": "image/webp"}
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,")
_PATH = re.compile(r"\binput/(image-[0-9a-f]{16}\.(?:png|jpg|gif|webp))")


@dataclass(frozen=True, slots=True)
class Image:
    """An image in a user's message: a file name derived from the content, and the content in base64."""

    name: str
    data: str

    @property
    def content(self) -> bytes:
        return b64decode(self.data)

    @property
    def path(self) -> str:
        """Return the image's path in the session's folder, such as ``input/image-0123456789abcdef.png``."""
        return f"input/{self.name}"


def read_image(url: str) -> Image:
    """Decode the image in a ``data:`` URL. Other URLs are refused, because images are never fetched.

    Raises ``ValueError`` if the URL holds no base64, too many bytes, or another type of file.
    """
    head = _DATA_URL.match(url)
    if head is None:
        raise ValueError("no data: address with base64")
    if len(url) - head.end() > MAX_IMAGE_BYTES * 4 // 3 + 4:
        raise ValueError("too large")
    try:
        content = b64decode(url[head.end() :], validate=True)
    except binascii.Error as error:
        raise ValueError("no base64") from error
    return Image(
        f"image-{hashlib.sha256(content).hexdigest()[:16]}.{_detect_type(content)}", b64encode(content).decode()
    )


def format_data_url(name: str, content: bytes) -> str:
    return f"data:{_MEDIA[name.rpartition('.')[2]]};base64,{b64encode(content).decode()}"


def find_image_names(text: str) -> list[str]:
    """Return the names of the image files that a text mentions, without repetitions."""
    return list(dict.fromkeys(_PATH.findall(text)))


def _detect_type(content: bytes) -> str:
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return "webp"
    for beginning, kind in _BEGINNINGS.items():
        if content.startswith(beginning):
            return kind
    raise ValueError("no PNG, JPEG, GIF or WebP")
