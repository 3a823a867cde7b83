"""The ways out of a box's door: one service, and named hosts. All others are refused before a connection opens."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import itertools
import json
import os
import shutil
import socket
import ssl
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import h11
import structlog

#: Largest head of a request or an answer, in bytes.
MAX_HEAD = 65_536
#: So long may connecting take, in seconds.
CONNECT_SECONDS = 20.0


class Refused(Exception):
    """A request that is not passed on; ``status`` and ``kind`` are what the asker gets with the message."""

    def __init__(self, status: int, message: str, kind: str = "permission_error") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The service of a run.

    Attributes:
        url: its base address.
        paths: what may be asked for below that address, exactly.
        ours: headers that we set, names in small letters; an empty value only takes away the asker's.
    """

    url: str
    paths: frozenset[str]
    ours: Mapping[bytes, str] = field(default_factory=dict)

    @property
    def tls(self) -> bool:
        """True for https."""
        return urlsplit(self.url).scheme == "https"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or (443 if self.tls else 80)

    @property
    def path(self) -> str:
        """Return what is before each path."""
        return urlsplit(self.url).path.rstrip("/")

    @property
    def host_header(self) -> str:
        """The Host of a request to it."""
        return urlsplit(self.url).netloc.rpartition("@")[2]


@dataclass(slots=True)
class Stream:
    """The two directions of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read(self, size: int) -> bytes:
        """Return what has come, at most ``size`` bytes; empty at the end."""
        return await self.reader.read(size)

    async def write(self, data: bytes) -> None:
        """Send, as fast as the other side takes it."""
        self.writer.write(data)
        await self.writer.drain()

    def end(self) -> None:
        """Say that nothing more comes."""
        with contextlib.suppress(OSError):
            if self.writer.can_write_eof():
                self.writer.write_eof()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbound:
    """All that a run may reach.

    Attributes:
        upstream: its service; None for none.
        hosts: further hosts, ``name:port``; a name may begin with ``*.``.
        proxy: the proxy through which the outside is reached, as in HTTPS_PROXY; empty for none.
        ca: a file of certificates to trust besides the system's; empty for none.
    """

    upstream: Upstream | None = None
    hosts: tuple[str, ...] = ()
    proxy: str = ""
    ca: str = ""

    def allowed(self, method: bytes, target: bytes) -> Upstream:
        """The service, where a request to it may be passed on.

        Raises:
            Refused: it may not.
        """
        path = target.partition(b"?")[0].decode("ascii", "replace")
        if self.upstream is None or path not in self.upstream.paths or method not in {b"POST", b"HEAD"}:
            asked = f"{method.decode('ascii', 'replace')} {path}"[:200]
            raise Refused(403, f"the box leads to its model alone: {asked} is not passed on (docs/security.md)")
        return self.upstream

    @contextlib.asynccontextmanager
    async def to_upstream(self, upstream: Upstream) -> AsyncIterator[Stream]:
        """A connection to the service.

        Raises:
            Refused: it cannot be reached.
        """
        host, port = upstream.address
        context = trusting(self.ca) if upstream.tls else None
        async with self._connected(host, port, context, proxy=self.proxy if upstream.tls else "") as stream:
            yield stream

    @contextlib.asynccontextmanager
    async def to_host(self, target: str) -> AsyncIterator[Stream]:
        """A connection to a named host, ``name:port``.

        Raises:
            Refused: it is not named, or cannot be reached.
        """
        host, _, port = target.rpartition(":")
        host = host.strip("[]").lower().rstrip(".")
        named = next((entry for entry in self.hosts if _matches(entry, host, port)), None)
        if named is None or not port.isascii() or not port.isdecimal():
            raise Refused(403, f"{target[:200]} is not named in HELIX_BOX_HOSTS (docs/security.md)")
        address = host if self.proxy else await _resolved(host, int(port), named)
        async with self._connected(address, int(port), None, proxy=self.proxy) as stream:
            yield stream

    @contextlib.asynccontextmanager
    async def _connected(
        self, host: str, port: int, context: ssl.SSLContext | None, *, proxy: str
    ) -> AsyncIterator[Stream]:
        name = f"{host}:{port}"
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if proxy:
                    stream = await _through(proxy, host, port)
                    if context:
                        await stream.writer.start_tls(context, server_hostname=host)
                else:
                    stream = Stream(*await asyncio.open_connection(host, port, ssl=context, limit=MAX_HEAD))
        except TimeoutError:
            raise Refused(502, f"{name} did not answer within {CONNECT_SECONDS:g} s", "api_error") from None
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise Refused(502, f"{name} cannot be reached: {error}", "api_error") from None
        try:
            yield stream
        finally:
            stream.writer.close()


def trusting(ca: str) -> ssl.SSLContext:
    """Return what we trust: the system's certificates, and those of one more file.

    Raises:
        Refused: that file cannot be read.
    """
    context = ssl.create_default_context()
    try:
        if ca:
            context.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as error:
        raise Refused(502, f"NODE_EXTRA_CA_CERTS={ca}: {error}", "api_error") from None
    return context


def _matches(entry: str, host: str, port: str) -> bool:
    name, _, allowed = entry.rpartition(":")
    name = name.strip("[]")
    return port == allowed and (host == name or (name.startswith("*.") and host.endswith(name[1:])))


async def _resolved(host: str, port: int, named: str) -> str:
    """The address of a named host; not one of this machine, unless the setting says that very address or localhost.

    Raises:
        Refused: it has no address, or one of this machine or of its cloud.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Refused(502, f"{host} has no address: {error}", "api_error") from None
    address = str(found[0][4][0])
    number = ipaddress.ip_address(address.partition("%")[0])
    inner = number.is_loopback or number.is_link_local or number.is_unspecified or number.is_multicast
    literal = named.rpartition(":")[0].strip("[]")
    if inner and literal not in {address, "localhost"}:
        raise Refused(403, f"{host} leads to {address}, an address of this machine: name that address itself")
    return address


async def _through(proxy: str, host: str, port: int) -> Stream:
    """A connection through a proxy.

    Raises:
        OSError: the proxy cannot be reached, or refuses.
    """
    parts = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 3128, limit=MAX_HEAD)
    login = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        login = f"Proxy-Authorization: Basic {base64.b64encode(pair.encode()).decode()}\r\n"
    writer.write(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n{login}\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    if head.split(b" ", 2)[1:2] != [b"200"]:
        writer.close()
        raise OSError(f"the proxy says: {head.splitlines()[0].decode('latin-1')[:200]}")
    return Stream(reader, writer)


# The way out of a box: to one service, and to hosts that the installation names (docs/security.md).
#
# A box has its own network, in which nobody else is. Each run has a door: a unix socket, bound into its box, at which
# this module answers in the worker's process. Requests go to the run's service, with the key that the box does not
# hold; ``CONNECT`` leads to named hosts. Everything else is refused. A door goes with its run, and all doors with
# their worker.

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
