"""The user that Open WebUI vouches for: a JSON Web Token, signed with a shared secret (HS256, RFC 7515 and 7519)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
from typing import Any

#: How far two clocks may differ, in seconds.
LEEWAY = 30.0
#: No time is later.
_LATEST = 1e12


def signed_user(token: str, secret: str, now: float) -> str:
    """The token's subject, or '' when it is not valid now. Only HS256 is accepted, whatever the token says."""
    head, _, rest = token.partition(".")
    body, _, signature = rest.partition(".")
    try:
        expected = hmac.new(secret.encode(), f"{head}.{body}".encode(), hashlib.sha256).digest()
        header = _object(head) if hmac.compare_digest(_decoded(signature), expected) else {}
        if header.get("alg") != "HS256" or "crit" in header:  # a critical extension that we do not know
            return ""
        claims = _object(body)
    except ValueError:
        return ""
    user = claims.get("sub")
    fresh = now < _moment(claims.get("exp"), 0.0) + LEEWAY and _moment(claims.get("nbf", 0), math.inf) - LEEWAY <= now
    return user if fresh and isinstance(user, str) else ""


def _moment(value: object, other: float) -> float:
    """A claim's time in seconds since the epoch; ``other`` for anything else."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LATEST else other


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part.encode("ascii") + b"=" * (-len(part) % 4))


def _object(part: str) -> dict[str, Any]:
    found = json.loads(_decoded(part))
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found
