"""Verifies the user that Open WebUI signs in a JSON Web Token with a shared secret (HS256, RFC 7515 and 7519)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jwt.types import Options

LEEWAY = 30.0
_MAX_TIME = 1e12
_OPTIONS: Options = {"require": ["exp", "sub"], "verify_aud": False, "verify_iat": False}


def verify_user_token(token: str, secret: str) -> str:
    """Return the user named in a signed token, or an empty string if the token is not valid now."""
    import jwt  # 35 ms with cryptography, and few relays need it

    try:
        claims = jwt.decode(token, secret, algorithms=["HS256"], leeway=LEEWAY, options=_OPTIONS)
    except jwt.InvalidTokenError:
        return ""
    return str(claims["sub"]) if all(_is_valid_time(claims.get(name, 0)) for name in ("exp", "nbf")) else ""


def _is_valid_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_TIME
