"""Write output of commands: JSON for programs, plain lines for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import click

#: Control and bidirectional characters, with which an agent could manipulate the terminal.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON, for programs.")


def strip_control(text: object) -> str:
    """Remove control characters from a text for the terminal; keep line ends and tabs."""
    return _UNSAFE.sub("", str(text).replace("\r\n", "\n"))


def fit_line(text: object, width: int = 200) -> str:
    """Shorten a text to one line of at most ``width`` characters without control characters."""
    line = " ".join(strip_control(text).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def count_noun(count: int, noun: str) -> str:
    """Format a count with its noun: ``1 turn``, ``2 turns``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def write_json(value: Any) -> None:
    """Write a value as one line of ASCII JSON."""
    click.echo(json.dumps(value, default=str))


def write_result(as_json: bool, data: Any, said: str) -> None:
    """Write a result as JSON, or as the given sentence."""
    if as_json:
        write_json(data)
    else:
        click.echo(said)


def write_table(rows: list[tuple[str, ...]]) -> None:
    """Write rows as aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def write_list(as_json: bool, data: Any, none: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Write a list as JSON or as a table; an empty list prints ``none`` instead of a table."""
    if as_json:
        write_json(data)
    elif lines := [*rows]:
        write_table([head, *lines])
    else:
        click.echo(none)


def format_time(at: float) -> str:
    """Format seconds since the epoch as local time; empty for 0."""
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S%z}" if at else ""
