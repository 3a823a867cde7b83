"""Sign-in with an OpenID Connect provider: the way there, the way back, and the way out.

A cookie binds each sign-in to the browser that began it. State, nonce and PKCE verifier are signatures of the cookie
with the key of links, so nothing is stored, and any relay of the installation can finish what another began.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import Response

from api_client.oidc.person import SignInRefused
from api_client.oidc.provider import CALLBACK_PATH, PendingSignIn
from api_client.web.errors import ApiError
from api_client.web.pages.rendering import page_router, redirect, render_page
from api_client.web.pages.visitor import require_own_path, set_cookie, store_sign_in
from api_client.web.relay.file_links import parse_integer
from api_client.web.relay.relay import CurrentRelay, Relay

log = structlog.get_logger(__name__)

START_PATH, OUT_PATH = "/sign-in/start", "/sign-in/out"
#: Cookie of a sign-in that has begun. A provider's redirect brings no strict cookie.
PENDING_COOKIE = "helix-sign-in"
PENDING_SECONDS = 600
_COOKIE_OPTIONS: Any = {"path": CALLBACK_PATH, "httponly": True, "samesite": "lax"}
_MAX_BACK_CHARS = 1_000

router = page_router()


@router.get(START_PATH)
async def start_sign_in(request: Request, relay: CurrentRelay, next: str = "") -> Response:  # noqa: A002 the field's name
    """Redirect a browser to the provider's sign-in page, and set a cookie that binds the sign-in to this browser."""
    _require_provider(relay)
    back = require_own_path(next if len(next) <= _MAX_BACK_CHARS else "")
    began = f"{secrets.token_urlsafe(32)}.{int(time.time()) + PENDING_SECONDS}.{back.encode().hex()}"
    response = redirect(await relay.provider.build_sign_in_address(await _derive_values(relay, began)))
    secure = request.url.scheme == "https"
    response.set_cookie(PENDING_COOKIE, began, max_age=PENDING_SECONDS, secure=secure, **_COOKIE_OPTIONS)
    return response


@router.get(CALLBACK_PATH)
async def finish_sign_in(request: Request, relay: CurrentRelay) -> Response:
    """Sign in the person whom the provider names, if this browser began the sign-in."""
    _require_provider(relay)
    person = await relay.provider.finish_sign_in(request.query_params, await _read_pending(request, relay))
    token = await store_sign_in(relay, person.to_text())
    log.info("page.signed_in", person=person.subject)
    # Not a redirect: the browser would follow it without the strict cookie, because the provider began it.
    back = require_own_path(bytes.fromhex(request.cookies[PENDING_COOKIE].split(".")[2]).decode())
    response = render_page("signed_in.html", back=back)
    set_cookie(request, response, token)
    response.delete_cookie(PENDING_COOKIE, **_COOKIE_OPTIONS)
    return response


@router.get(OUT_PATH)
async def leave_provider(relay: CurrentRelay) -> Response:
    """Send a browser that is signed out here to the provider's sign-out, where the person may sign out too."""
    _require_provider(relay)
    return redirect(await relay.provider.build_sign_out_address())


def _require_provider(relay: Relay) -> None:
    if not relay.settings.oidc_issuer:
        raise ApiError(404, "there is nothing at this address", code="not_found")


async def _derive_values(relay: Relay, began: str) -> PendingSignIn:
    until, sign = parse_integer(began.split(".")[1]), relay.client.links.sign_link
    state, nonce, verifier = [await sign(f"oidc-{kind}", began, until=until) for kind in ("state", "nonce", "verifier")]
    return PendingSignIn(state, nonce, verifier)


async def _read_pending(request: Request, relay: Relay) -> PendingSignIn:
    """Return the values of the sign-in that this browser began. Raises ``SignInRefused``."""
    began = request.cookies.get(PENDING_COOKIE, "")
    if began.count(".") != 2:
        raise SignInRefused("this browser did not start this sign-in, or the sign-in was already used")
    pending = await _derive_values(relay, began)
    if not secrets.compare_digest(pending.state.encode(), request.query_params.get("state", "").encode()):
        raise SignInRefused("this answer belongs to a sign-in in another browser or window")
    if parse_integer(began.split(".")[1]) < time.time():
        raise SignInRefused("the sign-in took more than ten minutes")
    return pending
