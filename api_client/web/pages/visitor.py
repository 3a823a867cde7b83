"""Visitors of the pages: a browser signs in with an API key and gets a cookie in its place.

The cookie is random; the store keeps for a while which key it represents, and hashes both. A key that is revoked ends
what was signed in with it. Scripts cannot read the cookie, other sites cannot send it, and every change wants a token
made from it. Without keys the pages serve this machine only, and show everything; who signs in with the operator's
token (``api_client.api_keys``) also does what an operator does.
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
#: How long a sign-in lasts.
SIGNED_IN_SECONDS = 12 * 3600
#: Our forms are never longer, but for the one that takes a repaired answer.
_MOST_FORM_BYTES = 8192
#: Of one that is too long so much is read, so that its sender hears why.
_THROWN_AWAY_BYTES = 2 * 2**20


class LedElsewhere(Exception):
    """The page is for others: the browser is led to ``address``."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Somebody at the pages.

    Attributes:
        token: the cookie's content. new: the browser does not have it yet.
        caller: whose turns may be changed (an operator's: all), what may be submitted, and by which models.
        owner: whose turns may be seen; None: everybody's.
        signed_in: by a key, or by the operator's token where no keys are configured.
    """

    token: str
    caller: Caller
    owner: str | None
    signed_in: bool
    new: bool = False

    @property
    def operator(self) -> bool:
        """May change everybody's turns."""
        return self.caller.operator

    @property
    def keyless(self) -> bool:
        """Looks at an installation without keys, and did not show the operator's token."""
        return self.caller.keyless and not self.operator

    @property
    def changes(self) -> str | None:
        """Whose turns may be changed; None for an operator, who may change all."""
        return None if self.operator else self.caller.owner

    @property
    def name(self) -> str:
        """Who acts, as orders are recorded."""
        return name_caller(self.caller.owner)

    @property
    def csrf(self) -> str:
        """Return what a form must bring along: nobody can make it without the cookie."""
        return hmac.new(self.token.encode(), b"helix-form", hashlib.sha256).hexdigest()


async def visitor_of(request: Request) -> Visitor:
    """The visitor.

    Raises ``LedElsewhere``: keys are configured, and the cookie represents none of them (any more). ``ApiError``: 403
    ``loopback_only``. ``StoreUnavailable``: the store does not answer.
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
    """A visitor who may see everybody's turns. Raises ``LedElsewhere``: others are led to their own."""
    if visitor.owner:
        raise LedElsewhere("/turns")
    return visitor


OverseerOf = Annotated[Visitor, Depends(overseer_of)]


async def sign_in(relay: Relay, key: str) -> str | None:
    """A new cookie's content for a valid key; None for any other."""
    key_hash = hash_of(key)
    if holder_by_hash(key_hash, relay) is None:
        return None
    token = secrets.token_urlsafe(32)
    await relay.client.sign_ins.remember(token, key_hash, keep_seconds=SIGNED_IN_SECONDS)
    return token


def set_cookie(request: Request, response: Response, token: str) -> None:
    """Give the browser the cookie; over https it is never sent without."""
    response.set_cookie(
        COOKIE, token, max_age=SIGNED_IN_SECONDS, httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )


async def form_of(request: Request, most_bytes: int = _MOST_FORM_BYTES) -> dict[str, str]:
    """The fields of a submitted form.

    Raises ``ApiError``: it came from another site (403), came too slowly (408), is too long (413) or no form (400).
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
    """The fields of a form that changes something.

    Raises ``ApiError``: 403 ``form_expired`` without the visitor's token; else as ``form_of``.
    """
    return _checked(await form_of(request), visitor)


async def checked_long_form(request: Request, visitor: VisitorOf) -> dict[str, str]:
    """As ``checked_form``, for one that takes an answer: as long as any request may be."""
    return _checked(await form_of(request, relay_of(request).settings.max_body_bytes), visitor)


def _checked(fields: dict[str, str], visitor: Visitor) -> dict[str, str]:
    if not hmac.compare_digest(fields.get("csrf", "").encode(), visitor.csrf.encode()):
        raise ApiError(403, "this form has expired: go back, reload the page and try again", code="form_expired")
    return fields


Form = Annotated[dict[str, str], Depends(checked_form)]
LongForm = Annotated[dict[str, str], Depends(checked_long_form)]


#: How the addresses of our pages begin.
_OURS = ("/overview?", "/turns", *(page.address for page in PAGES))


def own_path(text: str) -> str:
    """``text`` if it is an address among our pages, else the first page: nobody is sent elsewhere by us."""
    ours = text == "/overview" or text.startswith(_OURS)
    return text if ours and "\\" not in text and text.isprintable() and len(text) < 2000 else "/"


@contextmanager
def others_need_token(visitor: Visitor) -> Iterator[None]:
    """Without keys everybody's turns are shown; that one is not the visitor's to change is then said as it is."""
    try:
        yield
    except TurnNotFound:
        if visitor.keyless:
            raise needs_token() from None
        raise
