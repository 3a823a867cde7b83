"""The meaning of a service's HTTP errors. Standard library only: our small agents import it."""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime

#: Statuses of a service that has too much to do, or limits us.
BUSY = frozenset({429, 529})
_PASSING = frozenset({408, 409, 425, 429})


#: How services say that what was asked is too long for the model; each has its own words, and most no code.
TOO_LONG = re.compile(
    r"context_length_exceeded|context_window_exceeded|ContextWindowExceeded|exceed_context_size|string_above_max_length"
    r"|(?:prompt|input|request) (?:is|was) too (?:long|large)|maximum context length|context (?:window|size)"
    r"|(?:input|prompt) token count .{0,40}exceeds",
    re.IGNORECASE,
)


def fault_of(status: int, said: str) -> str:
    """What a service has against a request, by its words, as ``contract.completion.Fault``; empty for anything else.

    ``status`` is the HTTP status; 0 where no answer came.
    """
    if status in {401, 403}:
        return "auth"
    if status == 413 or (status != 429 and TOO_LONG.search(said)):
        return "context_length"
    if status == 429:
        return "limit"
    return "overloaded" if not status or status >= 500 else ""


def passes(status: int) -> bool:
    """Return whether an error with this status passes by itself; 0: no answer came."""
    return not status or status >= 500 or status in _PASSING


def seconds(retry_after: str) -> float:
    """The wait of a ``Retry-After`` header (RFC 9110, 10.2.3: seconds or a date); 0 for none, or one in the past."""
    text = retry_after.strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0
