"""The user that Open WebUI vouches for: a JSON Web Token, signed with a shared secret (HS256, RFC 7515 and 7519)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

#: How far two clocks may differ, in seconds.
LEEWAY = 30.0


def signed_user(token: str, secret: str, now: float) -> str:
    """The token's subject, or '' when it is not valid now. Only HS256 is accepted, whatever the token says."""
    head, _, rest = token.partition(".")
    body, _, signature = rest.partition(".")
    try:
        expected = hmac.new(secret.encode(), f"{head}.{body}".encode(), hashlib.sha256).digest()
        if not hmac.compare_digest(_decoded(signature), expected) or _object(head).get("alg") != "HS256":
            return ""
        claims = _object(body)
    except ValueError:
        return ""
    ends, user = claims.get("exp"), claims.get("sub")
    fresh = isinstance(ends, int | float) and not isinstance(ends, bool) and now < ends + LEEWAY
    return user if fresh and isinstance(user, str) else ""


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part.encode("ascii") + b"=" * (-len(part) % 4))


def _object(part: str) -> dict[str, Any]:
    found = json.loads(_decoded(part))
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found
