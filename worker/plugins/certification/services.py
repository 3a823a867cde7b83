"""Stub model services on loopback, which answer an agent's real calls from a script, in the call's own API."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

from worker.plugins.certification.stub_forms import FORMS, parse_json
from worker.plugins.certification.stub_reply import PART, QUESTION, SUB_QUESTION, SUMMARY, Need, StubReply
from worker.runners.sandbox.provider_reports import find_api

_TITLE = "A title"
#: Seconds that a hanging response is kept open.
_HANGS = 120.0
#: Seconds that a reply with ``waits`` waits for another call.
_WAITS = 3.0
#: Input tokens above which an agent's context is full, and words by which it asks for a summary of it.
_FULL = 1000
_SUMMARISES = re.compile(r"(?i)summar|snapshot|compact")
#: A tag in which an agent wants its summary, such as ``<state_snapshot>``.
_TAG = re.compile(r"<([a-z_]+)>")
_MODEL = re.compile(r"/models/([^/:]+):")
_KINDS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
_KINDS |= {413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error"}


class _ConnectionCut(Exception):
    pass


class StubService:
    """A fake model service that answers an agent's calls from a script. Use it as a context manager.

    Each model call gets the next reply; the last reply repeats. With ``tools``, calls without tools are side calls and
    are answered normally.
    """

    def __init__(self, replies: tuple[StubReply, ...], *, tools: bool) -> None:
        self._replies, self._tools = list(replies), tools
        self._lock, self.over = threading.Lock(), threading.Event()
        #: Set after the first piece of an answer, or before an unstreamed answer.
        self.spoke = threading.Event()
        self.calls = 0
        #: The needs of the situation that were met.
        self.met: set[Need] = set()
        self._helper: StubReply | None = None
        self._joined = threading.Event()
        #: Calls of the agent's loop since the reply with ``PART``.
        self._since_part: list[dict[str, Any]] = []
        self._limited = self._is_full = False
        #: Bodies and lower-case headers of the model calls, in order.
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    def __enter__(self) -> Self:
        service: StubService = self

        class Handler(_StubHandler):
            owner = service

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads, self._server.block_on_close = True, False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.stop_serving()

    def stop_serving(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, request: dict[str, Any]) -> StubReply:
        """Choose and return the scripted reply to a model call."""
        with self._lock:
            if self._helper and SUB_QUESTION in (said := json.dumps(request)) and QUESTION not in said:
                self.met.add("sub-agent")
                return self._helper
            asked = json.dumps(_messages_of(request)[-1:])
            if self._is_full and _SUMMARISES.search(asked) and SUMMARY not in json.dumps(request):
                self.met.add("compaction")
                self._replies = [reply for reply in self._replies if reply.tokens <= _FULL]
                return StubReply(pieces=(_write_summary(asked),), tokens=len(json.dumps(request)) // 4)
            if self._tools and not request.get("tools"):
                return StubReply(pieces=(_TITLE,))
            self.calls += 1
            reply = None
            while reply is None:
                reply = (self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]).adapt_to(request)
            self._helper = reply.helper or self._helper
            self.met |= {"server tool"} if reply.uses_server else set()
            self._is_full |= reply.tokens > _FULL
            if self._since_part:
                self.met.add("later call")
                self._joined.set()
            if self._since_part or PART in reply.text:
                self._limited |= reply.end == "limit"
                self._since_part.append(request)
            return reply

    def hold_reply(self) -> None:
        """Delay the reply until the agent makes a second call in parallel, or until a time limit."""
        if self._joined.wait(_WAITS):
            self.met.add("parallel call")

    @property
    def is_repaired(self) -> bool:
        """Return True if a later model call repeated the failed call or continued its truncated answer."""
        first, *later = self._since_part or [{}]
        goes_on = self._limited and any(PART in json.dumps(each) for each in later)
        return goes_on or any(_question_of(each) == _question_of(first) for each in later)


def _write_summary(asked: str) -> str:
    """Return the stub's summary of a conversation, enclosed in each XML tag that the request mentions, if any."""
    tags = dict.fromkeys(_TAG.findall(asked))
    return "\n".join(f"<{tag}>{SUMMARY}</{tag}>" for tag in tags) or SUMMARY


