"""Collect what the modules of a package declare, so that a new module needs no entry in a list."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any


def collect_parts(package: str, name: str) -> list[Any]:
    """Return the attribute ``name`` of each module in a package that has it, ordered by module name.

    The package's own ``registry`` module is skipped.
    """
    found = sorted(each.name for each in pkgutil.iter_modules(importlib.import_module(package).__path__))
    modules = [importlib.import_module(f"{package}.{each}") for each in found if each != "registry"]
    return [vars(module)[name] for module in modules if name in vars(module)]
