"""What a stub service answers to one model call."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Literal

#: The end of every whole answer: a text without it is not whole.
LAST_WORDS = "These are the last words of the whole answer."
QUESTION = "Please answer this question: who is certified here?"
#: The text of a call that ends badly while others go on, and the question of a sub-agent.
PART, SUB_QUESTION = (
    "The first chapter begins in the old town and goes on until it",
    "Count the books in the old library.",
)

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
