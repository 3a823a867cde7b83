"""What an authorization server's answers may contain."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api_client.oidc.authorization_server import AuthorizationServer
from api_client.oidc.person import SignInRefused
from tests.ports import free_port
from tests.support import wait_until


@asynccontextmanager
async def answering(**metadata: Any) -> AsyncIterator[AuthorizationServer]:
    """An authorization server with this metadata; its token endpoint repeats the form's fields."""
    base = f"http://127.0.0.1:{free_port()}"
    known = {"issuer": base, "authorization_endpoint": f"{base}/agree", "token_endpoint": f"{base}/token", **metadata}

    async def describe(_: Request) -> Response:
        return Response(json.dumps(known))

    async def repeat(request: Request) -> Response:
        return Response(json.dumps(dict(await request.form())))

    app = Starlette(routes=[Route("/known", describe), Route("/token", repeat, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=int(base.rpartition(":")[2]), log_level="warning"))
    serving = asyncio.create_task(server.serve())
    await wait_until(lambda: server.started)
    try:
        yield AuthorizationServer(base, "issuer", [f"{base}/known"], ["authorization_endpoint", "token_endpoint"])
    finally:
        server.should_exit = True
        await serving


async def test_null_in_an_answer_is_read_as_absent() -> None:
    nulls = {"code_challenge_methods_supported": None, "token_endpoint_auth_methods_supported": None}
    async with answering(**nulls) as server:
        assert await server.build_address({}, "verifier")
        assert await server.request_tokens({}, "client", "secret") == {"client_id": "client"}


async def test_metadata_that_is_no_list_is_refused() -> None:
    async with answering(code_challenge_methods_supported=5) as server:
        with pytest.raises(SignInRefused, match="is no list"):
            await server.discover()


async def test_an_answer_that_is_too_long_is_refused() -> None:
    async with answering(filler="x" * 2**20) as server:
        with pytest.raises(SignInRefused, match="longer than 1048576 bytes"):
            await server.discover()


def test_only_an_issuer_on_this_machine_may_have_its_endpoints_here() -> None:
    for issuer, address, refused in (
        ("https://login.example.com", "http://127.0.0.1:6379/token", True),
        ("https://login.example.com", "https://localhost/token", True),
        ("https://login.example.com", "https://tokens.example.com/token", False),
        ("http://127.0.0.1:1", "http://127.0.0.1:2/token", False),
    ):
        server = AuthorizationServer(issuer, "issuer", [], [])
        if not refused:
            server.check_endpoint("token_endpoint", address)
            continue
        with pytest.raises(SignInRefused, match="is on this machine"):
            server.check_endpoint("token_endpoint", address)
