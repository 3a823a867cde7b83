"""The one door for request bodies: JSON that means the same to every reader, or a clear refusal.

The framework's own parsing lets NaN, duplicate keys, lone surrogates, UTF-16 and bodies of any size through, or fails
on them with a 500; it also echoes the input. What is refused here never reaches the store.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterable
from typing import Any, TypeAlias

from starlette.requests import Request

from api_client.web.errors import ApiError, bad_request, shown, shown_text

MAX_DEPTH = 64
#: Longest time a client may take to send its body.
BODY_SECONDS = 30.0
#: No field needs more; Python itself refuses 4,300.
_MAX_DIGITS = 100
#: Larger bodies are parsed in a thread, so that they hold up nobody else's stream.
_THREAD_BYTES = 64 * 1024

_UNFIT_TEXT = re.compile("[\0\ud800-\udfff]")

#: Where a value stands: its parent's trail and its own key. A chain, so that names are spelled only for errors.
_Trail: TypeAlias = "tuple[_Trail, str | int] | None"


class _Unfit:
    """Stands where the parser found a value no reader should see, until the walk knows what the field is called."""

    def __init__(self, why: str) -> None:
        self.why = why


async def read_object(request: Request, limit: int) -> dict[str, Any]:
    """The request's body as a JSON object.

    Args:
        request: the request; its body is read here, once.
        limit: largest body in bytes, measured while reading.

    Raises:
        ApiError: 400, 408, 413 or 415.
    """
    _check_headers(request)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await _read(request, limit)
    except TimeoutError:
        headers = {"connection": "close"}
        message = f"the body did not arrive within {BODY_SECONDS:g} s"
        raise ApiError(408, message, code="request_timeout", headers=headers) from None
    if len(body) > _THREAD_BYTES:
        return await asyncio.to_thread(parse_object, body)
    return parse_object(body)


def _check_headers(request: Request) -> None:
    if {"content-length", "transfer-encoding"} <= set(request.headers):  # a proxy may have believed the other one
        message = "Content-Length and Transfer-Encoding say two things about one body"
        raise ApiError(400, message, param="Content-Length", code="invalid_value", headers={"connection": "close"})
    content_type = request.headers.get("content-type", "")
    media_type, _, parameters = content_type.partition(";")
    charset = re.search(r'charset\s*=\s*"?([^\s";]+)', parameters, re.IGNORECASE)
    if media_type.strip().lower() != "application/json" or (charset and charset[1].lower() not in {"utf-8", "utf8"}):
        message = f'the content type must be application/json in UTF-8, not "{shown_text(content_type)}"'
        raise ApiError(415, message, param="Content-Type", code="unsupported_media_type")
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        message = f'the body must not be encoded, but its encoding is "{shown_text(encoding)}"'
        raise ApiError(415, message, param="Content-Encoding", code="unsupported_content_encoding")


async def _read(request: Request, limit: int) -> bytes:
    """The body. One that is too long is read on for a while and thrown away, so that its sender hears why."""
    body = bytearray()
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size <= limit:
            body += piece
        elif size > 2 * limit:
            break
    if size > limit:
        message = f"the body is larger than {limit} bytes, the most this server reads"
        raise ApiError(413, message, code="request_too_large", headers={"connection": "close"})
    return bytes(body)


def parse_object(body: bytes) -> dict[str, Any]:
    """Read a JSON object strictly.

    Raises:
        ApiError: 400 ``invalid_json``, with line and column or the field's name.
    """
    try:
        value = json.loads(
            body.decode("utf-8-sig"),
            parse_constant=lambda name: _Unfit(f"{name} is not JSON"),
            parse_float=_finite,
            parse_int=_whole,
            object_pairs_hook=_unique,
        )
    except UnicodeDecodeError as error:
        raise _invalid(f"the body is not valid UTF-8 (at byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise _invalid(f"the body is not valid JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise _too_deep() from None
    _check_values(value)
    if not isinstance(value, dict):
        raise _invalid(f"the body must be a JSON object, not {shown(value)}")
    return value


def _finite(digits: str) -> float | _Unfit:
    number = float(digits)
    return number if math.isfinite(number) else _Unfit(f"{shown_text(digits)} is too large a number")


def _whole(digits: str) -> int | _Unfit:
    return int(digits) if len(digits) <= _MAX_DIGITS else _Unfit(f"a number of {len(digits)} digits is too long")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for key, value in pairs:
        known[key] = _Unfit("the key stands twice in its object") if key in known else value
    return known


def _check_values(root: Any) -> None:
    """Refuse what no reader should see, naming the field. No recursion: the depth is checked here."""
    waiting: list[tuple[_Trail, int, Any]] = [(None, 0, root)]
    while waiting:
        trail, depth, value = waiting.pop()
        children: Iterable[tuple[str | int, Any]] = ()
        if isinstance(value, str):
            _check_text(trail, value)
        elif isinstance(value, _Unfit):
            raise _invalid(f"{_name(trail)}: {value.why}", param=_name(trail))
        elif isinstance(value, dict):
            for key in value:
                _check_text(trail, key)
            children = value.items()
        elif isinstance(value, list):
            children = enumerate(value)
        if children and depth >= MAX_DEPTH:
            raise _too_deep()
        waiting += [((trail, key), depth + 1, child) for key, child in children]


def _check_text(trail: _Trail, text: str) -> None:
    found = _UNFIT_TEXT.search(text)
    if found:
        what = "NUL" if found[0] == "\0" else "half a surrogate pair"
        raise _invalid(f"{_name(trail) or 'body'}: the text holds {what}, which is no character", param=_name(trail))


def _name(trail: _Trail) -> str | None:
    """The field's name as people write it: ``messages[0].content``."""
    parts: list[str] = []
    while trail is not None:
        trail, key = trail
        parts.append(f"[{key}]" if isinstance(key, int) else f".{shown_text(key, 40)}")
    return shown_text("".join(reversed(parts)).removeprefix("."), 120) or None


def _invalid(message: str, param: str | None = None) -> ApiError:
    return bad_request(message, param=param, code="invalid_json")


def _too_deep() -> ApiError:
    return _invalid(f"the body is nested deeper than {MAX_DEPTH} levels")
