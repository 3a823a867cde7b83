"""Configures logging: structlog with static event names, identifiers as fields, and masked secrets."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import sys
from types import FrameType
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor

from api_client.contract.settings import Settings
from api_client.contract.settings.redaction import make_redactor, redact_value

#: Loggers whose "info" lines are of no use to an operator.
_QUIET = ("httpx2", "httpcore2", "asyncio", "markdown_it", "celery.worker.strategy", "celery.app.trace")
#: Libraries whose lines may repeat secrets; we log the same, masked (``tools.session_ended``).
_SILENT = ("mcp.client.auth",)
#: Fields that structlog's renderer formats specially.
_ITS_OWN = frozenset({"exc_info", "exception", "stack", "logger_name"})
_NEEDS_QUOTES = re.compile(r"""[ \t=\r\n"']""")
#: Modules to skip when looking for the caller of a logger.
_OURS = ("structlog.", __name__)


def configure_logging(settings: Settings, stream: TextIO | None = None) -> None:
    """Configure this process's logging as HELIX_LOG_FORMAT says. A second call replaces the first configuration."""
    stream = stream or sys.stderr
    level = getattr(logging, settings.log_level.upper())
    if "celery" in sys.modules:
        from celery import signals

        signals.setup_logging.connect(_disable_celery_logging)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering = _build_renderers(settings, stream)
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=functools.partial(_StreamLogger, stream),
        cache_logger_on_first_use=False,  # a second call must reach loggers that were already used
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), _drop_duplicates, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.captureWarnings(True)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    for name in _SILENT:
        logging.getLogger(name).setLevel(logging.CRITICAL)


class _StreamLogger:
    def __init__(self, stream: TextIO, name: str = "") -> None:
        self._stream = stream
        if not name:  # use the first module up the stack that is neither this one nor structlog
            frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as the standard library finds it
            while frame and frame.f_globals["__name__"].startswith(_OURS):
                frame = frame.f_back
            name = str(frame.f_globals["__name__"]) if frame else ""
        self.name = name

    def msg(self, line: str) -> None:
        """Write a log line with a single call, because other threads write too. Drop lines that cannot be written."""
        with contextlib.suppress(Exception):  # a full disk or closed pipe
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = critical = exception = msg


def _build_renderers(settings: Settings, stream: TextIO) -> list[Processor]:
    redact = make_redactor(settings)

    def mask_fields(_logger: Any, _method: str, event: EventDict) -> EventDict:
        return {name: redact_value(value, redact) for name, value in event.items()}

    def mask_line(_logger: Any, _method: str, line: Any) -> Any:
        return redact(line)

    if settings.log_format == "json":
        # Local variables may hold users' messages.
        faults = structlog.processors.ExceptionRenderer(
            structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        )
        return [faults, mask_fields, structlog.processors.JSONRenderer(), mask_line]
    colors = stream.isatty()
    console = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
    return [console if colors else build_plain_renderer(console), mask_line]


def build_plain_renderer(console: Processor) -> Processor:
    """Build a log renderer with the format of ``console`` that is faster and uses no colours."""

    def render_line(logger: Any, method: str, event: EventDict) -> Any:
        if not _ITS_OWN.isdisjoint(event):
            return console(logger, method, event)
        line = f"{event.pop('timestamp')} [{event.pop('level'):<9}] {event.pop('event')!s:<30} [{event.pop('logger')}]"
        for key in sorted(event):
            value = event[key]
            line += f" {key}={value if isinstance(value, str) and not _NEEDS_QUOTES.search(value) else repr(value)}"
        return line.rstrip(" ")

    return render_line


def _drop_duplicates(_logger: Any, _method: str, event: EventDict) -> EventDict:
    for name in ("color_message", "data"):
        event.pop(name, None)
    return event


def _disable_celery_logging(**_: Any) -> None:
    """Keep Celery from configuring logging, by handling its ``setup_logging`` signal."""
