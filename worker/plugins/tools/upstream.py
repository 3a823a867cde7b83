"""A session with an MCP server, by the official SDK, and the errors that tell what became of a call."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from mcp import Client, MCPError
from mcp.client import IncomingMessage, InputRequiredRoundsExceededError
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

from api_client.contract.settings.redaction import MASK, redact_value
from api_client.tools.tool_grants import GrantEnded
from worker.plugins.tools.tool_servers import ToolServer
from worker.plugins.tools.upstream_http import NOT_SENT, NOT_SIGNED_IN, TOO_LARGE

log = structlog.get_logger(__name__)

#: Longest start of a server, in seconds; a package runner may download it first.
_START_SECONDS = 60.0
_MOST_TOOLS_PAGES = 50
#: Shorter credentials are not masked, because they would occur everywhere.
_SHORTEST_SECRET = 6
#: Longest wait for a list of tools, in seconds; agents give up soon.
_LIST_SECONDS = 10.0
#: Errors after which a session is of no use.
_ENDS_SESSION = frozenset({CONNECTION_CLOSED, NOT_SIGNED_IN})
#: Names of tools, as MCP defines them; others are left out, because services of models refuse a request with them.
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)
#: Errors that prove that a call was not executed, from the server or the SDK (HTTP 404).
_NOT_EXECUTED, _SESSION_GONE = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS, HEADER_MISMATCH}), "Session terminated"


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
        """Wait until the session is open. Raises ``ServerUnreachable`` or ``GrantEnded``."""
        try:
            async with asyncio.timeout(_START_SECONDS):
                await asyncio.shield(self._ready)
        except TimeoutError:
            raise ServerUnreachable(f"it did not start within {_START_SECONDS:g} s") from None
        except Exception as error:
            raise self._describe_failure(error) from error

    async def list_tools(self) -> list[Tool]:
        """Return the server's tools. Raises ``ServerUnreachable`` or ``GrantEnded``."""
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
            raise self._describe_failure(error) from error
        self._tools = found
        return list(found.values())

    async def find_tool(self, name: str) -> Tool | None:
        """Return the tool with this name, or None. Ask the server again if the name is unknown."""
        if name not in self._tools:
            await self.list_tools()
        return self._tools.get(name)

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Call a tool and return its result.

        Raises ``ServerUnreachable``, ``GrantEnded``, ``SessionGone`` or ``CallRefused`` if the call was not
        executed, ``OutcomeUnknown`` or ``MalformedResult`` if it may have been.
        """
        self._under_way += 1
        try:
            return self._hide_secrets(await self._client.call_tool(name, dict(arguments)))
        except MCPError as error:
            self.broken = self.broken or error.message == _SESSION_GONE or error.code in _ENDS_SESSION
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
        """Accept no more calls in this session, and end it after the calls in progress."""
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

    def _describe_failure(self, error: Exception) -> Exception:
        first = _find_first(error)
        kind = GrantEnded if isinstance(first, MCPError) and first.code == NOT_SIGNED_IN else ServerUnreachable
        return kind(self._mask_text(_first_words(error)))

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
    """Return a text with these secrets masked. Pass the longest secrets first."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def _classify_error(error: MCPError, said: str) -> Exception:
    if error.message == _SESSION_GONE:
        return SessionGone(said)
    if error.code == NOT_SIGNED_IN:
        return GrantEnded(said)
    if error.code == NOT_SENT:
        return ServerUnreachable(said)
    if error.code == TOO_LARGE:
        return MalformedResult(said)
    return CallRefused(said) if error.code in _NOT_EXECUTED else OutcomeUnknown(said)


def _find_first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _first_words(error: BaseException) -> str:
    error = _find_first(error)
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
