"""Logging for a package that other programs import: by structlog if configured, else ``logging``."""

from __future__ import annotations

import logging
from functools import partialmethod
from typing import Any

import structlog

logging.getLogger("api_client").addHandler(logging.NullHandler())  # keeps warnings off standard error


class ModuleLog:
    """Logs events of a module with structured fields, as in ``log.info("turn.submitted", turn_id=...)``."""

    def __init__(self, name: str) -> None:
        self._structured = structlog.get_logger(name)
        self._standard = logging.getLogger(name)

    def _write_line(self, method: str, event: str, **fields: Any) -> None:
        if structlog.is_configured():
            getattr(self._structured, method)(event, **fields)
        else:
            said = " ".join([event, *(f"{name}={value!r}" for name, value in fields.items())])
            getattr(self._standard, method)("%s", said)

    info, warning = partialmethod(_write_line, "info"), partialmethod(_write_line, "warning")
    error, exception = partialmethod(_write_line, "error"), partialmethod(_write_line, "exception")
