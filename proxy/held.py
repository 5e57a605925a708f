"""A request whose body has come in part, and what is missing of it. Noted in a budget, since it is memory."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

# What comes in more parts is read as it comes: a list of small ones would take many times their size.
_MOST_PARTS: Final = 64


class Budget(Protocol):
    """Bytes that may be held, of all that there are."""

    held_bytes: int

    def has(self, size_bytes: int) -> bool:
        """Return whether so many are left."""


class Held:
    """A request whose body has come in part, after its `head`; what is held of it is noted in a budget."""

    __slots__ = ("_budget", "_parts", "_seen", "_size", "head", "missing", "timer")

    def __init__(self, head: bytes, part: bytes, missing: int, budget: Budget, timer: asyncio.TimerHandle) -> None:
        self.head = head
        self._parts = [part]
        self._budget = budget
        self._size = self._seen = len(head) + len(part)
        self.missing = missing
        self.timer = timer
        budget.held_bytes += self._size

    def takes(self, data: bytes) -> bool:
        """Return whether this was taken, and more is still missing."""
        if len(data) >= self.missing or len(self._parts) >= _MOST_PARTS or not self._budget.has(len(data)):
            return False
        self._parts.append(data)
        self._size += len(data)
        self.missing -= len(data)
        self._budget.held_bytes += len(data)
        return True

    def has_grown(self) -> bool:
        """Return whether more came since this was asked last."""
        seen, self._seen = self._seen, self._size
        return self._size > seen

    def end(self) -> list[bytes]:
        """Return what was held of the body, and hold it no longer."""
        self.timer.cancel()
        self._budget.held_bytes -= self._size
        parts, self._parts = self._parts, []
        return parts

    def end_with(self, last: bytes) -> bytes:
        """Return the body, now that the last part of it has come, and hold it no longer."""
        return b"".join((*self.end(), last))
