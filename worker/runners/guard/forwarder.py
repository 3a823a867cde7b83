"""The way out of a box: to one service, and to hosts that the installation names (docs/security.md).

A box has its own network, in which nobody else is. Each run has a door: a unix socket, bound into its box, at
which this module answers in the worker's process. Requests go to the run's service, with the key that the box does not
hold; ``CONNECT`` leads to named hosts. Everything else is refused. A door goes with its run, and all doors with their
worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import h11
import structlog

from worker.runners.guard.outbound import MAX_HEAD, Outbound, Refused, Stream, Upstream

log = structlog.get_logger(__name__)

#: Connections of one run at a time; one more is closed at once.
MAX_CONNECTIONS = 32
#: So long may the head of a request take, in seconds.
HEAD_SECONDS = 30.0
#: So long is what an asker still sends thrown away, once it has its answer, in seconds.
_LINGER_SECONDS = 2.0
_PIECE = 65_536
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
    def door(self, outbound: Outbound) -> Iterator[Path]:
        """A door for one run: the path of its socket. It and all its connections go afterwards.

        Raises:
            OSError: the socket cannot be made.
        """
        path = self._folder / f"{next(self._numbers)}.sock"
        door = _Door(outbound)
        self._do(door.open(self._put(path)))
        try:
            yield path
        finally:
            with contextlib.suppress(OSError):  # the run's result is not lost for it
                path.unlink(missing_ok=True)
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

    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, sock: socket.socket) -> None:
        self._server = await asyncio.start_unix_server(self._answer, sock=sock, limit=MAX_HEAD)

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
        upstream = self._outbound.allowed(request.method, request.target)
        async with self._outbound.to_upstream(upstream) as stream:
            service = _Peer(stream, h11.Connection(h11.CLIENT, MAX_HEAD))
            await service.say(
                h11.Request(
                    method=request.method,
                    target=upstream.path.encode() + request.target,
                    headers=_headers_for(upstream, request),
                )
            )
            if asker.http.they_are_waiting_for_100_continue:
                await asker.say(h11.InformationalResponse(status_code=100, headers=[]))
            ways = [asyncio.create_task(_bring_back(service, asker)), asyncio.create_task(_hand_on(asker, service))]
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
        self._bodyless = False

    async def hear(self) -> Any:
        """The next event."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.stream.read(_PIECE))
        if isinstance(event, h11.Request):
            self._bodyless = event.method == b"HEAD"
        return event

    async def say(self, event: Any) -> None:
        await self.stream.write(self.http.send(event) or b"")

    async def refuse(self, refused: Refused) -> None:
        """An error in the shape of the Messages API, which is enough like other services' for people to read it."""
        error = {"type": "error", "error": {"type": refused.kind, "message": str(refused)}}
        body = json.dumps(error).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        await self.say(h11.Response(status_code=refused.status, headers=headers))
        if not self._bodyless:
            await self.say(h11.Data(data=body))
        await self.say(h11.EndOfMessage())


def _headers_for(upstream: Upstream, request: h11.Request) -> list[tuple[bytes, bytes]]:
    """A request's headers without those about the connection and about its key; ours instead."""
    kept = [(name, value) for name, value in request.headers if name not in _HOP_BY_HOP and name not in upstream.ours]
    ours = [(name, value.encode()) for name, value in upstream.ours.items() if value]
    return [(b"host", upstream.host_header.encode()), *kept, *ours, (b"connection", b"close")]


async def _hand_on(asker: _Peer, service: _Peer) -> None:
    """The request's body, as long as its head said: nothing follows it to the service. Ends when the asker leaves."""
    with contextlib.suppress(OSError):  # a service may have its answer before it has heard all
        while isinstance(event := await asker.hear(), h11.Data):
            await service.say(event)
        await service.say(event)
    while await asker.stream.read(_PIECE):
        pass


async def _bring_back(service: _Peer, asker: _Peer) -> None:
    while True:
        event = await service.hear()
        if isinstance(event, h11.InformationalResponse):
            continue
        if isinstance(event, h11.Response):
            headers = [(name, value) for name, value in event.headers if name not in _HOP_BY_HOP]
            headers.append((b"connection", b"close"))
            event = h11.Response(status_code=event.status_code, headers=headers, reason=event.reason)
        await asker.say(event)
        if not isinstance(event, h11.Response | h11.Data):
            return


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
