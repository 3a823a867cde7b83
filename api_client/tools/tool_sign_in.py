"""Sign-in to MCP servers with OAuth: an authorization code with PKCE is exchanged for tokens, which are stored."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from api_client.contract.keys import KeyNames, named_keys
from api_client.contract.settings.oidc_settings import parse_secure_address
from api_client.oidc.authorization_server import AuthorizationServer
from api_client.oidc.person import SignInRefused
from api_client.secrets.cipher import SecretCipher
from api_client.store import Store
from api_client.tools.sign_in_server import SignInServer, find_sign_in_server
from api_client.tools.tool_grants import ToolGrant, ToolGrants, read_tokens

#: How long a person may take at the issuer, in seconds.
PENDING_SECONDS = 600
_MOST_CLIENT_CHARS = 4_096


class ToolSignInKeys(KeyNames):
    """Names the Redis keys of unfinished sign-ins."""

    #: String: the sign-in that the holder of a cookie began, encrypted; expires.
    pending = named_keys("tool_sign_in:", hashed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingToolSignIn:
    """An unfinished sign-in of an owner to an MCP server.

    Attributes:
        owner: owner of the turns that will use the tokens; empty for all owners.
        issuer, resource: the server's issuer and address when the sign-in began.
        turn_id, suspended_ms: the turn that waits for the sign-in, and when it began to wait.
        by: name of the person who began the sign-in.
        with_link: the person used the link in a chat, and may not see the turn's page.
    """

    server: str
    owner: str
    issuer: str
    resource: str
    redirect_uri: str
    client_id: str
    client_secret: str = field(default="", repr=False)
    verifier: str = field(repr=False)
    turn_id: str = ""
    suspended_ms: int = 0
    by: str = ""
    with_link: bool = False


def derive_state(cookie: str) -> str:
    """Derive the OAuth parameter ``state`` from a cookie's value, which cannot be computed from the state."""
    return hmac.new(cookie.encode("utf-8", "replace"), b"helix-tool-sign-in", hashlib.sha256).hexdigest()


