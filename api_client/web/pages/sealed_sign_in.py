"""Sign-ins while the store accepts no writes: the cookie itself says who is signed in, sealed with the key of links.

The pages are needed most when the store is full. Revoking the API key or the person's right ends such a sign-in, as any
other; signing out removes the cookie, and a copy of the cookie ends after an hour.
"""

from __future__ import annotations

import time

from api_client.web.relay.file_links import parse_integer
from api_client.web.relay.relay import Relay

SEALED_SECONDS = 3600
#: Kind of link: a signature of one kind opens no other kind. Tokens of stored sign-ins have no dot.
_KIND, _PREFIX = "sign-in", "sealed."


async def seal_sign_in(relay: Relay, who: str) -> str:
    """Return a signed token that keeps a browser signed in without a record in the store.

    ``who`` is the hash of an API key, or an encoded person. Raises ``StoreUnavailable``, also if the store accepts no
    writes and has no key for signing links.
    """
    until = int(time.time()) + SEALED_SECONDS
    return f"{_PREFIX}{who}.{until}.{await relay.client.links.sign_link(_KIND, who, until=until)}"


def is_sealed(token: str) -> bool:
    """Return True if a token has the form of a sealed sign-in; its seal may still be wrong."""
    return token.startswith(_PREFIX)


async def open_sealed_sign_in(relay: Relay, token: str) -> str:
    """Return whom a sealed token signs in (``SignIns``), or '' if the seal is wrong or too old."""
    who, _, rest = token.removeprefix(_PREFIX).partition(".")
    until, _, signature = rest.partition(".")
    right = await relay.client.links.is_valid(signature, _KIND, who, until=parse_integer(until))
    return who if right else ""
