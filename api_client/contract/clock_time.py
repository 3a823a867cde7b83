"""Moments as people read them."""

from __future__ import annotations

from datetime import datetime, timedelta


def clock_time(at: float, now: float) -> str:
    """A moment as people read it, with its zone: ``14:30 UTC``, on another day with its date."""
    moment = datetime.fromtimestamp(at).astimezone()
    near = abs(at - now) < timedelta(hours=20).total_seconds()
    return f"{moment:%H:%M %Z}" if near else f"{moment:%Y-%m-%d %H:%M %Z}"
