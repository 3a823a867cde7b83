"""Authenticates requests to an MCP server with the token of the person who signed in, and renews the token."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import httpx2
from mcp.client.auth import OAuthFlowError

from api_client.contract.errors import SettingsError, StoreUnavailable
from api_client.oidc.person import SignInRefused
from api_client.tools.sign_in_server import SignInServer
from api_client.tools.tool_grants import ToolGrant, ToolGrants


class GrantAuth(httpx2.Auth):
    """Adds a person's access token to requests. A token that expires or that the server refuses is renewed once."""

    def __init__(
        self, grants: ToolGrants, server: SignInServer, owner: str, grant: ToolGrant, secrets: list[str]
    ) -> None:
        """Start with an owner's grant. Each token is added to ``secrets``, so that it can be masked in results.

        An empty owner stands for all owners.
        """
        self._grants, self._server, self._owner, self._secrets = grants, server, owner, secrets
        self._grant = self._note_secrets(grant)

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send a request with the token, and once more with a new token if the server responds with 401.

        A response of 401 means that the server has executed nothing. Raises ``GrantEnded`` if the person has to sign in
        again, and ``OAuthFlowError`` if there is no valid token for another reason.
        """
        used = await self._renew(self._grant) if self._grant.has_expired else self._grant
        request.headers["authorization"] = f"Bearer {used.access_token}"
        response = yield request
        if response.status_code == 401:
            used = await self._renew(used)
            request.headers["authorization"] = f"Bearer {used.access_token}"
            yield request

    async def _renew(self, used: ToolGrant) -> ToolGrant:
        if self._grant.access_token != used.access_token:
            return self._grant  # another request has renewed it
        try:
            self._grant = self._note_secrets(await self._grants.renew_grant(self._server, self._owner, used))
        except (SignInRefused, SettingsError, StoreUnavailable) as error:
            raise OAuthFlowError(str(error)) from error
        return self._grant

    def _note_secrets(self, grant: ToolGrant) -> ToolGrant:
        self._secrets[:0] = sorted(set(grant.secrets) - set(self._secrets), key=len, reverse=True)
        return grant
