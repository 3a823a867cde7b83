"""Keeps what rules print out of the output of the command that runs them."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

_OUTPUT, _ERROR = 1, 2


@contextmanager
def divert_output() -> Iterator[None]:
    """Send what this process and the programs that it starts print within the block to standard error, at once.

    Does nothing if standard output or standard error is closed.
    """
    try:
        kept = os.dup(_OUTPUT)
        os.dup2(_ERROR, _OUTPUT)
    except OSError:
        yield
        return
    written = io.FileIO(_ERROR, "w", closefd=False)
    try:
        with redirect_stdout(io.TextIOWrapper(written, errors="backslashreplace", write_through=True)):
            yield
    finally:
        os.dup2(kept, _OUTPUT)
        os.close(kept)
