"""The payload of one event in a streamed reply, before JSON encoding."""

from __future__ import annotations

from typing import Any, TypeAlias

Payload: TypeAlias = dict[str, Any]
