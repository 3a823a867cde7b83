"""The code of rules and validators that others wrote: however it fails to load, the error is a ``ValueError``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def report_unusable_code(rule: str) -> Iterator[None]:
    """Raise ``ValueError`` for whatever the code of a rule raises in this block, also if it tries to end the program.

    A ``ValueError`` of the code stays as it is, because it explains the options.
    """
    try:
        yield
    except ValueError:
        raise
    except (Exception, SystemExit) as error:
        raise ValueError(f"{rule}: {type(error).__name__}: {error}") from error
