"""Splits a conversation into a turn's own message and the messages before it, which the store keeps once a session.

The digest of a message covers all messages up to it, so an edited message begins a branch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from api_client.contract.turn import Turn, TurnRequest

#: Shorter histories (in characters) stay in the request, which costs fewer commands.
SHORT_HISTORY = 2000
#: The script that reads the messages up to a digest; a list, or nothing if one is missing.
READ_HISTORY = Path(__file__).with_name("lua") / "read_history.lua"
_DIGEST = 32


def split_history(request: TurnRequest) -> tuple[TurnRequest, list[str]]:
    """Split a long history off a request. Return both, the history as digest and value of each message, newest first.

    The history is empty if it stays in the request.
    """
    earlier = request.messages[:-1]
    if sum(len(message["content"]) for message in earlier) <= SHORT_HISTORY:
        return request, []
    before, stored = "0" * _DIGEST, list[tuple[str, str]]()
    for message in earlier:
        value = before + json.dumps(message, ensure_ascii=False)
        before = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
        stored.append((before, value))
    words = [word for pair in reversed(stored) for word in pair]
    return replace(request, messages=request.messages[-1:]), words


def join_history(turn: Turn, messages: Sequence[bytes] | None) -> Turn:
    """Return a turn with the earlier messages that the store keeps separately.

    Raises ``ValueError`` if the store has lost some of them.
    """
    if messages is None:
        raise ValueError(f"{turn.turn_id}: earlier messages of the conversation are missing")
    earlier = tuple(json.loads(text) for text in messages)
    return replace(turn, request=replace(turn.request, messages=(*earlier, *turn.request.messages)))
