"""Time spans as people write them, such as 90s, 30m, 24h, 7d and 2w."""

from __future__ import annotations

import re

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_time_span(text: str) -> float:
    """Parse a time span such as ``90s`` or ``7d`` into seconds. Raises ``ValueError`` with examples."""
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smhdw])", text.strip())
    if not match or float(match[1]) == 0:
        raise ValueError(f"{text[:80]!r} is not a span of time: write 90s, 30m, 1h, 7d or 2w")
    return float(match[1]) * _UNITS[match[2]]
