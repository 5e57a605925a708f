"""Watches an event stream that is relayed as it is, for the first event that proves life.

bytes → events → role-only, usage-only: not yet · content, tool call, finish_reason: alive · error first: a failure
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proxy.chunks import INVALID, decode_chunk, failure_of, is_life
from proxy.errors import BackendFault
from proxy.sse import Event, Parser


class LifeSign:
    """Watches an event stream that is relayed as it is, for the first event that proves life.

    `events`: data events so far, the sentinel aside; `comments`: comment lines so far; `error`: what the backend said
    where it told of a failure before any life, and `fault` the same as a failure.
    """

    def __init__(self, max_event_bytes: int = 8 * 1024 * 1024) -> None:
        self.events = 0
        self.comments = 0
        self.error: dict[str, Any] | str | None = None
        self.fault: BackendFault | None = None
        self.is_alive = False
        self._parser = Parser(max_event_bytes)

    def feed(self, data: bytes) -> bool:
        """Return whether life is proven. Once it is, or the stream told of a failure, nothing is read any more."""
        return self._watch(self._parser.feed, data)

    def close(self) -> bool:
        """Return whether life is proven now that the stream has ended."""
        return self._watch(self._parser.close)

    def _watch(self, read: Callable[..., list[Event]], *data: bytes) -> bool:
        if self.is_alive or self.fault:
            return self.is_alive
        try:
            for event in read(*data):
                if not (event.is_done or event.is_blank):
                    self._judge(event.data, event.event)
        except BackendFault:
            self.is_alive = True  # an event beyond the limit is no role chunk; a relay has no limit to keep
        self.comments = self._parser.comments
        return self.is_alive

    def _judge(self, data: bytes, name: str) -> None:
        if self.is_alive or self.fault:
            return
        self.events += 1
        try:
            chunk = decode_chunk(data)
        except BackendFault as fault:
            self.is_alive = fault.code == INVALID  # what can't be judged isn't held back
            if not self.is_alive:
                self.error, self.fault = fault.message, fault
            return
        self.fault = failure_of(chunk, name)
        if self.fault:
            self.error = chunk.get("error") or chunk
        else:
            self.is_alive = is_life(chunk) or not ("choices" in chunk or "usage" in chunk)
