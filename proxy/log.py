"""The log: structlog, one JSON object or one readable line an event, on stderr.

No body, prompt, header value or key is ever given to it; aiohttp's own loggers speak through it, without tracebacks
that would show what a request held.

What is logged in one pass of the event loop is written at once when the pass is over, since each write is a system
call; a warning or worse is written immediately, with all that waited before it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import select
import sys
import time
from typing import IO, Any, Final, Literal

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LogFormat = Literal["json", "console"]

# What is written to a pipe at once, and so never mixed with the lines of another process. Source: POSIX, write().
_WHOLE_BYTES: Final = select.PIPE_BUF


class Sink:
    """Where lines are written: each whole, in their order. `flush` has to be called at the end."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lines: list[bytes] = []

    def info(self, line: bytes | str) -> None:
        """Write a line by the end of the loop's pass, or at once where no loop runs."""
        self._lines.append(line + b"\n" if isinstance(line, bytes) else _ended(line))
        if len(self._lines) > 1:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
        else:
            loop.call_soon(self.flush)

    debug = info

    def warning(self, line: bytes | str) -> None:
        """Write a line now."""
        self._lines.append(_ended(line))
        self.flush()

    error = critical = exception = fatal = warn = warning

    def flush(self) -> None:
        """Write what waits to be written."""
        lines, self._lines = self._lines, []
        if not lines:
            return
        out = getattr(self._stream, "buffer", None)
        try:
            for part in _whole(lines):
                if out is not None:
                    out.write(part)
                else:
                    self._stream.write(part.decode())
                self._stream.flush()
        except OSError:
            return  # stderr is gone, and there is nobody to tell


def _ended(line: bytes | str) -> bytes:
    return (line if isinstance(line, bytes) else line.encode("utf-8", "backslashreplace")) + b"\n"


def _whole(lines: list[bytes]) -> list[bytes]:
    """Return the lines joined to parts that can each be written at once."""
    parts = [b""]
    for line in lines:
        if parts[-1] and len(parts[-1]) + len(line) > _WHOLE_BYTES:
            parts.append(b"")
        parts[-1] += line
    return parts


class TimeStamper:
    """Adds the time as ISO 8601; the part that holds for a second is kept that long."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """Return the event with its time."""
        event["timestamp"] = self.now()
        return event

    def now(self) -> str:
        """Return the time."""
        microseconds = time.time_ns() // 1000
        second = microseconds // 1_000_000
        if second != self._second:
            self._second, self._text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._text}.{microseconds % 1_000_000:06d}Z"


_encode = msgspec.json.Encoder(enc_hook=repr).encode


class Told(msgspec.Struct):
    """An event whose fields are known ahead; who writes it fills in what stands here.

    A struct, since there is one for each request: it is made and written in a third of a dict's time.
    """

    level: str = ""
    timestamp: str = ""
    pid: int | msgspec.UnsetType = msgspec.UNSET


def _fields(told: Told) -> EventDict:
    """Return what is told, by name."""
    return {name: value for name, value in msgspec.structs.asdict(told).items() if value not in ("", msgspec.UNSET)}


class AsJson:
    """Makes an event a line of JSON, with its level, its time, and the process where there are several.

    All at once, since there is one for each request.
    """

    def __init__(self, pid: int | None) -> None:
        """Tell `pid` in each line where it is given."""
        self._add_time = TimeStamper()
        self._pid = pid

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> bytes:
        """Return the event as JSON in ASCII: what is not might be a lone surrogate, or control a terminal."""
        event["level"] = method
        self._add_time(logger, method, event)
        if self._pid is not None:
            event["pid"] = self._pid
        return _as_json(event)

    def line(self, method: str, told: Told) -> bytes:
        """Return an event whose fields are known, as JSON."""
        told.level, told.timestamp = method, self._add_time.now()
        if self._pid is not None:
            told.pid = self._pid
        return _as_json(told)


def _as_json(event: EventDict | Told) -> bytes:
    try:
        line = _encode(event)
    except (UnicodeEncodeError, TypeError):
        line = b"\xff"
    if line.isascii():
        return line
    if isinstance(event, Told):
        event = _fields(event)
    return json.dumps(event, default=repr, separators=(",", ":")).encode()


class _Through(logging.Handler):
    """Passes the standard library's records on to structlog: the event, never the arguments of a traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        kind = type(record.exc_info[1]).__name__ if record.exc_info and record.exc_info[1] else None
        structlog.get_logger(record.name).log(record.levelno, record.msg, error=kind)


def tell(logger: Any, method: str, told: Told) -> None:
    """Log an event at a level that is enabled: structlog's own way copies it four times."""
    processors, sink = logger._processors, logger._logger  # noqa: SLF001 as a method of the logger's would
    if type(processors[0]) is AsJson and not logger._context:  # noqa: SLF001 as above
        getattr(sink, method)(processors[0].line(method, told))
        return
    line: Any = {**logger._context, **_fields(told)}  # noqa: SLF001 as above
    try:
        for processor in processors:
            line = processor(sink, method, line)
    except structlog.DropEvent:
        return
    getattr(sink, method)(line)


def set_up(log_format: LogFormat, level: str = "info", pid: int | None = None) -> Sink:
    """Send every log line of the process through structlog; return where they go, which is to be flushed at the end.

    `pid` is told in each line where it is given.
    """
    sink = Sink(sys.stderr)

    def add_pid(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["pid"] = pid
        return event

    readable: list[Processor] = [structlog.processors.add_log_level, TimeStamper()]
    readable += [add_pid] if pid is not None else []
    readable.append(structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()))
    structlog.configure(
        processors=[AsJson(pid)] if log_format == "json" else readable,
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=lambda *_names: sink,
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(handlers=[_Through()], level=logging.WARNING, force=True)
    return sink