def _question_of(request: dict[str, Any]) -> object:
    said = _messages_of(request)
    return [request.get(name) for name in ("system", "instructions", "systemInstruction")], said[:1], said[-1:]


def _messages_of(request: dict[str, Any]) -> Any:
    return next((request[name] for name in ("messages", "input", "contents") if request.get(name)), "")


class _StubHandler(BaseHTTPRequestHandler):
    owner: StubService
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._send_response(200, b"")

    def do_GET(self) -> None:
        models = [{"id": "stub", "object": "model", "created": 1, "owned_by": "stub"}]
        self._send_response(200, json.dumps({"object": "list", "data": models, "models": []}).encode())

    def do_POST(self) -> None:
        said = self.rfile.read(int(self.headers.get("content-length") or 0))
        while "chunked" in self.headers.get("transfer-encoding", "") and (size := int(self.rfile.readline(), 16)):
            said += self.rfile.read(size + 2)[:size]
        path = urlsplit(self.path).path
        api = find_api(path)
        if api is None:
            self._send_response(200, b'{"input_tokens": 10, "totalTokens": 10}')
            return
        request = parse_json(said.decode("utf-8", "replace"))
        self.owner.requests.append(request)
        self.owner.headers.append({name.lower(): value for name, value in self.headers.items()})
        reply, form = self.owner.take(request), FORMS[api]
        named = _MODEL.search(path)
        model = named[1] if named else str(request.get("model"))
        with contextlib.suppress(_ConnectionCut, OSError):
            self._answer_call(form, model, reply, streamed="stream" in path or request.get("stream") is True)
            return
        self.close_connection = True
        if reply.dies:
            self.owner.stop_serving()

    def _answer_call(self, form: Any, model: str, reply: StubReply, *, streamed: bool) -> None:
        if reply.waits:
            self.owner.hold_reply()
        if reply.cut == "before":
            raise _ConnectionCut
        if reply.hangs == "before":
            self._hang_stream()
        if reply.status != 200:
            error = form.build_error(_KINDS.get(reply.status, "api_error"))
            self._send_response(reply.status, json.dumps(error).encode(), reply.retry_after)
        elif reply.body is not None:
            self._send_response(200, reply.body)
        elif streamed:
            self._stream_reply(form, model, reply)
        elif reply.cut or reply.hangs or reply.fails or reply.end == "none":
            raise _ConnectionCut
        else:
            self._mark_first_piece(reply)
            self.owner.over.wait(reply.delay * len(reply.pieces))
            self._send_response(200, json.dumps(form.build_answer(model, reply)).encode())

    def _send_response(self, status: int, body: bytes, retry_after: str = "") -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if retry_after:
            self.send_header("retry-after", retry_after)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _stream_reply(self, form: Any, model: str, reply: StubReply) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        sent: set[str] = set()
        for place, event in form.stream_events(model, reply):
            if "piece" in sent or not reply.pieces:
                self._disturb_stream(form, reply, place, sent)
            if place == "piece":
                self.owner.over.wait(reply.delay)
            self._send_event(event)
            sent.add(place)
            if place == "piece":
                self._mark_first_piece(reply)
        self._disturb_stream(form, reply, "end", sent)
        self.wfile.write(b"0\r\n\r\n")

    def _mark_first_piece(self, reply: StubReply) -> None:
        if len(reply.pieces) > 1:
            self.owner.spoke.set()

    def _disturb_stream(self, form: Any, reply: StubReply, place: str, sent: set[str]) -> None:
        if reply.fails:
            self._send_event(form.build_error("server_error"))
            raise _ConnectionCut
        if reply.hangs == "first":
            self._hang_stream()
        half = reply.cut == "tool" and place == "tool" and "tool" in sent
        if reply.cut == "first" or half or (reply.cut == "end" and place == "end"):
            self.owner.over.wait(0.3)  # let the agent read what was sent
            raise _ConnectionCut

    def _send_event(self, event: dict[str, Any]) -> None:
        kind = f"event: {event['type']}\n" if "type" in event else ""
        said = f"{kind}data: {json.dumps(event) if event else '[DONE]'}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(said), said))
        self.wfile.flush()

    def _hang_stream(self) -> None:
        self.owner.over.wait(_HANGS)
        raise _ConnectionCut
