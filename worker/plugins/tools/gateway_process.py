"""The process that serves the tool gateways of a worker: ``python -P -m worker.plugins.tools.gateway_process FD``.

The worker sends requests as JSON lines over the socket ``FD``, agents MCP requests over a unix socket, each with the
secret of its run. When the worker dies, calls under way may still end and be written; nothing new begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams

from api_client.contract.settings import load_settings
from api_client.contract.tool_call_row import CallRow
from api_client.secrets.secret_store import SecretStore
from api_client.store import Store
from worker.logs import configure_logging
from worker.plugins.tools.call_store import CallStore
from worker.plugins.tools.credentials import StoredCredentials
from worker.plugins.tools.gateway import GatewayRun
from worker.plugins.tools.run_spec import RunSpec
from worker.plugins.tools.upstream_pool import UpstreamPool
from worker.runners.sandbox.destinations import RUN_HEADER

#: Prefix and socket by which the clean-up recognises folders of dead processes.
_PREFIX, _SOCKET = "helix-net-", "alive.sock"
#: How long calls under way may continue after the worker has died, in seconds.
_TO_END_SECONDS = 30.0
_MOST_LINE = 64 * 2**20

_run: ContextVar[tuple[GatewayRun, asyncio.Event]] = ContextVar("run")


class AgentConnection:
    """An agent's connection to an ASGI application. Sets ``gone`` if the agent disconnects before the response."""

    def __init__(self, receive: Any, send: Any) -> None:
        self.gone = asyncio.Event()
        self._receive, self._send, self._answered = receive, send, False
        self._watch: asyncio.Task[Any] | None = None

    async def receive(self) -> Any:
        """Return the next message of the request."""
        if self._watch:
            return await asyncio.shield(self._watch)
        message = await self._receive()
        if not message.get("more_body"):
            self._watch = asyncio.create_task(self._await_end())
        return message

    async def send(self, message: Any) -> None:
        self._answered = self._answered or (message["type"] == "http.response.body" and not message.get("more_body"))
        await self._send(message)

    def close(self) -> None:
        """Stop watching for a disconnect."""
        if self._watch:
            self._watch.cancel()

    async def _await_end(self) -> Any:
        message = await self._receive()
        if not self._answered:
            self.gone.set()
        return message


class WorkerChannel:
    """The gateway process's connection to the worker, with one JSON request, reply or report per line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self._writer = reader, writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def send_message(self, message: Mapping[str, Any]) -> None:
        """Send a message to the worker. Messages to a dead worker are dropped."""
        with contextlib.suppress(OSError):
            self.post_message(message)
            await self._writer.drain()

    def post_message(self, message: Mapping[str, Any]) -> None:
        """Send a message to the worker without waiting."""
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def ask_worker(self, message: Mapping[str, Any]) -> Any:
        """Send a request to the worker and return its reply, or None if the worker is dead."""
        number = next(self._numbers)
        self._waiting[number] = reply = asyncio.get_running_loop().create_future()
        await self.send_message({**message, "number": number})
        return await reply

    def take_reply(self, message: Mapping[str, Any]) -> None:
        """Pass a reply of the worker to the request that is waiting for it."""
        if waiting := self._waiting.pop(message["reply"], None):
            waiting.set_result(message["value"])

    def close(self) -> None:
        """Answer all open requests with None, because the worker is gone."""
        for waiting in self._waiting.values():
            waiting.set_result(None)
        self._waiting.clear()


class _WorkerRun:
    """Sends the gateway's questions and events about one run to the worker."""

    def __init__(self, channel: WorkerChannel, secret: str) -> None:
        self._channel, self._secret = channel, secret

    async def use_up_approval(self) -> bool:
        return bool(await self._channel.ask_worker({"do": "use_up", "run": self._secret}))

    async def suspend_run(self, question: Mapping[str, Any]) -> None:
        await self._channel.send_message({"do": "suspend", "run": self._secret, "question": question})

    def report_call(self, row: CallRow) -> None:
        # After the agent's answer, which is sent without yielding to the loop, and before the run can be closed.
        report = {"do": "report", "run": self._secret, "row": row.to_dict()}
        asyncio.get_running_loop().call_soon(self._channel.post_message, report)


