"""MCP servers to which each person signs in with an account: blocks ``[tools.NAME]`` with ``oauth.sign_in``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from api_client.contract.interruption import Answerer
from api_client.contract.settings import Settings
from api_client.oidc.authorization_server import AuthorizationServer

_ENDPOINTS = ("authorization_endpoint", "token_endpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInServer:
    """An MCP server that agents use with the accounts of people, who sign in to it.

    Attributes:
        url: the server's address, for which tokens are requested (RFC 8707).
        credentials: name under which the tokens and the client's secret, if any, are stored.
        issuer: the authorization server.
        client_id: id of our client at the issuer; empty to register a client at each sign-in (RFC 7591).
        who: an ``Answerer``: only people signed in to our pages may sign in, or also whoever has the chat's link.
    """

    name: str
    url: str
    credentials: str
    issuer: str
    client_id: str = ""
    scopes: tuple[str, ...] = ()
    who: str = Answerer.SIGNED_IN.value

    @classmethod
    def from_block(cls, name: str, block: Mapping[str, Any]) -> SignInServer | None:
        """Create a server from its block of the settings file, or return None if the server needs no sign-in."""
        oauth = block.get("oauth") or {}
        if not oauth.get("sign_in"):
            return None
        return cls(
            name=name,
            url=block["url"],
            credentials=block.get("credentials") or name,
            issuer=oauth["issuer"],
            client_id=oauth.get("client_id", ""),
            scopes=tuple(oauth.get("scopes", ())),
            who=oauth.get("who", Answerer.SIGNED_IN.value),
        )

    @property
    def issuer_host(self) -> str:
        """Return the host name of the page on which people sign in."""
        return urlsplit(self.issuer).netloc

    def open_issuer(self) -> AuthorizationServer:
        """Return the client of the server's issuer, which remembers the issuer's metadata."""
        return _open_issuer(self.issuer, self.name)


@functools.lru_cache(maxsize=256)
def _open_issuer(issuer: str, name: str) -> AuthorizationServer:
    parts = urlsplit(issuer)
    path = parts.path.rstrip("/")
    documents = [  # RFC 8414, section 3.1, and OpenID Connect Discovery
        f"{parts.scheme}://{parts.netloc}/.well-known/oauth-authorization-server{path}",
        f"{issuer.rstrip('/')}/.well-known/openid-configuration",
    ]
    return AuthorizationServer(issuer, f"[tools.{name}] issuer", documents, _ENDPOINTS)


def find_sign_in_server(settings: Settings, name: str) -> SignInServer | None:
    """Return the MCP server with this name, or None if it does not exist or needs no sign-in."""
    block = settings.tools_settings.get(name)
    return SignInServer.from_block(name, block) if block else None
