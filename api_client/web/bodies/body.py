"""Reads request bodies as strict JSON.

Large bodies are parsed in a thread, alternating between owners, so that no body blocks other callers.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import re
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeAlias, TypeVar

from starlette.requests import Request

from api_client.web.errors import ApiError, bad_request, display_value, printable_text

OWNER_SCOPE_KEY = "helix.owner"
_SIZE_SCOPE_KEY = "helix.body_bytes"
MAX_DEPTH = 64
#: Each value costs far more memory than its bytes.
MAX_VALUES = 100_000
BODY_SECONDS = 30.0
#: Bytes of large bodies in memory over all callers; callers of further bodies must try again.
MAX_READING_BYTES = 64 * 2**20
_RETRY_SECONDS = 1
#: Digits of a number; no field needs more. Python itself refuses 4,300.
_MAX_DIGITS = 100
_LARGE_BYTES = 16 * 1024

_UNFIT_TEXT = re.compile("[\0\ud800-\udfff]")
#: All bytes but those that begin a value or separate values.
_NOT_VALUE_MARKS = bytes(set(range(256)) - set(b"[{,"))
_PIECE_BYTES = 64 * 1024
#: Path to a value: its parent's path and its own key. Names are spelled out only for errors.
_ValuePath: TypeAlias = "tuple[_ValuePath, str | int] | None"
_T = TypeVar("_T")


class _UnfitValue:
    """A placeholder for a forbidden JSON value, with the reason, until its field's name is known."""

    def __init__(self, why: str) -> None:
        self.reason = why


