"""Stub services on loopback: each answers an agent's real model calls from a script, in the form it was asked in."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from worker.runners.guard.provider_reports import api_of
from worker.runners.witnessed import Api

#: The end of every whole answer: a text without it is not whole.
LAST_WORDS = "These are the last words of the whole answer."
QUESTION = "Please answer this question: who is certified here?"
#: The text of a call that ends badly while others go on, and the question of a sub-agent.
PART, SUB_QUESTION = (
    "The first chapter begins in the old town and goes on until it",
    "Count the books in the old library.",
)
_TITLE = "A title"
#: What no service sends forever: so long a hanging one is kept, in seconds.
_HANGS = 120.0
#: So long a reply with ``waits`` is held for another call, in seconds.
_WAITS = 3.0
#: No agent sees one name of a call twice, as with a real service.
_CALLS = itertools.count(1)
_MODEL = re.compile(r"/models/([^/:]+):")

#: What a situation needs of the agent to come about at all.
Need = Literal["later call", "parallel call", "sub-agent"]
End = Literal["stop", "limit", "refusal", "filter", "odd", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StubReply:
    """What one model call gets.

    Attributes:
        pieces: the answer's text. delay: seconds before each piece.
        end: how the service says that it ended; ``none``: its stream ends in order, without a word of that.
        tool: a call behind the text: the tool's name, and its arguments as they are sent.
        status: an error's HTTP status instead of an answer, with its ``retry_after``.
        cut: the connection breaks off: before the answer, after its first piece, in the tool call, or before its end.
        hangs: nothing more comes: before the answer, or after its first piece.
        fails: an error event comes after the first piece. dies: the service is gone after a cut.
        body: sent as it is instead of an answer.
        if_tools: only for a call that offers tools; another one gets the next reply of the script.
        helper: the reply calls the agent's sub-agent tool, and this is what each call of the sub-agent gets; where none
            is offered the next reply is given. waits: it is held until another call is under way.
    """

    pieces: tuple[str, ...] = ()
    delay: float = 0.0
    end: End = "stop"
    tool: tuple[str, str] | None = None
    status: int = 200
    retry_after: str = ""
    cut: Literal["", "before", "first", "tool", "end"] = ""
    hangs: Literal["", "before", "first"] = ""
    fails: bool = False
    dies: bool = False
    body: bytes | None = None
    if_tools: bool = False
    helper: StubReply | None = None
    waits: bool = False

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.pieces)

    def fitted(self, request: dict[str, Any]) -> StubReply | None:
        """Return the reply as a request can get it; None where it cannot."""
        if self.helper:
            called = _sub_agent_call(request)
            return replace(self, tool=called) if called else None
        return None if self.if_tools and not request.get("tools") else self


def _sub_agent_call(request: dict[str, Any]) -> tuple[str, str] | None:
    """Return a call of the sub-agent tool that a request offers; None without one."""
    for tool in (each for found in request.get("tools") or () for each in found.get("functionDeclarations") or [found]):
        tool = tool.get("function") or tool
        schemas = (tool.get(name) or {} for name in ("input_schema", "parameters", "parametersJsonSchema"))
        takes = {name for schema in schemas for name in schema.get("properties") or ()}
        if str(tool.get("name")).lower() in {"agent", "task"} and "prompt" in takes:
            kind = next((kind for kind in ("general-purpose", "coder") if kind in str(tool)), "general")
            given: dict[str, Any] = {"prompt": SUB_QUESTION, "description": "Count books", "subagent_type": kind}
            given["run_in_background"] = False
            return tool["name"], json.dumps({name: value for name, value in given.items() if name in takes})
    return None


_Events = Iterator[tuple[str, dict[str, Any]]]


# The four forms. Each yields the events of a stream with the place at which they are, and makes the whole answer.


class _Messages:
    ends: ClassVar[dict[str, str]] = {
        "stop": "end_turn",
        "limit": "max_tokens",
        "refusal": "refusal",
        "filter": "refusal",
        "odd": "never_heard_of",
    }

    def events(self, model: str, reply: StubReply) -> _Events:
        message = {**self.whole(model, reply), "content": [], "stop_reason": None}
        yield "open", {"type": "message_start", "message": message}
        if reply.pieces:
            yield "open", _block(0, "start", content_block={"type": "text", "text": ""})
            for piece in reply.pieces:
                yield "piece", _block(0, "delta", delta={"type": "text_delta", "text": piece})
            yield "open", _block(0, "stop")
        if reply.tool:
            name, given = reply.tool
            block = {"type": "tool_use", "id": f"toolu_{next(_CALLS)}", "name": name, "input": {}}
            at = int(bool(reply.pieces))
            yield "open", _block(at, "start", content_block=block)
            for half in (given[: len(given) // 2], given[len(given) // 2 :]):
                yield "tool", _block(at, "delta", delta={"type": "input_json_delta", "partial_json": half})
            yield "open", _block(at, "stop")
        if reply.end != "none":
            ended = "tool_use" if reply.tool else self.ends[reply.end]
            yield "end", {"type": "message_delta", "delta": {"stop_reason": ended}, "usage": {"output_tokens": 7}}
            yield "end", {"type": "message_stop"}

    def whole(self, model: str, reply: StubReply) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.pieces else []
        if reply.tool:
            given = _parsed(reply.tool[1])
            blocks.append({"type": "tool_use", "id": f"toolu_{next(_CALLS)}", "name": reply.tool[0], "input": given})
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": blocks,
            "stop_reason": "tool_use" if reply.tool else self.ends.get(reply.end),
            "usage": {"input_tokens": 11, "output_tokens": 7},
        }

    def error(self, kind: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": kind, "message": "the stub says so"}}


def _block(index: int, what: str, **more: Any) -> dict[str, Any]:
    return {"type": f"content_block_{what}", "index": index, **more}


def _parsed(given: str) -> Any:
    try:
        return json.loads(given)
    except ValueError:
        return {}


class _Chat:
    ends: ClassVar[dict[str, str]] = {
        "stop": "stop",
        "limit": "length",
        "refusal": "content_filter",
        "filter": "content_filter",
        "odd": "never_heard_of",
    }

    def _chunk(self, model: str, delta: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
        choices = [{"index": 0, "delta": delta, "finish_reason": None} | more] if delta is not None else []
        return {"id": "chat_1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": choices}

    def events(self, model: str, reply: StubReply) -> _Events:
        yield "open", self._chunk(model, {"role": "assistant", "content": ""})
        for piece in reply.pieces:
            yield "piece", self._chunk(model, {"content": piece})
        if reply.tool:
            name, given = reply.tool
            first = {
                "index": 0,
                "id": f"call_{next(_CALLS)}",
                "type": "function",
                "function": {"name": name, "arguments": ""},
            }
            yield "open", self._chunk(model, {"tool_calls": [first]})
            for half in (given[: len(given) // 2], given[len(given) // 2 :]):
                part = {"index": 0, "function": {"arguments": half}}
                yield "tool", self._chunk(model, {"tool_calls": [part]})
        if reply.end != "none":
            yield "end", self._chunk(model, {}, finish_reason="tool_calls" if reply.tool else self.ends[reply.end])
            yield "end", self._chunk(model, None) | {"usage": self._usage}
            yield "end", {}

    _usage: ClassVar[dict[str, int]] = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}

    def whole(self, model: str, reply: StubReply) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.tool:
            function = {"name": reply.tool[0], "arguments": reply.tool[1]}
            message["tool_calls"] = [{"id": f"call_{next(_CALLS)}", "type": "function", "function": function}]
        ended = "tool_calls" if reply.tool else self.ends.get(reply.end)
        choice = {"index": 0, "message": message, "finish_reason": ended}
        return {"id": "chat_1", "object": "chat.completion", "created": 1, "model": model, "choices": [choice]} | {
            "usage": self._usage
        }

    def error(self, kind: str) -> dict[str, Any]:
        return {"error": {"message": "the stub says so", "type": kind, "code": kind}}


class _Responses:
    details: ClassVar[dict[str, str]] = {"limit": "max_output_tokens", "filter": "content_filter"}

    def _items(self, reply: StubReply) -> list[dict[str, Any]]:
        part = {"type": "output_text", "text": reply.text, "annotations": []}
        if reply.end == "refusal":
            part = {"type": "refusal", "refusal": reply.text}
        message = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [part]}
        items: list[dict[str, Any]] = [message] if reply.text or not reply.tool else []
        if reply.tool:
            name, given = reply.tool
            call = {
                "type": "function_call",
                "id": "fc_1",
                "call_id": f"call_{next(_CALLS)}",
                "name": name,
                "arguments": given,
            }
            items.append({**call, "status": "completed"})
        return items

    def events(self, model: str, reply: StubReply) -> _Events:
        for number, (place, event) in enumerate(self._unnumbered(model, reply)):
            yield place, {**event, "sequence_number": number}

    def _unnumbered(self, model: str, reply: StubReply) -> _Events:
        whole = self.whole(model, reply)
        begun = {**whole, "status": "in_progress", "output": [], "incomplete_details": None, "usage": None}
        yield "open", {"type": "response.created", "response": begun}
        for index, item in enumerate(whole["output"]):
            opened = {**item, "status": "in_progress"}
            at = {"output_index": index, "item_id": item["id"]}
            if item["type"] == "message":
                yield "open", {"type": "response.output_item.added", **at, "item": {**opened, "content": []}}
                empty = {"type": "output_text", "text": "", "annotations": []}
                yield "open", {"type": "response.content_part.added", **at, "content_index": 0, "part": empty}
                for piece in reply.pieces:
                    yield "piece", {"type": "response.output_text.delta", **at, "content_index": 0, "delta": piece}
            else:
                yield "open", {"type": "response.output_item.added", **at, "item": {**opened, "arguments": ""}}
                given = item["arguments"]
                for half in (given[: len(given) // 2], given[len(given) // 2 :]):
                    yield "tool", {"type": "response.function_call_arguments.delta", **at, "delta": half}
            yield "open", {"type": "response.output_item.done", **at, "item": item}
        if reply.end != "none":
            yield "end", {"type": f"response.{whole['status']}", "response": whole}

    def whole(self, model: str, reply: StubReply) -> dict[str, Any]:
        reason = self.details.get(reply.end)
        usage = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "model": model,
            "status": "incomplete" if reason or reply.end == "odd" else "completed",
            "incomplete_details": {"reason": reason or "never_heard_of"} if reason or reply.end == "odd" else None,
            "error": None,
            "output": self._items(reply),
            "usage": usage | details,
        }

    def error(self, kind: str) -> dict[str, Any]:
        reason = {"code": kind, "type": kind, "message": "the stub says so"}
        failed = {"id": "resp_1", "object": "response", "created_at": 1, "status": "failed", "output": []}
        return {"type": "response.failed", "response": {**failed, "error": reason}, "error": reason}


class _Gemini:
    ends: ClassVar[dict[str, str]] = {
        "stop": "STOP",
        "limit": "MAX_TOKENS",
        "refusal": "PROHIBITED_CONTENT",
        "filter": "SAFETY",
        "odd": "NEVER_HEARD_OF",
    }
    _usage: ClassVar[dict[str, int]] = {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18}

    def _said(self, model: str, *parts: dict[str, Any], end: str | None = None) -> dict[str, Any]:
        candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": list(parts)}}
        ended = {"finishReason": end} if end else {}
        return {"candidates": [candidate | ended], "usageMetadata": self._usage, "modelVersion": model}

    def _tool(self, reply: StubReply) -> list[dict[str, Any]]:
        name, given = reply.tool or ("", "")
        return [{"functionCall": {"name": name, "args": _parsed(given)}}] if reply.tool else []

    def events(self, model: str, reply: StubReply) -> _Events:
        for piece in reply.pieces:
            yield "piece", self._said(model, {"text": piece})
        for part in self._tool(reply):
            yield "tool", self._said(model, part)
        if reply.end != "none":
            yield "end", self._said(model, {"text": ""}, end=self.ends[reply.end])

    def whole(self, model: str, reply: StubReply) -> dict[str, Any]:
        return self._said(model, {"text": reply.text}, *self._tool(reply), end=self.ends.get(reply.end))

    def error(self, kind: str) -> dict[str, Any]:
        return {"error": {"code": 500, "message": "the stub says so", "status": kind.upper()}}


_FORMS: dict[Api, _Messages | _Chat | _Responses | _Gemini] = {
    "messages": _Messages(),
    "chat": _Chat(),
    "responses": _Responses(),
    "gemini": _Gemini(),
}
_KINDS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
_KINDS |= {413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error"}


class _Cut(Exception):
    pass


class Service:
    """As a context: ``url`` answers in all four forms. One reply per model call; the last one answers all further ones.

    With ``tools``, calls that offer none are an agent's side calls, such as for a title: they are answered well.
    """

    def __init__(self, replies: tuple[StubReply, ...], *, tools: bool) -> None:
        self._replies, self._tools = list(replies), tools
        self._lock, self.over = threading.Lock(), threading.Event()
        #: Set behind the first piece of an answer; of one that is not streamed as its making begins.
        self.spoke = threading.Event()
        self.calls = 0
        #: What came about of what a situation may need.
        self.met: set[Need] = set()
        self._helper: StubReply | None = None
        self._joined = threading.Event()
        #: The calls of the agent's loop from the one that got ``PART`` on.
        self._since_part: list[dict[str, Any]] = []
        self._limited = False
        #: The bodies of the model calls, in order, and their headers with names in small letters.
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    def __enter__(self) -> Self:
        service: Service = self

        class Handler(_Handler):
            owner = service

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads, self._server.block_on_close = True, False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.die()

    def die(self) -> None:
        """Answer nobody any more."""
        self._server.shutdown()
        self._server.server_close()

    def take(self, request: dict[str, Any]) -> StubReply:
        """The reply to a model call."""
        with self._lock:
            if self._helper and SUB_QUESTION in (said := json.dumps(request)) and QUESTION not in said:
                self.met.add("sub-agent")
                return self._helper
            if self._tools and not request.get("tools"):
                return StubReply(pieces=(_TITLE,))
            self.calls += 1
            reply = None
            while reply is None:
                reply = (self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]).fitted(request)
            self._helper = reply.helper or self._helper
            if self._since_part:
                self.met.add("later call")
                self._joined.set()
            if self._since_part or PART in reply.text:
                self._limited |= reply.end == "limit"
                self._since_part.append(request)
            return reply

    def hold(self) -> None:
        """Hold a reply until another call of the agent's loop is under way."""
        if self._joined.wait(_WAITS):
            self.met.add("parallel call")

    @property
    def repaired(self) -> bool:
        """Return whether a later call asked again what ``PART`` had answered, or goes on where its limit stopped it."""
        first, *later = self._since_part or [{}]
        goes_on = self._limited and any(PART in json.dumps(each) for each in later)
        return goes_on or any(_question(each) == _question(first) for each in later)