class GatewayServer:
    """Serves the MCP requests of all runs. Each run is identified by its secret."""

    def __init__(self, calls: CallStore, upstreams: UpstreamPool, channel: WorkerChannel) -> None:
        self._calls, self._upstreams, self._channel = calls, upstreams, channel
        self._runs: dict[str, GatewayRun] = {}
        self._me = secrets.token_hex(8)
        server: Server[Any] = Server(
            "helix-tools",
            # Without it, the SDK lists all tools before each call.
            get_tool_input_schema=lambda name: _run.get()[0].schemas.get(name),
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        self._manager = StreamableHTTPSessionManager(server, stateless=True, json_response=True)

    async def open_run(self, data: Mapping[str, Any]) -> str:
        """Start serving a run, and return its secret. Raises ``StoreUnavailable``."""
        spec = RunSpec.from_dict(data)
        secret = secrets.token_urlsafe(24)
        rows = await self._calls.read_calls(spec.turn_id)
        owner = _WorkerRun(self._channel, secret)
        self._runs[secret] = GatewayRun(spec, rows, self._me, self._calls, self._upstreams, owner)
        return secret

    def close_run(self, secret: str) -> None:
        if run := self._runs.pop(secret, None):
            run.end_run()

    async def serve_requests(self, listener: socket.socket) -> None:
        """Accept and serve MCP requests until cancelled."""
        config = uvicorn.Config(
            self._handle_request,
            interface="asgi3",
            lifespan="off",
            proxy_headers=False,
            log_config=None,
            access_log=False,
            timeout_keep_alive=60,  # the model proxy closes its idle connections before
        )
        server = uvicorn.Server(config)
        async with self._manager.run():
            await server.serve(sockets=[listener])

    async def end_calls(self) -> None:
        """Start no more calls, and wait for the calls in progress."""
        for run in self._runs.values():
            run.end_run()
        if under_way := {task for run in self._runs.values() for task in run.under_way}:
            await asyncio.wait(under_way, timeout=_TO_END_SECONDS)

    async def _handle_request(self, scope: Any, receive: Any, send: Any) -> None:
        run = self._runs.get(dict(scope.get("headers", ())).get(RUN_HEADER, b"").decode("latin-1"))
        if run is None or scope["method"] != "POST":
            status = 403 if run is None else 405
            await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
            return
        agent = AgentConnection(receive, send)
        token = _run.set((run, agent.gone))
        try:
            await self._manager.handle_request(scope, agent.receive, agent.send)
        finally:
            agent.close()
            _run.reset(token)

    async def _list_tools(self, _: ServerRequestContext[Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=await _run.get()[0].list_tools())

    async def _call_tool(self, _: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        run, gone = _run.get()
        return await run.call_tool(params.name, params.arguments or {}, gone)


async def _serve_worker(served: GatewayServer, channel: WorkerChannel, path: Path) -> None:
    carried_out = set[asyncio.Task[None]]()

    async def carry_out(message: Mapping[str, Any]) -> None:
        try:
            if message["do"] == "close":
                served.close_run(message["run"])
                value: Any = True
            else:
                value = {"secret": await served.open_run(message["spec"]), "socket": str(path)}
            await channel.send_message({"reply": message["number"], "value": value})
        except Exception as error:
            await channel.send_message({"reply": message["number"], "error": f"{type(error).__name__}: {error}"[:300]})

    while line := await channel.reader.readline():
        message = json.loads(line)
        if "reply" in message:
            channel.take_reply(message)
            continue
        task = asyncio.create_task(carry_out(message))
        carried_out.add(task)
        task.add_done_callback(carried_out.discard)


async def serve_gateways(worker: socket.socket) -> None:
    """Serve the gateways of one worker until the worker disconnects and its calls have ended."""
    settings = load_settings()
    configure_logging(settings)
    channel = WorkerChannel(*await asyncio.open_connection(sock=worker, limit=_MOST_LINE))
    store = Store(settings)
    upstreams = UpstreamPool(settings, StoredCredentials(SecretStore(store)), store)
    served = GatewayServer(CallStore(store), upstreams, channel)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    path = folder / _SOCKET
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(256)
    work = served.serve_requests(listener), _serve_worker(served, channel, path)
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        channel.close()
        await served.end_calls()
        for task in tasks:
            task.cancel()
        await upstreams.close()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    # Only closing the socket ends this process; uvicorn handles signals.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    asyncio.run(serve_gateways(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
