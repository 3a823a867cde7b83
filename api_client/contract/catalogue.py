"""The catalogues of the contract, assembled from the declarations of all capabilities."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

_PACKAGE = "api_client.contract.capabilities"


def collect_declarations(name: str) -> dict[str, Any]:
    """Merge the mappings called ``name`` from all capability modules.

    Raises ``ValueError`` if two capabilities declare the same entry.
    """
    found: dict[str, Any] = {}
    for module in _capabilities():
        for key, value in getattr(module, name, {}).items():
            if key in found and not isinstance(value, dict):
                raise ValueError(f"{name}: {key} is declared twice")
            found[key] = found.get(key, {}) | value if isinstance(value, dict) else value
    return found


@cache
def load_declarations(name: str) -> Mapping[str, Any]:
    """Import the objects that the mappings called ``name`` refer to as ``module:attribute``."""
    found = {}
    for entry, place in collect_declarations(name).items():
        module, _, attribute = place.partition(":")
        found[entry] = getattr(import_module(module), attribute)
    return found


@cache
def _capabilities() -> list[ModuleType]:
    return [import_module(f"{_PACKAGE}.{each.name}") for each in iter_modules(import_module(_PACKAGE).__path__)]
