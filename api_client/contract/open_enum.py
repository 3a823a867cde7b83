"""An enumeration of stored words that newer versions may extend."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class OpenEnum(StrEnum):
    """Base class of enumerations that accept unknown words as text, because newer versions may write them.

    Check callers' words with ``in list(...)``: creating a member accepts any word.
    """

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str) or not value:
            return None
        unknown = str.__new__(cls, value)
        unknown._name_, unknown._value_ = value, value
        return unknown

    def __reduce_ex__(self, _protocol: object) -> tuple[type[Self], tuple[str]]:
        return type(self), (self._value_,)  # before 3.11.4 by its name, which an unknown word lacks
