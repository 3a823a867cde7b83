"""OAuth tokens of MCP servers by the grant ``client_credentials``, with the official SDK's client.

Tokens are kept encrypted, so that workers share them.
"""

from __future__ import annotations

import structlog
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import ValidationError

from api_client.contract.errors import SettingsError, StoreUnavailable
from api_client.secrets.secret_store import SecretId, SecretStore
from worker.plugins.tools.tool_servers import ToolServer

log = structlog.get_logger(__name__)


class StoredTokens:
    """Stores the OAuth tokens for one server and owner (the SDK's ``TokenStorage``).

    ``secrets`` collects each token, so that results can be searched for it.
    """

    def __init__(self, store: SecretStore, secret_id: SecretId, secrets: list[str]) -> None:
        self._store, self._secret_id, self._secrets = store, secret_id, secrets

    async def get_tokens(self) -> OAuthToken | None:
        """Return the stored token, or None if there is no readable one, so that the SDK requests a new token."""
        try:
            found = await self._store.read_secret(self._secret_id)
            if found is None or (found.value or {}).get("sign_in"):  # a person's, of settings that were
                return None
            return self._note(OAuthToken.model_validate(found.value))
        except (SettingsError, StoreUnavailable, ValidationError) as error:
            log.warning("tools.token_unread", server=self._secret_id.server, error=type(error).__name__)
            return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store a new token. If the store is unavailable, only this session uses the token."""
        self._note(tokens)
        try:
            await self._store.write_secret(self._secret_id, tokens.model_dump(exclude_none=True))
        except (SettingsError, StoreUnavailable) as error:
            log.warning("tools.token_unstored", server=self._secret_id.server, error=type(error).__name__)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return None, because the settings identify the client."""
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Do nothing, because the settings identify the client."""
        del client_info  # the SDK passes what it was given

    def _note(self, token: OAuthToken) -> OAuthToken:
        self._secrets[:0] = [text for text in (token.access_token, token.refresh_token) if text]
        return token


def authorize_client(
    server: ToolServer, owner: str, client_secret: str, store: SecretStore, secrets: list[str]
) -> ClientCredentialsOAuthProvider:
    """Build the authentication object that gets OAuth tokens and adds them to the requests sent to a server.

    Only the configured issuer gets the client's secret.
    """
    secret_id = SecretId(name=server.credentials, owner=owner, server=server.name)
    return ClientCredentialsOAuthProvider(
        server.url,
        StoredTokens(store, secret_id, secrets),
        server.oauth["client_id"],
        client_secret,
        issuer=server.oauth["issuer"],
    )
