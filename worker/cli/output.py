"""Output of commands: one JSON text for programs, plain lines for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import click

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
