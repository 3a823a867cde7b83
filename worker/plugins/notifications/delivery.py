"""Delivers notifications to webhooks, whose addresses are checked first, or to the operator's command."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Self
from urllib.parse import urlsplit

from api_client.contract.addresses import is_internal_address
from api_client.contract.notification import OutboxEntry, sign_headers
from api_client.contract.settings import Settings

_SECONDS = 10.0
_MOST_READ = 65_536


class DeliveryError(Exception):
    """Raised if a notification cannot be delivered. The message gives the reason."""


def resolve_addresses(host: str, port: int, *, allow_internal: bool) -> list[str]:
    """Resolve a host name to IP addresses. ``allow_internal`` permits addresses in internal networks.

    Raises ``DeliveryError``.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise DeliveryError(f"{host} has no address: {error}") from None
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    if not allow_internal and (refused := [address for address in addresses if is_internal_address(address)]):
        said = f"{host} leads to {refused[0]}, an internal address; HELIX_WEBHOOK_INTERNAL=allowed permits it"
        raise DeliveryError(said)
    return addresses


def post_body(url: str, body: bytes, headers: Mapping[str, str], *, allow_internal: bool) -> None:
    """Send a body to a URL with an HTTP POST. ``allow_internal`` permits addresses in internal networks.

    Takes at most ``_SECONDS`` after the name is resolved, over all addresses, whatever the receiver sends. Raises
    ``DeliveryError`` for any reply but a 2xx status.
    """
    parts = urlsplit(url)
    host, tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    said, addresses = "", resolve_addresses(host, port, allow_internal=allow_internal)
    ends = time.monotonic() + _SECONDS
    for number, address in enumerate(addresses):
        with _PinnedConnection(
            host, port, address, tls=tls, ends=ends, others=len(addresses) - number - 1
        ) as connection:
            try:
                connection.request("POST", path, body, dict(headers))
                with connection.getresponse() as answer:
                    if connection.was_late:  # http.client takes the end of the connection for that of the headers
                        raise TimeoutError
                    with contextlib.suppress(OSError, http.client.HTTPException):  # the status says all
                        answer.read(_MOST_READ)
            except (OSError, http.client.HTTPException) as error:
                if connection.was_late or time.monotonic() >= ends:
                    raise DeliveryError(f"{host}: no answer within {_SECONDS:g} s") from None
                said = f"{host}: {type(error).__name__}: {error}"
                continue
        if 200 <= answer.status < 300:
            return
        moved = ", redirects are not followed" if 300 <= answer.status < 400 else ""
        raise DeliveryError(f"{host} answers {answer.status}{moved}")
    raise DeliveryError(said)


class _PinnedConnection(http.client.HTTPConnection):
    """An HTTP connection to a fixed IP address; TLS and the ``Host`` header use the host name.

    Whatever is sent or received after the time ``ends`` fails, also with a receiver that sends a byte now and then. The
    connection must be established in a share of that time that leaves as much to each of the ``others``, the addresses
    that may be tried afterwards.
    """

    def __init__(self, host: str, port: int, address: str, *, tls: bool, ends: float, others: int) -> None:
        super().__init__(host, port, timeout=_SECONDS)
        self._address, self._tls = address, tls
        self.default_port = 443 if tls else 80  # left out of the Host header
        self.was_late = False
        self._ends, self._others = ends, others
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()
        self.close()

    def connect(self) -> None:
        left = max(self._ends - time.monotonic(), 0.001)
        self.sock = socket.create_connection((self._address, self.port), left / (1 + self._others))
        self.sock.settimeout(self.timeout)
        if self._tls:
            context = ssl.create_default_context()
            self.sock = context.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
        # http.client gives the socket away to a reply that ends with the connection: it is not ``self.sock`` for long.
        ending = threading.Timer(self._ends - time.monotonic(), self._end_late, [self.sock])
        ending.daemon = True
        ending.start()
        self._held.callback(ending.cancel)
        if isinstance(self.sock, ssl.SSLSocket):
            self.sock.do_handshake()

    def _end_late(self, sock: socket.socket) -> None:
        self.was_late = True
        with contextlib.suppress(OSError):  # it has just been closed
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # that of a TLS socket would make its reader read plain text


_COMMAND_SECONDS = 10.0
#: Variables that the command inherits; none is secret.
_KEPT = ("PATH", "HOME", "LANG", "TZ")
COMMAND = "command"


def list_targets(settings: Settings) -> tuple[str, ...]:
    """Return where notifications are sent: the configured URLs, and ``command`` for the configured shell command."""
    return (*settings.webhook_urls, *([COMMAND] if settings.notification_command else ()))


def mask_target(target: str) -> str:
    """Return a target's URL without its path and query, which may contain a secret."""
    parts = urlsplit(target)
    return f"{parts.scheme}://{parts.hostname}" if parts.scheme else target


def is_wanted(settings: Settings, kind: str) -> bool:
    """Return True if the settings select notifications of a kind, by name or by a prefix such as ``response.*``."""
    return any(
        kind == each or (each.endswith("*") and kind.startswith(each[:-1])) for each in settings.notification_kinds
    )


def deliver_notification(settings: Settings, target: str, entry: OutboxEntry) -> None:
    """Deliver a notification to a target: a webhook's URL, or ``command`` for the configured shell command."""
    if target == COMMAND:
        _run_command(settings.notification_command, entry)
        return
    headers = {"content-type": "application/json", "user-agent": "helix-turns"}
    headers |= sign_headers(settings.webhook_secret, entry.notification_id, entry.body, time.time())
    post_body(target, entry.body.encode(), headers, allow_internal=settings.webhook_internal == "allowed")


def _run_command(command: str, entry: OutboxEntry) -> None:
    environ = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environ |= {"NOTIFICATION_ID": entry.notification_id, "NOTIFICATION_KIND": entry.kind}
    try:
        process = subprocess.Popen(  # the command line comes from the operator
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environ,
            start_new_session=True,
        )
    except OSError as error:
        raise DeliveryError(f"the command cannot be started: {error}") from error
    with _kill_afterwards(process):
        try:
            _, said = process.communicate(entry.body.encode() + b"\n", timeout=_COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            raise DeliveryError(f"the command takes longer than {_COMMAND_SECONDS:g} s") from None
    if process.returncode:
        words = said.decode(errors="replace").strip().splitlines()
        raise DeliveryError(f"the command ended with {process.returncode}{': ' + words[-1][:200] if words else ''}")


@contextlib.contextmanager
def _kill_afterwards(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
