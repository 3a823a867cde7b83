"""Implement ``turns secrets sign-in``: a person signs in to an MCP server in a browser on this machine."""

from __future__ import annotations

import asyncio
import hmac
import secrets as random
from urllib.parse import parse_qsl, urlsplit

import click

from api_client.client import TurnsClient
from api_client.contract.errors import SettingsError
from api_client.contract.owners import parse_owner
from api_client.oidc.person import SignInRefused
from api_client.tools.sign_in_server import SignInServer, find_sign_in_server
from api_client.tools.tool_sign_in import PENDING_SECONDS, ToolSignIn
from worker.cli.output import json_option, write_result
from worker.cli.store_access import run_with_client

_MOST_LINE = 16_384
_DONE = "You can close this page."
#: Longest wait for a request's first line, in seconds. Browsers open connections on which they send nothing.
_LINE_SECONDS = 10.0


@click.command("sign-in", epilog="Example: turns secrets sign-in jira --owner ada")
@click.argument("server")
@click.option("--owner", default="", help="Whose turns use the account: a key's name or an owner; else everybody's.")
@json_option
def sign_in(server: str, owner: str, as_json: bool) -> None:
    """Sign in to SERVER, a block [tools.SERVER] with sign_in = true, in a browser on this machine.

    The page that the command names leads to the provider and back to this command, which waits ten minutes for it.
    """
    whose = parse_owner(owner)

    async def act(client: TurnsClient) -> None:
        found = find_sign_in_server(client.settings, server)
        if found is None:
            raise SettingsError([f"[tools.{server[:80]}]: there is no such server with oauth.sign_in = true"])
        try:
            await _sign_in(ToolSignIn(client.store), found, whose)
        except SignInRefused as refused:
            raise SettingsError([str(refused)]) from refused

    run_with_client(act)
    write_result(as_json, {"server": server, "owner": whose}, f"signed in to {server} for {whose or 'everybody'}")


async def _sign_in(sign_in: ToolSignIn, server: SignInServer, owner: str) -> None:
    """Print the URL of the sign-in page, wait for the browser's redirect to a local port, and store the tokens."""
    came: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
    state = random.token_urlsafe(32)

    async def answer_browser(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            query = await _read_query(reader)
            ours = hmac.compare_digest(query.get("state", "").encode(), state.encode())
            said = f"You are not signed in: {query['error'][:60]!a}. {_DONE}" if "error" in query else _DONE
            head = "HTTP/1.1 200 OK" if ours else "HTTP/1.1 404 Not Found"
            text = f"{head}\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n{said if ours else ''}"
            writer.write(text.encode())
            if ours and not came.done():
                came.set_result(query)
        finally:
            writer.close()

    listener = await asyncio.start_server(answer_browser, "127.0.0.1", 0, limit=_MOST_LINE)
    try:
        port = listener.sockets[0].getsockname()[1]
        address, pending = await sign_in.prepare_sign_in(server, owner, f"http://127.0.0.1:{port}/signed-in", state)
        click.echo(f"open this address in a browser on this machine:\n\n{address}\n", err=True)
        try:
            async with asyncio.timeout(PENDING_SECONDS):
                query = await came
        except TimeoutError:
            raise SignInRefused("nobody came back within ten minutes") from None
    finally:
        listener.close()  # without a wait for connections, which browsers keep open
    await sign_in.store_grant(server, pending, query)


async def _read_query(reader: asyncio.StreamReader) -> dict[str, str]:
    """Return the query of a request's first line, or nothing if no such line comes."""
    try:
        line = (await asyncio.wait_for(reader.readline(), _LINE_SECONDS)).decode("latin-1").split(" ")
        return dict(parse_qsl(urlsplit(line[1]).query)) if len(line) == 3 else {}
    # Silence, a line that is too long, a browser that left, or the end of the command.
    except (TimeoutError, ValueError, OSError, asyncio.CancelledError):
        return {}
