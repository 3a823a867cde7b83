"""Sessions with MCP servers, by the official SDK, from the first use until the gateway process ends."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import structlog
from mcp import Client, MCPError, StdioServerParameters
from mcp.client import IncomingMessage, InputRequiredRoundsExceededError
from mcp.client.stdio import stdio_client
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    CallToolResult,
    Tool,
    ToolListChangedNotification,
)
from pydantic import ValidationError

from api_client.contract.errors import SettingsError, StoreUnavailable
from api_client.contract.settings import STATE_DIR, Settings
from api_client.contract.settings.redaction import MASK, redact_value
from api_client.secrets.secret_store import SecretStore
from worker.plugins.tools.credentials import Credential, StoredCredentials
from worker.plugins.tools.oauth import authorize_client
from worker.plugins.tools.tool_servers import ToolServer
from worker.plugins.tools.upstream_http import NOT_SENT, TOO_LARGE, open_http
from worker.runners.sandbox import bubblewrap
from worker.runners.sandbox.bubblewrap import SandboxError, SandboxMount

log = structlog.get_logger(__name__)

#: Longest start of a server, in seconds; a package runner may download it first.
_START_SECONDS = 60.0
_MOST_TOOLS_PAGES = 50
#: Shorter credentials are not masked, because they would occur everywhere.
_SHORTEST_SECRET = 6
#: Longest wait for a list of tools, in seconds; agents give up soon.
_LIST_SECONDS = 10.0
#: A longer log of a server begins again when the server starts.
_LOG_BYTES = 2**20
#: Names of tools, as MCP defines them; others are left out, because services of models refuse a request with them.
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)
#: Starts a server with limited memory (in KiB), of which reserved but unused memory does not count.
_LIMITED = ("/bin/sh", "-c", 'ulimit -d "$1" && shift && exec "$@"', "sh")
#: Errors that prove that a call was not executed, from the server or the SDK (HTTP 404).
_NOT_EXECUTED, _SESSION_GONE = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS, HEADER_MISMATCH}), "Session terminated"
#: Folders of Python that every sandbox shows.
_SEEN = [mount.path for mount in bubblewrap.LISTENER_MOUNTS]


class ServerUnreachable(Exception):
    """Raised when a call could not be sent to its server, so that nothing was changed."""


class CallRefused(Exception):
    """Raised when the server answered a call with a protocol error instead of a result."""


class OutcomeUnknown(Exception):
    """Raised when a call was sent to its server but no result arrived."""


class MalformedResult(Exception):
    """Raised when the call was made but the server's result is unreadable."""


class SessionGone(Exception):
    """Raised when the server refused a call because it no longer knows the session."""


