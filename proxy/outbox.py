"""Sends what is said in one pass of the event loop when that is over: who it is for wakes up once, and not each time.

Where many requests are served at once, to wake the other end takes longer than all that is done with a request. Where
there is time between them, what is said is sent at once.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

# What follows that soon is likely to be of the same pass.
BUSY_S: Final = 60e-6


class Outbox:
    """What is to be sent, in order. Who writes to a transport in another way has to `flush` before, and to close it."""

    __slots__ = ("_last_s", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []
        self._last_s = 0.0

    def put(self, transport: asyncio.Transport, data: bytes) -> None:
        """Send data by the end of the pass; it is dropped where the transport is closed before that."""
        now_s = time.monotonic()
        if self._waiting:
            self._waiting.append((transport, data))
        elif now_s - self._last_s < BUSY_S:
            self._waiting.append((transport, data))
            asyncio.get_running_loop().call_soon(self.flush)
        else:
            transport.write(data)
        self._last_s = now_s

    def flush(self) -> None:
        """Send what waits now."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for transport, data in waiting:
                if not transport.is_closing():
                    transport.write(data)
