"""The objects of OpenAI's chat completions, and those they share with responses, as far as the relay sends them."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from api_client.web.streaming.token_usage import ChatUsage

COMPLETION_PREFIX = "chatcmpl-"
OWNED_BY = "helix-turns"

FinishReason = Literal["stop", "content_filter"]


class Delta(TypedDict, total=False):
    """The addition of a chunk to the message."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str
    refusal: str


class ChunkChoice(TypedDict):
    """The one choice of a chunk."""

    index: int
    delta: Delta
    finish_reason: FinishReason | None


class Chunk(TypedDict):
    """One piece of a streamed completion; ``event`` is read by Open WebUI and ignored by everybody else."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    event: NotRequired[dict[str, Any]]
    usage: NotRequired[ChatUsage]


class Message(TypedDict):
    """The answer."""

    role: Literal["assistant"]
    content: str | None
    refusal: NotRequired[str]


class Choice(TypedDict):
    """The one choice of a completion."""

    index: int
    message: Message
    finish_reason: FinishReason


class ChatCompletion(TypedDict):
    """A whole completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: ChatUsage


class Model(TypedDict):
    """A model offered. ``info`` is for Open WebUI: no built-in tools, which nobody would call; who reads images."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    info: dict[str, Any]


def model_object(model: str, *, vision: bool) -> Model:
    """One entry of ``/v1/models``; ``vision``: it reads images."""
    info = {"meta": {"capabilities": {"builtin_tools": False, "vision": vision, "usage": True}}}
    return {"id": model, "object": "model", "created": 0, "owned_by": OWNED_BY, "info": info}


def text_part(text: str) -> dict[str, Any]:
    """A text as a part of a message."""
    return {"type": "output_text", "text": text, "annotations": []}


def message_item(turn_id: str, status: str, *parts: dict[str, Any]) -> dict[str, Any]:
    """The turn's answer as an output item."""
    return {"type": "message", "id": f"msg_{turn_id}", "role": "assistant", "status": status, "content": list(parts)}
