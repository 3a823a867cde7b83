"""The limits of a turn, as a caller wants them or as the settings say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Fields of a request that limit its turn, and settings with their defaults.
TURN_LIMITS = ("max_attempts", "deadline_seconds", "token_limit", "cost_limit_usd")


def limit_turn(settings: object, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return all limits of a turn by name, each from the caller's ``wanted`` limits or else from the settings."""
    return {name: getattr(settings, name) if (value := wanted.get(name)) is None else value for name in TURN_LIMITS}
