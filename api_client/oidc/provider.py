"""The OpenID Connect provider with which people sign in to the pages.

Keys are read at each sign-in, so that a provider may exchange them at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from api_client.contract.settings import Settings
from api_client.oidc.authorization_server import AuthorizationServer, extend_address
from api_client.oidc.id_token import verify_id_token
from api_client.oidc.person import SignedInPerson, read_person

CALLBACK_PATH = "/sign-in/callback"
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
        document = f"{settings.oidc_issuer.rstrip('/')}/.well-known/openid-configuration"
        self._server = AuthorizationServer(settings.oidc_issuer, "HELIX_OIDC_ISSUER", [document], _ENDPOINTS)

    async def discover(self) -> dict[str, Any]:
        """Return the provider's discovery document, which is cached for a few minutes."""
        return await self._server.discover()

    async def build_sign_in_address(self, pending: PendingSignIn) -> str:
        """Return the URL of the provider's sign-in page, with the parameters of this sign-in."""
        query = {
            "client_id": self._settings.oidc_client_id,
            "redirect_uri": self._pages + CALLBACK_PATH,
            "scope": " ".join(dict.fromkeys(("openid", *self._settings.oidc_scopes))),
            "state": pending.state,
            "nonce": pending.nonce,
        }
        return await self._server.build_address(query, pending.verifier)

    async def build_sign_out_address(self) -> str:
        """Return the URL for signing out at the provider, or our own sign-in page if the provider has no such URL."""
        query = {"client_id": self._settings.oidc_client_id, "post_logout_redirect_uri": f"{self._pages}/sign-in"}
        endpoint = (await self.discover()).get("end_session_endpoint")
        return extend_address(endpoint, query) if endpoint else "/sign-in"

    async def finish_sign_in(self, answer: Mapping[str, str], pending: PendingSignIn) -> SignedInPerson:
        """Exchange the provider's authorization code for an id token, and return the person that the token names.

        ``answer`` is the query of the provider's redirect to the relay, whose state has been checked.
        """
        code = await self._server.read_code(answer)
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": self._pages + CALLBACK_PATH}
        form["code_verifier"] = pending.verifier
        name, secret = self._settings.oidc_client_id, self._settings.oidc_client_secret
        tokens = await self._server.request_tokens(form, name, secret)
        keys = await self._server.send_request("GET", (await self.discover())["jwks_uri"])
        claims = verify_id_token(str(tokens.get("id_token", "")), keys, self._settings, pending.nonce)
        return read_person(claims, self._settings)
