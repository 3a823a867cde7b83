"""``telling_server`` to which people sign in: ``python -m tests.tools.sign_in_server PORT LOG``.

The authorization server is the official SDK's: it registers clients, checks PKCE and redirect addresses, and accepts a
refresh token once. Who comes agrees. Each token that it gives is a line of LOG. The file LOG.expire ends all access
tokens, LOG.revoke the refresh tokens too; both are removed then. While LOG.hold exists, renewed tokens do not leave.
"""

import asyncio
import secrets
import sys
import time
from pathlib import Path

import uvicorn
from mcp.server.auth.provider import AccessToken, AuthorizationCode, RefreshToken, construct_redirect_uri
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import ClientRegistrationOptions
from mcp.shared.auth import OAuthToken
from pydantic import AnyHttpUrl, ConfigDict, TypeAdapter
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount

from tests.tools.telling_server import server

PORT, LOG = int(sys.argv[1]), Path(sys.argv[2])
BASE, CANARY = f"http://127.0.0.1:{PORT}", "canary-7f3a9-secret"


class Provider:
    """Gives each client that asks a code, and each code once a pair of tokens."""

    def __init__(self) -> None:
        self.clients, self.codes, self.access, self.refresh = {}, {}, {}, {}

    async def get_client(self, client_id):
        return self.clients.get(client_id)

    async def register_client(self, client_info):
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client, params):
        code = AuthorizationCode(
            code=f"{CANARY}-code-{secrets.token_hex(16)}",
            client_id=client.client_id,
            expires_at=time.time() + 60,
            **{**params.model_dump(exclude={"state"}), "scopes": params.scopes or []},
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state, iss=BASE)

    async def load_authorization_code(self, client, authorization_code):
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client, authorization_code):
        del self.codes[authorization_code.code]
        return self._give_tokens("code", client, authorization_code)

    async def load_refresh_token(self, client, refresh_token):
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(self, client, refresh_token, scopes):
        del self.refresh[refresh_token.token]
        given = self._give_tokens("refresh", client, refresh_token)
        while LOG.with_suffix(".hold").exists():
            await asyncio.sleep(0.01)
        return given

    def _give_tokens(self, how, client, given):
        part = secrets.token_hex(8)
        fields = {"client_id": client.client_id, "scopes": given.scopes, "resource": given.resource}
        access, refresh = f"{CANARY}-access-{part}", f"{CANARY}-refresh-{part}"
        self.access[access] = AccessToken(token=access, **fields)
        self.refresh[refresh] = RefreshToken(token=refresh, **fields)
        with LOG.open("a") as file:
            file.write(f"{how} {' '.join(given.scopes)} {given.resource}\n")
        return OAuthToken(access_token=access, token_type="Bearer", expires_in=3600, refresh_token=refresh)


provider = Provider()
app = Starlette(
    routes=[
        *create_auth_routes(
            provider,
            TypeAdapter(AnyHttpUrl, config=ConfigDict(url_preserve_empty_path=True)).validate_python(BASE),
            client_registration_options=ClientRegistrationOptions(enabled=True, valid_scopes=["read"]),
        ),
        Mount("/", mcp := server.streamable_http_app()),
    ],
    lifespan=lambda _: mcp.router.lifespan_context(mcp),
)


async def guard(scope, receive, send) -> None:
    if scope["type"] == "http" and scope["path"] == "/mcp":
        for name, ended in (("expire", [provider.access]), ("revoke", [provider.access, provider.refresh])):
            if (file := LOG.with_suffix(f".{name}")).exists():
                file.unlink()
                for tokens in ended:
                    tokens.clear()
        token = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
        if token not in provider.access:
            await Response(status_code=401, headers={"www-authenticate": "Bearer"})(scope, receive, send)
            return
    await app(scope, receive, send)


if __name__ == "__main__":
    uvicorn.run(guard, host="127.0.0.1", port=PORT, log_level="warning")
