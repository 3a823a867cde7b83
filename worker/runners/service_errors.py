"""The meaning of a service's HTTP errors. Standard library only: our small agents import it."""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime

#: Statuses of a service that has too much to do, or limits us.
BUSY = frozenset({429, 529})
_PASSING = frozenset({408, 409, 425, 429})


def passes(status: int) -> bool:
    """Return whether an error with this status passes by itself."""
    return status >= 500 or status in _PASSING


def seconds(retry_after: str) -> float:
    """The wait of a ``Retry-After`` header (RFC 9110, 10.2.3: seconds or a date); 0 for none, or one in the past."""
    text = retry_after.strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0
