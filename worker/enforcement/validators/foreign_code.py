"""Turns whatever the code of others' rules and validators raises into a ``ValueError`` with the rule's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def report_unusable_code(rule: str, keep: type[ValueError] | tuple[()] = ()) -> Iterator[None]:
    """Raise ``ValueError`` with the rule's name for whatever the rule's code raises in this block.

    An attempt to end the program counts as an error. Errors of the class ``keep`` stay as they are.
    """
    try:
        yield
    except keep:
        raise
    except (Exception, SystemExit) as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"{rule}: {kind}{error}") from error
