"""One HTTP request to an address of the outside: resolved, checked, and sent to the very address that was checked.

A name that leads to this machine or an inner network is refused unless that is allowed; redirects are not followed, and
no proxy of the environment is used.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

_SECONDS = 10.0
_MOST_READ = 65_536
#: IPv6 addresses that carry an IPv4 address in their last 32 bits (NAT64, RFC 6052).
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
#: Of no public host, whatever Python says: IPv4-compatible, local NAT64 (RFC 8215), segment routing, former site-local.
_NEVER = tuple(map(ipaddress.ip_network, ("::/96", "64:ff9b:1::/48", "5f00::/16", "fec0::/10")))


class NotSent(Exception):
    """The target did not take it; the message says why."""


def inner(address: str) -> bool:
    """Return whether an IP address is not one of the public internet. Pure."""
    number = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(number, ipaddress.IPv6Address):
        if any(number in network for network in _NEVER):
            return True
        if number in _NAT64:
            number = ipaddress.IPv4Address(int(number) & 0xFFFFFFFF)
        elif carried := number.ipv4_mapped or number.sixtofour or (number.teredo[1] if number.teredo else None):
            number = carried
    return not number.is_global or number.is_multicast


def addresses(host: str, port: int, *, allow_inner: bool) -> list[str]:
    """The addresses of a host, each of which may be connected to.

    Raises:
        NotSent: it has none, or one of them is of an inner network.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NotSent(f"{host} has no address: {error}") from None
    numbers = list(dict.fromkeys(str(each[4][0]) for each in found))
    if not allow_inner and (refused := [number for number in numbers if inner(number)]):
        said = f"{host} leads to {refused[0]}, an inner address; HELIX_WEBHOOK_INTERNAL=allowed lets it"
        raise NotSent(said)
    return numbers


def post(url: str, body: bytes, headers: Mapping[str, str], *, allow_inner: bool) -> None:
    """POST a body; any 2xx is success.

    Raises:
        NotSent: it is refused here, cannot be reached, or answers otherwise.
    """
    parts = urlsplit(url)
    host, tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    said = ""
    for address in addresses(host, port, allow_inner=allow_inner):
        connection = _Checked(host, port, address, tls=tls)
        try:
            connection.request("POST", path, body, dict(headers))
            answer = connection.getresponse()
            answer.read(_MOST_READ)
        except (OSError, http.client.HTTPException) as error:
            said = f"{host}: {type(error).__name__}: {error}"
            continue
        finally:
            connection.close()
        if 200 <= answer.status < 300:
            return
        moved = ", redirects are not followed" if 300 <= answer.status < 400 else ""
        raise NotSent(f"{host} answers {answer.status}{moved}")
    raise NotSent(said)


class _Checked(http.client.HTTPConnection):
    """A connection to one address, which asks for a host by its name."""

    def __init__(self, host: str, port: int, address: str, *, tls: bool) -> None:
        super().__init__(host, port, timeout=_SECONDS)
        self._address, self._tls = address, tls
        self.default_port = 443 if tls else 80  # what the header Host leaves out

    def connect(self) -> None:
        """Connect to the address that was checked, not to what the name leads to by now."""
        plain = socket.create_connection((self._address, self.port), self.timeout)
        try:
            context = ssl.create_default_context() if self._tls else None
            self.sock = context.wrap_socket(plain, server_hostname=self.host) if context else plain
        except BaseException:
            plain.close()
            raise
