"""The built-in and installed kinds of interruptions by name."""

from __future__ import annotations

import functools

from api_client.contract.interruption import Interruption
from api_client.contract.package_parts import collect_parts
from api_client.interruptions.registry import load_installed_kinds
from worker.turns.interruptions.kind import InterruptionKind

_BUILT_IN: tuple[InterruptionKind, ...] = tuple(collect_parts("worker.turns.interruptions", "KIND"))
#: Used for kinds whose package provides only the question, or is missing here.
_PLAIN = InterruptionKind()


@functools.cache
def list_kinds() -> tuple[InterruptionKind, ...]:
    """Return all kinds of interruptions, the built-in kinds first."""
    installed = load_installed_kinds().values()
    return (*_BUILT_IN, *(kind for kind in installed if isinstance(kind, InterruptionKind)))


def find_kind(interruption: Interruption) -> InterruptionKind:
    """Return the kind of an interruption, or a default kind if the interruption's package is not installed."""
    return next((kind for kind in list_kinds() if kind.name == interruption.kind), _PLAIN)
