"""The origin of a request: another site's page, or a proxy. SignIns and proxies say so in headers."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request

from api_client.web.errors import ApiError, shown_text
from api_client.web.relay import relay_of

_OWN_SITES = frozenset({"same-origin", "none"})
#: Headers that a proxy adds; ``X-Forwarded-*`` too.
_PROXY_HEADERS = frozenset(
    {"forwarded", "via", "cf-connecting-ip", "true-client-ip", "x-client-ip", "x-real-ip", "x-cluster-client-ip"}
    | {"fastly-client-ip", "fly-client-ip", "x-envoy-external-address", "x-original-forwarded-for", "x-proxyuser-ip"}
    | {"cdn-loop", "x-amzn-trace-id"}
)


def is_loopback(host: str) -> bool:
    """True for ``localhost`` and the loopback addresses."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def require_own_site(request: Request) -> None:
    """Refuse what a page of another site sent. Programs send none of these headers.

    Raises:
        ApiError: 403 ``cross_site``.
    """
    site = request.headers.get("sec-fetch-site")
    origins = request.headers.getlist("origin")
    if site is not None and site not in _OWN_SITES:
        raise _cross_site(f"Sec-Fetch-Site is {shown_text(site, 20)}")
    for origin in origins if site != "same-origin" else ():
        if not _is_ours(origin, request):
            raise _cross_site(f"Origin is {shown_text(origins[0])}")


def _is_ours(origin: str, request: Request) -> bool:
    """Return whether an ``Origin`` is the address that the request went to, or the pages' public one."""
    public = relay_of(request).settings.public_url
    try:
        host = urlsplit(origin).netloc.lower()
        return bool(host) and host in {request.headers.get("host", "").lower(), urlsplit(public).netloc.lower()}
    except ValueError:
        return False


def _cross_site(why: str) -> ApiError:
    return ApiError(403, f"another site's page sent this ({why}): send it from here", code="cross_site")


def require_local(request: Request) -> None:
    """Let this machine in, and nobody who shows to come from elsewhere.

    Raises:
        ApiError: 403 ``loopback_only``, with what showed it.
    """
    if why := _why_foreign(request.headers, request.client.host if request.client else ""):
        message = (
            f"no API key is configured, so only this machine is served, and {why}: make a key with "
            "`turns keys create NAME` and send it as 'Authorization: Bearer KEY'"
        )
        raise ApiError(403, message, code="loopback_only")


def _why_foreign(headers: Headers, address: str) -> str:
    for name in headers:
        if name in _PROXY_HEADERS or name.startswith("x-forwarded-"):
            return f"this came through a proxy (header {shown_text(name, 40)})"
    if not is_loopback(address):
        return "this came from another machine"
    try:
        host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        host = ""
    return "" if is_loopback(host) else "this asked for it by another name (header Host)"
