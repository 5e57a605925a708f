"""Watches an event stream that is relayed as it is, for the first event that proves life.

bytes → events → role-only, usage-only: not yet · content, tool call, finish_reason: alive · error first: a failure
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from proxy.chunks import FAILED_FINISHES, INVALID, decode_chunk, failure_of, is_blank, is_life
from proxy.errors import BackendFault
from proxy.sse import Event, Parser

_DATA, _END = b"data: ", b"\n\n"


class LifeSign:
    """Watches an event stream that is relayed as it is, for the first event that proves life.

    `events`: data events so far, the sentinel aside; `comments`: comment lines so far; `error`: what the backend said
    where it told of a failure before any life, and `fault` the same as a failure.
    """

    __slots__ = ("_limit", "_parser", "_was_fed", "comments", "error", "events", "fault", "is_alive")

    def __init__(self, max_event_bytes: int = 8 * 1024 * 1024) -> None:
        self.events = 0
        self.comments = 0
        self.error: dict[str, Any] | str | None = None
        self.fault: BackendFault | None = None
        self.is_alive = False
        self._limit = max_event_bytes
        self._parser: Parser | None = None  # made where something is not as usual
        self._was_fed = False

    def feed(self, data: bytes) -> bool:
        """Return whether life is proven. Once it is, or the stream told of a failure, nothing is read any more."""
        if self._parser is None:
            data = self._read_plain(data)
        if data and not self.is_alive and self.fault is None:
            if self._parser is None:
                self._parser = Parser(self._limit, is_begun=self._was_fed)
            self._watch(self._parser, self._parser.feed, data)
        self._was_fed = True
        return self.is_alive

    def close(self) -> bool:
        """Return whether life is proven now that the stream has ended."""
        if self._parser is not None and not self.is_alive and self.fault is None:
            self._watch(self._parser, self._parser.close)
        return self.is_alive

    def _read_plain(self, data: bytes) -> bytes:
        """Read events of one line each, and whole, as nearly all are; return what has to be parsed."""
        if not data.endswith(_END) or b"\r" in data:
            return data
        at = 0
        while at < len(data) and not self.is_alive and self.fault is None:
            end = data.index(_END, at)
            line = data[at:end]
            if not line.startswith(_DATA) or b"\n" in line or len(line) > self._limit:
                return data[at:]
            self._look_at(line[len(_DATA) :])
            at = end + len(_END)
        return b""

    def _look_at(self, data: bytes) -> None:
        self._was_fed = True
        proves = _proves(data)
        if proves is None:
            self._judge(Event(data))
        else:
            self.events += 1
            self.is_alive = proves

    def _watch(self, parser: Parser, read: Callable[..., list[Event]], *data: bytes) -> None:
        try:
            for event in read(*data):
                self._judge(event)
        except BackendFault:
            self.is_alive = True  # an event beyond the limit is no role chunk; a relay has no limit to keep
        self.comments = parser.comments

    def _judge(self, event: Event) -> None:
        if self.is_alive or self.fault or event.is_done or event.is_blank:
            return
        self.events += 1
        try:
            chunk = decode_chunk(event.data)
        except BackendFault as fault:
            self.is_alive = fault.code == INVALID  # what can't be judged isn't held back
            if not self.is_alive:
                self.error, self.fault = fault.message, fault
            return
        self.fault = failure_of(chunk, event.event)
        if self.fault:
            self.error = chunk.get("error") or chunk
        else:
            self.is_alive = is_life(chunk) or not ("choices" in chunk or "usage" in chunk)


def _proves(data: bytes) -> bool | None:
    """Return whether a chunk proves life, as chunks.is_life; None where it is no chunk of the usual shape."""
    try:
        chunk: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    if type(chunk) is not dict or "error" in chunk or chunk.get("object") == "error":
        return None
    choices = chunk.get("choices")
    if type(choices) is not list or len(choices) != 1 or type(choices[0]) is not dict:
        return None
    choice = choices[0]
    finish = choice.get("finish_reason")
    if (finish and finish not in FAILED_FINISHES) or choice.get("text"):
        return True
    delta = choice.get("delta")
    if type(delta) is dict:
        for key in delta:
            if key != "role" and not is_blank(delta[key]):
                return True
    return False
