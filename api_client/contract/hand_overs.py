"""A planned hand-over of a turn beside a worker that died: words for operators."""

from __future__ import annotations

#: Why an attempt was handed over, by ``during`` of its ``attempt.lost``.
_BECAUSE = {
    "shutdown": "its worker was stopped",
    "host": "its machine could not work",
    "files": "the object store with its session's files did not answer",
    "set_up": "its worker is not set up for it",
    "fenced": "its worker was not heard in time",
    "guard died": "the guard of its agent died",
    "killed": "its agent was killed from outside, such as by the kernel for want of memory",
}


def is_hand_over(during: str) -> bool:
    """Return whether an ``attempt.lost`` is a hand-over, by its ``during``; else its worker died or froze."""
    return during not in {"running", "validating", ""}


def handed_over(during: str) -> str:
    """Return what is shown of a hand-over, such as ``handed over: its worker was stopped``."""
    return f"handed over: {_BECAUSE.get(during, 'its worker gave it back')}"
