"""The model proxy: forward model calls from agents to their service, and log how each call ended.

A sandboxed agent uses a unix socket mounted into the sandbox; an agent on the machine's network uses a loopback port
with a secret path. The proxy adds the API key, which agents do not have. ``CONNECT`` reaches named hosts; other
requests are refused. All proxies of a worker run in one process (``python -m worker.runners.guard.forwarder FD PID``,
started by ``doors``), so a frozen worker does not stop its agents.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import shutil
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

from worker.runners.guard.answer_framing import AnswerFraming
from worker.runners.guard.byte_stream import Stream
from worker.runners.guard.call_listener import CallListener
from worker.runners.guard.call_record import Record
from worker.runners.guard.model_requests import MAX_BODY, CallNotAllowed, check_request
from worker.runners.guard.outbound import MAX_HEAD, Outbound, RequestRefused, Upstream

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


class Forwarder:
    """The model proxies of one worker: one thread, and one folder for their sockets. Thread-safe."""

    def __init__(self) -> None:
        sweep()
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._numbers = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="forwarder", daemon=True).start()
        alive = self._put(self._folder / _ALIVE)
        self._do(self._loop.create_unix_server(lambda: Stream(Stream.close), sock=alive))

    @contextlib.contextmanager
    def door(self, outbound: Outbound, record: Record | None = None) -> Iterator[Path]:
        """Open a model proxy for one run and yield the path of its socket."""
        path = self._folder / f"{next(self._numbers)}.sock"
        with self._open(_Door(outbound, record or Record()), self._put(path)):
            try:
                yield path
            finally:
                with contextlib.suppress(OSError):  # the run's result must not be lost because of this
                    path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def loopback(self, outbound: Outbound, record: Record) -> Iterator[str]:
        """Open a model proxy on a loopback port and yield its secret address."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=MAX_CONNECTIONS)
        listener.setblocking(False)
        secret = f"/{secrets.token_urlsafe(16)}"
        url = f"http://127.0.0.1:{listener.getsockname()[1]}{secret}"
        with self._open(_Door(replace(outbound, hosts=()), record, secret), listener):
            yield url

    @contextlib.contextmanager
    def _open(self, door: _Door, sock: socket.socket) -> Iterator[None]:
        self._do(door.open(sock))
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                self._do(door.close())

    def close(self) -> None:
        """Delete the socket folder after all proxies are closed."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _put(self, path: Path) -> socket.socket:
        """Create a listening socket whose path appears only once the socket accepts connections."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # bind by descriptor, because a socket's path may have only 107 characters
            made.bind(f"/proc/self/fd/{folder}/{path.name}.new")
        finally:
            os.close(folder)
        made.listen(MAX_CONNECTIONS)
        path.with_name(f"{path.name}.new").rename(path)
        return made

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(HEAD_SECONDS)


def sweep() -> int:
    """Delete the socket folders of dead workers, and return their number."""
    swept = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.geteuid() and _dead(folder / _ALIVE):
                shutil.rmtree(folder)
                swept += 1
    return swept


