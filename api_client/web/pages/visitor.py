"""Sign-in for visitors of the pages: a browser exchanges an API key, or a provider's word, for a cookie.

The store maps the cookie's hash to the key's hash or the person until the sign-in expires; revoking the key ends it.
While the store accepts no writes, the cookie itself says who is signed in (``sealed_sign_in``). Every form that changes
something carries a token derived from the cookie. Without configured keys, the pages serve only this machine and show
all turns; the operator's token (``api_client.api_keys``) gives an operator's rights.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import parse_qs, quote

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import Response

from api_client.api_keys import hash_key
from api_client.contract.errors import StoreUnavailable, TurnNotFound
from api_client.contract.order_log import name_caller
from api_client.contract.owners import LOCAL_OWNER
from api_client.resources.registry import PAGES
from api_client.web.bodies.body import limit_body_time, run_off_loop
from api_client.web.errors import ApiError, printable_text
from api_client.web.identity.access import Caller, find_holder, find_signed_in, requires_key, token_required_error
from api_client.web.identity.origin import require_local, require_own_site
from api_client.web.pages.sealed_sign_in import is_sealed, open_sealed_sign_in, seal_sign_in
from api_client.web.relay.relay import Relay, get_relay

COOKIE = "helix-visitor"
SIGNED_IN_SECONDS = 12 * 3600
#: Limit for all forms except the form for a repaired answer.
_MAX_FORM_BYTES = 8192
#: Bytes read from an oversized form, so that the browser still gets the error.
_MAX_DISCARDED_BYTES = 2 * 2**20


class RedirectVisitor(Exception):
    """Raised when a visitor may not see a page. The browser is redirected to ``target``."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.target = address


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """A person who uses the pages in a browser, with the person's rights."""

    token: str
    caller: Caller
    owner: str | None
    signed_in: bool
    needs_cookie: bool = False

    @property
    def operator(self) -> bool:
        """Return True if the visitor is an operator, who may change all turns."""
        return self.caller.is_operator

    @property
    def keyless(self) -> bool:
        """Return True if no API keys are configured and the visitor has not given the operator's token."""
        return self.caller.keyless and not self.operator

    @property
    def changeable_owner(self) -> str | None:
        """Return the owner whose turns the visitor may change, or None for an operator, who may change all turns."""
        return None if self.operator else self.caller.owner

    @property
    def actor_name(self) -> str:
        """Return the visitor's name for the audit log."""
        person = self.caller.person
        return f"oidc:{printable_text(person, 80)}" if person else name_caller(self.caller.owner)

    @property
    def csrf(self) -> str:
        """Return the token that the visitor's forms must contain, so that other sites cannot forge them."""
        return hmac.new(self.token.encode(), b"helix-form", hashlib.sha256).hexdigest()


async def identify_visitor(request: Request) -> Visitor:
    """Return the visitor identified by a request's sign-in cookie.

    Raises ``RedirectVisitor`` if a sign-in is needed and the cookie belongs to no valid one; ``ApiError`` (403
    ``loopback_only``); ``StoreUnavailable``.
    """
    relay, token = get_relay(request), request.cookies.get(COOKIE, "")
    if not (keys := requires_key(relay)):
        require_local(request)
    if is_sealed(token):
        who = await open_sealed_sign_in(relay, token)
    else:
        who = await relay.client.sign_ins.find_signed_in(token) if token else ""
    holder = find_signed_in(who, relay)
    if holder is None and not keys:
        caller, fresh = Caller(owner=LOCAL_OWNER), token or secrets.token_urlsafe(32)
        return Visitor(token=fresh, caller=caller, owner=None, signed_in=False, needs_cookie=not token)
    if holder is None:
        back = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        wants = f"?next={quote(back, safe='')}" if request.method == "GET" and back not in {"", "/"} else ""
        raise RedirectVisitor(f"/sign-in{wants}")
    return Visitor(token=token, caller=holder, owner=None if holder.is_operator else holder.owner, signed_in=True)


CurrentVisitor = Annotated[Visitor, Depends(identify_visitor)]


