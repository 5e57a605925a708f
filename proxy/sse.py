"""Bytes ⇄ server-sent events.

    bytes, cut anywhere → lines (LF, CR, CRLF) → events (closed by a blank line)

Any split of the same bytes gives the same events, and every byte is looked at a fixed number of times. Bytes are never
decoded here: a character that straddles two reads can't be harmed.

Source: WHATWG HTML §9.2.5 and §9.2.6. Departures: an event whose data is empty is dropped (no chunk is empty), and the
last event counts without its blank line where it is whole (servers that just close; openai-python loses such an event).
"""

from __future__ import annotations

import json
from typing import Final

import msgspec

from proxy.errors import BackendFault

DONE: Final = b"data: [DONE]\n\n"
DONE_DATA: Final = b"[DONE]"
_BOM: Final = b"\xef\xbb\xbf"
_LF: Final = 0x0A


class Event(msgspec.Struct, frozen=True):
    """One event. Shape: `data` is its data lines joined by LF; `event` is its name, "" where it has none."""

    data: bytes
    event: str = ""

    @property
    def is_done(self) -> bool:
        """Whether this is the sentinel that ends a stream of chunks."""
        return self.data.strip() == DONE_DATA

    @property
    def is_blank(self) -> bool:
        """Whether this holds nothing but blanks, as some pings do: text to a reader of text, but no chunk."""
        return not self.data.strip()


class Parser:
    """Reads an event stream. `comments` counts the comment lines so far.

    A fault is raised only once the events before it have been handed out, so that these don't depend on the split.
    """

    def __init__(self, max_event_bytes: int, *, is_begun: bool = False) -> None:
        """Read events of up to so many bytes; `is_begun`: others have been read, up to where one ended."""
        self.comments = 0
        self._limit = max_event_bytes
        self._start: bytes | None = None if is_begun else b""  # what may still turn out to be a byte order mark
        self._after_cr = False  # the next LF is the second half of a CRLF
        self._tail = bytearray()  # the line that has no end yet
        self._data: list[bytes] = []
        self._name = b""
        self._size = 0  # of the open event's lines
        self._fault: BackendFault | None = None

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that `data` completes.

        Raises: BackendFault `event_too_large`.
        """
        data = self._without_cr_half(self._without_bom(data))
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._after_cr = self._after_cr or (end == len(data) and data.endswith(b"\r"))
        events: list[Event] = []
        if end:
            block = bytes(self._tail) + data[:end] if self._tail else data[:end]
            self._tail = bytearray(data[end:])
            self._read(_plain(block), events)
        else:
            self._tail += data
        return self._handed_out(events)

    def close(self) -> list[Event]:
        """Return the last event where only its blank line is missing; one that is cut is dropped.

        Raises: BackendFault `event_too_large`.
        """
        if self._tail:
            self._line(bytes(self._tail))
        data = b"\n".join(self._data)
        events = [Event(data, _text(self._name))] if _is_whole(data) else []
        self._tail.clear()
        self._clear()
        return self._handed_out(events)

    def _without_bom(self, data: bytes) -> bytes:
        if self._start is None:
            return data
        data = self._start + data
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._start = data
            return b""
        self._start = None
        return data.removeprefix(_BOM)

    def _without_cr_half(self, data: bytes) -> bytes:
        if not (self._after_cr and data):
            return data
        self._after_cr = False
        return data[1:] if data[0] == _LF else data

    def _read(self, block: bytes, events: list[Event]) -> None:
        """Read a block of whole lines."""
        *records, rest = block.split(b"\n\n")
        for record in records:
            # Nearly all events are one line, and this reads them without looking at it as one.
            if (
                record.startswith(b"data: ")
                and not (self._size or self._data or self._name)
                and b"\n" not in record
                and len(b"data: ") < len(record) <= self._limit
                and not self._fault
            ):
                events.append(Event(record[6:]))
            else:
                self._read_lines([*record.split(b"\n"), b""], events)
        if rest:
            self._read_lines(rest.removesuffix(b"\n").split(b"\n"), events)

    def _read_lines(self, lines: list[bytes], events: list[Event]) -> None:
        for line in lines:
            if self._fault:
                return
            if line:
                self._line(line)
            else:
                if any(self._data):
                    data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                    events.append(Event(data, _text(self._name)))
                self._clear()

    def _line(self, line: bytes) -> None:
        if not self._fits(line):
            return
        if line.startswith(b"data: "):
            self._data.append(line[6:])
        elif line.startswith(b":"):
            self.comments += 1
            return  # it is not kept, so it doesn't count towards the event
        else:
            self._field(*line.partition(b":"))
        self._size += len(line) + 1

    def _field(self, name: bytes, _colon: bytes, value: bytes) -> None:
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value

    def _clear(self) -> None:
        self._data = []
        self._name = b""
        self._size = 0

    def _fits(self, line: bytes | bytearray) -> bool:
        if self._size + len(line) <= self._limit:
            return True
        self._fault = self._fault or BackendFault(
            f"The backend sent an event of more than {self._limit} bytes, which is the limit (limits.event).",
            code="event_too_large",
            token="http_response_body_size",
        )
        return False

    def _handed_out(self, events: list[Event]) -> list[Event]:
        if self._tail and not self._fits(self._tail):
            self._tail.clear()
        if self._fault and not events:
            raise self._fault
        return events


def _plain(block: bytes) -> bytes:
    """Return the block with LF alone at the ends of its lines."""
    return block.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in block else block


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace") if name else ""


def _is_whole(data: bytes) -> bool:
    """Return whether no byte can be missing at the end of `data`: a JSON object is closed by its brace."""
    if data.strip() == DONE_DATA:
        return True
    try:
        return isinstance(json.loads(data), dict)  # the lenient reader: NaN is no sign of a cut
    except (ValueError, RecursionError):
        return False


def encode(payload: bytes, event: str = "") -> bytes:
    """Return the event that carries `payload`, one data line for each of its lines, under a name where it has one."""
    if b"\n" in payload:
        payload = payload.replace(b"\n", b"\ndata: ")
    name = b"event: " + event.encode("utf-8", "replace") + b"\n" if event else b""
    return name + b"data: " + payload + b"\n\n"


def comment(text: bytes = b"") -> bytes:
    """Return a comment, which keeps a connection alive and says nothing."""
    lines = [b": " + line if line else b":" for line in text.splitlines() or [b""]]
    return b"\n".join(lines) + b"\n\n"