def _dead(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False


class _Door:
    def __init__(self, outbound: Outbound, record: Record, secret: str = "") -> None:
        self._outbound = outbound
        self._record = record
        self._secret = secret
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: list[Stream] = []
        #: Bytes of all request bodies currently in memory.
        self._held = 0

    async def open(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        server = loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
        self._server = await server(lambda: Stream(self._connected), sock=sock)

    async def close(self) -> None:
        if self._server:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stream in list(self._idle):
            self._spoilt(stream)

    def _connected(self, stream: Stream) -> None:
        if len(self._tasks) >= MAX_CONNECTIONS:
            stream.close()
            return
        task = asyncio.get_running_loop().create_task(self._answer(stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, stream: Stream) -> None:
        # Broken connections need no answer; a cancellation means that the run is over.
        with contextlib.suppress(asyncio.CancelledError, OSError, TimeoutError, h11.ProtocolError):
            try:
                await self._serve(_Peer(stream, h11.Connection(h11.SERVER, MAX_HEAD)))
                stream.end()
                # Closing at once would reset the connection and lose the response.
                async with asyncio.timeout(_LINGER_SECONDS):
                    while await stream.read():
                        pass
            finally:
                stream.close()

    async def _serve(self, asker: _Peer) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                request = await asker.hear()
            if not isinstance(request, h11.Request):
                return
            if request.method == b"CONNECT":
                await self._tunnel(asker, request.target.decode("ascii", "replace"))
            else:
                await self._pass_on(asker, request)
        except RequestRefused as refused:
            await asker.refuse(refused)
        except h11.RemoteProtocolError as error:
            if asker.http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
                await asker.refuse(RequestRefused(error.error_status_hint, str(error)))

    async def _tunnel(self, asker: _Peer, target: str) -> None:
        await asker.hear()
        there = await self._outbound.to_host(target)
        try:
            await asker.say(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
            rest, _ = asker.http.trailing_data
            await there.write(rest)
            async with asyncio.TaskGroup() as both:
                for way in (_pump(asker.stream, there), _pump(there, asker.stream)):
                    both.create_task(way)
        finally:
            there.close()

    async def _pass_on(self, asker: _Peer, request: h11.Request) -> None:
        secret = self._secret.encode()
        if not request.target.startswith(secret):
            raise RequestRefused(403, "this address belongs to another run (docs/security.md)")
        target = request.target[len(secret) :]
        upstream = self._outbound.allowed(request.method, target)
        path = target.partition(b"?")[0].decode("ascii", "replace")
        call = self._record.begin(path) if request.method == b"POST" else None
        stream, again, body = None, False, bytearray()
        try:
            if request.method == b"POST":
                await self._check(asker, request, target.decode("ascii", "replace"), upstream, call, body)
            stream = self._idle.pop().take_up() if self._idle else await self._outbound.to_upstream(upstream)
            service = _Peer(stream, h11.Connection(h11.CLIENT, MAX_HEAD))
            target = upstream.path.encode() + target
            await service.say(
                h11.Request(method=request.method, target=target, headers=_headers_for(upstream, request))
            )
            if body:
                await service.say(h11.Data(data=bytes(body)))
            again = await _exchange(asker, service, call)
        except RequestRefused as refused:
            if call and refused.word:
                call.refuse(refused.status, refused.word)
            elif call:
                call.close(whole=False, why="unreachable")
            raise
        finally:
            self._held -= len(body)
            if call:
                call.close(whole=False)
            if stream and again and stream.keep(self._spoilt):
                self._idle.append(stream)
                asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._spoilt, stream)
            elif stream:
                stream.close()

    async def _check(
        self,
        asker: _Peer,
        request: h11.Request,
        target: str,
        upstream: Upstream,
        call: CallListener | None,
        body: bytearray,
    ) -> None:
        """Read and check the whole body of a model call before any part of it is sent."""
        if asker.http.they_are_waiting_for_100_continue:
            await asker.say(h11.InformationalResponse(status_code=100, headers=[]))
        while isinstance(event := await asker.hear(), h11.Data):
            body += event.data
            self._held += len(event.data)
            if len(body) > MAX_BODY or self._held > 2 * MAX_BODY:
                raise RequestRefused(413, f"bodies of more than {MAX_BODY} bytes", "request_too_large", "a large body")
        said = bytes(body)

        def check() -> tuple[str, bool]:
            return check_request(target, request.headers, said, upstream.models, upstream.allows)

        try:
            model, tools = check() if len(said) < _MUCH else await asyncio.to_thread(check)
        except CallNotAllowed as error:
            message = f"refused by the model proxy: {error} (docs/security.md)"
            raise RequestRefused(400, message, "invalid_request_error", error.word or "unreadable") from None
        if call:
            call.asked(said, model, tools=tools)

    def _spoilt(self, stream: Stream) -> None:
        if stream in self._idle:
            self._idle.remove(stream)
            stream.close()


async def _exchange(asker: _Peer, service: _Peer, call: CallListener | None) -> bool:
    """Forward a request and its response; return True if the service's connection can be reused."""
    ways = [asyncio.create_task(_bring_back(service, asker, call)), asyncio.create_task(_hand_on(asker, service))]
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


class _Peer:
    def __init__(self, stream: Stream, http: h11.Connection) -> None:
        self.stream = stream
        self.http = http
        self.bodyless = False

    async def hear_head(self) -> h11.Response:
        while True:
            try:
                self.http.receive_data(await self.stream.head(MAX_HEAD))
            except ValueError as error:
                raise h11.RemoteProtocolError(str(error)) from error
            event = self.http.next_event()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("the service's answer has no head")

    async def hear(self) -> Any:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.stream.read())
        if isinstance(event, h11.Request):
            self.bodyless = event.method == b"HEAD"
        return event

    async def say(self, event: Any) -> None:
        await self.stream.write(self.http.send(event) or b"")

    async def refuse(self, refused: RequestRefused) -> None:
        """Send an error response in a form that the clients of all APIs understand."""
        fields = {"type": refused.kind, "code": refused.kind, "status": refused.kind.upper(), "param": None}
        error = {"type": "error", "error": {**fields, "message": str(refused)}}
        body = json.dumps(error).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        await self.say(h11.Response(status_code=refused.status, headers=headers))
        if not self.bodyless:
            await self.say(h11.Data(data=body))
        await self.say(h11.EndOfMessage())


def _headers_for(upstream: Upstream, request: h11.Request) -> list[tuple[bytes, bytes]]:
    """Build the headers sent to the service: with our key instead of the agent's."""
    dropped = _HOP_BY_HOP | upstream.ours.keys() | {b"accept-encoding"}
    if any(upstream.ours.values()):  # with its own key, the agent could send its data to another account
        dropped |= _KEYS
    kept = [(name, value) for name, value in request.headers if name not in dropped]
    ours = [(name, value.encode()) for name, value in upstream.ours.items() if value]
    # The proxy reads the response: decompressing costs more than the transfer to the agent saves.
    return [(b"host", upstream.host_header.encode()), *kept, *ours, (b"accept-encoding", b"identity")]


async def _hand_on(asker: _Peer, service: _Peer) -> None:
    with contextlib.suppress(OSError):  # a service may respond early
        await service.say(h11.EndOfMessage())
    while await asker.stream.read():
        pass


async def _bring_back(service: _Peer, asker: _Peer, call: CallListener | None) -> bool:
    """Forward the service's response to the client; return True if the service's connection stays open."""
    head = await service.hear_head()
    kept = [(name, value) for name, value in head.headers if name not in _HOP_BY_HOP]
    own = h11.Response(status_code=head.status_code, headers=[*kept, (b"connection", b"close")], reason=head.reason)
    headers = dict(head.headers)
    framing = AnswerFraming(headers, bodyless=asker.bodyless or head.status_code in {204, 304})
    if call:
        call.answered(head.status_code, headers)
    await asker.say(own)
    await _body(service.stream, asker, framing, call)
    if not framing.over and not framing.until_closed:
        raise ConnectionError("the service broke off")
    if call:
        call.close(whole=True)
    if not _alike(framing, asker):
        await asker.say(h11.EndOfMessage())
    closes = headers.get(b"connection", b"").lower() == b"close" or head.http_version != b"1.1"
    return not (closes or framing.until_closed or framing.surplus)


def _alike(framing: AnswerFraming, asker: _Peer) -> bool:
    """Return whether client and service frame the body alike, so that raw bytes can be copied."""
    return not framing.until_closed and asker.http.their_http_version != b"1.0"


async def _body(stream: Stream, asker: _Peer, framing: AnswerFraming, call: CallListener | None) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    alike = _alike(framing, asker)

    def take(raw: bytes) -> None:
        if done.done():
            return
        try:
            body = framing.take(raw) if raw else b""
            if call:  # before the agent gets the piece, after which it may exit at once
                call.heard(body, whole=framing.over)
            if alike or body:
                asker.stream.send(raw if alike else asker.http.send(h11.Data(data=body)) or b"")
        except (OSError, h11.ProtocolError) as error:
            done.set_exception(error)
        else:
            if framing.over or not raw:
                done.set_result(None)

    if framing.over:
        return
    asker.stream.source = stream
    try:
        stream.pass_on(take)
        await done
    finally:
        asker.stream.source = None
        stream.take_up()


async def _pump(source: Stream, target: Stream) -> None:
    while piece := await source.read():
        await target.write(piece)
    target.end()


class _Served:
    """The requests that a worker sends to the proxy process, by method name (``doors``)."""

    def __init__(self) -> None:
        self._forwarder = Forwarder()
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[contextlib.ExitStack, Record]] = {}

    def open(self, outbound: Outbound, calls: Path | None, boxed: bool) -> tuple[int, str]:
        record, held = Record(calls), contextlib.ExitStack()
        made = self._forwarder.door if boxed else self._forwarder.loopback
        address = str(held.enter_context(made(outbound, record)))
        number = next(self._numbers)
        self._open[number] = held, record
        return number, address

    def count(self, number: int) -> int:
        return self._open[number][1].count()

    def failures(self, number: int) -> int:
        return self._open[number][1].failures

    def seen(self, number: int, since: int) -> Any:
        return self._open[number][1].seen(since)

    def close(self, number: int) -> None:
        self._open.pop(number)[0].close()

    def end(self) -> None:
        for number in list(self._open):
            self.close(number)
        self._forwarder.close()


def main() -> None:
    """Serve the worker that started this process until the worker is gone."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # only the worker may stop this process
        signal.signal(number, signal.SIG_IGN)
    served, worker = _Served(), Connection(int(sys.argv[1]))
    watched: list[Any] = [worker]
    with contextlib.suppress(OSError):  # kernels without pidfd: rely on the closed socket
        watched.append(os.pidfd_open(int(sys.argv[2])))
    try:
        while os.getppid() == int(sys.argv[2]) and wait(watched) == [worker]:
            name, given = worker.recv()
            try:
                worker.send((True, getattr(served, name)(*given)))
            except KeyError:
                worker.send((False, "the door is gone"))
            except OSError as error:
                worker.send((False, str(error)))
    except (EOFError, ConnectionError):
        pass
    finally:
        served.end()


if __name__ == "__main__":
    main()
