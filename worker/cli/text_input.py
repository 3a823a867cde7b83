"""Input of commands: UTF-8 text of limited size, and the option ``--root``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

#: More than any valid input; `/dev/zero` is endless.
_MOST_BYTES = 64 * 2**20


def build_root_option(meaning: str) -> Callable[[Any], Any]:
    """Build the command-line option ``--root``, which takes a folder and shows ``meaning`` as its help."""
    return click.option(
        "--root",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=Path(),
        envvar="HELIX_ROOT",
        show_default="HELIX_ROOT, else the current folder",
        help=meaning,
    )


def read_text(file: str, encoding: str = "utf-8-sig") -> str:
    """Return the text of a UTF-8 file, or of standard input for ``-``, by default without a byte order mark.

    Raises ``UsageError`` if the file is unreadable, too long or not UTF-8.
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
        return data.decode(encoding)
    except OSError as error:
        raise click.UsageError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{name} is not UTF-8 text (byte {error.start})") from None
