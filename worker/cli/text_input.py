"""Input of commands: UTF-8, of bounded size, and refused in one line; and ``--root``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

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
