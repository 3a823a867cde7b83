"""``telling_server`` behind an authorization server of its own: ``python -m tests.tools.oauth_server PORT LOG``.

Each token request is a line of LOG. A token ends with the file LOG.expire, which is then removed.
"""

import base64
import sys
from pathlib import Path
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from tests.tools.telling_server import server

PORT, LOG = int(sys.argv[1]), Path(sys.argv[2])
BASE, CLIENT = f"http://127.0.0.1:{PORT}", "helix:canary-7f3a9-secret-client"
valid = set[str]()


async def describe_resource(_: Request) -> Response:
    return JSONResponse(
        {"resource": f"{BASE}/mcp", "authorization_servers": [f"{BASE}/issuer"], "scopes_supported": ["read"]}
    )


async def describe_issuer(_: Request) -> Response:
    grants = {"response_types_supported": ["code"], "grant_types_supported": ["client_credentials"]}
    ends = {"authorization_endpoint": f"{BASE}/authorize", "token_endpoint": f"{BASE}/token"}
    return JSONResponse({"issuer": f"{BASE}/issuer", **ends, **grants})


async def give_token(request: Request) -> Response:
    form = {name: each[0] for name, each in parse_qs((await request.body()).decode()).items()}
    given = base64.b64decode(request.headers.get("authorization", "").removeprefix("Basic ")).decode()
    if given != CLIENT or form.get("grant_type") != "client_credentials":
        return JSONResponse({"error": "invalid_client", "error_description": f"{given} is wrong"}, 401)
    count = len(LOG.read_text().splitlines()) if LOG.exists() else 0
    with LOG.open("a") as file:
        file.write(f"{form.get('scope')} {form.get('resource')}\n")
    token = f"canary-7f3a9-secret-token-{count + 1}"
    valid.add(token)
    return JSONResponse({"access_token": token, "token_type": "Bearer", "expires_in": 3600})


app = Starlette(
    routes=[
        Route("/.well-known/oauth-protected-resource/mcp", describe_resource),
        Route("/.well-known/oauth-authorization-server/issuer", describe_issuer),
        Route("/token", give_token, methods=["POST"]),
        Mount("/", mcp := server.streamable_http_app()),
    ],
    lifespan=lambda _: mcp.router.lifespan_context(mcp),
)


async def guard(scope, receive, send) -> None:
    if scope["type"] == "http" and scope["path"] == "/mcp":
        if LOG.with_suffix(".expire").exists():
            LOG.with_suffix(".expire").unlink()
            valid.clear()
        token = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
        if token not in valid:
            await Response(status_code=401, headers={"www-authenticate": "Bearer"})(scope, receive, send)
            return
    await app(scope, receive, send)


if __name__ == "__main__":
    uvicorn.run(guard, host="127.0.0.1", port=PORT, log_level="warning")