class ToolSignIn:
    """Signs people in to MCP servers.

    Methods raise ``SignInRefused`` with a message for the person, ``StoreUnavailable``, or ``SettingsError`` if there
    is no file of encryption keys.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._grants = store, ToolGrants(store)
        self._settings, self._keys = store.settings, ToolSignInKeys(store.namespace)

    async def begin_sign_in(self, server: SignInServer, owner: str, redirect_uri: str, **more: Any) -> tuple[str, str]:
        """Start a sign-in. Return the URL of the issuer's page, and the cookie to set in the person's browser.

        ``more`` has further fields of ``PendingToolSignIn``.
        """
        try:
            parse_secure_address(redirect_uri)
        except ValueError as error:
            raise SignInRefused(f"people return to HELIX_PUBLIC_URL, which {error}: ask an operator") from None
        cookie = secrets.token_urlsafe(32)
        address, pending = await self.prepare_sign_in(server, owner, redirect_uri, derive_state(cookie), **more)
        key = self._keys.pending(cookie)
        sealed = (await self._load_cipher()).encrypt(key, asdict(pending))
        await self._store.send_command("SET", key, sealed, "EX", PENDING_SECONDS)
        return address, cookie

    async def prepare_sign_in(
        self, server: SignInServer, owner: str, redirect_uri: str, state: str, **more: Any
    ) -> tuple[str, PendingToolSignIn]:
        """Return the URL of the issuer's sign-in page, and the new sign-in, which the caller must keep.

        The issuer redirects the browser to ``redirect_uri`` with ``state``. ``more`` has further fields of the sign-in.
        """
        await self._load_cipher()  # before the person has signed in for nothing
        issuer = server.open_issuer()
        client_id, client_secret = await self._find_client(server, issuer, owner, redirect_uri)
        pending = PendingToolSignIn(
            server=server.name,
            owner=owner,
            issuer=server.issuer,
            resource=server.url,
            redirect_uri=redirect_uri,
            client_id=client_id,
            client_secret=client_secret,
            verifier=secrets.token_urlsafe(48),
            **more,
        )
        query = {
            "client_id": client_id,
            "redirect_uri": redirect_uri,
            "state": state,
            "resource": server.url,  # RFC 8707
            **({"scope": " ".join(server.scopes)} if server.scopes else {}),
        }
        return await issuer.build_address(query, pending.verifier), pending

    async def finish_sign_in(self, name: str, cookie: str, answer: Mapping[str, str]) -> PendingToolSignIn:
        """Exchange the code from the issuer's redirect for tokens, store the tokens, and return the finished sign-in.

        ``name`` is the server in the redirect's path, ``answer`` the redirect's query, and ``cookie`` the browser's
        cookie. Each sign-in can be finished once, and only at its own server's path, so that no issuer gets the code of
        another issuer.
        """
        state = answer.get("state", "")
        if not cookie or not hmac.compare_digest(derive_state(cookie).encode(), state.encode("utf-8", "replace")):
            raise SignInRefused("this browser has not begun this sign-in: begin it in the chat or on the turn's page")
        key = self._keys.pending(cookie)
        if (sealed := await self._store.send_command("GETDEL", key)) is None:
            raise SignInRefused("this sign-in has been finished before, or took more than ten minutes: begin again")
        pending = PendingToolSignIn(**(await self._load_cipher()).decrypt(key, sealed))
        if name != pending.server:
            raise SignInRefused("the answer came from the provider of another server")
        server = find_sign_in_server(self._settings, name)
        if server is None or (server.issuer, server.url) != (pending.issuer, pending.resource):
            raise SignInRefused("the settings of this server have changed: begin again")
        await self.store_grant(server, pending, answer)
        return pending

    async def store_grant(self, server: SignInServer, pending: PendingToolSignIn, answer: Mapping[str, str]) -> None:
        """Exchange the code in a redirect's query, whose ``state`` has been checked, for tokens, and store them."""
        issuer = server.open_issuer()
        form = {
            "grant_type": "authorization_code",
            "code": await issuer.read_code(answer),
            "redirect_uri": pending.redirect_uri,
            "code_verifier": pending.verifier,
            "resource": pending.resource,
        }
        tokens = await issuer.request_tokens(form, pending.client_id, pending.client_secret)
        empty = ToolGrant(
            access_token="",
            client_id=pending.client_id,
            client_secret=pending.client_secret,
            issuer=pending.issuer,
            resource=pending.resource,
            sign_in=secrets.token_hex(8),
        )
        await self._grants.write_grant(server, pending.owner, read_tokens(tokens, empty))

    async def _load_cipher(self) -> SecretCipher:
        return await asyncio.to_thread(SecretCipher, self._settings)

    async def _find_client(
        self, server: SignInServer, issuer: AuthorizationServer, owner: str, redirect_uri: str
    ) -> tuple[str, str]:
        """Return the id and the secret of the OAuth client in the settings, or register a client for this sign-in."""
        if server.client_id:
            return server.client_id, await self._grants.read_client_secret(server, owner)
        place = (await issuer.discover()).get("registration_endpoint")
        if not place:
            said = f"its provider registers no clients by itself: an operator sets client_id in [tools.{server.name}]"
            raise SignInRefused(said)
        issuer.check_endpoint("registration_endpoint", str(place))
        return _read_registration(
            await issuer.send_request("POST", str(place), json=_describe_client(server, redirect_uri))
        )


def _describe_client(server: SignInServer, redirect_uri: str) -> dict[str, Any]:
    scopes = {"scope": " ".join(server.scopes)} if server.scopes else {}
    return scopes | {
        "client_name": "helix-turns",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }


def _read_registration(answer: Mapping[str, Any]) -> tuple[str, str]:
    client_id, secret = answer.get("client_id"), answer.get("client_secret") or ""
    if not isinstance(client_id, str) or not client_id or not isinstance(secret, str):
        raise SignInRefused("the provider registered no client")
    if len(client_id) + len(secret) > _MOST_CLIENT_CHARS:
        raise SignInRefused("the provider's client is too long")
    return client_id, secret
