"""A person's yes to one tool call, as a file: it moves from delivery to delivery, and its call uses it up.

The hook or client that lets the call run removes the file first (``tool_gate.used_up``). So where an earlier delivery
still has it, the call has not run there, and can run there no more once the file is here.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from api_client.contract.session import delivery_name
from worker.runners.base import Order

#: Below a delivery's folder: no tool of Claude writes into ``marks``, and nothing in it is published.
_PLACE = Path("marks", "permit")


def permit_of(order: Order) -> Path | None:
    """The permit of a run that goes on after a yes; None where there was no yes, or the call may have run.

    Raises:
        OSError: it cannot be written, or moved.
    """
    answered = order.answered
    if answered is None or answered.allowed != "yes":
        return None
    own, first = order.directory / _PLACE, answered.answered + 1
    own.parent.mkdir(exist_ok=True)
    if order.delivery == first:
        own.touch(exist_ok=False)
        return own
    for number in range(order.delivery - 1, first - 1, -1):
        earlier = order.directory.with_name(delivery_name(order.turn_id, order.attempt, number)) / _PLACE
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return earlier.rename(own)
    return None
