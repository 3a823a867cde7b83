"""Verifies id tokens (OpenID Connect Core 1.0, 3.1.3.7) with PyJWT."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

from api_client.contract.settings import Settings
from api_client.oidc.person import MAX_CHARS, SignInRefused

if TYPE_CHECKING:
    from jwt import PyJWK
    from jwt.types import Options

#: How far the provider's clock may differ, in seconds.
LEEWAY_SECONDS = 60
#: Signatures with public keys alone: a client secret signs nothing, and "none" is no signature.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_OPTIONS: Options = {"require": ["iss", "sub", "aud", "exp", "iat"]}


def verify_id_token(token: str, key_set: Any, settings: Settings, nonce: str) -> dict[str, Any]:
    """Verify that the provider issued an id token to this client for this sign-in, and return the token's claims.

    ``key_set`` is the provider's JSON Web Key Set. Raises ``SignInRefused``.
    """
    import jwt

    client = settings.oidc_client_id
    more: Any = {"audience": client, "issuer": settings.oidc_issuer, "leeway": LEEWAY_SECONDS, "options": _OPTIONS}
    try:
        key = _find_key(key_set, jwt.get_unverified_header(token))
        claims: dict[str, Any] = jwt.decode(token, key, algorithms=ALGORITHMS, **more)
    except jwt.PyJWTError as error:
        raise SignInRefused(f"the provider's id token is not valid: {error}") from error
    if not hmac.compare_digest(str(claims.get("nonce", "")).encode(errors="replace"), nonce.encode()):
        raise SignInRefused("the provider's id token belongs to another sign-in")
    if claims.get("azp", client if claims["aud"] in (client, [client]) else "") != client:
        raise SignInRefused("the provider's id token was issued to another client")
    if not 0 < len(claims["sub"]) <= MAX_CHARS:
        raise SignInRefused("the provider's id token names no person")
    return claims


def _find_key(key_set: Any, header: dict[str, Any]) -> PyJWK:
    """Return the public key that a token's header names. If the header names none, return the set's only key."""
    import jwt

    listed = key_set.get("keys") if isinstance(key_set, dict) else None
    public = [each for each in listed or () if isinstance(each, dict) and each.get("kty") != "oct"]
    fitting = [each for each in public if each.get("use") != "enc" and each.get("kid") == header.get("kid")]
    if len(found := fitting or ([] if "kid" in header else public)) != 1 or header.get("alg") not in ALGORITHMS:
        raise jwt.InvalidKeyError("no public key of the provider's fits it")
    return jwt.PyJWK(found[0], header["alg"])
