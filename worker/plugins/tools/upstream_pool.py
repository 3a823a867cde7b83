"""Opens sessions with MCP servers when they are first needed, with the credentials of whoever needs them."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from api_client.contract.errors import SettingsError, StoreUnavailable
from api_client.contract.settings import STATE_DIR, Settings
from api_client.secrets.secret_store import SecretStore
from api_client.store import Store
from api_client.tools.tool_grants import GrantEnded, ToolGrant, ToolGrants
from worker.plugins.tools.credentials import Credential, StoredCredentials
from worker.plugins.tools.oauth import authorize_client
from worker.plugins.tools.sign_in_auth import GrantAuth
from worker.plugins.tools.tool_servers import ToolServer
from worker.plugins.tools.upstream import ServerUnreachable, UpstreamSession
from worker.plugins.tools.upstream_http import open_http
from worker.plugins.tools.upstream_process import prepare_process
from worker.runners.sandbox.bubblewrap import SandboxError


class _Access(NamedTuple):
    """The credentials for the use of a server. ``owner`` is empty if all owners share them."""

    given: Credential
    owner: str
    grant: ToolGrant | None = None


class UpstreamPool:
    """Opens sessions on first use. A server with personal credentials has one session per owner."""

    def __init__(self, settings: Settings, credentials: StoredCredentials, store: Store | None = None) -> None:
        """Create a pool without sessions. ``store`` has the OAuth tokens; without it, no server gets a token."""
        self._settings, self._credentials = settings, credentials
        self._tokens = SecretStore(store) if store else None
        self._grants = ToolGrants(store) if store else None
        self._sessions: dict[tuple[str, str], UpstreamSession] = {}
        self._opening = asyncio.Lock()

    async def find_session(self, server: ToolServer, owner: str) -> UpstreamSession:
        """Return an open session with a server. Raises ``ServerUnreachable`` or ``GrantEnded``."""
        try:
            access = await self._read_access(server, owner)
            given, own, grant = access
            parts = (given.headers, given.environment, given.client_secret, grant and grant.sign_in)
            key = f"{server!r}{parts!r}", own
            async with self._opening:
                session = self._sessions.get(key)
                if session is None or not session.is_open:
                    home, secrets = _home_folder(self._settings, server, own), list(given.secrets)
                    auth = self._build_auth(server, access, secrets)
                    transport = await asyncio.to_thread(self._build_transport, server, given, home, auth)
                    if session:
                        session.leave_session()
                    session = self._sessions[key] = UpstreamSession(server, transport, secrets)
        except (SettingsError, StoreUnavailable, SandboxError, OSError) as error:
            raise ServerUnreachable(str(error)) from error
        try:
            await session.await_start()
        except (ServerUnreachable, GrantEnded):
            session.broken = True
            raise
        return session

    async def _read_access(self, server: ToolServer, owner: str) -> _Access:
        if self._grants and server.sign_in:
            grant, own = await self._grants.find_grant(server.sign_in, owner)
            return _Access(Credential(), own, grant)
        given = Credential()
        if server.credentials:
            given = await self._credentials.read_credential(server.credentials, owner)
        return _Access(given, owner if given.personal else "")

    def list_secrets(self) -> set[str]:
        """Return the credentials of all servers in use."""
        return {secret for session in self._sessions.values() for secret in session.secrets}

    async def close(self) -> None:
        """End all sessions and their server processes, after the renewals of tokens that are under way."""
        if ending := [session.end_session() for session in self._sessions.values()]:
            await asyncio.wait(ending, timeout=10.0)
        if self._grants:
            await self._grants.await_renewals(10.0)

    def _build_auth(self, server: ToolServer, access: _Access, secrets: list[str]) -> httpx2.Auth | None:
        if self._grants and server.sign_in and access.grant:
            return GrantAuth(self._grants, server.sign_in, access.owner, access.grant, secrets)
        if not server.oauth or self._tokens is None:
            return None
        secret = access.given.client_secret
        if not secret:
            remedy = f"`turns secrets set {server.credentials} --client-secret`"
            raise SettingsError([f"the credentials {server.credentials!r} have no client secret; {remedy}"])
        return authorize_client(server, access.owner, secret, self._tokens, secrets)

    def _build_transport(self, server: ToolServer, given: Credential, home: Path, auth: httpx2.Auth | None) -> Any:
        if server.url:
            return open_http(server.url, given.headers, auth)
        return prepare_process(self._settings, server, home, given.environment)


def _home_folder(settings: Settings, server: ToolServer, owner: str) -> Path:
    """Return the working folder of a server. Servers with an owner's credentials have a folder per owner."""
    folder = settings.root / STATE_DIR / "tools"
    return folder / (f"{server.name}.{hashlib.sha256(owner.encode()).hexdigest()[:16]}" if owner else server.name)