async def require_overseer(visitor: CurrentVisitor) -> Visitor:
    """Return the visitor if the visitor may see all turns. Raises ``RedirectVisitor`` for other visitors."""
    if visitor.owner:
        raise RedirectVisitor("/turns")
    return visitor


CurrentOverseer = Annotated[Visitor, Depends(require_overseer)]


async def create_sign_in(relay: Relay, key: str) -> str | None:
    """Create a sign-in for an API key and return the cookie's content, or None for an invalid key.

    Raises ``StoreUnavailable``.
    """
    key_hash = hash_key(key)
    return await store_sign_in(relay, key_hash) if find_holder(key_hash, relay) else None


async def store_sign_in(relay: Relay, who: str) -> str:
    """Create a sign-in and return the cookie's content; ``who`` is as in ``SignIns``.

    While the store accepts no writes, the sign-in is sealed into the cookie. Raises ``StoreUnavailable``.
    """
    token, sealed = secrets.token_urlsafe(32), await seal_sign_in(relay, who)
    try:
        await relay.client.sign_ins.sign_in(token, who, keep_seconds=SIGNED_IN_SECONDS)
    except StoreUnavailable as error:
        if not error.refusal:
            raise
        return sealed
    return token


def set_cookie(request: Request, response: Response, token: str) -> None:
    """Set the sign-in cookie in a response. Over https, mark the cookie as https-only."""
    response.set_cookie(
        COOKIE, token, max_age=SIGNED_IN_SECONDS, httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )


async def read_form(request: Request, most_bytes: int = _MAX_FORM_BYTES) -> dict[str, str]:
    """Return the fields of a form sent by a browser.

    Raises ``ApiError``: 403 if the form comes from another site, 408 if it arrives too slowly, 413 if it is too long,
    400 if it is malformed.
    """
    require_own_site(request)
    body, size = bytearray(), 0
    async with limit_body_time():
        async for chunk in request.stream():
            size += len(chunk)
            if size <= most_bytes:
                body += chunk
            elif size > most_bytes + _MAX_DISCARDED_BYTES:
                break
    if size > most_bytes:
        raise ApiError(413, "the form is too long", code="request_too_large", headers={"connection": "close"})
    try:
        fields = await run_off_loop(lambda: parse_qs(body.decode(), keep_blank_values=True, max_num_fields=20))
    except ValueError:
        raise ApiError(400, "this is not a form", code="invalid_value") from None
    return {name: values[0] for name, values in fields.items()}


async def read_checked_form(request: Request, visitor: CurrentVisitor) -> dict[str, str]:
    """Return the fields of a form that changes something, after checking its protection against forgery.

    Raises ``ApiError``: 403 ``form_expired`` if the token is wrong; otherwise the errors of ``read_form``.
    """
    return _check_token(await read_form(request), visitor)


async def read_checked_long_form(request: Request, visitor: CurrentVisitor) -> dict[str, str]:
    """Return the fields of a long form, after checking its protection against forgery."""
    return _check_token(await read_form(request, get_relay(request).settings.max_body_bytes), visitor)


def _check_token(fields: dict[str, str], visitor: Visitor) -> dict[str, str]:
    if not hmac.compare_digest(fields.get("csrf", "").encode(), visitor.csrf.encode()):
        raise ApiError(403, "this form has expired: go back, reload the page and try again", code="form_expired")
    return fields


CheckedForm = Annotated[dict[str, str], Depends(read_checked_form)]
CheckedLongForm = Annotated[dict[str, str], Depends(read_checked_long_form)]


_OWN_PREFIXES = ("/overview?", "/turns", *(page.address for page in PAGES))


def require_own_path(text: str) -> str:
    """Return a path if it leads to a page of this relay, or else ``/``, to prevent redirects to other sites."""
    ours = text == "/overview" or text.startswith(_OWN_PREFIXES)
    return text if ours and "\\" not in text and text.isprintable() and len(text) < 2000 else "/"


@contextmanager
def explain_missing_token(visitor: Visitor) -> Iterator[None]:
    """Replace ``TurnNotFound`` in the ``with`` block by an error that asks a keyless visitor for the token."""
    try:
        yield
    except TurnNotFound:
        if visitor.keyless:
            raise token_required_error() from None
        raise
