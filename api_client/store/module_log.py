"""Log lines of a package that other programs import: it prints nothing by itself.

Where the program set structlog up (as ours do, by ``worker.logs``), lines go there. Elsewhere they go to the standard
library's logger of the module, below ``api_client``, which is silent until the program configures ``logging``.
"""

from __future__ import annotations

import logging
from functools import partialmethod
from typing import Any

import structlog

logging.getLogger("api_client").addHandler(logging.NullHandler())  # else warnings would go to standard error


class ModuleLog:
    """The logger of one module: an event and its fields, ``log.info("turn.submitted", turn_id=...)``."""

    def __init__(self, name: str) -> None:
        self._structured = structlog.get_logger(name)
        self._standard = logging.getLogger(name)

    def _say(self, method: str, event: str, **fields: Any) -> None:
        if structlog.is_configured():
            getattr(self._structured, method)(event, **fields)
        else:
            said = " ".join([event, *(f"{name}={value!r}" for name, value in fields.items())])
            getattr(self._standard, method)("%s", said)

    #: For the record; for who runs the program; for who has to do something; and that with the exception in hand.
    info, warning = partialmethod(_say, "info"), partialmethod(_say, "warning")
    error, exception = partialmethod(_say, "error"), partialmethod(_say, "exception")
