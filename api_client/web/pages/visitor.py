"""Sign-in for visitors of the pages: a browser exchanges an API key for a cookie.

The store maps the cookie's hash to the key's hash until the sign-in expires; revoking the key ends the sign-in. Every
form that changes something carries a token derived from the cookie. Without configured keys, the pages serve only
this machine and show all turns; the operator's token (``api_client.api_keys``) gives an operator's rights.
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

from api_client.api_keys import hash_of
from api_client.contract.errors import TurnNotFound
from api_client.contract.orders import name_caller
from api_client.contract.owners import LOCAL_OWNER
from api_client.resources.registry import PAGES
from api_client.web.bodies.body import in_time, off_the_loop
from api_client.web.errors import ApiError
from api_client.web.identity.access import Caller, holder_by_hash, needs_key, needs_token
from api_client.web.identity.origin import require_local, require_own_site
from api_client.web.relay.relay import Relay, relay_of

COOKIE = "helix-visitor"
SIGNED_IN_SECONDS = 12 * 3600
#: Limit for all forms except the form for a repaired answer.
_MOST_FORM_BYTES = 8192
#: Bytes read from an oversized form, so that the browser still gets the error.
_THROWN_AWAY_BYTES = 2 * 2**20


class LedElsewhere(Exception):
    """Raised when a visitor may not see a page; the browser is then redirected to ``address``."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """A person who uses the pages in a browser, with the person's rights.

    Attributes:
        caller: the identity for changes and submissions.
        owner: owner whose turns the visitor may see; None: all owners.
        signed_in: the visitor gave an API key, or the operator's token where no keys are configured.
        new: the browser does not have the cookie yet.
    """

    token: str
    caller: Caller
    owner: str | None
    signed_in: bool
    new: bool = False

    @property
    def operator(self) -> bool:
        """Return True if the visitor is an operator, who may change all turns."""
        return self.caller.operator

    @property
    def keyless(self) -> bool:
        """Return True if no API keys are configured and the visitor did not give the operator's token."""
        return self.caller.keyless and not self.operator

    @property
    def changes(self) -> str | None:
        """Return the owner whose turns the visitor may change, or None for an operator, who may change all turns."""
        return None if self.operator else self.caller.owner

    @property
    def name(self) -> str:
        """Return the visitor's name for the audit log."""
        return name_caller(self.caller.owner)

    @property
    def csrf(self) -> str:
        """Return the token that the visitor's forms must contain, which other sites cannot know."""
        return hmac.new(self.token.encode(), b"helix-form", hashlib.sha256).hexdigest()


async def visitor_of(request: Request) -> Visitor:
    """Return the visitor whom the sign-in cookie of a request identifies.

    Raises ``LedElsewhere`` if keys are configured and the cookie belongs to no valid key; ``ApiError`` (403
    ``loopback_only``); ``StoreUnavailable``.
    """
    relay, token = relay_of(request), request.cookies.get(COOKIE, "")
    if not (keys := needs_key(relay)):
        require_local(request)
    key_hash = await relay.client.sign_ins.key_of(token) if token else ""
    holder = holder_by_hash(key_hash, relay)
    if holder is None and not keys:
        caller, fresh = Caller(owner=LOCAL_OWNER), token or secrets.token_urlsafe(32)
        return Visitor(token=fresh, caller=caller, owner=None, signed_in=False, new=not token)
    if holder is None:
        back = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        wants = f"?next={quote(back, safe='')}" if request.method == "GET" and back not in {"", "/"} else ""
        raise LedElsewhere(f"/sign-in{wants}")
    return Visitor(token=token, caller=holder, owner=None if holder.operator else holder.owner, signed_in=True)


VisitorOf = Annotated[Visitor, Depends(visitor_of)]


async def overseer_of(visitor: VisitorOf) -> Visitor:
    """Return the visitor if the visitor may see all turns, otherwise redirect to the visitor's own turns.

    Raises ``LedElsewhere`` for other visitors, who are redirected to their own turns.
    """
    if visitor.owner:
        raise LedElsewhere("/turns")
    return visitor


OverseerOf = Annotated[Visitor, Depends(overseer_of)]


async def sign_in(relay: Relay, key: str) -> str | None:
    """Create a sign-in for an API key and return the cookie's content, or None if the key is not valid."""
    key_hash = hash_of(key)
    if holder_by_hash(key_hash, relay) is None:
        return None
    token = secrets.token_urlsafe(32)
    await relay.client.sign_ins.remember(token, key_hash, keep_seconds=SIGNED_IN_SECONDS)
    return token


def set_cookie(request: Request, response: Response, token: str) -> None:
    """Set the sign-in cookie in a response; after sign-in over https, browsers send the cookie over https only."""
    response.set_cookie(
        COOKIE, token, max_age=SIGNED_IN_SECONDS, httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )


async def form_of(request: Request, most_bytes: int = _MOST_FORM_BYTES) -> dict[str, str]:
    """Return the fields of a form that a browser sent.

    Raises ``ApiError``: 403 if the form comes from another site, 408 if it arrives too slowly, 413 if it is too long,
    400 if it is malformed.
    """
    require_own_site(request)
    body, size = bytearray(), 0
    async with in_time():
        async for chunk in request.stream():
            size += len(chunk)
            if size <= most_bytes:
                body += chunk
            elif size > most_bytes + _THROWN_AWAY_BYTES:
                break
    if size > most_bytes:
        raise ApiError(413, "the form is too long", code="request_too_large", headers={"connection": "close"})
    try:
        fields = await off_the_loop(lambda: parse_qs(body.decode(), keep_blank_values=True, max_num_fields=20))
    except ValueError:
        raise ApiError(400, "this is not a form", code="invalid_value") from None
    return {name: values[0] for name, values in fields.items()}


async def checked_form(request: Request, visitor: VisitorOf) -> dict[str, str]:
    """Return the fields of a form that changes something, after checking its protection against forgery.

    Raises ``ApiError``: 403 ``form_expired`` if the token is wrong; otherwise as ``form_of``.
    """
    return _checked(await form_of(request), visitor)


async def checked_long_form(request: Request, visitor: VisitorOf) -> dict[str, str]:
    """Return the fields of a long form, after checking its protection against forgery."""
    return _checked(await form_of(request, relay_of(request).settings.max_body_bytes), visitor)


def _checked(fields: dict[str, str], visitor: Visitor) -> dict[str, str]:
    if not hmac.compare_digest(fields.get("csrf", "").encode(), visitor.csrf.encode()):
        raise ApiError(403, "this form has expired: go back, reload the page and try again", code="form_expired")
    return fields


Form = Annotated[dict[str, str], Depends(checked_form)]
LongForm = Annotated[dict[str, str], Depends(checked_long_form)]


#: Prefixes of the addresses of our pages.
_OURS = ("/overview?", "/turns", *(page.address for page in PAGES))


def own_path(text: str) -> str:
    """Return a path if it leads to a page of this relay, otherwise ``/``, so that nobody is redirected elsewhere."""
    ours = text == "/overview" or text.startswith(_OURS)
    return text if ours and "\\" not in text and text.isprintable() and len(text) < 2000 else "/"


@contextmanager
def others_need_token(visitor: Visitor) -> Iterator[None]:
    """Replace ``TurnNotFound`` in the block by an error that asks a visitor without a key for the operator's token."""
    try:
        yield
    except TurnNotFound:
        if visitor.keyless:
            raise needs_token() from None
        raise
