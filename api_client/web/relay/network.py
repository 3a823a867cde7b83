"""Group client addresses into networks, as limits count them."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


@lru_cache(maxsize=1024)  # a connection asks twice, and clients come again
def network_of(address: str) -> str:
    """Return the address that limits count: of IPv6 the /64 network."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else str(found)
