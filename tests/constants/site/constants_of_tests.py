"""Sets the constants that ``TESTS_CONSTANTS`` names, each once its module was imported: see ``tests.constants``."""

from __future__ import annotations

import json
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_VALUES: dict[str, dict[str, Any]] = json.loads(os.environ.get("TESTS_CONSTANTS", "{}"))


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in _VALUES or not (spec := PathFinder.find_spec(name, path, target)) or not spec.loader:
            return None
        carry_out = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            carry_out(module)
            for each, value in _VALUES[name].items():
                if not hasattr(module, each):
                    raise AttributeError(f"{name} has no constant {each}: correct the test")
                setattr(module, each, value)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if _VALUES:
    sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
