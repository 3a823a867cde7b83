"""A fake model service's reply to one model call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from worker.plugins.certification.tool_server import TOOL

#: The last words of every whole answer; a text without them is not whole.
LAST_WORDS = "These are the last words of the whole answer."
QUESTION = "Please answer this question: who is certified here?"
#: The text of a call that fails while others continue, and a sub-agent's question.
PART, SUB_QUESTION = (
    "The first chapter begins in the old town and goes on until it",
    "Count the books in the old library.",
)

#: The reply to an agent that summarises its context, which is no part of the answer.
SUMMARY = "Goal: find out who is certified here. Done so far: nothing was found."

#: What an agent must do for a situation to apply.
Need = Literal["later call", "parallel call", "sub-agent", "compaction", "server tool"]
End = Literal["stop", "limit", "refusal", "filter", "odd", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StubReply:
    """A scripted reply of the fake model service to one call.

    Attributes:
        end: reported end; ``none``: the stream ends normally but without a reason.
        tool: tool call after the text: name, and arguments as sent.
        status, retry_after: HTTP error instead of an answer.
        cut: where the connection breaks: before the answer, after the first piece, in the tool call, before the end.
        hangs: where the stream hangs: before the answer, or after the first piece.
        fails: an error event follows the first piece. dies: the service stops after the cut.
        if_tools: only calls with tools get this reply; others get the next one.
        helper: reply for the sub-agent that this reply starts; skipped if no sub-agent tool is offered.
        uses_server: True if the reply calls the tool of the run's MCP server; skipped if that tool is not offered.
        waits: True if the reply waits for another call.
        tokens: input tokens that the service reports; many make an agent summarise its context.
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
    uses_server: bool = False
    waits: bool = False
    tokens: int = 11

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def adapt_to(self, request: dict[str, Any]) -> StubReply | None:
        """Return the reply adapted to a request, or None if the reply does not suit the request."""
        if self.helper:
            called = _build_sub_agent_call(request)
            return replace(self, tool=called) if called else None
        if self.uses_server:
            named = [name for name, _ in _list_tools(request) if TOOL in name]
            return replace(self, tool=(named[0], "{}")) if named else None
        return None if self.if_tools and not request.get("tools") else self


def _build_sub_agent_call(request: dict[str, Any]) -> tuple[str, str] | None:
    for name, tool in _list_tools(request):
        schemas = (tool.get(name) or {} for name in ("input_schema", "parameters", "parametersJsonSchema"))
        takes = {name for schema in schemas for name in schema.get("properties") or ()}
        if name.lower() in {"agent", "task"} and "prompt" in takes:
            kind = next((kind for kind in ("general-purpose", "coder") if kind in str(tool)), "general")
            given: dict[str, Any] = {"prompt": SUB_QUESTION, "description": "Count books", "subagent_type": kind}
            given["run_in_background"] = False
            return name, json.dumps({name: value for name, value in given.items() if name in takes})
    return None


def _list_tools(request: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for found in request.get("tools") or ():
        space = f"{found['name']}/" if "tools" in found else ""  # Codex: tools of an MCP server
        for each in found.get("functionDeclarations") or found.get("tools") or [found]:
            tool = each.get("function") or each
            yield f"{space}{tool.get('name')}", tool
