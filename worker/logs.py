"""Log lines of every process: structlog, static event names, identifiers as fields.

The standard library's loggers (Celery, kombu, uvicorn, redis) go through the same renderer.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog
from structlog.typing import Processor

#: Loggers that are loud at "info" and say nothing an operator needs.
_QUIET = ("httpx2", "httpcore2", "asyncio", "markdown_it")


def configure(log_format: str = "console", log_level: str = "info", stream: TextIO | None = None) -> None:
    """Set up logging for this process; calling it again replaces the set-up.

    ``log_format`` is ``console`` or ``json``; lines go to ``stream``, standard error by default. Celery's own set-up
    is kept off by connecting this to its ``setup_logging`` signal.
    """
    stream = stream or sys.stderr
    level = getattr(logging, log_level.upper())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # a second call must reach loggers that were used before
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(log_format, stream)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def _rendering(log_format: str, stream: TextIO) -> list[Processor]:
    if log_format == "json":
        return [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    return [structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)]
