"""The doors through which runs reach their service: each notes how every model call ended (``witness``).

A box has its own network, in which nobody else is. Its run has a unix socket, bound into the box, at which this module
answers in the worker's process. Requests go to the run's service, with the key that the agent does not hold;
``CONNECT`` leads from a box to named hosts. Everything else is refused. A run without its own network has a port on
loopback, below a path that only it knows. A door goes with its run, and all doors with their worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import h11
import structlog

from worker.runners.guard.outbound import MAX_HEAD, Outbound, Refused, Stream, Upstream
from worker.runners.guard.witness import Framing, Listening, Record

log = structlog.get_logger(__name__)

#: Connections of one run at a time; one more is closed at once.
MAX_CONNECTIONS = 32
#: So long may the head of a request take, in seconds.
HEAD_SECONDS = 30.0
#: So long is what an asker still sends thrown away, once it has its answer, in seconds.
_LINGER_SECONDS = 2.0
_PIECE = 65_536
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_PREFIX = "helix-net-"
#: A socket that answers as long as the worker lives.
_ALIVE = "alive.sock"
#: Headers about one connection, which end at it.
_HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade", b"expect", b"host"})

T = TypeVar("T")


class Forwarder:
    """The doors of this worker process: one thread, one folder for their sockets. Used by many threads at once."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        sweep()
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._numbers = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="forwarder", daemon=True).start()
        self._do(asyncio.start_unix_server(_hang_up, sock=self._put(self._folder / _ALIVE)))

    @contextlib.contextmanager
    def door(self, outbound: Outbound, record: Record | None = None) -> Iterator[Path]:
        """A door for one run: the path of its socket. It and all its connections go afterwards.

        Raises:
            OSError: the socket cannot be made.
        """
        path = self._folder / f"{next(self._numbers)}.sock"
        with self._open(_Door(outbound, record or Record()), self._put(path)):
            try:
                yield path
            finally:
                with contextlib.suppress(OSError):  # the run's result is not lost for it
                    path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def loopback(self, outbound: Outbound, record: Record) -> Iterator[str]:
        """A door to the service alone, for a run without its own network: its address, which nobody else knows.

        Raises:
            OSError: the socket cannot be made.
        """
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
        """Remove the folder. For tests: a worker that ends leaves it to the next one's ``sweep``."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _put(self, path: Path) -> socket.socket:
        """A listening socket; its name is there only once it answers."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # by the descriptor: a socket's path may have 107 characters only
            made.bind(f"/proc/self/fd/{folder}/{path.name}.new")
        finally:
            os.close(folder)
        made.listen(MAX_CONNECTIONS)
        path.with_name(f"{path.name}.new").rename(path)
        return made

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(HEAD_SECONDS)


def sweep() -> int:
    """Remove the folders of workers that have died; returns how many. Those of other users are let alone."""
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


async def _hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


