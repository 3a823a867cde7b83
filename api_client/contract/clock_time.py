"""Format points in time for people."""

from __future__ import annotations

from datetime import datetime, timedelta


def format_clock_time(at: float, now: float) -> str:
    """Format a time of day with its time zone, such as ``14:30 UTC``, and with the date unless it is near ``now``."""
    moment = datetime.fromtimestamp(at).astimezone()
    near = abs(at - now) < timedelta(hours=20).total_seconds()
    return f"{moment:%H:%M %Z}" if near else f"{moment:%Y-%m-%d %H:%M %Z}"
