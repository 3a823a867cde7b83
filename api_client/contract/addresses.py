"""Tell public IP addresses from internal ones, for webhooks and for the hosts that a sandbox may reach."""

from __future__ import annotations

import ipaddress

#: IPv6 prefix whose last 32 bits hold an IPv4 address (NAT64, RFC 6052).
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
#: Internal networks that Python reports as global: among them local NAT64 (RFC 8215), protocol assignments (RFC 6890)
#: and Azure's virtual machine host.
_NEVER = tuple(
    map(ipaddress.ip_network, ("::/96", "64:ff9b:1::/48", "5f00::/16", "fec0::/10", "192.0.0.0/24", "168.63.129.16/32"))
)


def is_internal_address(address: str) -> bool:
    """Return True if an IP address does not belong to the public internet."""
    number = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(number, ipaddress.IPv6Address):
        if number in _NAT64:
            number = ipaddress.IPv4Address(int(number) & 0xFFFFFFFF)
        elif carried := number.ipv4_mapped or number.sixtofour or (number.teredo[1] if number.teredo else None):
            number = carried
    return not number.is_global or number.is_multicast or any(number in network for network in _NEVER)
