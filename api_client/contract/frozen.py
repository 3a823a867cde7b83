"""A dataclass that the type checker lets nobody change; Python itself does not check.

For values that are made many times in each turn: Python takes more than twice as long to make a frozen one, a tenth
of all the time that a worker's loop spent on a turn. What plug-ins get or make is a frozen dataclass of Python's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def frozen(*, slots: bool = False, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """A dataclass, compared and hashed as a frozen one."""
    return dataclasses.dataclass(slots=slots, kw_only=kw_only, unsafe_hash=True)
