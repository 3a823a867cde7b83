"""OAuth tokens of MCP servers by the grant ``client_credentials``, with the official SDK's client.

The SDK asks for a token where a server answers 401, which executes nothing, and repeats the request. Tokens are kept
encrypted, so that workers share them; of two that ask at once, each uses its own, and the later one is kept.
"""

from __future__ import annotations

import structlog
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import ValidationError

from api_client.contract.errors import SettingsError, StoreUnavailable
from api_client.secrets.secret_store import SecretPlace, SecretStore
from worker.plugins.tools.configuration import ToolServer

log = structlog.get_logger(__name__)


class StoredTokens:
    """The tokens for one server and owner, as the SDK's ``TokenStorage``.

    ``secrets`` is extended by each token, so that results can be searched for it.
    """

    def __init__(self, store: SecretStore, place: SecretPlace, secrets: list[str]) -> None:
        self._store, self._place, self._secrets = store, place, secrets

    async def get_tokens(self) -> OAuthToken | None:
        """Return the stored token; None if there is none or it cannot be read, so that a new one is asked for."""
        try:
            found = await self._store.read_secret(self._place)
            return self._note(OAuthToken.model_validate(found.value)) if found else None
        except (SettingsError, StoreUnavailable, ValidationError) as error:
            log.warning("tools.token_unread", server=self._place.server, error=type(error).__name__)
            return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store a new token. Without a store the session uses it all the same, and others ask for their own."""
        self._note(tokens)
        try:
            await self._store.write_secret(self._place, tokens.model_dump(exclude_none=True))
        except (SettingsError, StoreUnavailable) as error:
            log.warning("tools.token_unstored", server=self._place.server, error=type(error).__name__)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return None: settings and secret say which client it is."""
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store nothing."""
        del client_info  # the SDK passes what it was given

    def _note(self, token: OAuthToken) -> OAuthToken:
        self._secrets[:0] = [text for text in (token.access_token, token.refresh_token) if text]
        return token


def authorize_client(
    server: ToolServer, owner: str, client_secret: str, store: SecretStore, secrets: list[str]
) -> ClientCredentialsOAuthProvider:
    """Return what adds tokens to a server's requests; the issuer of the settings alone gets the client's secret."""
    place = SecretPlace(name=server.credentials, owner=owner, server=server.name)
    return ClientCredentialsOAuthProvider(
        server.url,
        StoredTokens(store, place, secrets),
        server.oauth["client_id"],
        client_secret,
        issuer=server.oauth["issuer"],
    )
