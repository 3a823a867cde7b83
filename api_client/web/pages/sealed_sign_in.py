"""Sign-ins while the store accepts no writes: the cookie itself says who is signed in, sealed with the key of links."""

from __future__ import annotations

import time

from api_client.web.relay.file_links import parse_integer
from api_client.web.relay.relay import Relay

SEALED_SECONDS = 3600
#: Kind of link: a signature of one kind opens no other kind. Tokens of stored sign-ins have no dot.
_KIND, _PREFIX = "sign-in", "sealed."


async def seal_sign_in(relay: Relay, key_hash: str) -> str:
    """Return a token that signs a browser in with the API key of this hash, without a record in the store.

    Raises ``StoreUnavailable``, also if the store accepts no writes and never had a key of links.
    """
    until = int(time.time()) + SEALED_SECONDS
    return f"{_PREFIX}{key_hash}.{until}.{await relay.client.links.sign_link(_KIND, key_hash, until=until)}"


def is_sealed(token: str) -> bool:
    """Return True if a token has the form of a sealed sign-in; its seal may still be wrong."""
    return token.startswith(_PREFIX)


async def open_sealed_sign_in(relay: Relay, token: str) -> str:
    """Return the hash of the API key that a sealed token names, or '' if the seal is wrong or too old."""
    key_hash, _, rest = token.removeprefix(_PREFIX).partition(".")
    until, _, signature = rest.partition(".")
    right = await relay.client.links.is_valid(signature, _KIND, key_hash, until=parse_integer(until))
    return key_hash if right else ""