class UpstreamSession:
    """A session with one MCP server."""

    def __init__(self, server: ToolServer, transport: Any, secrets: Sequence[str] = ()) -> None:
        self.server = server
        self._secrets = secrets  # grows with each token
        self.broken = False
        self._transport = transport
        self._streams: Any = ()
        self._client: Client
        self._tools: dict[str, Tool] = {}
        self._under_way = 0
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ending = asyncio.Event()
        self._task = asyncio.create_task(self._keep_open())  # enters and leaves the SDK's scopes in one task

    async def await_start(self) -> None:
        """Wait until the session is open. Raises ``ServerUnreachable``."""
        try:
            async with asyncio.timeout(_START_SECONDS):
                await asyncio.shield(self._ready)
        except TimeoutError:
            raise ServerUnreachable(f"it did not start within {_START_SECONDS:g} s") from None
        except Exception as error:
            raise ServerUnreachable(self._mask_text(_first_words(error))) from error

    async def list_tools(self) -> list[Tool]:
        """Return the server's tools. Raises ``ServerUnreachable``."""
        found: dict[str, Tool] = {}
        cursor = None
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                for _ in range(_MOST_TOOLS_PAGES):
                    page = await self._client.list_tools(cursor=cursor)
                    found.update({tool.name: tool for tool in page.tools if _TOOL_NAME.fullmatch(tool.name)})
                    if not (cursor := page.next_cursor):
                        break
        except Exception as error:
            self.broken = True
            raise ServerUnreachable(self._mask_text(_first_words(error))) from error
        self._tools = found
        return list(found.values())

    async def find_tool(self, name: str) -> Tool | None:
        """Return the tool with this name, or None. Ask the server again if the name is unknown."""
        if name not in self._tools:
            await self.list_tools()
        return self._tools.get(name)

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Call a tool and return its result.

        Raises ``ServerUnreachable``, ``SessionGone`` or ``CallRefused`` if the call was not executed,
        ``OutcomeUnknown`` or ``MalformedResult`` if it may have been.
        """
        self._under_way += 1
        try:
            return self._hide_secrets(await self._client.call_tool(name, dict(arguments)))
        except MCPError as error:
            self.broken = self.broken or error.message == _SESSION_GONE or error.code == CONNECTION_CLOSED
            raise _classify_error(error, self._mask_text(error.message)) from error
        except InputRequiredRoundsExceededError as error:
            raise MalformedResult("it asks for input, which nobody can give here") from error
        except (ValidationError, RuntimeError) as error:  # not of its protocol, or not of the tool's own schema
            raise MalformedResult(self._mask_text(_first_words(error))) from error
        except Exception as error:
            self.broken = True
            raise OutcomeUnknown(self._mask_text(_first_words(error))) from error
        finally:
            self._under_way -= 1
            if self.broken and not self._under_way:
                self._ending.set()

    @property
    def is_open(self) -> bool:
        """Return True if the session is starting or usable."""
        streams = self._streams if self.server.command else ()
        return not self.broken and not (streams and not streams[0].statistics().open_send_streams)

    def leave_session(self) -> None:
        """Send no more calls in this session, and end it after the calls under way."""
        self.broken = True
        if not self._under_way:
            self._ending.set()

    def _hide_secrets(self, result: CallToolResult) -> CallToolResult:
        """Return the result with the server's own credentials masked, because error messages may repeat them."""
        if not self._secrets:
            return result
        said = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        hidden = redact_value(said, self._mask_text)
        return result if hidden == said else CallToolResult.model_validate(hidden)

    @property
    def secrets(self) -> list[str]:
        """Return the texts to mask: the server's credentials, without short ones."""
        return [secret for secret in self._secrets if len(secret) >= _SHORTEST_SECRET]

    def _mask_text(self, text: str) -> str:
        return mask_secrets(self.secrets, text)

    def end_session(self) -> asyncio.Task[None]:
        """End the session and the server's process. Return the task that does this."""
        self._ending.set()
        return self._task

    async def _keep_open(self) -> None:
        try:
            async with self._transport as self._streams, self._open_client(self._streams) as self._client:
                self._ready.set_result(None)
                await self._ending.wait()
        except BaseException as error:
            self.broken = True
            if not self._ready.done():
                self._ready.set_exception(error if isinstance(error, Exception) else ConnectionError("it was ended"))
            log.warning("tools.session_ended", server=self.server.name, error=self._mask_text(_first_words(error)))
            if isinstance(error, asyncio.CancelledError):
                raise

    def _open_client(self, streams: Any) -> Client:
        return Client(
            contextlib.nullcontext(streams),
            read_timeout_seconds=float(self.server.timeout_seconds),
            message_handler=self._handle_message,
            input_required_max_rounds=0,  # a second round is a second call
            cache=None,
        )

    async def _handle_message(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._tools = {}


def mask_secrets(secrets: Sequence[str], text: str) -> str:
    """Return a text without these secrets, which are given longest first."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def _classify_error(error: MCPError, said: str) -> Exception:
    if error.message == _SESSION_GONE:
        return SessionGone(said)
    if error.code == NOT_SENT:
        return ServerUnreachable(said)
    if error.code == TOO_LARGE:
        return MalformedResult(said)
    return CallRefused(said) if error.code in _NOT_EXECUTED else OutcomeUnknown(said)


class UpstreamPool:
    """Opens sessions on first use. A server with personal credentials has one session per owner."""

    def __init__(self, settings: Settings, credentials: StoredCredentials, tokens: SecretStore | None = None) -> None:
        self._settings, self._credentials, self._tokens = settings, credentials, tokens
        self._sessions: dict[tuple[str, str], UpstreamSession] = {}
        self._opening = asyncio.Lock()

    async def find_session(self, server: ToolServer, owner: str) -> UpstreamSession:
        """Return an open session with a server. Raises ``ServerUnreachable``."""
        try:
            given = Credential()
            if server.credentials:
                given = await self._credentials.read_credential(server.credentials, owner)
            parts, own = (given.headers, given.environment, given.client_secret), owner if given.personal else ""
            key = f"{server!r}{parts!r}", own
            async with self._opening:
                session = self._sessions.get(key)
                if session is None or not session.is_open:
                    home, secrets = _home_folder(self._settings, server, own), list(given.secrets)
                    auth = self._build_auth(server, given.client_secret, own, secrets)
                    transport = await asyncio.to_thread(self._build_transport, server, given, home, auth)
                    if session:
                        session.leave_session()
                    session = self._sessions[key] = UpstreamSession(server, transport, secrets)
        except (SettingsError, StoreUnavailable, SandboxError, OSError) as error:
            raise ServerUnreachable(str(error)) from error
        try:
            await session.await_start()
        except ServerUnreachable:
            session.broken = True
            raise
        return session

    def list_secrets(self) -> set[str]:
        """Return the credentials of all servers in use."""
        return {secret for session in self._sessions.values() for secret in session.secrets}

    async def close(self) -> None:
        """End all sessions and their server processes."""
        if ending := [session.end_session() for session in self._sessions.values()]:
            await asyncio.wait(ending, timeout=10.0)

    def _build_auth(self, server: ToolServer, secret: str, owner: str, secrets: list[str]) -> httpx2.Auth | None:
        if not server.oauth or self._tokens is None:
            return None
        if not secret:
            remedy = f"`turns secrets set {server.credentials} --client-secret`"
            raise SettingsError([f"the credentials {server.credentials!r} have no client secret; {remedy}"])
        return authorize_client(server, owner, secret, self._tokens, secrets)

    def _build_transport(self, server: ToolServer, given: Credential, home: Path, auth: httpx2.Auth | None) -> Any:
        if server.url:
            return open_http(server.url, given.headers, auth)
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        name, *arguments = (part.replace("{root}", str(self._settings.root)) for part in server.command)
        program = shutil.which(name)
        if program is None:
            raise ServerUnreachable(f"there is no program {name!r}")
        command = self._sandbox_command(server, [program, *arguments], home)
        environment = {"HOME": str(home), "PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
        environment |= {**server.environment, **given.environment}
        return _open_process(StdioServerParameters(command=command[0], args=command[1:], env=environment, cwd=home))

    def _sandbox_command(self, server: ToolServer, command: Sequence[str], home: Path) -> list[str]:
        limited = [*_LIMITED, str(server.max_memory_mb * 1024), *command]
        level = bubblewrap.choose_isolation(self._settings.sandbox, wanted=True)
        if level.kind == "none":
            return limited
        program = Path(command[0]).absolute()
        folders = [(self._settings.root / name).resolve() for name in server.folders]
        found = [path for path in (program, program.resolve()) if not any(map(path.is_relative_to, _SEEN))]
        binds = [*bubblewrap.LISTENER_MOUNTS, *map(SandboxMount, [*found, *folders]), SandboxMount(home, writable=True)]
        started = bubblewrap.start_command(limited, None, server.max_processes)
        return bubblewrap.sandbox_command(started, home, binds, cut=level.cut and not server.network)


def _home_folder(settings: Settings, server: ToolServer, owner: str) -> Path:
    """Return the working folder of a server. Servers with an owner's credentials have a folder per owner."""
    folder = settings.root / STATE_DIR / "tools"
    return folder / (f"{server.name}.{hashlib.sha256(owner.encode()).hexdigest()[:16]}" if owner else server.name)


@contextlib.asynccontextmanager
async def _open_process(started: StdioServerParameters) -> AsyncIterator[Any]:
    # A server's standard error may hold its credentials.
    path = Path(started.cwd or ".") / "stderr.log"
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), "a") as own:
        if os.fstat(own.fileno()).st_size > _LOG_BYTES:
            own.truncate(0)
        async with stdio_client(started, errlog=own) as streams:
            yield streams


def _first_words(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
