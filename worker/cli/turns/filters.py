"""Which turns a command is about: TURN_ID (an id, the beginning of one, or ``last``), and the options that filter."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from api_client.client import TurnsClient
from api_client.contract.errors import HelixError
from api_client.contract.owners import owner_named
from api_client.contract.settings import load, require_store
from api_client.index.finding import find_turn, means_a_turn
from api_client.index.search import STATUSES, Search
from worker.cli.asking import span

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


def filter_options(statuses: Iterable[str] = STATUSES) -> Callable[[Command], Command]:
    """Options of a command whose function takes them as ``**filters``, for ``search_of``.

    ``statuses`` are the states and outcomes that may be asked for; none: there is no such option.
    """
    known = list(statuses)
    options = [
        click.option("--model", default="", help="Only of this model.", shell_complete=offered_models),
        click.option("--flow", default="", help="Only of this flow version."),
        click.option("--session", "session_id", default="", help="Only of this session."),
        click.option("--owner", default="", help="Only of this owner, by name or by hash."),
        click.option("--rule", default="", help="Only with an answer that broke this rule, or with this code."),
        click.option("--text", default="", help="Only with this text in the message, in any case of letters."),
        click.option("--since", callback=span, metavar="SPAN", help="Only of the last 90s, 30m, 1h, 7d, 2w."),
        click.option(
            "--until", callback=span, metavar="SPAN", help="Only those that ended (or began) before this long ago."
        ),
        click.option("--lost", is_flag=True, help="Only turns that a worker died or froze with."),
    ]
    if known:
        names, help_ = ("--status", "--state", "--outcome"), "Only in this state, or of this outcome; may be repeated."
        options.insert(0, click.option(*names, "statuses", type=click.Choice(known), multiple=True, help=help_))

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def search_of(*, since: float | None, until: float | None, **filters: Any) -> Search:
    """The search that these options ask for."""
    now = time.time()
    filters["owner"] = owner_named(filters["owner"])
    return Search(since=now - since if since else 0.0, until=now - until if until else 0.0, **filters)
