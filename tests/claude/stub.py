"""A stub of the Messages API on loopback: it answers the real CLI's model calls from a script, and remembers them."""

from __future__ import annotations

import itertools
import json
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What one model call gets.

    Attributes:
        chunks: the text, piece by piece; ``delay`` seconds lie before each.
        status: an error's HTTP status instead of an answer; ``retry_after`` goes into its header.
        cut_after: the connection is closed after so many chunks. hang_after: nothing more comes after so many.
        tool: a tool call after the text: its name and its input; also: further ones in the same message.
        more: texts after that, each a block of its own.
        cut_at: the connection is closed in the middle of the tool call (``tool``), before the stop reason (``delta``)
            or before the last event (``stop``).
        headers: further headers of an error.
    """

    chunks: tuple[str, ...] = ()
    delay: float = 0.0
    status: int = 200
    retry_after: str = ""
    cut_after: int | None = None
    hang_after: int | None = None
    stop_reason: str = "end_turn"
    tool: tuple[str, dict[str, Any]] | None = None
    also: tuple[tuple[str, dict[str, Any]], ...] = ()
    more: tuple[str, ...] = ()
    cut_at: str = ""
    headers: tuple[tuple[str, str], ...] = ()


def says(*chunks: str, **more: Any) -> Reply:
    """A plain answer."""
    return Reply(chunks=chunks, **more)


def calls(name: str, **given: Any) -> Reply:
    """A tool call and nothing else."""
    return Reply(tool=(name, given), stop_reason="tool_use")


def fails(status: int, retry_after: str = "", **headers: str) -> Reply:
    """An HTTP error."""
    return Reply(status=status, retry_after=retry_after, headers=tuple(headers.items()))


_NUMBERS = itertools.count(1)


class _Cut(Exception):
    pass


@dataclass
class Stub:
    """As a context: ``url`` answers. One reply per model call; the last one answers every further call.

    ``requests`` are the bodies of the model calls, in order, and ``headers`` theirs, with names in small letters;
    ``chosen`` may pick the script by the request instead. ``spoke_at`` is when each answer's first piece was sent, by
    ``time.monotonic()``.
    """

    replies: list[Reply] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    chosen: dict[str, Reply] = field(default_factory=dict)
    spoke_at: list[float] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    #: Certificate and key in one file; then ``url`` is https.
    certificate: Path | None = None
    #: Where it listens.
    address: str = "127.0.0.1"

    def __enter__(self) -> Stub:
        self.over = threading.Event()
        self._lock = threading.Lock()
        stub = self

        class Handler(_Handler):
            owner = stub

        self._server = ThreadingHTTPServer((self.address, 0), Handler)
        if self.certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http{'s' if self.certificate else ''}://{self.address}:{self._server.server_address[1]}"

    def take(self, request: dict[str, Any]) -> Reply:
        """The reply to a model call."""
        with self._lock:
            self.requests.append(request)
            first, *_ = said = told(request)
            for word, reply in self.chosen.items():
                if word in said[-1] or first == f"user: {word}":
                    return reply
            return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    def served(self, request: dict[str, Any]) -> None:
        """A whole streamed answer has left."""


def told(request: dict[str, Any]) -> list[str]:
    """The conversation in a request, one text per message: ``user: ...``; without the CLI's own reminders."""
    found = []
    for message in request["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        found.append(f"{message['role']}: " + "\n".join(t for t in texts if not t.startswith("<system-reminder>")))
    return found


class _Handler(BaseHTTPRequestHandler):
    owner: Stub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._send(200, b"")

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "count_tokens" in self.path:
            self._send(200, b'{"input_tokens": 10}')
            return
        self.owner.headers.append({name.lower(): value for name, value in self.headers.items()})
        reply = self.owner.take(request)
        if reply.status != 200:
            error = {"type": "error", "error": {"type": "api_error", "message": f"stub says {reply.status}"}}
            self._send(reply.status, json.dumps(error).encode(), reply.retry_after, reply.headers)
        elif request.get("stream"):
            self._stream(request, reply)
        else:
            self._send(200, json.dumps(_message(request, reply)).encode())

    def _send(self, status: int, body: bytes, retry_after: str = "", headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if retry_after:
            self.send_header("retry-after", retry_after)
        for name, value in headers:
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _stream(self, request: dict[str, Any], reply: Reply) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            for kind, data in self._events(request, reply):
                event = f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
            self.owner.served(request)
        except _Cut:
            self.close_connection = True
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _events(self, request: dict[str, Any], reply: Reply) -> Iterator[tuple[str, dict[str, Any]]]:
        message = _message(request, reply)
        blocks = message.pop("content")
        yield "message_start", {"message": {**message, "content": [], "stop_reason": None}}
        for index, block in enumerate(blocks):
            if block["type"] == "text":
                yield "content_block_start", {"index": index, "content_block": {"type": "text", "text": ""}}
                for number, chunk in enumerate(reply.chunks if not index else (block["text"],)):
                    self._misbehave(reply, number)
                    self.owner.over.wait(reply.delay)
                    if not number:
                        self.owner.spoke_at.append(time.monotonic())
                    delta = {"type": "text_delta", "text": chunk}
                    yield "content_block_delta", {"index": index, "delta": delta}
                self._misbehave(reply, len(reply.chunks))
            else:
                yield "content_block_start", {"index": index, "content_block": {**block, "input": {}}}
                given = json.dumps(block["input"])
                for part in (given[: len(given) // 2], given[len(given) // 2 :]):
                    delta = {"type": "input_json_delta", "partial_json": part}
                    yield "content_block_delta", {"index": index, "delta": delta}
                    self._break_off(reply, "tool")
            yield "content_block_stop", {"index": index}
        delta = {"stop_reason": reply.stop_reason, "stop_sequence": None}
        self._break_off(reply, "delta")
        yield "message_delta", {"delta": delta, "usage": {"output_tokens": 7}}
        self._break_off(reply, "stop")
        yield "message_stop", {}

    def _break_off(self, reply: Reply, place: str) -> None:
        if reply.cut_at == place:
            self.owner.over.wait(0.3)  # what was sent is to be read before the connection is gone
            raise _Cut

    def _misbehave(self, reply: Reply, number: int) -> None:
        if reply.cut_after == number:
            raise _Cut
        if reply.hang_after == number:
            self.owner.over.wait(60)
            raise _Cut


def _message(request: dict[str, Any], reply: Reply) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    if reply.chunks or not reply.tool:
        blocks.append({"type": "text", "text": "".join(reply.chunks)})
    for name, given in [reply.tool, *reply.also] if reply.tool else ():
        blocks.append({"type": "tool_use", "id": f"toolu_{next(_NUMBERS)}", "name": name, "input": given})
    blocks += [{"type": "text", "text": text} for text in reply.more]
    return {
        "id": f"msg_{len(json.dumps(request))}",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": blocks,
        "stop_reason": reply.stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 7},
    }
