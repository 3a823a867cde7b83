"""Access of commands to the store."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from api_client.contract.settings import Settings, load_settings, require_store
from worker.logs import configure_logging

if TYPE_CHECKING:
    from api_client.client import TurnsClient


Result = TypeVar("Result")


def run_with_client(action: Callable[[TurnsClient], Awaitable[Result]], settings: Settings | None = None) -> Result:
    """Open a client and run a coroutine with it. Settings come from the environment by default."""
    settings = settings or require_store(load_settings())
    configure_logging(replace(settings, log_level="warning"))

    return run_with_settings(settings, action)


def run_with_settings(settings: Settings, action: Callable[[TurnsClient], Awaitable[Result]]) -> Result:
    import asyncio

    from api_client.client import TurnsClient  # loads all of the core: what asks nothing goes without it

    async def run_action() -> Result:
        async with TurnsClient(settings) as client:
            return await action(client)

    return asyncio.run(run_action())


def describe_caller() -> str:
    """Return the user and host that run the command line, as ``user@host`` for the audit log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # users in containers may have no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def parse_span(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """Parse an option that gives a time span such as ``7d``, and return seconds."""
    from api_client.figures.time_spans import parse_time_span

    try:
        return parse_time_span(value) if value else 0.0
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def build_since_option(default: str, meaning: str = "How far back.") -> Callable[[Any], Any]:
    """Build the command-line option ``--since``, which takes a time span and gives seconds."""
    return click.option(
        "--since", callback=parse_span, default=default, metavar="SPAN", show_default=True, help=meaning
    )
