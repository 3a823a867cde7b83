"""What every route needs, kept in the application's state: the settings, the client, and whether to stop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias, cast

from fastapi import Depends
from starlette.requests import Request

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.web.busy import Busy
from api_client.web.identity.guesses import Guesses
from api_client.web.identity.keys import Keyring
from api_client.web.identity.local_token import LocalToken
from api_client.web.readers import Readers

#: Packs what a bug report about a turn needs, from the turn's export (``history.export``), into a ZIP archive.
Pack: TypeAlias = Callable[[dict[str, Any]], bytes]


@dataclass(slots=True)
class Traffic:
    """What the relay serves: answers since its start by HTTP status, and event streams that are open."""

    answers: Counter[int] = field(default_factory=Counter)
    streams: int = 0


@dataclass(frozen=True, slots=True)
class Relay:
    """What a running relay has. ``stopping`` is set once, when it is asked to stop.

    Attributes:
        token: of the operator, where no keys are configured.
        pack: makes bundles; None: pages offer none.
        busy: requests in progress. guesses: wrong keys at the sign-in. traffic: what was served.
    """

    settings: Settings
    client: TurnsClient
    readers: Readers
    keys: Keyring
    token: LocalToken
    pack: Pack | None = None
    busy: Busy = field(default_factory=Busy)
    guesses: Guesses = field(default_factory=Guesses)
    traffic: Traffic = field(default_factory=Traffic)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)


def relay_of(request: Request) -> Relay:
    """The relay that serves this request."""
    return cast("Relay", request.app.state.relay)


async def _relay(request: Request) -> Relay:
    return relay_of(request)


RelayOf = Annotated[Relay, Depends(_relay)]
