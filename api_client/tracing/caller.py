"""The caller's trace, as the header ``traceparent`` of W3C Trace Context tells it: the turn's span belongs below it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

#: Version 00 is this and no more; a later version may have more behind it.
_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]{0,200})?")
_SAMPLED = 1


class CallerSpan(NamedTuple):
    """The span of the caller in which the turn was asked for."""

    trace_id: int
    span_id: int


def caller_span(traceparent: str) -> CallerSpan | None:
    """The caller's span; None without one, and where the caller does not record it.

    A header outside the standard is not an error: the turn has its own trace then, as without it.
    """
    read = _HEADER.fullmatch(traceparent)
    if read is None:
        return None
    version, trace, span, flags, more = read.groups()
    found = CallerSpan(int(trace, 16), int(span, 16))
    fits = version != "ff" and not (version == "00" and more)
    return found if fits and all(found) and int(flags, 16) & _SAMPLED else None


def traceparent_of(given: Sequence[str]) -> str:
    """Return the one ``traceparent`` header of a request, if it names a span; else ''."""
    return given[0] if len(given) == 1 and caller_span(given[0]) else ""
