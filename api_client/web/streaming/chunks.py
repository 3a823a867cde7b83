"""The objects of OpenAI's chat completions, and those they share with responses, as far as the relay sends them.

The objects of OpenAI's chat completions, and those they share with responses, as far as the relay sends them; the
client of OpenAI's own types reads them all (tests/unit/web/test_reply.py).
"""

from __future__ import annotations

from typing import Any

from api_client.web.streaming.payload import Payload

COMPLETION_PREFIX = "chatcmpl-"
OWNED_BY = "helix-turns"


def model_object(model: str, *, vision: bool) -> Payload:
    """One entry of ``/v1/models``; ``vision``: it reads images. To Open WebUI: no built-in tools, nobody calls them."""
    info = {"meta": {"capabilities": {"builtin_tools": False, "vision": vision, "usage": True}}}
    return {"id": model, "object": "model", "created": 0, "owned_by": OWNED_BY, "info": info}


def text_part(text: str) -> dict[str, Any]:
    """A text as a part of a message."""
    return {"type": "output_text", "text": text, "annotations": []}


def message_item(turn_id: str, status: str, *parts: dict[str, Any]) -> dict[str, Any]:
    """The turn's answer as an output item."""
    return {"type": "message", "id": f"msg_{turn_id}", "role": "assistant", "status": status, "content": list(parts)}