def _question(request: dict[str, Any]) -> object:
    said = next((request[name] for name in ("messages", "input", "contents") if request.get(name)), "")
    return [request.get(name) for name in ("system", "instructions", "systemInstruction")], said[:1], said[-1:]


class _Handler(BaseHTTPRequestHandler):
    owner: Service
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._send(200, b"")

    def do_GET(self) -> None:
        models = [{"id": "stub", "object": "model", "created": 1, "owned_by": "stub"}]
        self._send(200, json.dumps({"object": "list", "data": models, "models": []}).encode())

    def do_POST(self) -> None:
        said = self.rfile.read(int(self.headers.get("content-length") or 0))
        while "chunked" in self.headers.get("transfer-encoding", "") and (size := int(self.rfile.readline(), 16)):
            said += self.rfile.read(size + 2)[:size]
        path = urlsplit(self.path).path
        api = api_of(path)
        if api is None:
            self._send(200, b'{"input_tokens": 10, "totalTokens": 10}')
            return
        request = _parsed(said.decode("utf-8", "replace"))
        self.owner.requests.append(request)
        self.owner.headers.append({name.lower(): value for name, value in self.headers.items()})
        reply, form = self.owner.take(request), _FORMS[api]
        named = _MODEL.search(path)
        model = named[1] if named else str(request.get("model"))
        with contextlib.suppress(_Cut, OSError):
            self._answer(form, model, reply, streamed="stream" in path or request.get("stream") is True)
            return
        self.close_connection = True
        if reply.dies:
            self.owner.die()

    def _answer(self, form: Any, model: str, reply: StubReply, *, streamed: bool) -> None:
        if reply.waits:
            self.owner.hold()
        if reply.cut == "before":
            raise _Cut
        if reply.hangs == "before":
            self._hang()
        if reply.status != 200:
            error = form.error(_KINDS.get(reply.status, "api_error"))
            self._send(reply.status, json.dumps(error).encode(), reply.retry_after)
        elif reply.body is not None:
            self._send(200, reply.body)
        elif streamed:
            self._stream(form, model, reply)
        elif reply.cut or reply.hangs or reply.fails or reply.end == "none":
            raise _Cut
        else:
            self._spoke(reply)
            self.owner.over.wait(reply.delay * len(reply.pieces))
            self._send(200, json.dumps(form.whole(model, reply)).encode())

    def _send(self, status: int, body: bytes, retry_after: str = "") -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if retry_after:
            self.send_header("retry-after", retry_after)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _stream(self, form: Any, model: str, reply: StubReply) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        sent: set[str] = set()
        for place, event in form.events(model, reply):
            if "piece" in sent or not reply.pieces:
                self._misbehave(form, reply, place, sent)
            if place == "piece":
                self.owner.over.wait(reply.delay)
            self._event(event)
            sent.add(place)
            if place == "piece":
                self._spoke(reply)
        self._misbehave(form, reply, "end", sent)
        self.wfile.write(b"0\r\n\r\n")

    def _spoke(self, reply: StubReply) -> None:
        if len(reply.pieces) > 1:
            self.owner.spoke.set()

    def _misbehave(self, form: Any, reply: StubReply, place: str, sent: set[str]) -> None:
        if reply.fails:
            self._event(form.error("server_error"))
            raise _Cut
        if reply.hangs == "first":
            self._hang()
        half = reply.cut == "tool" and place == "tool" and "tool" in sent
        if reply.cut == "first" or half or (reply.cut == "end" and place == "end"):
            self.owner.over.wait(0.3)  # what was sent is to be read before the connection is gone
            raise _Cut

    def _event(self, event: dict[str, Any]) -> None:
        kind = f"event: {event['type']}\n" if "type" in event else ""
        said = f"{kind}data: {json.dumps(event) if event else '[DONE]'}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(said), said))
        self.wfile.flush()

    def _hang(self) -> None:
        self.owner.over.wait(_HANGS)
        raise _Cut
