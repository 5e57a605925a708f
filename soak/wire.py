"""One end of a TCP connection. What came before an end, of whatever kind, is never lost."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

HELD_BYTES: Final = 64 * 1024


class Ended(Exception):
    """The other end has closed, or broken off, before all that was waited for had come."""


class Wire(asyncio.Protocol):
    """A connection. Reading is stopped while much of what came was not taken yet."""

    def __init__(self, held_bytes: int = HELD_BYTES) -> None:
        """Hold so many bytes at most, about."""
        self._held_bytes = held_bytes
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self.has_ended = False
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        self._received += data
        if len(self._received) > self._held_bytes and self._transport is not None:
            self._transport.pause_reading()
        self._news.set()

    def eof_received(self) -> bool:
        """Note that nothing more will come; what is still to be said may be."""
        self.has_ended = True
        self._news.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is gone."""
        self.has_ended = self.is_lost = True
        self._news.set()
        self._writable.set()

    def pause_writing(self) -> None:
        """Note that the other end is slow."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Note that the other end has caught up."""
        self._writable.set()

    def send(self, data: bytes) -> None:
        """Send, where the connection is still there."""
        if self._transport is not None and not self.is_lost:
            self._transport.write(data)

    async def drained(self) -> None:
        """Wait until the other end can take more. Raises: Ended."""
        await self._writable.wait()
        if self.is_lost:
            raise Ended

    def close(self) -> None:
        """Close when all is sent."""
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Break off: the other end gets a RST."""
        if self._transport is not None and not self.is_lost:
            told = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, told)
            self._transport.abort()

    async def more(self) -> None:
        """Wait until something comes. Raises: Ended."""
        if self.has_ended:
            raise Ended
        self._news.clear()
        if self._transport is not None:
            self._transport.resume_reading()
        await self._news.wait()

    async def gone(self) -> None:
        """Wait until the other end has closed, whatever it still says."""
        while not self.has_ended:
            self._received.clear()
            self._news.clear()
            if self._transport is not None:
                self._transport.resume_reading()
            await self._news.wait()

    async def until(self, marker: bytes) -> bytes:
        """Return what comes up to and with a marker. Raises: Ended."""
        while (at := self._received.find(marker)) < 0:
            await self.more()
        return self._take(at + len(marker))

    async def some(self, size: int) -> bytes:
        """Return some of the next bytes. Raises: Ended."""
        while not self._received:
            await self.more()
        return self._take(size)

    def left(self) -> bytes:
        """Return what has come and was not taken."""
        return self._take(len(self._received))

    def _take(self, size: int) -> bytes:
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken
