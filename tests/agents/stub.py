"""A stub of model services on loopback: chat completions, Responses and Gemini's generateContent, from one script.

``Reply`` is that of the Claude tests; what each API calls an ordinary end, a limit or a tool call is translated here.
"""

import itertools
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.claude.stub import Reply, calls, fails, says

__all__ = ["Reply", "Services", "calls", "fails", "says"]

#: The word of the Messages API for an end -> the words of chat completions and of Gemini. Others go as they are.
_CHAT = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length", "refusal": "content_filter"}
_GEMINI = {"end_turn": "STOP", "tool_use": "STOP", "max_tokens": "MAX_TOKENS", "refusal": "SAFETY"}
_NUMBERS = itertools.count(1)
#: How each message of ours begins (German), and how the result of a tool is told in each API.
_OURS = re.compile(r"Nachricht des Nutzers:|automatischen Pr")
_RESULT = re.compile(r'"role": "tool"|"functionResponse"|"function_call_output"')

#: An event's name, empty where the API has none, and what it says.
Event = tuple[str, dict[str, Any]]


class _Cut(Exception):
    pass


@dataclass
class Services:
    """As a context: ``url`` answers. One reply per model call; the last one answers every further call.

    ``requests`` are the bodies of the model calls, in order. ``tool``: what each call with tools gets that brings no
    result of a tool behind the user's last message.
    """

    replies: list[Reply] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    tool: Reply | None = None

    def __enter__(self) -> Self:
        stub = self

        class Handler(_Handler):
            services: Services = stub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """The base address, without ``/v1``."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def next_reply(self, body: dict[str, Any]) -> Reply:
        """Choose what the next model call gets."""
        self.requests.append(body)
        if self.tool and body.get("tools") and not _with_result(body):
            return self.tool
        return self.replies[min(len(self.requests), len(self.replies)) - 1]


def _with_result(body: dict[str, Any]) -> bool:
    """Return whether a tool's result is behind our last message. Agents put messages of theirs behind both."""
    said = body.get("contents") or body.get("messages") or body.get("input") or []
    ours = max((number for number, each in enumerate(said) if _OURS.search(json.dumps(each))), default=0)
    return any(_RESULT.search(json.dumps(each)) for each in said[ours + 1 :])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    services: Services

    def do_GET(self) -> None:
        self._json(200, {"object": "list", "data": [{"id": "stub", "object": "model"}], "models": []})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        self.services.headers.append({name.lower(): value for name, value in self.headers.items()})
        reply = self.services.next_reply(body)
        if reply.status != 200:
            more = dict(reply.headers) | ({"retry-after": reply.retry_after} if reply.retry_after else {})
            error = {"message": f"stub says {reply.status}", "type": "stub_error", "code": reply.status}
            self._json(reply.status, {"error": error}, more)
            return
        if self.path.endswith("/chat/completions"):
            events = _chat(reply, body)
        elif self.path.endswith("/responses"):
            events = _responses(reply, body)
        else:
            events = _gemini(reply, body)
        streamed = bool(body.get("stream")) or "streamGenerateContent" in self.path
        try:
            self._stream(events) if streamed else self._json(200, _whole(list(events), self.path))
        except (_Cut, OSError):
            self.close_connection = True

    def _stream(self, events: Iterator[Event]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for name, said in events:
            line = f"event: {name}\n" if name else ""
            self._chunk(f"{line}data: {json.dumps(said)}\n\n".encode())
        if self.path.endswith("/chat/completions"):
            self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))
        self.wfile.flush()

    def _json(self, status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {
            "content-type": "application/json",
            "content-length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _pieces(reply: Reply) -> Iterator[str]:
    """The text, piece by piece, up to where the reply breaks it off."""
    for number, chunk in enumerate(reply.chunks):
        if reply.cut_after == number:
            raise _Cut
        if reply.hang_after == number:
            time.sleep(600)
        time.sleep(reply.delay)
        yield chunk
    if reply.cut_after is not None and reply.cut_after >= len(reply.chunks):
        raise _Cut


def _tool(reply: Reply) -> tuple[str, str, str] | None:
    """Id, name and arguments of the tool call."""
    if reply.tool is None:
        return None
    return f"call_{next(_NUMBERS)}", reply.tool[0], json.dumps(reply.tool[1])


_USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def _chat(reply: Reply, body: dict[str, Any]) -> Iterator[Event]:
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": body.get("model", "stub")}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> Event:
        return "", {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(reply):
        yield chunk({"content": piece})
    if tool := _tool(reply):
        call = {"index": 0, "id": tool[0], "type": "function", "function": {"name": tool[1], "arguments": tool[2]}}
        yield chunk({"tool_calls": [call]})
    if reply.cut_at:
        raise _Cut
    yield chunk({}, _CHAT.get(reply.stop_reason, reply.stop_reason))
    yield "", {**head, "choices": [], "usage": _USAGE}


def _responses(reply: Reply, body: dict[str, Any]) -> Iterator[Event]:
    number, ids = itertools.count(), f"resp_{next(_NUMBERS)}"
    response: dict[str, Any] = {"id": ids, "object": "response", "created_at": 1, "model": body.get("model", "stub")}
    output: list[dict[str, Any]] = []

    def event(kind: str, **said: Any) -> Event:
        return kind, {"type": kind, "sequence_number": next(number), **said}

    yield event("response.created", response={**response, "status": "in_progress", "output": []})
    if reply.chunks:
        item: dict[str, Any] = {"id": f"msg_{ids}", "type": "message", "role": "assistant"}
        yield event("response.output_item.added", output_index=0, item={**item, "status": "in_progress", "content": []})
        place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        yield event("response.content_part.added", **place, part={"type": "output_text", "text": "", "annotations": []})
        text = ""
        for piece in _pieces(reply):
            text += piece
            yield event("response.output_text.delta", **place, delta=piece)
        yield event("response.output_text.done", **place, text=text)
        part = {"type": "output_text", "text": text, "annotations": []}
        output.append({**item, "status": "completed", "content": [part]})
        yield event("response.output_item.done", output_index=0, item=output[0])
    if tool := _tool(reply):
        call = {"id": f"fc_{ids}", "type": "function_call", "call_id": tool[0], "name": tool[1], "arguments": tool[2]}
        output.append({**call, "status": "completed"})
        yield event("response.output_item.done", output_index=len(output) - 1, item=output[-1])
    if reply.cut_at:
        raise _Cut
    usage = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    status, reason = "completed", None
    if reply.stop_reason in {"max_tokens", "refusal"}:
        why = {"max_tokens": "max_output_tokens", "refusal": "content_filter"}[reply.stop_reason]
        status, reason = "incomplete", {"reason": why}
    done = {**response, "status": status, "output": output, "usage": usage, "incomplete_details": reason}
    yield event(f"response.{status}", response=done)


def _gemini(reply: Reply, body: dict[str, Any]) -> Iterator[Event]:
    def part(content: list[dict[str, Any]], **more: Any) -> Event:
        usage = {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18}
        candidate = {"index": 0, "content": {"role": "model", "parts": content}, **more}
        return "", {"candidates": [candidate], "usageMetadata": usage, "modelVersion": body.get("model", "stub")}

    for piece in _pieces(reply):
        yield part([{"text": piece}])
    tool = _tool(reply)
    if reply.cut_at:
        raise _Cut
    call = [{"functionCall": {"name": tool[1], "args": json.loads(tool[2])}}] if tool else [{"text": ""}]
    yield part(call, finishReason=_GEMINI.get(reply.stop_reason, reply.stop_reason))


def _whole(events: list[Event], path: str) -> dict[str, Any]:
    """An answer that is not streamed, from the events of one that is."""
    said = [event for _, event in events]
    if path.endswith("/responses"):
        return dict(said[-1]["response"])
    if not path.endswith("/chat/completions"):
        parts = [part for event in said for part in event["candidates"][0]["content"]["parts"]]
        last = said[-1]["candidates"][0]
        return {**said[-1], "candidates": [{**last, "content": {"role": "model", "parts": parts}}]}
    deltas = [event["choices"][0] for event in said if event["choices"]]
    tools = [call for each in deltas for call in each["delta"].get("tool_calls", ())]
    message = {"role": "assistant", "content": "".join(each["delta"].get("content", "") for each in deltas)}
    choice = {"index": 0, "message": message | ({"tool_calls": tools} if tools else {})}
    choice["finish_reason"] = deltas[-1]["finish_reason"]
    return {**said[0], "object": "chat.completion", "choices": [choice], "usage": _USAGE}
