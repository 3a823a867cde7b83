"""The argument TURN_ID: an id, the beginning of one, or ``last``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import click

from api_client.client import TurnsClient
from api_client.contract.settings import load, require_store
from api_client.index.finding import means_a_turn

Command = TypeVar("Command", bound=Callable[..., Any])


def turn_argument(*, required: bool = True) -> Callable[[Command], Command]:
    """The argument ``turn_id`` of a command: whatever was written, the command is given the whole id."""
    return click.argument("turn_id", required=required, callback=_whole)


def _whole(context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """The whole id of the turn that is meant. Raises as ``TurnsClient.find``."""
    if text is None or context.resilient_parsing:
        return text
    return asyncio.run(_find(text)) if means_a_turn(text) else text


async def _find(text: str) -> str:
    async with TurnsClient(require_store(load())) as client:
        return await client.find(text)