class _Door:
    """Answers at one socket. Lives on the forwarder's loop."""

    def __init__(self, outbound: Outbound, record: Record, secret: str = "") -> None:
        self._outbound = outbound
        self._record = record
        self._secret = secret
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, sock: socket.socket) -> None:
        start = asyncio.start_unix_server if sock.family == socket.AF_UNIX else asyncio.start_server
        self._server = await start(self._answer, sock=sock, limit=MAX_HEAD)

    async def close(self) -> None:
        if self._server:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._tasks) >= MAX_CONNECTIONS:
            writer.close()
            return
        self._tasks.add(task)
        try:
            stream = Stream(reader, writer)
            await self._serve(_Peer(stream, h11.Connection(h11.SERVER, MAX_HEAD)))
            stream.end()
            async with asyncio.timeout(
                _LINGER_SECONDS
            ):  # closed at once, what was not read would take the answer along
                while await stream.read(_PIECE):
                    pass
        except asyncio.CancelledError:  # the run is over
            pass
        except (OSError, TimeoutError, h11.ProtocolError) as error:
            log.debug("forwarder.broke_off", error=f"{type(error).__name__}: {error}")
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, asker: _Peer) -> None:
        """One request; the connection ends with it."""
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                request = await asker.hear()
            if not isinstance(request, h11.Request):
                return
            if request.method == b"CONNECT":
                await self._tunnel(asker, request.target.decode("ascii", "replace"))
            else:
                await self._pass_on(asker, request)
        except Refused as refused:
            await asker.refuse(refused)
        except h11.RemoteProtocolError as error:
            if asker.http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
                await asker.refuse(Refused(error.error_status_hint, str(error)))

    async def _tunnel(self, asker: _Peer, target: str) -> None:
        """Splice the connection with a named host; what goes through is theirs."""
        await asker.hear()  # the end of its head
        async with self._outbound.to_host(target) as there:
            await asker.say(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
            rest, _ = asker.http.trailing_data
            await there.write(rest)
            await _either(_pump(asker.stream, there), _pump(there, asker.stream))

    async def _pass_on(self, asker: _Peer, request: h11.Request) -> None:
        """Send a request to the run's service, and the answer back, piece by piece as they come."""
        secret = self._secret.encode()
        if not request.target.startswith(secret):
            raise Refused(403, "this address belongs to another run (docs/security.md)")
        target = request.target[len(secret) :]
        upstream = self._outbound.allowed(request.method, target)
        path = target.partition(b"?")[0].decode("ascii", "replace")
        call = self._record.begin(path) if request.method == b"POST" else None
        try:
            async with self._outbound.to_upstream(upstream) as stream:
                service = _Peer(stream, h11.Connection(h11.CLIENT, MAX_HEAD))
                headers = _headers_for(upstream, request)
                target = upstream.path.encode() + target
                await service.say(h11.Request(method=request.method, target=target, headers=headers))
                if asker.http.they_are_waiting_for_100_continue:
                    await asker.say(h11.InformationalResponse(status_code=100, headers=[]))
                await _exchange(asker, service, call)
        except Refused:
            if call:
                call.close(whole=False, why="unreachable")
            raise
        finally:
            if call:
                call.close(whole=False)


async def _exchange(asker: _Peer, service: _Peer, call: Listening | None) -> None:
    """Both ways of one request, until the answer has come or the asker has left."""
    ways = [asyncio.create_task(_bring_back(service, asker, call)), asyncio.create_task(_hand_on(asker, service, call))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        ended = await asyncio.gather(*ways, return_exceptions=True)
    if isinstance(ended[0], h11.ProtocolError | OSError):
        raise ended[0]


class _Peer:
    """One end of a connection that speaks HTTP."""

    def __init__(self, stream: Stream, http: h11.Connection) -> None:
        self.stream = stream
        self.http = http
        self.bodyless = False

    async def hear_head(self) -> tuple[h11.Response, bytes]:
        """The head of an answer, and what has come behind it.

        Raises:
            OSError: none came. h11.RemoteProtocolError: it cannot be read.
        """
        said = b""
        while True:
            while not (found := _HEAD_END.search(said)) and len(said) <= MAX_HEAD:
                if not (piece := await self.stream.read(_PIECE)):
                    raise ConnectionError("the service broke off")
                said += piece
            head, said = (said[: found.end()], said[found.end() :]) if found else (said, b"")
            self.http.receive_data(head)
            event = self.http.next_event()
            if isinstance(event, h11.Response):
                return event, said
            if not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("the service's answer has no head")

    async def hear(self) -> Any:
        """The next event."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.stream.read(_PIECE))
        if isinstance(event, h11.Request):
            self.bodyless = event.method == b"HEAD"
        return event

    async def say(self, event: Any) -> None:
        await self.stream.write(self.http.send(event) or b"")

    async def refuse(self, refused: Refused) -> None:
        """An error in the shape of the Messages API, which is enough like other services' for people to read it."""
        error = {"type": "error", "error": {"type": refused.kind, "message": str(refused)}}
        body = json.dumps(error).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        await self.say(h11.Response(status_code=refused.status, headers=headers))
        if not self.bodyless:
            await self.say(h11.Data(data=body))
        await self.say(h11.EndOfMessage())


def _headers_for(upstream: Upstream, request: h11.Request) -> list[tuple[bytes, bytes]]:
    """A request's headers without those about the connection and about its key; ours instead."""
    dropped = _HOP_BY_HOP | upstream.ours.keys() | {b"accept-encoding"}
    kept = [(name, value) for name, value in request.headers if name not in dropped]
    ours = [(name, value.encode()) for name, value in upstream.ours.items() if value]
    # The witness reads the answer: unpacking it costs more than it saves between here and the agent.
    ours += [(b"accept-encoding", b"identity"), (b"connection", b"close")]
    return [(b"host", upstream.host_header.encode()), *kept, *ours]


async def _hand_on(asker: _Peer, service: _Peer, call: Listening | None) -> None:
    """The request's body, as long as its head said: nothing follows it to the service. Ends when the asker leaves."""
    with contextlib.suppress(OSError):  # a service may have its answer before it has heard all
        while isinstance(event := await asker.hear(), h11.Data):
            if call:
                call.asked(bytes(event.data))
            await service.say(event)
        await service.say(event)
    while await asker.stream.read(_PIECE):
        pass


async def _bring_back(service: _Peer, asker: _Peer, call: Listening | None) -> None:
    """The answer: its head without what concerns one connection, then what comes, as it comes.

    Raises:
        OSError: the service broke off.
    """
    head, rest = await service.hear_head()
    kept = [(name, value) for name, value in head.headers if name not in _HOP_BY_HOP]
    own = h11.Response(status_code=head.status_code, headers=[*kept, (b"connection", b"close")], reason=head.reason)
    headers = dict(head.headers)
    framing = Framing(headers, bodyless=asker.bodyless or head.status_code in {204, 304})
    if call:
        call.answered(head.status_code, headers)
    await asker.say(own)
    # As it comes, where both sides frame it alike: to frame it again costs ten times more.
    alike = not framing.until_closed and asker.http.their_http_version != b"1.0"
    while True:
        body = framing.take(rest) if rest else b""
        if call:  # before the agent has it: it may end at once
            call.heard(body, whole=framing.over)
        if alike and rest:
            await asker.stream.write(rest)
        elif body:
            await asker.say(h11.Data(data=body))
        if framing.over or not (rest := await service.stream.read(_PIECE)):
            break
    if not framing.over and not framing.until_closed:
        if call:
            call.close(whole=False)
        raise ConnectionError("the service broke off")
    if call:
        call.close(whole=True)
    if not alike:
        await asker.say(h11.EndOfMessage())


async def _pump(source: Stream, target: Stream) -> None:
    while piece := await source.read(_PIECE):
        await target.write(piece)
    target.end()


async def _either(*ways: Coroutine[Any, Any, None]) -> None:
    """Both ways of a tunnel, until both have ended, or one has failed."""
    async with asyncio.TaskGroup() as both:
        for way in ways:
            both.create_task(way)


_lock = threading.Lock()
_current: list[Forwarder] = []


def shared() -> Forwarder:
    """The forwarder of this process, started when it is first needed."""
    with _lock:
        if not _current or _current[0].owner != os.getpid():
            _current[:] = [Forwarder()]
        return _current[0]
