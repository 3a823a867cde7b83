"""Talks to an OpenID Connect provider: its discovery document, its keys, and its token endpoint.

Keys are read at each sign-in, so that a provider may exchange them at any time.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from api_client.contract.settings import Settings
from api_client.contract.settings.oidc_settings import parse_secure_address
from api_client.oidc.id_token import verify_id_token
from api_client.oidc.person import SignedInPerson, SignInRefused, read_person

CALLBACK_PATH = "/sign-in/callback"
_ANSWER_SECONDS = 10.0
#: How long a discovery document is believed.
_KNOWN_SECONDS = 300.0
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


class PendingSignIn(NamedTuple):
    """The values that bind a sign-in to the browser that began it."""

    state: str
    nonce: str
    verifier: str


class OidcProvider:
    """A client of the OpenID Connect provider in the settings.

    Methods raise ``SignInRefused`` if the provider refuses, cannot be reached or sends an invalid response.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._pages = settings, settings.public_url.rstrip("/")
        self._known: tuple[float, dict[str, Any]] = (float("-inf"), {})

    async def discover(self) -> dict[str, Any]:
        """Return the provider's discovery document, which is cached for a few minutes."""
        at, document = self._known
        if time.monotonic() - at < _KNOWN_SECONDS:
            return document
        issuer = self._settings.oidc_issuer
        document = await self._request("GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if document.get("issuer") != issuer:
            said = f"it calls itself {str(document.get('issuer'))[:200]!r}, and HELIX_OIDC_ISSUER is {issuer!r}"
            raise SignInRefused(f"the provider is another one: {said}")
        for name in _ENDPOINTS:
            try:
                parse_secure_address(str(document.get(name, "")).partition("?")[0])
            except ValueError as error:
                raise SignInRefused(f"the provider's {name} {error}") from None
        if "S256" not in document.get("code_challenge_methods_supported", ["S256"]):
            raise SignInRefused("the provider has no PKCE with S256: allow it for the relay's client")
        self._known = time.monotonic(), document
        return document

    async def build_sign_in_address(self, pending: PendingSignIn) -> str:
        """Return the URL of the provider's sign-in page, with the parameters of this sign-in."""
        digest = hashlib.sha256(pending.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._settings.oidc_client_id,
            "redirect_uri": self._pages + CALLBACK_PATH,
            "scope": " ".join(dict.fromkeys(("openid", *self._settings.oidc_scopes))),
            "state": pending.state,
            "nonce": pending.nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        return _extend((await self.discover())["authorization_endpoint"], query)

    async def build_sign_out_address(self) -> str:
        """Return the URL for signing out at the provider, or our own sign-in page if the provider has no such URL."""
        query = {"client_id": self._settings.oidc_client_id, "post_logout_redirect_uri": f"{self._pages}/sign-in"}
        place = (await self.discover()).get("end_session_endpoint")
        return _extend(place, query) if place else "/sign-in"

    async def finish_sign_in(self, answer: Mapping[str, str], pending: PendingSignIn) -> SignedInPerson:
        """Exchange the provider's authorization code for an id token, and return the person that the token names.

        ``answer`` is the query of the provider's redirect to the relay, whose state has been checked.
        """
        document = await self.discover()
        sent = answer.get("iss", "" if document.get("authorization_response_iss_parameter_supported") else None)
        if sent not in {None, self._settings.oidc_issuer}:  # RFC 9207
            raise SignInRefused("the answer came from another provider")
        if "error" in answer or not answer.get("code"):
            raise SignInRefused(f"the provider did not sign you in: {answer.get('error', 'no code')[:60]!a}")
        tokens = await self._exchange_code(document, answer["code"], pending.verifier)
        keys = await self._request("GET", document["jwks_uri"])
        claims = verify_id_token(str(tokens.get("id_token", "")), keys, self._settings, pending.nonce)
        return read_person(claims, self._settings)

    async def _exchange_code(self, document: Mapping[str, Any], code: str, verifier: str) -> dict[str, Any]:
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": self._pages + CALLBACK_PATH}
        name, secret, basic = self._settings.oidc_client_id, self._settings.oidc_client_secret, None
        methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        if secret and "client_secret_basic" in methods:
            basic = quote(name, safe=""), quote(secret, safe="")  # RFC 6749, 2.3.1
        else:
            form |= {"client_id": name} | ({"client_secret": secret} if secret else {})
        form["code_verifier"] = verifier
        return await self._request("POST", document["token_endpoint"], data=form, auth=basic)

    async def _request(self, method: str, address: str, **more: Any) -> dict[str, Any]:
        """Send a request and return the JSON object in the response. Redirects are not followed."""
        import httpx2  # an extra, and few relays need it

        try:
            async with asyncio.timeout(_ANSWER_SECONDS), httpx2.AsyncClient(follow_redirects=False) as http:
                answer = await http.request(method, address, headers={"accept": "application/json"}, **more)
            data = answer.json()
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
            place = address.partition("?")[0]
            raise SignInRefused(f"the provider cannot be reached at {place}: {type(error).__name__}") from error
        except ValueError:
            data = None
        if answer.status_code != 200 or not isinstance(data, dict):
            why = str(data.get("error", ""))[:60] if isinstance(data, dict) else "without a JSON object"
            raise SignInRefused(f"the provider refused the relay's request: {answer.status_code} {why}".rstrip())
        return data


def _extend(address: str, query: Mapping[str, str]) -> str:
    return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}"
