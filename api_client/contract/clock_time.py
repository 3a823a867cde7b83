"""Format points in time and durations for people."""

from __future__ import annotations

from datetime import datetime, timedelta


def format_clock_time(at: float, now: float) -> str:
    """Format a time of day with its time zone, such as ``14:30 UTC``, and with the date unless it is near ``now``."""
    moment = datetime.fromtimestamp(at).astimezone()
    near = abs(at - now) < timedelta(hours=20).total_seconds()
    return f"{moment:%H:%M %Z}" if near else f"{moment:%Y-%m-%d %H:%M %Z}"


def format_duration(seconds: float) -> str:
    """Format a duration, such as 0.34 s, 12 s, 3 min 20 s or 2 h 5 min. A negative one counts as 0."""
    if seconds < 10:
        return f"{max(0.0, seconds):.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    for size, unit, part, part_unit in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = int(seconds % size // part)
            return f"{int(seconds // size)} {unit}" + (f" {rest} {part_unit}" if rest else "")
    return f"{seconds:.0f} s"
