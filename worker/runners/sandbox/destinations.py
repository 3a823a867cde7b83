"""Decide which services and hosts an agent may reach, and connect to them."""

from __future__ import annotations

import asyncio
import base64
import functools
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from api_client.contract.addresses import is_internal_address
from worker.runners.sandbox.byte_stream import _HOST, _MOST_HOST, ByteStream

if TYPE_CHECKING:
    from api_client.contract.settings import Settings
    from worker.runners.base import ToolAccess


MAX_HEAD = 65_536
#: Path of the run's tool gateway, beside the paths of the model service.
TOOLS_PATH = "/helix-tools/mcp"
#: Header that names the run to the tool gateway.
RUN_HEADER = b"x-helix-run"
#: Time limit for connecting, in seconds.
CONNECT_SECONDS = 20.0


class RequestRefused(Exception):
    """Raised when the model proxy refuses a request. The client gets ``status``, ``kind`` and the message."""

    def __init__(self, status: int, message: str, kind: str = "permission_error", word: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.word = word


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The model service that a run may use, with the allowed paths and models.

    Attributes:
        paths: paths below ``url`` allowed for POST and HEAD; ``*`` matches a name without a slash.
        reads: paths allowed for GET.
        ours: headers set by the proxy, with lower-case names; an empty value removes the agent's header.
        models: allowed models; empty allows all.
        allows: further content that a call may have (``model_requests``).
        socket: unix socket of a service on this machine, such as the tool gateway; its bodies are not checked here.
    """

    url: str
    paths: frozenset[str]
    reads: frozenset[str] = frozenset()
    ours: Mapping[bytes, str] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    allows: tuple[str, ...] = ()
    socket: str = ""

    @classmethod
    def of_tools(cls, access: ToolAccess) -> Upstream:
        """Return the tool gateway of a run as an upstream service."""
        paths = frozenset({TOOLS_PATH})
        ours = {RUN_HEADER: access.secret}
        return cls(url="http://tools.invalid", paths=paths, reads=paths, ours=ours, socket=str(access.socket))

    def accepts_request(self, method: bytes, path: str) -> bool:
        """Return whether a request with this method and path may be sent to the service."""
        allowed = self.reads if method == b"GET" else self.paths if method in {b"POST", b"HEAD"} else ()
        return path in allowed or any(_path_pattern(each).fullmatch(path) for each in allowed if "*" in each)

    @property
    def uses_tls(self) -> bool:
        """Return True if the service's URL is an https URL."""
        return urlsplit(self.url).scheme == "https"

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and the port of the service."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or (443 if self.uses_tls else 80)

    @property
    def path(self) -> str:
        """Return the path in the service's URL, to which request paths are appended."""
        return urlsplit(self.url).path.rstrip("/")

    @property
    def host_header(self) -> str:
        """Return the value of the Host header for requests to the service."""
        return urlsplit(self.url).netloc.rpartition("@")[2]


@functools.cache
def _path_pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.escape(path).replace(r"\*", r"[A-Za-z0-9_@-][A-Za-z0-9._@-]*"))


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedDestinations:
    """The hosts that a run may reach: a model service and further hosts.

    Attributes:
        hosts: further hosts as ``name:port``; a name may begin with ``*.``.
        proxy: HTTP proxy for outside connections, as in HTTPS_PROXY.
        ca: file of additional trusted certificates.
    """

    upstream: Upstream | None = None
    tools: Upstream | None = None
    hosts: tuple[str, ...] = ()
    proxy: str = ""
    ca: str = ""

    @classmethod
    def from_settings(cls, upstream: Upstream | None, settings: Settings, names: Iterable[str]) -> AllowedDestinations:
        """Return the hosts that a run may reach, directly or through the HTTPS proxy that the environment names."""
        given = {name: os.environ.get(name, "") for name in names}
        proxy = given.get("HTTPS_PROXY") or given.get("https_proxy") or ""
        return cls(
            upstream=upstream, hosts=settings.sandbox_hosts, proxy=proxy, ca=given.get("NODE_EXTRA_CA_CERTS", "")
        )

    def find_upstream(self, method: bytes, target: bytes) -> Upstream:
        """Return the model service or tool gateway that this request may be sent to, or raise ``RequestRefused``."""
        path = target.partition(b"?")[0].decode("ascii", "replace")
        if self.tools and self.tools.accepts_request(method, path):
            return self.tools
        if self.upstream is None or not self.upstream.accepts_request(method, path):
            asked = f"{method.decode('ascii', 'replace')} {path}"[:200]
            raise RequestRefused(
                403, f"the sandbox leads to its model alone: {asked} is not passed on (docs/security.md)"
            )
        return self.upstream

    async def connect_upstream(self, upstream: Upstream) -> ByteStream:
        """Open a connection to the model service or the tool gateway and return it. Raises ``RequestRefused``."""
        if upstream.socket:
            return await _connect_socket(upstream.socket)
        host, port = upstream.address
        context = _cached_tls_context(self.ca, _modification_time(self.ca)) if upstream.uses_tls else None
        return await self._open_connection(host, port, context, proxy=self.proxy if upstream.uses_tls else "")

    async def connect_host(self, target: str) -> ByteStream:
        """Open a connection to an allowed host, given as ``name:port``, and return it. Raises ``RequestRefused``."""
        host, _, port = target.lower().rpartition(":")
        host = host.removesuffix(".")
        if not _HOST.fullmatch(host) or len(host) > _MOST_HOST:
            raise RequestRefused(403, f"{target[:200]!r} is not a host name with a port")
        host = host.strip("[]")
        if not any(_matches_entry(entry, host, port) for entry in self.hosts):
            raise RequestRefused(403, f"{target[:200]} is not named in HELIX_SANDBOX_HOSTS (docs/security.md)")
        address = host if self.proxy else await self._resolve_host(host, port)
        return await self._open_connection(address, int(port), None, proxy=self.proxy)

    async def _resolve_host(self, host: str, port: str) -> str:
        """Return the address of a host. Private addresses are returned only if the settings allow them."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        except OSError as error:
            raise RequestRefused(502, f"{host} has no address: {error}", "api_error") from None
        addresses = [str(each[4][0]) for each in found]
        for address in filter(is_internal_address, addresses):
            own = host == "localhost" and ipaddress.ip_address(address).is_loopback
            if not own and not any(_matches_entry(entry, address, port) for entry in self.hosts):
                said = f"{host} leads to {address}, an internal address: name it in HELIX_SANDBOX_HOSTS as well"
                raise RequestRefused(403, said)
        return addresses[0]

    async def _open_connection(self, host: str, port: int, context: ssl.SSLContext | None, *, proxy: str) -> ByteStream:
        name, loop = f"{host}:{port}", asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if not proxy:
                    return (await loop.create_connection(ByteStream, host, port, ssl=context))[1]
                stream = await _connect_through_proxy(proxy, host, port)
                if context:
                    await stream.start_tls(context, host)
                return stream
        except TimeoutError:
            raise RequestRefused(502, f"{name} did not answer within {CONNECT_SECONDS:g} s", "api_error") from None
        except OSError as error:
            raise RequestRefused(502, f"{name} cannot be reached: {error}", "api_error") from None


async def _connect_socket(path: str) -> ByteStream:
    try:
        return (await asyncio.get_running_loop().create_unix_connection(ByteStream, path))[1]
    except OSError as error:
        raise RequestRefused(502, f"the tool gateway cannot be reached: {error}", "api_error") from None


def build_tls_context(ca: str) -> ssl.SSLContext:
    """Return a TLS context that trusts the system's certificates and those in the file ``ca``.

    Raises ``RequestRefused``.
    """
    context = ssl.create_default_context()
    try:
        if ca:
            context.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as error:
        raise RequestRefused(502, f"NODE_EXTRA_CA_CERTS={ca}: {error}", "api_error") from None
    return context


@functools.lru_cache(maxsize=8)
def _cached_tls_context(ca: str, _: float) -> ssl.SSLContext:
    return build_tls_context(ca)


def _modification_time(ca: str) -> float:
    try:
        return os.stat(ca).st_mtime if ca else 0.0  # noqa: PTH116
    except OSError:
        return 0.0


def _matches_entry(entry: str, host: str, port: str) -> bool:
    name, _, allowed = entry.rpartition(":")
    name = name.strip("[]")
    return port == allowed and (host == name or (name.startswith("*.") and host.endswith(name[1:])))


async def _connect_through_proxy(proxy: str, host: str, port: int) -> ByteStream:
    parts = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(ByteStream, parts.hostname or "", parts.port or 3128)
    login = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        login = f"Proxy-Authorization: Basic {base64.b64encode(pair.encode()).decode()}\r\n"
    try:
        await stream.write_data(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n{login}\r\n".encode())
        head = await stream.read_head(MAX_HEAD)
    except BaseException as error:
        stream.close()
        if isinstance(error, ValueError):
            raise OSError("the proxy's answer has no head") from error
        raise
    if head.split(b" ", 2)[1:2] != [b"200"]:
        stream.close()
        raise OSError(f"the proxy says: {head.splitlines()[0].decode('latin-1')[:200]}")
    return stream
