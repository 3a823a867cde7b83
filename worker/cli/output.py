"""Output of commands: JSON for programs, plain lines for people."""

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
    """Return a text without control characters, which could manipulate the terminal. Keep line ends and tabs."""
    return _UNSAFE.sub("", str(text).replace("\r\n", "\n"))


def fit_line(text: object, width: int = 200) -> str:
    """Return a text as one line of at most ``width`` characters, without control characters."""
    line = " ".join(strip_control(text).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def count_noun(count: int, noun: str) -> str:
    """Format a count with its noun in singular or plural, such as ``1 turn`` or ``2 turns``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def write_json(value: Any) -> None:
    """Print a value as one line of JSON in ASCII."""
    click.echo(json.dumps(value, default=str))


def write_result(as_json: bool, data: Any, said: str) -> None:
    """Print ``data`` as JSON if ``as_json`` is true, otherwise the sentence ``said``."""
    if as_json:
        write_json(data)
    else:
        click.echo(said)


def write_table(rows: list[tuple[str, ...]]) -> None:
    """Print rows of text as a table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def write_list(as_json: bool, data: Any, none: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print a list as JSON or as a table with the headings ``head``. Print ``none`` for an empty table."""
    if as_json:
        write_json(data)
    elif lines := [*rows]:
        write_table([head, *lines])
    else:
        click.echo(none)


def format_time(at: float) -> str:
    """Format a Unix time as local time, and 0 as an empty string."""
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S%z}" if at else ""
