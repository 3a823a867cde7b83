"""A dataclass whose ``frozen=True`` the type checker enforces, and nothing at run time.

For values that are made many times in each turn: Python takes more than twice as long to make a frozen one, a tenth of
all the time that a worker's loop spent on a turn. What plug-ins get or make is a frozen dataclass of Python's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(**options: Any) -> Callable[[type], type]:
        """As ``dataclasses.dataclass``; compared and hashed as a frozen one."""
        return dataclasses.dataclass(**{**options, "frozen": False, "unsafe_hash": options.get("frozen", False)})
