"""The objects of OpenAI's chat completions that the relay sends, and those shared with the Responses API."""

from __future__ import annotations

from typing import Any

from api_client.web.streaming.payload import Payload

COMPLETION_PREFIX = "chatcmpl-"
OWNED_BY = "helix-turns"


def model_object(model: str, *, vision: bool) -> Payload:
    """Build a model's entry in OpenAI's list of models. ``vision`` says that the model reads images."""
    info = {"meta": {"capabilities": {"builtin_tools": False, "vision": vision, "usage": True}}}
    return {"id": model, "object": "model", "created": 0, "owned_by": OWNED_BY, "info": info}


def text_part(text: str) -> dict[str, Any]:
    """Build the content part of a Responses API message for a text."""
    return {"type": "output_text", "text": text, "annotations": []}


def message_item(turn_id: str, status: str, *parts: dict[str, Any]) -> dict[str, Any]:
    """Build the Responses API message that holds a turn's answer."""
    return {"type": "message", "id": f"msg_{turn_id}", "role": "assistant", "status": status, "content": list(parts)}
