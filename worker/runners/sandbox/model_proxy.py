"""The model proxy: forward model calls from agents to their service, and log how each call ended.

An agent in a sandbox uses a unix socket, an agent on the machine's network a loopback port with a secret path. The
proxy adds the API key, which agents do not have. ``CONNECT`` reaches named hosts; other requests are refused. All
proxies of a worker run in one process (``python -m worker.runners.sandbox.model_proxy FD PID``).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

import h11

from worker.files.folder_trees import remove_tree
from worker.runners.sandbox.body_framing import BodyFraming
from worker.runners.sandbox.byte_stream import ByteStream
from worker.runners.sandbox.call_log import CallLog
from worker.runners.sandbox.call_observer import CallObserver
from worker.runners.sandbox.destinations import MAX_HEAD, AllowedDestinations, RequestRefused, Upstream
from worker.runners.sandbox.model_requests import MAX_BODY, CallNotAllowed, check_request

#: Concurrent connections of one run.
MAX_CONNECTIONS = 32
#: Time limit for the head of a request, in seconds.
HEAD_SECONDS = 30.0
#: Bodies larger than this many bytes are parsed in a thread.
_MUCH = 256 * 2**10
#: Seconds for which surplus bytes of the client are discarded.
_LINGER_SECONDS = 2.0
#: Seconds that an idle connection to the service is kept; servers keep theirs for at least 5.
_IDLE_SECONDS = 4.0
#: Seconds to read on after the client has left: tokens sent by then are billed.
_LEFT_SECONDS = 0.1
_PREFIX = "helix-net-"
_ALIVE = "alive.sock"
_HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade", b"expect", b"host"})
_KEYS = frozenset({b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key", b"openai-organization"})

T = TypeVar("T")


class ProxyServer:
    """Runs the model proxies of a worker in one thread. Thread-safe."""

    def __init__(self) -> None:
        sweep_folders()
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._numbers = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="model proxy", daemon=True).start()
        alive = self._listen_at(self._folder / _ALIVE)
        self._run_in_loop(self._loop.create_unix_server(lambda: ByteStream(ByteStream.close), sock=alive))

    @contextlib.contextmanager
    def open_socket_proxy(self, outbound: AllowedDestinations, record: CallLog | None = None) -> Iterator[Path]:
        """Open a model proxy for one run, and yield the path of its unix socket."""
        path = self._folder / f"{next(self._numbers)}.sock"
        with self._open_proxy(_RunProxy(outbound, record or CallLog()), self._listen_at(path)):
            try:
                yield path
            finally:
                with contextlib.suppress(OSError):  # the run's result must not be lost because of this
                    path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def open_loopback_proxy(self, outbound: AllowedDestinations, record: CallLog) -> Iterator[str]:
        """Open a model proxy on a loopback port, and yield its URL, which contains a secret."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=MAX_CONNECTIONS)
        listener.setblocking(False)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio sets it for its own listeners alone
        secret = f"/{secrets.token_urlsafe(16)}"
        url = f"http://127.0.0.1:{listener.getsockname()[1]}{secret}"
        with self._open_proxy(_RunProxy(replace(outbound, hosts=()), record, secret), listener):
            yield url

    @contextlib.contextmanager
    def _open_proxy(self, run_proxy: _RunProxy, sock: socket.socket) -> Iterator[None]:
        self._run_in_loop(run_proxy.open(sock))
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                self._run_in_loop(run_proxy.close())

    def close(self) -> None:
        """Stop the server and delete its folder of sockets. Close all proxies first."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        remove_tree(self._folder, ignore_errors=True)

    def _listen_at(self, path: Path) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # bind by descriptor, because a socket's path may have only 107 characters
            made.bind(f"/proc/self/fd/{folder}/{path.name}.new")
        finally:
            os.close(folder)
        made.listen(MAX_CONNECTIONS)
        path.with_name(f"{path.name}.new").rename(path)
        return made

    def _run_in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(HEAD_SECONDS)


def sweep_folders() -> int:
    """Delete the socket folders that dead workers left behind, and return their number."""
    swept = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.geteuid() and _is_dead(folder / _ALIVE):
                remove_tree(folder)
                swept += 1
    return swept


def _is_dead(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False


class _RunProxy:
    def __init__(self, outbound: AllowedDestinations, record: CallLog, secret: str = "") -> None:
        self._outbound = outbound
        self._record = record
        self._secret = secret
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        #: Idle connections, and the ``Upstream.socket`` of each.
        self._idle: dict[ByteStream, str] = {}
        #: Bytes of all request bodies currently in memory.
        self._held = 0

    async def open(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        server = loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
        self._server = await server(lambda: ByteStream(self._accept_stream), sock=sock)

    async def close(self) -> None:
        if self._server:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stream in list(self._idle):
            self._drop_idle(stream)

    def _accept_stream(self, stream: ByteStream) -> None:
        if len(self._tasks) >= MAX_CONNECTIONS:
            stream.close()
            return
        task = asyncio.get_running_loop().create_task(self._handle_stream(stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle_stream(self, stream: ByteStream) -> None:
        # Broken connections need no answer; a cancellation means that the run is over.
        with contextlib.suppress(asyncio.CancelledError, OSError, TimeoutError, h11.ProtocolError):
            try:
                rest: bytes | None = b""
                while rest is not None:
                    rest = await self._serve_request(_HttpPeer(stream, h11.Connection(h11.SERVER, MAX_HEAD), rest))
                stream.end_sending()
                # Closing at once would reset the connection and lose the response.
                async with asyncio.timeout(_LINGER_SECONDS):
                    while await stream.read_piece():
                        pass
            finally:
                stream.close()

    async def _serve_request(self, client: _HttpPeer) -> bytes | None:
        """Serve one request. Return the bytes received after it, or None if the connection must be closed."""
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                request = await client.read_event()
            if not isinstance(request, h11.Request):
                return None
            if request.method == b"CONNECT":
                await self._tunnel_to_host(client, request.target.decode("ascii", "replace"))
            else:
                await self._forward_request(client, request)
                return client.http.trailing_data[0] if client.stays_open else None
        except RequestRefused as refused:
            await client.send_refusal(refused)
        except h11.RemoteProtocolError as error:
            if client.http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
                await client.send_refusal(RequestRefused(error.error_status_hint, str(error)))
        return None

    async def _tunnel_to_host(self, client: _HttpPeer, target: str) -> None:
        await client.read_event()
        there = await self._outbound.connect_host(target)
        try:
            await client.send_event(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
            rest, _ = client.http.trailing_data
            await there.write_data(rest)
            async with asyncio.TaskGroup() as both:
                for way in (_copy_stream(client.stream, there), _copy_stream(there, client.stream)):
                    both.create_task(way)
        finally:
            there.close()

    async def _forward_request(self, client: _HttpPeer, request: h11.Request) -> None:
        secret = self._secret.encode()
        if not request.target.startswith(secret):
            raise RequestRefused(403, "this address belongs to another run (docs/security.md)")
        target = request.target[len(secret) :]
        upstream = self._outbound.find_upstream(request.method, target)
        path = target.partition(b"?")[0].decode("ascii", "replace")
        to_model = not upstream.socket
        call = self._record.observe_call(path) if request.method == b"POST" and to_model else None
        stream, again, body = None, False, bytearray()
        # Tool calls follow each other within milliseconds; idle connections must not keep others out.
        keeps = request.http_version == b"1.1" and (b"connection", b"close") not in request.headers
        client.stays_open = keeps and not to_model and len(self._tasks) <= MAX_CONNECTIONS // 2
        try:
            if request.method == b"POST":
                await self._read_body(client, body)
                if to_model:
                    await self._check_body(request, target.decode("ascii", "replace"), upstream, call, bytes(body))
            stream = self._take_idle(upstream.socket) or await self._outbound.connect_upstream(upstream)
            service = _HttpPeer(stream, h11.Connection(h11.CLIENT, MAX_HEAD))
            target = upstream.path.encode() + target
            head = h11.Request(method=request.method, target=target, headers=_build_headers(upstream, request))
            await service.send_event(head, *([h11.Data(data=bytes(body))] if body else []))
            again = await _exchange_messages(client, service, call)
            client.stays_open = client.stays_open and again
        except RequestRefused as refused:
            if call and refused.word:
                call.log_refusal(refused.status, refused.word)
            elif call:
                call.end_call(whole=False, why="unreachable")
            raise
        finally:
            self._held -= len(body)
            if call:
                call.end_call(whole=False)
            if stream and again and stream.keep_idle(self._drop_idle):
                self._idle[stream] = upstream.socket
                asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._drop_idle, stream)
            elif stream:
                stream.close()

    async def _read_body(self, client: _HttpPeer, body: bytearray) -> None:
        if client.http.they_are_waiting_for_100_continue:
            await client.send_event(h11.InformationalResponse(status_code=100, headers=[]))
        while isinstance(event := await client.read_event(), h11.Data):
            body += event.data
            self._held += len(event.data)
            if len(body) > MAX_BODY or self._held > 2 * MAX_BODY:
                raise RequestRefused(413, f"bodies of more than {MAX_BODY} bytes", "request_too_large", "a large body")

    async def _check_body(
        self, request: h11.Request, target: str, upstream: Upstream, call: CallObserver | None, said: bytes
    ) -> None:
        def check_body() -> tuple[str, bool]:
            return check_request(target, request.headers, said, upstream.models, upstream.allows)

        try:
            model, tools = check_body() if len(said) < _MUCH else await asyncio.to_thread(check_body)
        except CallNotAllowed as error:
            message = f"refused by the model proxy: {error} (docs/security.md)"
            raise RequestRefused(400, message, "invalid_request_error", error.word or "unreadable") from None
        if call:
            call.observe_request(said, model, tools=tools)

    def _take_idle(self, place: str) -> ByteStream | None:
        stream = next((each for each in self._idle if self._idle[each] == place), None)
        self._idle = {each: where for each, where in self._idle.items() if each is not stream}
        return stream.reuse() if stream else None

    def _drop_idle(self, stream: ByteStream) -> None:
        if stream in self._idle:
            del self._idle[stream]
            stream.close()


async def _exchange_messages(client: _HttpPeer, service: _HttpPeer, call: CallObserver | None) -> bool:
    ways = [
        asyncio.create_task(_forward_response(service, client, call)),
        asyncio.create_task(_finish_request(client, service)),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(ways[:1], timeout=_LEFT_SECONDS)
    finally:
        for way in ways:
            way.cancel()
        ended = await asyncio.gather(*ways, return_exceptions=True)
    if isinstance(ended[0], h11.ProtocolError | OSError):
        raise ended[0]
    return ended[0] is True and service.http.our_state is h11.DONE


class _HttpPeer:
    def __init__(self, stream: ByteStream, http: h11.Connection, received: bytes = b"") -> None:
        self.stream = stream
        self.http = http
        self.bodyless = False
        self.stays_open = False
        if received:
            http.receive_data(received)

    async def read_head(self) -> h11.Response:
        while True:
            try:
                self.http.receive_data(await self.stream.read_head(MAX_HEAD))
            except ValueError as error:
                raise h11.RemoteProtocolError(str(error)) from error
            event = self.http.next_event()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("the service's answer has no head")

    async def read_event(self) -> Any:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.stream.read_piece())
        if isinstance(event, h11.Request):
            self.bodyless = event.method == b"HEAD"
        return event

    async def send_event(self, *events: Any) -> None:
        await self.stream.write_data(b"".join(self.http.send(event) or b"" for event in events))

    async def send_refusal(self, refused: RequestRefused) -> None:
        """Send an error response that the clients of all supported APIs understand."""
        fields = {"type": refused.kind, "code": refused.kind, "status": refused.kind.upper(), "param": None}
        error = {"type": "error", "error": {**fields, "message": str(refused)}}
        body = json.dumps(error).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        await self.send_event(h11.Response(status_code=refused.status, headers=headers))
        if not self.bodyless:
            await self.send_event(h11.Data(data=body))
        await self.send_event(h11.EndOfMessage())


def _build_headers(upstream: Upstream, request: h11.Request) -> list[tuple[bytes, bytes]]:
    dropped = _HOP_BY_HOP | upstream.ours.keys() | {b"accept-encoding"}
    if any(upstream.ours.values()):  # with its own key, the agent could send its data to another account
        dropped |= _KEYS
    kept = [(name, value) for name, value in request.headers if name not in dropped]
    ours = [(name, value.encode()) for name, value in upstream.ours.items() if value]
    # Decompressing costs more than the transfer to the agent saves.
    return [(b"host", upstream.host_header.encode()), *kept, *ours, (b"accept-encoding", b"identity")]


async def _finish_request(client: _HttpPeer, service: _HttpPeer) -> None:
    with contextlib.suppress(OSError):  # a service may respond early
        await service.send_event(h11.EndOfMessage())
    while piece := await client.stream.read_piece():
        if client.stays_open:
            client.http.receive_data(piece)
            await asyncio.Future()  # the next request begins; it is read after the response


async def _forward_response(service: _HttpPeer, client: _HttpPeer, call: CallObserver | None) -> bool:
    head = await service.read_head()
    kept = [(name, value) for name, value in head.headers if name not in _HOP_BY_HOP]
    closes = [] if client.stays_open else [(b"connection", b"close")]
    own = h11.Response(status_code=head.status_code, headers=[*kept, *closes], reason=head.reason)
    headers = dict(head.headers)
    framing = BodyFraming(headers, bodyless=client.bodyless or head.status_code in {204, 304})
    if call:
        call.observe_head(head.status_code, headers)
    await client.send_event(own)
    await _forward_body(service.stream, client, framing, call)
    if not framing.over and not framing.until_closed:
        raise ConnectionError("the service broke off")
    if call:
        call.end_call(whole=True)
    if not _frames_alike(framing, client):
        await client.send_event(h11.EndOfMessage())
    ends = headers.get(b"connection", b"").lower() == b"close" or head.http_version != b"1.1"
    return not (ends or framing.until_closed or framing.surplus)


def _frames_alike(framing: BodyFraming, client: _HttpPeer) -> bool:
    """Return whether client and service mark the end of the body alike, so that its bytes can be copied unchanged."""
    return not framing.until_closed and client.http.their_http_version != b"1.0"


async def _forward_body(stream: ByteStream, client: _HttpPeer, framing: BodyFraming, call: CallObserver | None) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    alike = _frames_alike(framing, client)

    def forward_piece(raw: bytes) -> None:
        if done.done():
            return
        try:
            body = framing.read_body(raw) if raw else b""
            if call:  # before the agent gets the piece, after which it may exit at once
                call.observe_body(body, whole=framing.over)
            if alike or body:
                client.stream.send_data(raw if alike else client.http.send(h11.Data(data=body)) or b"")
        except (OSError, h11.ProtocolError) as error:
            done.set_exception(error)
        else:
            if framing.over or not raw:
                done.set_result(None)

    if framing.over:
        return
    client.stream.source = stream
    try:
        stream.forward_to(forward_piece)
        await done
    finally:
        client.stream.source = None
        stream.reuse()


async def _copy_stream(source: ByteStream, target: ByteStream) -> None:
    while piece := await source.read_piece():
        await target.write_data(piece)
    target.end_sending()


class _ProxyRequests:
    """Handles the worker's requests to the proxy process. Each public method is one request."""

    def __init__(self) -> None:
        self._forwarder = ProxyServer()
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[contextlib.ExitStack, CallLog]] = {}

    def open(self, outbound: AllowedDestinations, calls: Path | None, sandboxed: bool) -> tuple[int, str]:
        record, held = CallLog(calls), contextlib.ExitStack()
        made = self._forwarder.open_socket_proxy if sandboxed else self._forwarder.open_loopback_proxy
        address = str(held.enter_context(made(outbound, record)))
        number = next(self._numbers)
        self._open[number] = held, record
        return number, address

    def count(self, number: int) -> int:
        return self._open[number][1].count_calls()

    def failures(self, number: int) -> int:
        return self._open[number][1].failures

    def seen(self, number: int, since: int) -> Any:
        return self._open[number][1].observed_calls(since)

    def close(self, number: int) -> None:
        self._open.pop(number)[0].close()

    def close_all(self) -> None:
        for number in list(self._open):
            self.close(number)
        self._forwarder.close()


def main() -> None:
    """Serve the requests of the worker that started this process, until the worker is gone."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # only the worker may stop this process
        signal.signal(number, signal.SIG_IGN)
    served, worker = _ProxyRequests(), Connection(int(sys.argv[1]))
    watched: list[Any] = [worker]
    with contextlib.suppress(OSError):  # kernels without pidfd: rely on the closed socket
        watched.append(os.pidfd_open(int(sys.argv[2])))
    try:
        while os.getppid() == int(sys.argv[2]) and wait(watched) == [worker]:
            name, given = worker.recv()
            try:
                worker.send((True, getattr(served, name)(*given)))
            except KeyError:
                worker.send((False, "the model proxy is gone"))
            except OSError as error:
                worker.send((False, str(error)))
    except (EOFError, ConnectionError):
        pass
    finally:
        served.close_all()


if __name__ == "__main__":
    main()
