"""The log: structlog, one JSON object or one readable line an event, on stderr.

No body, prompt, header value or key is ever given to it; aiohttp's own loggers speak through it, without tracebacks
that would show what a request held.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog

LogFormat = Literal["json", "console"]


class _Through(logging.Handler):
    """Passes the standard library's records on to structlog: the event, never the arguments of a traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        kind = type(record.exc_info[1]).__name__ if record.exc_info and record.exc_info[1] else None
        structlog.get_logger(record.name).log(record.levelno, record.msg, error=kind)


def set_up(log_format: LogFormat, level: str = "info") -> None:
    """Send every log line of the process through structlog, in the given format."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(handlers=[_Through()], level=logging.WARNING, force=True)
