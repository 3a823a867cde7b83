"""Stores and renews the OAuth tokens of people who signed in to an MCP server."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from api_client.contract.keys import KeyNames, named_keys
from api_client.oidc.person import SignInRefused
from api_client.secrets.secret_store import SecretId, SecretStore
from api_client.store import Store
from api_client.tools.sign_in_server import SignInServer

#: Longest renewal of a token, after which another process may try, and the time between two looks at it, in seconds.
_RENEWAL_SECONDS, _LOOK_SECONDS = 60, 0.1
#: A token is renewed this many seconds before it ends.
_EARLY_SECONDS = 10
_MOST_CHARS = 16_384
#: Deletes a key that still has the value of its owner.
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class GrantKeys(KeyNames):
    """Names the Redis keys that reserve the renewal of a token for one process."""

    #: String: nonce of the renewal in progress; expires.
    renewal = named_keys("tool_grants:renewal:", hashed=True)


class GrantEnded(Exception):
    """Raised when a person has no valid grant for an MCP server and must sign in, perhaps again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolGrant:
    """The OAuth tokens that a person granted for an MCP server, and the OAuth client that received them.

    Attributes:
        issuer, resource: the authorization server that issued the tokens, and the MCP server for which they are valid.
        sign_in: id of the sign-in, which renewals do not change.
        expires_at: when the access token expires, in seconds since the epoch; 0 if unknown.
    """

    access_token: str = field(repr=False)
    refresh_token: str = field(default="", repr=False)
    client_id: str
    client_secret: str = field(default="", repr=False)
    issuer: str
    resource: str
    sign_in: str
    expires_at: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the non-empty fields as a dictionary for the store."""
        return {name: value for name, value in asdict(self).items() if value}

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the texts to mask wherever they might be shown: the tokens and the client's secret."""
        return tuple(filter(None, (self.access_token, self.refresh_token, self.client_secret)))

    @property
    def has_expired(self) -> bool:
        """Return True if the access token has expired or is about to expire."""
        return bool(self.expires_at) and time.time() > self.expires_at - _EARLY_SECONDS


def read_tokens(response: Mapping[str, Any], before: ToolGrant) -> ToolGrant:
    """Return a copy of a grant with the tokens in an issuer's response. Values missing there stay unchanged.

    Raises ``SignInRefused`` if the response has no usable token.
    """
    token, refresh = response.get("access_token"), response.get("refresh_token", before.refresh_token)
    if str(response.get("token_type", "")).lower() != "bearer" or not isinstance(refresh, str):
        raise SignInRefused("the provider gave no bearer token")
    if not isinstance(token, str) or not 0 < len(token) + len(refresh) <= _MOST_CHARS:
        raise SignInRefused("the provider gave no usable token")
    if not token.isascii() or not token.isprintable():
        raise SignInRefused("the provider's token is no text for a header")
    seconds = response.get("expires_in")
    known = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < 10**9
    ends = time.time() + float(seconds or 0) if known else 0.0
    return replace(before, access_token=token, refresh_token=refresh, expires_at=ends)


class ToolGrants:
    """Stores the grants with which agents may use MCP servers on people's behalf, and renews their tokens.

    An empty owner stands for the grant that all owners without one of their own share. Methods raise
    ``StoreUnavailable`` and ``SettingsError``.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._secrets, self._keys = store, SecretStore(store), GrantKeys(store.namespace)

    async def write_grant(self, server: SignInServer, owner: str, grant: ToolGrant) -> None:
        """Store a new grant of an owner for a server, replacing an earlier one."""
        await self._secrets.write_secret(_make_secret_id(server, owner), grant.to_dict())

    async def find_grant(self, server: SignInServer, owner: str) -> tuple[ToolGrant, str]:
        """Return the owner's grant or else the shared grant, with its owner. Raises ``GrantEnded`` if there is none."""
        for each in dict.fromkeys((owner, "")):
            if grant := await self._read_grant(server, each):
                return grant, each
        raise GrantEnded

    async def renew_grant(self, server: SignInServer, owner: str, used: ToolGrant) -> ToolGrant:
        """Return a grant with a new access token. The token in ``used`` has expired or was refused by the server.

        Only one process at a time asks the issuer, because many issuers accept a refresh token only once. Raises
        ``GrantEnded``, or ``SignInRefused`` if the issuer gives no usable response.
        """
        secret_id = _make_secret_id(server, owner)
        key, nonce = self._keys.renewal(secret_id.field), secrets.token_hex(8)
        until = time.monotonic() + _RENEWAL_SECONDS
        while time.monotonic() < until:
            reserved = await self._store.send_command("SET", key, nonce, "NX", "EX", _RENEWAL_SECONDS)
            try:
                grant = await self._read_grant(server, owner)
                if grant is None:
                    raise GrantEnded
                if grant.access_token != used.access_token:
                    return grant
                if reserved:
                    return await self._ask_issuer(server, secret_id, grant)
            finally:
                if reserved:
                    await self._store.send_command("EVAL", _RELEASE, 1, key, nonce)
            await asyncio.sleep(_LOOK_SECONDS)
        raise SignInRefused("another process has not renewed the token in time")

    async def _ask_issuer(self, server: SignInServer, secret_id: SecretId, grant: ToolGrant) -> ToolGrant:
        """Exchange the refresh token for a new grant, and store it. A grant that the issuer has ended is deleted."""
        form = {"grant_type": "refresh_token", "refresh_token": grant.refresh_token, "resource": grant.resource}
        try:
            if not grant.refresh_token:
                raise SignInRefused("there is no refresh token", code="invalid_grant")
            answer = await server.open_issuer().request_tokens(form, grant.client_id, grant.client_secret)
        except SignInRefused as refused:
            if refused.code not in {"invalid_grant", "invalid_client", "unauthorized_client"}:
                raise
            await self._secrets.replace_secret(secret_id, grant.to_dict(), None)
            raise GrantEnded from refused
        renewed = read_tokens(answer, grant)
        await self._secrets.replace_secret(secret_id, grant.to_dict(), renewed.to_dict())
        return renewed

    async def _read_grant(self, server: SignInServer, owner: str) -> ToolGrant | None:
        found = await self._secrets.read_secret(_make_secret_id(server, owner))
        if found is None or not (value := found.value):
            return None
        if (value.get("issuer"), value.get("resource")) != (server.issuer, server.url):
            return None  # the settings name another issuer or server than at the sign-in
        return ToolGrant(**value)


def _make_secret_id(server: SignInServer, owner: str) -> SecretId:
    return SecretId(name=server.credentials, owner=owner, server=server.name)
