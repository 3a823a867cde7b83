"""Commands at the terminal: what they ask, what they print."""

from __future__ import annotations

import getpass
import json
import re
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from api_client.contract.settings import Settings, load, require_store
from worker.logs import configure_logging

if TYPE_CHECKING:
    from api_client.client import TurnsClient

# Output of commands: one JSON text for programs, plain lines for people.

#: Control characters, and the marks that reorder text: what an agent writes must not drive the terminal.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON, for programs.")


def safe(text: object) -> str:
    """A text fit for a terminal; line ends and tabs stay."""
    return _UNSAFE.sub("", str(text).replace("\r\n", "\n"))


def one_line(text: object, width: int = 200) -> str:
    """A text fit for one line of a terminal, cut at ``width`` characters."""
    line = " ".join(safe(text).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def number_of(count: int, noun: str) -> str:
    """A number and what it counts: ``1 turn``, ``2 turns``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def write_json(value: Any) -> None:
    """One JSON text on one line; ASCII only, so that no terminal or pipe can spoil it."""
    click.echo(json.dumps(value, default=str))


def write_said(as_json: bool, data: Any, said: str) -> None:
    """A result: as JSON, or in words."""
    if as_json:
        write_json(data)
    else:
        click.echo(said)


def write_table(rows: list[tuple[str, ...]]) -> None:
    """Columns, as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def write_list(as_json: bool, data: Any, none: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """A list: as JSON, or as a table with its headings; ``none`` is what people read where it is empty."""
    if as_json:
        write_json(data)
    elif lines := [*rows]:
        write_table([head, *lines])
    else:
        click.echo(none)


def moment(at: float) -> str:
    """A moment (seconds since the epoch) in local time; empty for 0."""
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S%z}" if at else ""


# Commands' access to the store: by a client of the settings, as somebody, about a span of time.

Result = TypeVar("Result")


def with_client(action: Callable[[TurnsClient], Awaitable[Result]], settings: Settings | None = None) -> Result:
    """Run a coroutine with a client, of the settings in the environment where none are given."""
    settings = settings or require_store(load())
    configure_logging(replace(settings, log_level="warning"))

    async def checked(client: TurnsClient) -> Result:
        await client.store.require_shards()
        return await action(client)

    return asked(settings, checked)


def asked(settings: Settings, action: Callable[[TurnsClient], Awaitable[Result]]) -> Result:
    """Run a coroutine with a client, whatever the store's number of shards is."""
    import asyncio

    from api_client.client import TurnsClient  # loads all of the core: what asks nothing goes without it

    async def run() -> Result:
        async with TurnsClient(settings) as client:
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
    from api_client.figures.metrics import seconds_of

    try:
        return seconds_of(value) if value else 0.0
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def since_option(default: str, meaning: str = "How far back.") -> Callable[[Any], Any]:
    """The option ``--since``, a span of time in seconds."""
    return click.option("--since", callback=span, default=default, metavar="SPAN", show_default=True, help=meaning)


# Input of commands: UTF-8, of bounded size, and refused in one line; and ``--root``.

#: Larger than every text that is read: an answer has 4 Mi characters at most. `/dev/zero` has no end.
_MOST_BYTES = 64 * 2**20


def root_option(meaning: str) -> Callable[[Any], Any]:
    """The option ``--root``, a folder; ``meaning`` is its help."""
    return click.option(
        "--root",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=Path(),
        envvar="HELIX_ROOT",
        show_default="HELIX_ROOT, else the current folder",
        help=meaning,
    )


def read_text(file: str) -> str:
    """The text of a file; ``-`` is standard input. A byte order mark is taken off.

    Raises:
        UsageError: it cannot be read, is not UTF-8 text, or is longer than anything we take.
    """
    name = "standard input" if file == "-" else file
    try:
        if file == "-":
            data = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                data = opened.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise click.UsageError(f"{name} is longer than {_MOST_BYTES // 2**20} MiB")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise click.UsageError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{name} is not UTF-8 text (byte {error.start})") from None
