"""Readers of JSON values, chosen by the type of a field. A value of another type becomes an empty value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


def _read_number(value: Any) -> float:
    return value if isinstance(value, int | float) and math.isfinite(value) else 0


def _read_list(value: Any) -> list[Any] | tuple[Any, ...]:
    return value if isinstance(value, list | tuple) else ()


READ: dict[str, Callable[[Any], Any]] = {
    "int": lambda value: int(_read_number(value)),
    "float": lambda value: value if _read_number(value) else 0,
    "str": lambda value: value if isinstance(value, str) else "",
    "bool": bool,
    "tuple[str, ...]": lambda value: tuple(map(str, _read_list(value))),
    "dict[str, Any]": lambda value: value if isinstance(value, dict) else {},
    "dict[str, Any] | None": lambda value: value if isinstance(value, dict) else None,
    "list[Any] | None": lambda value: value if isinstance(value, list) else None,
}
