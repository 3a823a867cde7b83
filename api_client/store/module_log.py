"""Log lines of a package that other programs import: it prints nothing by itself.

Where the program set structlog up (as ours do, by ``worker.logs``), lines go there. Elsewhere they go to the standard
library's logger of the module, below ``api_client``, which is silent until the program configures ``logging``.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import structlog

_LEVELS = logging.getLevelNamesMapping()

logging.getLogger("api_client").addHandler(logging.NullHandler())  # else warnings would go to standard error


class ModuleLog:
    """The logger of one module: ``log.info("turn.submitted", turn_id=...)``, and so for each level."""

    def __init__(self, name: str) -> None:
        self._structured = structlog.get_logger(name)
        self._standard = logging.getLogger(name)

    def __getattr__(self, level: str) -> Any:
        if structlog.is_configured():
            return getattr(self._structured, level)
        return partial(self._say, _LEVELS[level.upper()])

    def _say(self, level: int, event: str, /, **fields: Any) -> None:
        if self._standard.isEnabledFor(level):
            self._standard.log(level, "%s", " ".join([event, *(f"{name}={value!r}" for name, value in fields.items())]))
