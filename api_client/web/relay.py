"""What every route needs: the settings and the client, kept in the application's state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends
from starlette.requests import Request

from api_client.client import TurnsClient
from api_client.contract.settings import Settings


@dataclass(frozen=True, slots=True)
class Relay:
    """Settings and client of a running relay."""

    settings: Settings
    client: TurnsClient


def relay_of(request: Request) -> Relay:
    """The relay that serves this request."""
    return cast("Relay", request.app.state.relay)


async def _relay(request: Request) -> Relay:
    return relay_of(request)


RelayOf = Annotated[Relay, Depends(_relay)]
