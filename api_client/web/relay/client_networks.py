"""Groups client addresses for limits."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


@lru_cache(maxsize=1024)
def network_of(address: str) -> str:
    """Return the IPv4 address or IPv6 /64 network that counts as one client for limits."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else str(found)
