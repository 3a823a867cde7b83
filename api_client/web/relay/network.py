"""The network of an address, as limits count it."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


@lru_cache(maxsize=1024)  # a connection asks twice, and clients come again
def network_of(address: str) -> str:
    """Return what counts as one address: of IPv6 a network of 64 bits."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else str(found)
