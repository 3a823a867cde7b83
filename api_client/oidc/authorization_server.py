"""Talks to an authorization server: its metadata, the authorization code grant with PKCE, and its token endpoint."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from api_client.contract.settings.oidc_settings import parse_secure_address
from api_client.contract.settings.store_addresses import is_loopback
from api_client.oidc.person import SignInRefused

_ANSWER_SECONDS = 10.0
_MOST_BYTES = 2**20
#: How long metadata is believed.
_KNOWN_SECONDS = 300.0


class AuthorizationServer:
    """A client of an OAuth authorization server. Methods raise ``SignInRefused``, also for an invalid response."""

    def __init__(self, issuer: str, setting: str, documents: Sequence[str], endpoints: Sequence[str]) -> None:
        """Create a client, without connecting to the server.

        ``setting`` is the name of the issuer's setting, for error messages. ``documents`` are possible addresses of the
        server's metadata; the first one that exists counts. ``endpoints`` are the metadata keys that must be secure
        addresses.
        """
        self.issuer, self._setting, self._documents, self._endpoints = issuer, setting, documents, endpoints
        self._known: tuple[float, dict[str, Any]] = (float("-inf"), {})

    async def discover(self) -> dict[str, Any]:
        """Return the server's metadata, which is cached for a few minutes."""
        at, document = self._known
        if time.monotonic() - at < _KNOWN_SECONDS:
            return document
        document = await self._read_metadata()
        if document.get("issuer") != self.issuer:
            said = f"it calls itself {str(document.get('issuer'))[:200]!r}, and {self._setting} is {self.issuer!r}"
            raise SignInRefused(f"the provider is another one: {said}")
        for name in self._endpoints:
            self.check_endpoint(name, str(document.get(name, "")))
        if "S256" not in _read_list(document, "code_challenge_methods_supported", "S256"):
            raise SignInRefused("the provider has no PKCE with S256: allow it for the relay's client")
        self._known = time.monotonic(), document
        return document

    def check_endpoint(self, name: str, address: str) -> None:
        """Raise ``SignInRefused`` for an address that is not secure, or on this machine while the issuer is not."""
        try:
            parts = urlsplit(parse_secure_address(address.partition("?")[0]))
        except ValueError as error:
            raise SignInRefused(f"the provider's {name} {error}") from None
        if is_loopback(parts.hostname or "") and not is_loopback(urlsplit(self.issuer).hostname or ""):
            raise SignInRefused(f"the provider's {name} is on this machine, and the provider is not")

    async def _read_metadata(self) -> dict[str, Any]:
        *others, last = self._documents
        for address in others:
            try:
                return await self.send_request("GET", address)
            except SignInRefused as refused:
                if refused.status != 404:
                    raise
        return await self.send_request("GET", last)

    async def build_address(self, query: Mapping[str, str], verifier: str) -> str:
        """Return the URL at which a person grants access. The resulting code is valid only with ``verifier`` (PKCE)."""
        digest = hashlib.sha256(verifier.encode()).digest()
        proof = {
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        place = (await self.discover())["authorization_endpoint"]
        return extend_address(place, {"response_type": "code", **query, **proof})

    async def read_code(self, answer: Mapping[str, str]) -> str:
        """Return the authorization code from the query of the server's redirect, whose ``state`` has been checked."""
        document = await self.discover()
        sent = answer.get("iss", "" if document.get("authorization_response_iss_parameter_supported") else None)
        if sent not in {None, self.issuer}:  # RFC 9207
            raise SignInRefused("the answer came from another provider")
        if "error" in answer or not answer.get("code"):
            raise SignInRefused(f"the provider did not sign you in: {answer.get('error', 'no code')[:60]!a}")
        return answer["code"]

    async def request_tokens(self, form: Mapping[str, str], client_id: str, secret: str) -> dict[str, Any]:
        """Request tokens as this client, and return the server's response. Public clients have no secret."""
        document, basic = await self.discover(), None
        form = {**form, "client_id": client_id}  # also with Basic: the MCP SDK's servers look for it
        methods = _read_list(document, "token_endpoint_auth_methods_supported", "client_secret_basic")
        if secret and "client_secret_basic" in methods:
            basic = quote(client_id, safe=""), quote(secret, safe="")  # RFC 6749, 2.3.1
        elif secret:
            form["client_secret"] = secret
        return await self.send_request("POST", document["token_endpoint"], data=form, auth=basic)

    async def send_request(self, method: str, address: str, **more: Any) -> dict[str, Any]:
        """Send a request and return the JSON object of its answer, without its nulls. Follows no redirect."""
        import httpx2  # an extra, and few relays need it

        more, body = {"headers": {"accept": "application/json"}, **more}, bytearray()
        try:
            async with (
                asyncio.timeout(_ANSWER_SECONDS),
                httpx2.AsyncClient(follow_redirects=False) as http,
                http.stream(method, address, **more) as answer,
            ):
                async for part in answer.aiter_bytes():
                    body += part
                    if len(body) > _MOST_BYTES:
                        raise SignInRefused(f"the provider's answer is longer than {_MOST_BYTES} bytes")
            data = json.loads(body)
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
            place = address.partition("?")[0]
            raise SignInRefused(f"the provider cannot be reached at {place}: {type(error).__name__}") from error
        except (ValueError, RecursionError):
            data = None
        if answer.status_code not in {200, 201} or not isinstance(data, dict):
            oauth_error = str(data.get("error", ""))[:60] if isinstance(data, dict) else ""
            why = oauth_error if isinstance(data, dict) else "without a JSON object"
            said = f"the provider refused the relay's request: {answer.status_code} {why}".rstrip()
            raise SignInRefused(said, oauth_error=oauth_error, status=answer.status_code)
        return {name: value for name, value in data.items() if value is not None}


def _read_list(document: Mapping[str, Any], name: str, default: str) -> list[Any]:
    found = document.get(name, [default])
    if not isinstance(found, list):
        raise SignInRefused(f"the provider's {name} is no list")
    return found


def extend_address(address: str, query: Mapping[str, str]) -> str:
    """Return an address with further query parameters."""
    return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}"
