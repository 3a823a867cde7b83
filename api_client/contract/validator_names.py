"""Validators that a request can name: the built-in ones and those of installed packages.

Offered validators can be requested; active validators check answers (HELIX_VALIDATORS or the request).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import EntryPoint

from api_client.contract.plugins import VALIDATOR, find_plugins
from api_client.contract.value_kinds import suggest_name

#: Built-in validators: ADR-038's three.
BUILT_IN = ("step_marker", "adr_structure", "file_existence")


def installed_validators() -> Mapping[str, EntryPoint]:
    """Return the entry points of installed validators by name, without built-in names."""
    return {name: entry for name, entry in find_plugins(VALIDATOR).items() if name not in BUILT_IN}


def offered_validators() -> tuple[str, ...]:
    """Return the names of all available validators, built-in ones first."""
    return (*BUILT_IN, *installed_validators())


def requestable_validators(active: Collection[str]) -> tuple[str, ...]:
    """Return the validator names that a request may use: all available and all active validators.

    An operator may activate a validator on a relay that lacks its package; the workers then offer it.
    """
    return tuple(dict.fromkeys((*offered_validators(), *active)))


def describe_unknown_validator(name: str, offered: Sequence[str]) -> str:
    """Build the error message about an unknown validator, with the closest name and a list of all names."""
    return f"unknown validator {name[:80]!r}{suggest_name(name, offered)} (offered: {', '.join(offered) or 'none'})"
