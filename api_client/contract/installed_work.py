"""Kinds of work that installed packages add by entry points."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

from api_client.contract.plugins import WORK_KIND, UnusablePlugin, find_plugins, make_plugin


@cache
def installed_kinds() -> Mapping[str, Any]:
    """Load the plug-ins that define kinds of work and return them by name.

    A kind that cannot be loaded is left out with a warning, so that turns of other kinds still run.
    """
    found: dict[str, Any] = {}
    for name in find_plugins(WORK_KIND):
        try:
            found[name] = make_plugin(WORK_KIND, name)
        except UnusablePlugin as error:
            warnings.warn(str(error), stacklevel=1)
    return found