class _ParserThread:
    """Parses large request bodies in a thread, alternating between owners."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "body")
        self._lock = Lock()
        self._waiting: dict[str, deque[Callable[[], None]]] = {}

    def submit(self, owner: str, work: Callable[[], _T]) -> Future[_T]:
        future = Future[_T]()

        def run_work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(_run_uncollected(work))
                except BaseException as error:
                    future.set_exception(error)

        with self._lock:
            self._waiting.setdefault(owner, deque()).append(run_work)
        self._thread.submit(self._run_next)
        return future

    def _run_next(self) -> None:
        with self._lock:
            owner = next(iter(self._waiting))
            line = self._waiting.pop(owner)
            work = line.popleft()
            if line:  # requeue the owner behind all others
                self._waiting[owner] = line
        work()


@dataclass(slots=True, eq=False)
class _BodyBuffer:
    owner: str
    data: bytearray = field(default_factory=bytearray)
    refused: bool = False


class _BodyMemory:
    """Counts the bytes of unparsed request bodies in memory, by owner."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self.bytes_by_owner: Counter[str] = Counter()
        self.unread: set[_BodyBuffer] = set()

    def add(self, body: _BodyBuffer, piece: bytes) -> None:
        body.data += piece
        self.total_bytes += len(piece)
        self.bytes_by_owner[body.owner] += len(piece)

    def refuse_body(self, body: _BodyBuffer) -> None:
        body.refused = True
        self.drop_body(body)

    def drop_body(self, body: _BodyBuffer) -> None:
        self.unread.discard(body)
        self.total_bytes -= len(body.data)
        self.bytes_by_owner[body.owner] -= len(body.data)
        body.data = bytearray()
        if not self.bytes_by_owner[body.owner]:
            del self.bytes_by_owner[body.owner]

    def make_room(self, body: _BodyBuffer, size: int) -> bool:
        """Return True if ``size`` more bytes of a body fit into memory. May refuse bodies of owners who use more."""
        mine = self.bytes_by_owner[body.owner] + size
        if mine > (MAX_READING_BYTES // 2 if body.owner else MAX_READING_BYTES):
            return False
        while self.total_bytes + size > MAX_READING_BYTES:
            most = max(self.unread, key=lambda each: (self.bytes_by_owner[each.owner], len(each.data)))
            if self.bytes_by_owner[most.owner] <= mine or not most.data:
                return False
            self.refuse_body(most)
        return True


_parser = _ParserThread()
_reading = _BodyMemory()


async def read_object(request: Request, limit: int) -> dict[str, Any]:
    """Read a request's body as a JSON object. Raises the errors of ``read_body_as``."""
    return await read_body_as(request, limit, lambda body: body)


async def read_body_as(request: Request, limit: int, make: Callable[[dict[str, Any]], _T]) -> _T:
    """Read a request's body as a JSON object, and return what ``make`` builds from it.

    ``limit`` is the largest body in bytes. Raises ``ApiError`` (400, 408, 413, 415 or 429) and the errors of
    ``make``.
    """
    _check_headers(request)
    body = _BodyBuffer(str(request.scope.get(OWNER_SCOPE_KEY, "")))
    try:
        async with limit_body_time():
            await _read_body(request, body, limit)
        data = body.data
        request.scope[_SIZE_SCOPE_KEY] = len(data)
        if len(data) <= _LARGE_BYTES:
            return make(parse_json_object(bytes(data)))
        return await run_off_loop(lambda: make(parse_json_object(data)), body.owner)
    finally:
        _reading.drop_body(body)


def has_body(request: Request) -> bool:
    """Return True if the headers of a request announce a body."""
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers


def body_size(request: Request) -> int:
    """Return the size of a request's body in bytes, after ``read_body_as`` has read it."""
    return int(request.scope[_SIZE_SCOPE_KEY])


async def run_off_loop(work: Callable[[], _T], owner: str = "") -> _T:
    """Run CPU-bound work in the thread that parses large bodies, and return the result."""
    return await asyncio.wrap_future(_parser.submit(owner, work))


def _run_uncollected(work: Callable[[], _T]) -> _T:
    """Run a function without garbage collection, whose pauses would block all callers, and return its result."""
    gc.disable()
    try:
        return work()
    finally:
        gc.enable()


@asynccontextmanager
async def limit_body_time() -> AsyncIterator[None]:
    """Limit how long a client may take to send its request body within the ``async with`` block.

    Raises ``ApiError``: 408 ``request_timeout``.
    """
    try:
        async with asyncio.timeout(BODY_SECONDS):
            yield
    except TimeoutError:
        headers = {"connection": "close"}
        message = f"the body did not arrive within {BODY_SECONDS:g} s"
        raise ApiError(408, message, code="request_timeout", headers=headers) from None


def _check_headers(request: Request) -> None:
    if {"content-length", "transfer-encoding"} <= set(request.headers):  # a proxy may have believed the other header
        message = "Content-Length and Transfer-Encoding say two things about one body"
        raise ApiError(400, message, param="Content-Length", code="invalid_value", headers={"connection": "close"})
    content_type = request.headers.get("content-type", "")
    media_type, _, parameters = content_type.partition(";")
    charset = re.search(r'charset\s*=\s*"?([^\s";]+)', parameters, re.IGNORECASE)
    if media_type.strip().lower() != "application/json" or (charset and charset[1].lower() not in {"utf-8", "utf8"}):
        message = f'the content type must be application/json in UTF-8, not "{printable_text(content_type)}"'
        raise ApiError(415, message, param="Content-Type", code="unsupported_media_type")
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        message = f'the body must not be encoded, but its encoding is "{printable_text(encoding)}"'
        raise ApiError(415, message, param="Content-Encoding", code="unsupported_content_encoding")


async def _read_body(request: Request, body: _BodyBuffer, limit: int) -> None:
    size = 0
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > 2 * limit:  # refuse without reading
        raise _make_size_error(limit)
    _reading.unread.add(body)
    async for piece in request.stream():
        size += len(piece)
        if size > 2 * limit:
            break
        if size > limit or not (body.refused or size <= _LARGE_BYTES or _reading.make_room(body, len(piece))):
            _reading.refuse_body(body)
        if not body.refused:
            _reading.add(body, piece)
    _reading.unread.discard(body)
    if size > limit:
        raise _make_size_error(limit)
    if body.refused:
        message = "too many large requests are being read at this moment; try again"
        headers = {"connection": "close", "retry-after": str(_RETRY_SECONDS)}
        raise ApiError(429, message, code="too_many_requests", headers=headers)


def _make_size_error(limit: int) -> ApiError:
    message = f"the body is larger than {limit} bytes, the most this server reads"
    return ApiError(413, message, code="request_too_large", headers={"connection": "close"})


def parse_json_object(body: bytes | bytearray) -> dict[str, Any]:
    """Parse a request body as strict JSON and return its object.

    Raises ``ApiError``: 400 ``invalid_json``, with line and column or the name of the field.
    """
    if len(body) > MAX_VALUES and has_too_many_values(body):
        raise _make_json_error(f"the body holds more than {MAX_VALUES} values, the most this server reads")
    try:
        value = json.loads(
            body.decode("utf-8-sig"),
            parse_constant=lambda name: _UnfitValue(f"{name} is not JSON"),
            parse_float=_parse_float,
            parse_int=_parse_int,
            object_pairs_hook=_make_object,
        )
    except UnicodeDecodeError as error:
        raise _make_json_error(f"the body is not valid UTF-8 (at byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise _make_json_error(
            f"the body is not valid JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except RecursionError:
        raise _make_depth_error() from None
    _check_values(value)
    if not isinstance(value, dict):
        raise _make_json_error(f"the body must be a JSON object, not {display_value(value)}")
    return value


def has_too_many_values(body: bytes | bytearray) -> bool:
    """Return True if a JSON text contains more than ``MAX_VALUES`` values, without parsing it."""
    count, in_text, escaped = 0, False, False
    for start in range(0, len(body), _PIECE_BYTES):
        piece = body[start + escaped : start + _PIECE_BYTES]  # skip a quote that the piece before escaped
        plain = piece.replace(b"\\\\", b"")
        escaped = plain.endswith(b"\\")
        texts = plain.replace(b'\\"', b"").split(b'"')
        count += len(b"".join(texts[in_text::2]).translate(None, _NOT_VALUE_MARKS))
        in_text ^= len(texts) % 2 == 0
        if count > MAX_VALUES:
            return True
    return False


def _parse_float(digits: str) -> float | _UnfitValue:
    number = float(digits)
    return number if math.isfinite(number) else _UnfitValue(f"{printable_text(digits)} is too large a number")


def _parse_int(digits: str) -> int | _UnfitValue:
    return int(digits) if len(digits) <= _MAX_DIGITS else _UnfitValue(f"a number of {len(digits)} digits is too long")


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for key, value in pairs:
        known[key] = _UnfitValue("the key is twice in its object") if key in known else value
    return known


def _check_values(root: Any) -> None:
    """Raise ``ApiError`` for a forbidden value in parsed JSON, naming its field."""
    opened: list[tuple[_ValuePath, Iterator[tuple[str | int, Any]]]] = [(None, iter([("", root)]))]
    while opened:
        trail, children = opened[-1]
        for key, value in children:
            here = (trail, key) if len(opened) > 1 else None
            if isinstance(value, str):
                if not value.isascii() or "\0" in value:  # much cheaper than the search, and the usual case
                    _check_text(here, value)
            elif isinstance(value, dict | list):
                if len(opened) > MAX_DEPTH and value:
                    raise _make_depth_error()
                for name in value if isinstance(value, dict) else ():
                    if not name.isascii() or "\0" in name:
                        _check_text(here, name)
                opened.append((here, iter(value.items()) if isinstance(value, dict) else enumerate(value)))
                break
            elif isinstance(value, _UnfitValue):
                raise _make_json_error(f"{_spell_path(here)}: {value.reason}", param=_spell_path(here))
        else:
            opened.pop()


def _check_text(trail: _ValuePath, text: str) -> None:
    if found := _UNFIT_TEXT.search(text):
        what = "NUL" if found[0] == "\0" else "half a surrogate pair"
        raise _make_json_error(
            f"{_spell_path(trail) or 'body'}: the text holds {what}, which is not a character", param=_spell_path(trail)
        )


def _spell_path(trail: _ValuePath) -> str | None:
    parts: list[str] = []
    while trail is not None:
        trail, key = trail
        parts.append(f"[{key}]" if isinstance(key, int) else f".{printable_text(key, 40)}")
    return printable_text("".join(reversed(parts)).removeprefix("."), 120) or None


def _make_json_error(message: str, param: str | None = None) -> ApiError:
    return bad_request(message, param=param, code="invalid_json")


def _make_depth_error() -> ApiError:
    return _make_json_error(f"the body is nested deeper than {MAX_DEPTH} levels")
