"""A stand-in for an OpenID Connect provider: real HTTP on loopback, whose tokens a test can spoil."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.http_service import Asked, HttpService, Reply

Claims = dict[str, Any]
_FIRST_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class StandInProvider(HttpService):
    """Signs in whoever comes, as ``claims`` says. Codes work once, with their PKCE verifier, as at a real provider.

    ``sign`` makes the id token of the claims; a test replaces it to spoil tokens.
    """

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.key = _FIRST_KEY
        self.key_id = "k1"
        self.published: list[Any] = [self.public_key()]
        self.claims: Claims = {"sub": "ada", "groups": ["admins"]}
        self.document: Claims = {}
        self.sign: Callable[[Claims], str] = self.sign_claims
        self.codes: dict[str, Mapping[str, str]] = {}
        self.down = False

    def public_key(self) -> dict[str, Any]:
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        return {**public, "kid": self.key_id, "use": "sig"}

    def rotate_key(self) -> None:
        """Sign with a new key from now on, and publish it alone."""
        self.key, self.key_id = rsa.generate_private_key(public_exponent=65537, key_size=2048), f"{self.key_id}x"
        self.published = [self.public_key()]

    def sign_claims(self, claims: Claims) -> str:
        return jwt.encode(claims, self.key, "RS256", headers={"kid": self.key_id})

    def sign_in(self, address: str) -> dict[str, str]:
        """Return the query that the provider sends a browser back with, which it sent to ``address``."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked
        return {"code": code, "state": asked["state"], "iss": self.url}

    def _answer(self, asked: Asked) -> Reply:
        if self.down:
            return Reply(503, b"down")
        match urlsplit(asked.path).path:
            case "/.well-known/openid-configuration":
                return _reply(self._describe())
            case "/keys":
                return _reply({"keys": self.published})
            case "/token":
                return self._give_token({name: each[0] for name, each in parse_qs(asked.body.decode()).items()})
        return Reply(404)

    def _describe(self) -> Claims:
        paths = {"authorization_endpoint": "auth", "token_endpoint": "token", "jwks_uri": "keys"}
        places = {name: f"{self.url}/{path}" for name, path in paths.items()}
        more = {"end_session_endpoint": f"{self.url}/end", "authorization_response_iss_parameter_supported": True}
        return {"issuer": self.url, **places, **more, **self.document}

    def _give_token(self, form: Mapping[str, str]) -> Reply:
        asked = self.codes.get(form["code"], {})
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != asked.get("code_challenge"):
            return _reply({"error": "invalid_grant"}, 400)
        self.codes[form["code"]] = {}
        now = int(time.time())
        claims = {"iss": self.url, "aud": asked["client_id"], "nonce": asked["nonce"], "iat": now, "exp": now + 300}
        return _reply({"access_token": "a", "token_type": "Bearer", "id_token": self.sign({**claims, **self.claims})})


def sign_with_curve(provider: StandInProvider, claims: Claims) -> str:
    """Sign with a key of another type, and publish it beside one that a reader must skip."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())), "kid": "curve"}
    provider.published = [provider.public_key(), {"kty": "oct", "k": "c2VjcmV0"}, "no key", public]
    return jwt.encode(claims, key, "ES256", headers={"kid": "curve"})


def _reply(data: Claims, status: int = 200) -> Reply:
    return Reply(status, json.dumps(data).encode(), {"content-type": "application/json"})
