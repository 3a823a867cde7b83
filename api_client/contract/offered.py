"""Which validators are offered here: the built-in ones.

Which validators are offered here: the built-in ones, and those of installed packages. *Offered* is what can be asked
for; *active* is what judges: by HELIX_VALIDATORS, or by the request. The names of the offered ones come from the
metadata of installed packages. Their code is not imported, so the relay may ask too.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

from api_client.contract.declared import nearest

#: The group of entry points in which packages name their validators (docs/validators.md).
GROUP = "helix_turns.validators"
#: Ours: ADR-038's three.
BUILT_IN = ("step_marker", "adr_structure", "file_existence")


def installed_validators() -> Mapping[str, EntryPoint]:
    """The entry points of installed packages, by name; another package never replaces a built-in name."""
    return _installed(tuple(sys.path))


@lru_cache(maxsize=8)
def _installed(_path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP)) if entry.name not in BUILT_IN}


def offered_validators() -> tuple[str, ...]:
    """The names that can be asked for: ours first, then those of installed packages, sorted."""
    return (*BUILT_IN, *installed_validators())


def askable(active: Collection[str]) -> tuple[str, ...]:
    """The names a request may have: what is offered here, and what the settings have made active.

    An operator who activates a validator on a relay without its package says that the workers offer it.
    """
    return tuple(dict.fromkeys((*offered_validators(), *active)))


def not_offered(name: str, offered: Sequence[str]) -> str:
    """The message about a name nobody offers: the likely one, and all there are."""
    return f"unknown validator {name[:80]!r}{nearest(name, offered)} (offered: {', '.join(offered) or 'none'})"
