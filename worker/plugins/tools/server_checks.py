"""Starts each configured MCP server once and lists its tools, for ``turns doctor``."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

from api_client.contract.errors import SettingsError
from api_client.contract.settings import STATE_DIR, Settings
from api_client.oidc.person import SignInRefused
from api_client.secrets.secret_store import SecretStore
from api_client.store import Store
from api_client.tools.tool_grants import GrantEnded
from worker.cli.checks.finding import Finding
from worker.cli.output import count_noun
from worker.plugins.tools.tool_servers import ToolServer, list_servers

if TYPE_CHECKING:
    from worker.plugins.tools.upstream_pool import UpstreamPool

#: Longest start of a server together with the list of its tools, in seconds.
LIMIT_SECONDS = 20.0
_MOST_NAMED = 12


def tools(settings: Settings) -> Iterator[Finding]:
    """Start each MCP server as the tool gateway does, and yield a finding with its tools or its problem."""
    servers = list_servers(settings)
    if servers and importlib.util.find_spec("mcp") is None:
        yield Finding("tools", "wrong", "the MCP SDK is not installed", "pip install 'helix-turns[mcp]'")
    elif servers and settings.store_url:
        yield from asyncio.run(_check_servers(settings, servers))


async def _check_servers(settings: Settings, servers: list[ToolServer]) -> list[Finding]:
    from worker.plugins.tools.credentials import StoredCredentials
    from worker.plugins.tools.upstream_pool import UpstreamPool  # needs the SDK

    store = Store(settings)
    pool = UpstreamPool(settings, StoredCredentials(SecretStore(store)), store)
    try:
        return await asyncio.gather(*(_check_server(pool, server) for server in servers))
    finally:
        await pool.close()
        await store.close()


async def _check_server(pool: UpstreamPool, server: ToolServer) -> Finding:
    from worker.plugins.tools.upstream import ServerUnreachable

    check = f"tools {server.name}"
    fix = f"is a server running at {server.url}?" if server.url else f"read {STATE_DIR}/tools/{server.name}/stderr.log"
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            session = await pool.find_session(server, "")
            found = await session.list_tools()
    except TimeoutError:
        return Finding(check, "wrong", f"no list of tools within {LIMIT_SECONDS:g} s", fix)
    except GrantEnded:
        return await _check_issuer(check, server)
    except ServerUnreachable as error:
        if isinstance(error.__cause__, SettingsError):  # owners may have credentials of their own
            return Finding(check, "warning", f"not started: {error}", "docs/tools.md, Credentials")
        return Finding(check, "wrong", f"it does not start: {error}", fix)
    if not found:
        return Finding(check, "warning", "it has no tools", fix)
    reads = sum(bool(tool.annotations and tool.annotations.read_only_hint) for tool in found)
    names = ", ".join(tool.name for tool in found[:_MOST_NAMED]) + (", ..." if len(found) > _MOST_NAMED else "")
    return Finding(check, "ok", f"{count_noun(len(found), 'tool')}, {reads} of them only read: {names}")


async def _check_issuer(check: str, server: ToolServer) -> Finding:
    """Check the sign-in provider of a server whose tools cannot be listed without a person."""
    if server.sign_in is None:
        return Finding(check, "wrong", "nobody can sign in to it", "docs/tools.md, Credentials")
    try:
        await server.sign_in.open_issuer().discover()
    except SignInRefused as error:
        return Finding(check, "wrong", str(error), f"correct issuer in [tools.{server.name}], or repair the provider")
    return Finding(check, "ok", f"people sign in at {server.sign_in.issuer_host}; its tools are listed for them alone")
