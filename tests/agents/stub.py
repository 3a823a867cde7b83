"""The stub of model services that the kit has (all four APIs), with a script that tests may change as they go."""

import json
import re
from dataclasses import dataclass
from typing import Any

from worker.plugins.certification import stub_forms
from worker.plugins.certification.services import StubService
from worker.plugins.certification.stub_reply import StubReply

__all__ = ["Services", "StubReply", "calls", "fails", "says"]

#: How each message of ours begins (German), and how the result of a tool is said in each API.
_OURS = re.compile(r"Nachricht des Nutzers:|automatischen Pr")
_RESULT = re.compile(r'"role": "tool"|"functionResponse"|"function_call_output"|"tool_result"')


def says(*pieces: str, **more: Any) -> StubReply:
    """A plain answer."""
    return StubReply(pieces=pieces, **more)


def calls(name: str, **given: Any) -> StubReply:
    """A tool call and nothing else."""
    return StubReply(tool=(name, json.dumps(given)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Several(StubReply):
    """Several tool calls in one message; of OpenAI's Responses alone."""

    also: tuple[StubReply, ...] = ()


class _SeveralItems(stub_forms._ResponsesForm):
    def _build_items(self, reply: StubReply) -> list[dict[str, Any]]:
        items = super()._build_items(reply)
        for each in reply.also if isinstance(reply, Several) else ():
            items += [{**item, "id": f"fc_{len(items) + 2}"} for item in super()._build_items(each)]
        return items


stub_forms.FORMS["responses"] = _SeveralItems()


def at_once(first: StubReply, *others: StubReply) -> StubReply:
    """All their calls in one message."""
    return Several(tool=first.tool, also=others)


def fails(status: int, retry_after: str = "") -> StubReply:
    """An HTTP error."""
    return StubReply(status=status, retry_after=retry_after)


class Services(StubService):
    """As a context: ``url`` answers. One of ``replies`` for each model call; the last one answers every further call.

    ``tool``: what each call with tools gets that brings no result of a tool behind the user's last message.
    """

    def __init__(self, replies: list[StubReply]) -> None:
        super().__init__((), tools=False)
        self.replies = replies
        self.tool: StubReply | None = None

    def take(self, request: dict[str, Any]) -> StubReply:
        """Choose what the next model call gets."""
        if self.tool and request.get("tools") and not _with_result(request):
            return self.tool
        return self.replies[min(len(self.requests), len(self.replies)) - 1]


def said_in(request: dict[str, Any]) -> list[Any]:
    """The messages of a request, in the form of its API."""
    return list(request.get("contents") or request.get("messages") or request.get("input") or [])


def _with_result(request: dict[str, Any]) -> bool:
    """Return whether a tool's result is behind our last message. Agents put messages of theirs behind both."""
    said = said_in(request)
    ours = max((number for number, each in enumerate(said) if _OURS.search(json.dumps(each))), default=0)
    return any(_RESULT.search(json.dumps(each)) for each in said[ours + 1 :])
