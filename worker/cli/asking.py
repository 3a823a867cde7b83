"""Commands' access to the store: by a client of the settings, as somebody, about a span of time."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import click

from api_client.client import TurnsClient
from api_client.contract.settings import load, require_store
from api_client.figures.spans import seconds_of
from worker.logs import configure_logging

Result = TypeVar("Result")


def with_client(action: Callable[[TurnsClient], Awaitable[Result]]) -> Result:
    """Run a coroutine with a client of the settings in the environment."""
    settings = require_store(load())
    configure_logging(replace(settings, log_level="warning"))

    async def run() -> Result:
        async with TurnsClient(settings) as client:
            await client.store.require_shards()
            return await action(client)

    return asyncio.run(run())


def whoami() -> str:
    """Return who acts on the command line, for the audit log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def span(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """Read an option that is a span of time."""
    try:
        return seconds_of(value) if value else 0.0
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
