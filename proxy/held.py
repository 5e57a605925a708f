"""A request that has come in part: what is there of it, and what is missing. Noted in a budget, since it is memory."""

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
    """A request that has come in part; what is held of it is noted in a budget."""

    __slots__ = ("_budget", "_parts", "_seen", "_size", "missing", "timer")

    def __init__(self, data: bytes, missing: int, budget: Budget, timer: asyncio.TimerHandle) -> None:
        self._parts = [data]
        self._budget = budget
        self._size = self._seen = len(data)
        self.missing = missing
        self.timer = timer
        budget.held_bytes += len(data)

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
        """Return what was held, and hold it no longer."""
        self.timer.cancel()
        self._budget.held_bytes -= self._size
        return self._parts
