"""Who asks: the API key decides, in one place. The owner of a turn is a hash of the key, never the key.

Without configured keys the relay serves this machine only. A page in a browser can reach a loopback address under a
foreign name, and a proxy brings in strangers; both show in the headers and are refused.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends
from starlette.requests import Request

from api_client.web.errors import ApiError
from api_client.web.relay import relay_of

LOCAL_OWNER = "local"
_PROXY_HEADERS = ("x-forwarded-for", "forwarded", "x-real-ip")


def owner_of_key(key: str) -> str:
    """The owner an API key stands for."""
    return hashlib.sha256(b"helix-owner\0" + key.encode()).hexdigest()[:32]


def is_loopback(host: str) -> bool:
    """True for ``localhost`` and the loopback addresses."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def owner_of(request: Request) -> str:
    """The caller's owner hash.

    Raises:
        ApiError: 401 ``invalid_api_key``; 403 ``loopback_only`` when no key is configured and the caller is not local.
    """
    keys = relay_of(request).settings.api_keys
    if not keys:
        _require_local(request)
        return LOCAL_OWNER
    return _owner_by_key(request.headers.getlist("authorization"), keys)


def _owner_by_key(headers: list[str], keys: tuple[str, ...]) -> str:
    """Every key is compared whatever the result, so that the answer's time tells nothing."""
    scheme, _, given = headers[0].partition(" ") if len(headers) == 1 else ("", "", "")
    offered = owner_of_key(given.strip())
    matches = [owner for owner in map(owner_of_key, keys) if hmac.compare_digest(owner, offered)]
    if scheme.lower() != "bearer" or not matches:
        message = "missing or unknown API key: send it as 'Authorization: Bearer KEY'"
        raise ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
    return matches[0]


def _require_local(request: Request) -> None:
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    forwarded = any(name in request.headers for name in _PROXY_HEADERS)
    if not (request.client and is_loopback(request.client.host) and is_loopback(host)) or forwarded:
        message = "no API key is configured, so only this machine is served; set HELIX_API_KEYS to serve others"
        raise ApiError(403, message, code="loopback_only")


Owner = Annotated[str, Depends(owner_of)]
