"""Detects requests from pages of other sites and from proxies, by their headers."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request

from api_client.contract.settings.store_addresses import is_loopback
from api_client.web.errors import ApiError, printable_text
from api_client.web.relay.relay import get_relay

_OWN_SITES = frozenset({"same-origin", "none"})
#: Headers of proxies and of sign-in services in front of the relay: whole names, and prefixes.
_PROXY_HEADERS = frozenset(
    {"forwarded", "via", "true-client-ip", "x-client-ip", "x-real-ip", "x-cluster-client-ip", "cdn-loop", "x-user-ip"}
    | {
        "x-original-forwarded-for",
        "x-proxyuser-ip",
        "x-amzn-trace-id",
        "do-connecting-ip",
        "x-remote-user",
        "remote-user",
    }
)
_PROXY_PREFIXES = (
    *(
        "x-forwarded-",
        "cf-",
        "fastly-",
        "fly-",
        "x-envoy-",
        "x-appengine-",
        "x-goog-iap-",
        "x-goog-authenticated-user-",
    ),
    *("tailscale-", "ngrok-", "x-azure-", "x-ms-client-principal", "x-ms-token-", "x-amzn-oidc-", "cloudfront-"),
    *("x-vercel-", "x-nf-", "x-pomerium-", "x-auth-request-", "x-authentik-", "x-akamai-", "akamai-", "teleport-"),
)


def require_own_site(request: Request) -> None:
    """Raise ``ApiError`` (403 ``cross_site``) if a web page of another site sent the request."""
    site = request.headers.get("sec-fetch-site")
    origins = request.headers.getlist("origin")
    if site is not None and site not in _OWN_SITES:
        raise _make_cross_site_error(f"Sec-Fetch-Site is {printable_text(site, 20)}")
    for origin in origins if site != "same-origin" else ():
        if not _is_own_origin(origin, request):
            raise _make_cross_site_error(f"Origin is {printable_text(origins[0])}")


def _is_own_origin(origin: str, request: Request) -> bool:
    public = get_relay(request).settings.public_url
    try:
        host = urlsplit(origin).netloc.lower()
        return bool(host) and host in {request.headers.get("host", "").lower(), urlsplit(public).netloc.lower()}
    except ValueError:
        return False


def _make_cross_site_error(why: str) -> ApiError:
    return ApiError(403, f"another site's page sent this ({why}): send it from here", code="cross_site")


def require_local(request: Request) -> None:
    """Raise ``ApiError`` (403 ``loopback_only``) if the request came from another machine or through a proxy."""
    if why := _explain_foreign(request.headers, request.client.host if request.client else ""):
        message = (
            f"no API key is configured, so only this machine is served, and {why}: make a key with "
            "`turns keys create NAME` and send it as 'Authorization: Bearer KEY'"
        )
        raise ApiError(403, message, code="loopback_only")


def _explain_foreign(headers: Headers, address: str) -> str:
    for name in headers:
        if name in _PROXY_HEADERS or name.startswith(_PROXY_PREFIXES):
            return f"this came through a proxy (header {printable_text(name, 40)})"
    if not is_loopback(address):
        return "this came from another machine"
    try:
        host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        host = ""
    return "" if is_loopback(host) else "this asked for it by another name (header Host)"
