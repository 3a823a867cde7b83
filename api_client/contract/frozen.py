"""Dataclasses that the type checker treats as frozen, although Python itself does not enforce it.

Creating a really frozen dataclass takes more than twice as long, which matters for values made many times in each turn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def checked_frozen(*, slots: bool = False, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Return a dataclass decorator that makes instances hashable and lets the type checker treat them as frozen."""
    return dataclasses.dataclass(slots=slots, kw_only=kw_only, unsafe_hash=True)
