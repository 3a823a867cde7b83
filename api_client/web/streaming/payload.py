"""The payload of one event of a streamed reply, before it is written as JSON."""

from __future__ import annotations

from typing import Any, TypeAlias

Payload: TypeAlias = dict[str, Any]
