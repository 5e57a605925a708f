"""Deadlines of things that all may wait equally long: one timer for all of them, since most never wait that long."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Waiting(Protocol):
    """What waits. It is told by its identity."""

    def is_late(self) -> None:
        """Take note that it has waited too long."""


class Deadlines:
    """What waits, the one that has waited longest first."""

    __slots__ = ("_due", "_timer", "_wait_s")

    def __init__(self, wait_s: float) -> None:
        """Let each wait for `wait_s`."""
        self._wait_s = wait_s
        self._due: dict[Waiting, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, one: Waiting, now_s: float) -> None:
        """Let one wait from now on; `now_s` is `time.monotonic`."""
        self._due[one] = now_s + self._wait_s
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._wait_s, self._look)

    def remove(self, one: Waiting) -> None:
        """Let one wait no more."""
        self._due.pop(one, None)

    def _look(self) -> None:
        """Tell those that are late, and look again when the next one could be."""
        self._timer = None
        now_s = time.monotonic()
        late = []
        for one, due_s in self._due.items():
            if due_s > now_s:
                self._timer = asyncio.get_running_loop().call_later(due_s - now_s, self._look)
                break
            late.append(one)
        for one in late:
            self.remove(one)
            one.is_late()
