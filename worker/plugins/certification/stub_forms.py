"""The four model APIs of the fake model service."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, ClassVar

from worker.plugins.certification.stub_reply import StubReply
from worker.runners.observed_calls import Api

#: Call ids are unique, as with a real service.
_CALLS = itertools.count(1)
_Events = Iterator[tuple[str, dict[str, Any]]]


class _MessagesForm:
    ends: ClassVar[dict[str, str]] = {
        "stop": "end_turn",
        "limit": "max_tokens",
        "refusal": "refusal",
        "filter": "refusal",
        "odd": "never_heard_of",
    }

    def stream_events(self, model: str, reply: StubReply) -> _Events:
        message = {**self.build_answer(model, reply), "content": [], "stop_reason": None}
        yield "open", {"type": "message_start", "message": message}
        if reply.pieces:
            yield "open", _content_block_event(0, "start", content_block={"type": "text", "text": ""})
            for piece in reply.pieces:
                yield "piece", _content_block_event(0, "delta", delta={"type": "text_delta", "text": piece})
            yield "open", _content_block_event(0, "stop")
        if reply.tool:
            name, given = reply.tool
            block = {"type": "tool_use", "id": f"toolu_{next(_CALLS)}", "name": name, "input": {}}
            at = int(bool(reply.pieces))
            yield "open", _content_block_event(at, "start", content_block=block)
            for half in (given[: len(given) // 2], given[len(given) // 2 :]):
                yield (
                    "tool",
                    _content_block_event(at, "delta", delta={"type": "input_json_delta", "partial_json": half}),
                )
            yield "open", _content_block_event(at, "stop")
        if reply.end != "none":
            ended = "tool_use" if reply.tool else self.ends[reply.end]
            yield "end", {"type": "message_delta", "delta": {"stop_reason": ended}, "usage": {"output_tokens": 7}}
            yield "end", {"type": "message_stop"}

    def build_answer(self, model: str, reply: StubReply) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.pieces else []
        if reply.tool:
            given = parse_json(reply.tool[1])
            blocks.append({"type": "tool_use", "id": f"toolu_{next(_CALLS)}", "name": reply.tool[0], "input": given})
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": blocks,
            "stop_reason": "tool_use" if reply.tool else self.ends.get(reply.end),
            "usage": {"input_tokens": reply.tokens, "output_tokens": 7},
        }

    def build_error(self, kind: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": kind, "message": "the stub says so"}}


def _content_block_event(index: int, what: str, **more: Any) -> dict[str, Any]:
    return {"type": f"content_block_{what}", "index": index, **more}


def parse_json(given: str) -> Any:
    """Parse a JSON text. Return an empty object for invalid JSON."""
    try:
        return json.loads(given)
    except ValueError:
        return {}


class _ChatForm:
    ends: ClassVar[dict[str, str]] = {
        "stop": "stop",
        "limit": "length",
        "refusal": "content_filter",
        "filter": "content_filter",
        "odd": "never_heard_of",
    }

    def _build_chunk(self, model: str, delta: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
        choices = [{"index": 0, "delta": delta, "finish_reason": None} | more] if delta is not None else []
        return {"id": "chat_1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": choices}

    def stream_events(self, model: str, reply: StubReply) -> _Events:
        yield "open", self._build_chunk(model, {"role": "assistant", "content": ""})
        for piece in reply.pieces:
            yield "piece", self._build_chunk(model, {"content": piece})
        if reply.tool:
            name, given = reply.tool
            first = {
                "index": 0,
                "id": f"call_{next(_CALLS)}",
                "type": "function",
                "function": {"name": name, "arguments": ""},
            }
            yield "open", self._build_chunk(model, {"tool_calls": [first]})
            for half in (given[: len(given) // 2], given[len(given) // 2 :]):
                part = {"index": 0, "function": {"arguments": half}}
                yield "tool", self._build_chunk(model, {"tool_calls": [part]})
        if reply.end != "none":
            yield (
                "end",
                self._build_chunk(model, {}, finish_reason="tool_calls" if reply.tool else self.ends[reply.end]),
            )
            yield "end", self._build_chunk(model, None) | {"usage": self._count_tokens(reply)}
            yield "end", {}

    def _count_tokens(self, reply: StubReply) -> dict[str, int]:
        return {"prompt_tokens": reply.tokens, "completion_tokens": 7, "total_tokens": reply.tokens + 7}

    def build_answer(self, model: str, reply: StubReply) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.tool:
            function = {"name": reply.tool[0], "arguments": reply.tool[1]}
            message["tool_calls"] = [{"id": f"call_{next(_CALLS)}", "type": "function", "function": function}]
        ended = "tool_calls" if reply.tool else self.ends.get(reply.end)
        choice = {"index": 0, "message": message, "finish_reason": ended}
        return {"id": "chat_1", "object": "chat.completion", "created": 1, "model": model, "choices": [choice]} | {
            "usage": self._count_tokens(reply)
        }

    def build_error(self, kind: str) -> dict[str, Any]:
        return {"error": {"message": "the stub says so", "type": kind, "code": kind}}


class _ResponsesForm:
    details: ClassVar[dict[str, str]] = {"limit": "max_output_tokens", "filter": "content_filter"}

    def _build_items(self, reply: StubReply) -> list[dict[str, Any]]:
        part = {"type": "output_text", "text": reply.text, "annotations": []}
        if reply.end == "refusal":
            part = {"type": "refusal", "refusal": reply.text}
        message = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [part]}
        items: list[dict[str, Any]] = [message] if reply.text or not reply.tool else []
        if reply.tool:
            name, given = reply.tool
            namespace, _, own = name.rpartition("/")  # Codex: tools of an MCP server
            call = {
                "type": "function_call",
                "id": "fc_1",
                "call_id": f"call_{next(_CALLS)}",
                "name": own,
                "arguments": given,
                **({"namespace": namespace} if namespace else {}),
            }
            items.append({**call, "status": "completed"})
        return items

    def stream_events(self, model: str, reply: StubReply) -> _Events:
        for number, (place, event) in enumerate(self._unnumbered_events(model, reply)):
            yield place, {**event, "sequence_number": number}

    def _unnumbered_events(self, model: str, reply: StubReply) -> _Events:
        whole = self.build_answer(model, reply)
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

    def build_answer(self, model: str, reply: StubReply) -> dict[str, Any]:
        reason = self.details.get(reply.end)
        usage = {"input_tokens": reply.tokens, "output_tokens": 7, "total_tokens": reply.tokens + 7}
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "model": model,
            "status": "incomplete" if reason or reply.end == "odd" else "completed",
            "incomplete_details": {"reason": reason or "never_heard_of"} if reason or reply.end == "odd" else None,
            "error": None,
            "output": self._build_items(reply),
            "usage": usage | details,
        }

    def build_error(self, kind: str) -> dict[str, Any]:
        reason = {"code": kind, "type": kind, "message": "the stub says so"}
        failed = {"id": "resp_1", "object": "response", "created_at": 1, "status": "failed", "output": []}
        return {"type": "response.failed", "response": {**failed, "error": reason}, "error": reason}


class _GeminiForm:
    ends: ClassVar[dict[str, str]] = {
        "stop": "STOP",
        "limit": "MAX_TOKENS",
        "refusal": "PROHIBITED_CONTENT",
        "filter": "SAFETY",
        "odd": "NEVER_HEARD_OF",
    }

    def _build_chunk(
        self, model: str, reply: StubReply, *parts: dict[str, Any], end: str | None = None
    ) -> dict[str, Any]:
        candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": list(parts)}}
        ended = {"finishReason": end} if end else {}
        usage = {"promptTokenCount": reply.tokens, "candidatesTokenCount": 7, "totalTokenCount": reply.tokens + 7}
        return {"candidates": [candidate | ended], "usageMetadata": usage, "modelVersion": model}

    def _build_tool_call(self, reply: StubReply) -> list[dict[str, Any]]:
        name, given = reply.tool or ("", "")
        return [{"functionCall": {"name": name, "args": parse_json(given)}}] if reply.tool else []

    def stream_events(self, model: str, reply: StubReply) -> _Events:
        for piece in reply.pieces:
            yield "piece", self._build_chunk(model, reply, {"text": piece})
        for part in self._build_tool_call(reply):
            yield "tool", self._build_chunk(model, reply, part)
        if reply.end != "none":
            yield "end", self._build_chunk(model, reply, {"text": ""}, end=self.ends[reply.end])

    def build_answer(self, model: str, reply: StubReply) -> dict[str, Any]:
        return self._build_chunk(
            model, reply, {"text": reply.text}, *self._build_tool_call(reply), end=self.ends.get(reply.end)
        )

    def build_error(self, kind: str) -> dict[str, Any]:
        return {"error": {"code": 500, "message": "the stub says so", "status": kind.upper()}}


FORMS: dict[Api, _MessagesForm | _ChatForm | _ResponsesForm | _GeminiForm] = {
    "messages": _MessagesForm(),
    "chat": _ChatForm(),
    "responses": _ResponsesForm(),
    "gemini": _GeminiForm(),
}
