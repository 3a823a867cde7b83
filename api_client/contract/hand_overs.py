"""Planned hand-overs of a turn to another worker, with their explanations for operators."""

from __future__ import annotations

#: ``during`` of an ``attempt.lost`` event -> reason of the hand-over.
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
    """Return True if the stored reason ``during`` says that a worker gave an attempt back instead of dying."""
    return during not in {"running", "validating", ""}


def describe_hand_over(during: str) -> str:
    """Describe a hand-over with the stored reason ``during``, such as ``handed over: its worker was stopped``."""
    return f"handed over: {_BECAUSE.get(during, 'its worker gave it back')}"
