"""Stores and renews the OAuth tokens of people who signed in to an MCP server."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from api_client.contract.errors import StoreUnavailable
from api_client.contract.keys import KeyNames, named_keys
from api_client.oidc.person import SignInRefused
from api_client.secrets.secret_store import SecretId, SecretStore
from api_client.store import Store
from api_client.store.commands import REMOVE_OWN
from api_client.tools.sign_in_server import SignInServer

#: Longest renewal of a token, after which another process may try, and the time between two looks at it, in seconds.
_RENEWAL_SECONDS, _LOOK_SECONDS = 60, 0.1
#: Seconds between attempts to store a renewed token, and the most attempts.
_AGAIN_SECONDS, _TRIES = 0.5, 30
#: A token is renewed this many seconds before it ends.
_EARLY_SECONDS = 10
_MOST_CHARS = 16_384


class GrantKeys(KeyNames):
    """Names the Redis keys that reserve the renewal of a token for one process."""

    #: String: who renews the token; expires.
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


def read_tokens(answer: Mapping[str, Any], before: ToolGrant) -> ToolGrant:
    """Return a copy of a grant with the tokens in an issuer's response. Values missing there stay unchanged.

    Raises ``SignInRefused`` if the response has no usable token.
    """
    token, refresh = answer.get("access_token"), answer.get("refresh_token", before.refresh_token)
    if str(answer.get("token_type", "")).lower() != "bearer" or not isinstance(refresh, str):
        raise SignInRefused("the provider gave no bearer token")
    if not isinstance(token, str) or not 0 < len(token) + len(refresh) <= _MOST_CHARS:
        raise SignInRefused("the provider gave no usable token")
    if not token.isascii() or not token.isprintable():
        raise SignInRefused("the provider's token is no text for a header")
    seconds = answer.get("expires_in")
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
        self._renewing = set[asyncio.Task[ToolGrant]]()

    async def write_grant(self, server: SignInServer, owner: str, grant: ToolGrant) -> None:
        """Store a new grant of an owner for a server, replacing an earlier one."""
        await self._secrets.write_secret(_make_secret_id(server, owner), grant.to_dict())

    async def find_grant(self, server: SignInServer, owner: str) -> tuple[ToolGrant, str]:
        """Return the owner's grant or else the shared grant, with its owner. Raises ``GrantEnded`` if there is none."""
        for each in dict.fromkeys((owner, "")):
            if grant := await self._read_grant(server, each):
                return grant, each
        raise GrantEnded(f"nobody has signed in to {server.name}")

    async def renew_grant(self, server: SignInServer, owner: str, used: ToolGrant) -> ToolGrant:
        """Return a grant with another token than the used one, which the server refused or which has ended.

        Of all processes one asks the issuer, because many issuers accept a refresh token only once. Raises
        ``GrantEnded``, or ``SignInRefused`` if the issuer does not answer as it should. A caller that is cancelled
        leaves the renewal to its end, so that no token is lost that the issuer has given.
        """
        task = asyncio.create_task(self._renew_grant(server, owner, used))
        self._renewing.add(task)
        task.add_done_callback(self._renewing.discard)
        return await asyncio.shield(task)

    async def await_renewals(self, seconds: float) -> None:
        """Wait for the renewals under way, at most this long."""
        if self._renewing:
            await asyncio.wait(self._renewing, timeout=seconds)

    async def read_client_secret(self, server: SignInServer, owner: str) -> str:
        """Return the secret of the client in the settings: the owner's, or else the installation's, or none."""
        secret_ids = [SecretId(name=server.credentials, owner=each) for each in dict.fromkeys((owner, ""))]
        found = await self._secrets.read_secret(*secret_ids)
        return str(found.value.get("client_secret", "")) if found and found.value else ""

    async def _renew_grant(self, server: SignInServer, owner: str, used: ToolGrant) -> ToolGrant:
        secret_id = _make_secret_id(server, owner)
        key, own = self._keys.renewal(secret_id.field), secrets.token_hex(8)
        until = time.monotonic() + _RENEWAL_SECONDS
        while time.monotonic() < until:
            mine = await self._store.send_command("SET", key, own, "NX", "EX", _RENEWAL_SECONDS)
            try:
                grant = await self._read_grant(server, owner)
                if grant is None:
                    raise GrantEnded(f"nobody is signed in to {server.name} any more")
                if grant.access_token != used.access_token:
                    return grant
                if mine and (renewed := await self._ask_issuer(server, secret_id, grant)):
                    return renewed
            finally:
                with contextlib.suppress(StoreUnavailable):  # the key expires
                    if mine:
                        await self._store.send_command("EVAL", REMOVE_OWN, 1, key, own)
            await asyncio.sleep(_LOOK_SECONDS)
        raise SignInRefused("another process has not renewed the token in time")

    async def _ask_issuer(self, server: SignInServer, secret_id: SecretId, grant: ToolGrant) -> ToolGrant | None:
        """Use the refresh token, and return the stored grant, or None if another grant has been stored meanwhile.

        A grant that the issuer has ended is deleted.
        """
        form = {"grant_type": "refresh_token", "refresh_token": grant.refresh_token, "resource": grant.resource}
        configured, secret = grant.client_id == server.client_id, grant.client_secret
        if configured:
            secret = await self.read_client_secret(server, secret_id.owner)
        try:
            if not grant.refresh_token:
                raise SignInRefused("there is no refresh token", oauth_error="invalid_grant")
            answer = await server.open_issuer().request_tokens(form, grant.client_id, secret)
        except SignInRefused as refused:
            # An operator repairs a client in the settings; a registered client that is unknown has ended for good.
            ended = {"invalid_grant"} if configured else {"invalid_grant", "invalid_client", "unauthorized_client"}
            if refused.oauth_error not in ended:
                raise
            await self._replace_grant(secret_id, grant, None)
            raise GrantEnded(str(refused)) from refused
        renewed = replace(read_tokens(answer, grant), client_secret=secret)
        return renewed if await self._replace_grant(secret_id, grant, renewed) else None

    async def _replace_grant(self, secret_id: SecretId, before: ToolGrant, after: ToolGrant | None) -> bool:
        """Store a grant, or none, unless another grant than ``before`` is stored. Outlast a short outage."""
        value = after.to_dict() if after else None
        for left in reversed(range(_TRIES)):
            try:
                while (found := await self._secrets.read_secret(secret_id)) and found.value:
                    if found.value == value:
                        return True  # the reply to an earlier attempt was lost
                    if found.value.get("access_token") != before.access_token:
                        return False
                    if await self._secrets.replace_secret(secret_id, found.value, value):
                        return True
            except StoreUnavailable:
                if not left:
                    raise
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                return False
        return False

    async def _read_grant(self, server: SignInServer, owner: str) -> ToolGrant | None:
        found = await self._secrets.read_secret(_make_secret_id(server, owner))
        if found is None or not (value := found.value):
            return None
        if (value.get("issuer"), value.get("resource")) != (server.issuer, server.url):
            return None  # the settings name another issuer or server than at the sign-in
        return ToolGrant(**value)


def _make_secret_id(server: SignInServer, owner: str) -> SecretId:
    return SecretId(name=server.credentials, owner=owner, server=server.name)
