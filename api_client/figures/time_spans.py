"""Time spans as people write them, such as 90s, 30m, 24h, 7d and 2w."""

from __future__ import annotations

import re

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
#: Longest span, in days: it lies between the first day of the store's clock (1970) and today.
_MAX_DAYS = 3_650


def parse_time_span(text: str) -> float:
    """Parse a time span such as ``90s`` or ``7d`` into seconds. Raises ``ValueError`` with examples."""
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smhdw])", text.strip())
    if not match or float(match[1]) == 0:
        raise ValueError(f"{text[:80]!r} is not a span of time: write 90s, 30m, 1h, 7d or 2w")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > _MAX_DAYS * _UNITS["d"]:
        raise ValueError(f"{text[:80]!r} is too long a span of time: at most {_MAX_DAYS}d")
    return seconds
