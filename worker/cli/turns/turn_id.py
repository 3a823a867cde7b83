"""The argument TURN_ID: an id, the beginning of one, or ``last``; and what a shell completes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import click

from api_client.client import TurnsClient
from api_client.contract.errors import HelixError
from api_client.contract.settings import load, require_store
from api_client.index.finding import find_turn, means_a_turn
from api_client.index.search import Search

#: Turns among which a shell completes an id.
_COMPLETED = 200
Command = TypeVar("Command", bound=Callable[..., Any])


def turn_argument(*, required: bool = True) -> Callable[[Command], Command]:
    """The argument ``turn_id`` of a command: whatever was written, the command is given the whole id."""
    return click.argument("turn_id", required=required, callback=_whole, shell_complete=_newest)


def _newest(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """For a shell that completes an id: those of the newest turns that begin like this; none without a store."""
    with contextlib.suppress(HelixError, OSError):
        return [turn_id for turn_id in asyncio.run(_listed()) if turn_id.startswith(begun)]
    return []


async def _listed() -> list[str]:
    async with TurnsClient(require_store(load())) as client:
        return [turn.turn_id for turn in (await client.lists.page(Search(), count=_COMPLETED)).turns]


def _whole(context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """The whole id of the turn that is meant. Raises as ``find_turn``."""
    if text is None or context.resilient_parsing:
        return text
    return asyncio.run(_find(text)) if means_a_turn(text) else text


async def _find(text: str) -> str:
    async with TurnsClient(require_store(load())) as client:
        return await find_turn(client.lists, text)


def offered_models(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """For a shell that completes a model: those of HELIX_MODELS that begin like this."""
    with contextlib.suppress(HelixError, OSError):
        return [name for name in load().models if name.startswith(begun)]
    return []
