"""The connection to the client, as the relay sees it: aiohttp's request and response behind exchange.Client.

A cut answer has to look cut: the connection closes before the length or the last chunk that was promised.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable
from http import HTTPStatus
from typing import Protocol

from aiohttp import HttpVersion, HttpVersion11, hdrs, web
from multidict import CIMultiDict

from proxy.headers import Headers
from proxy.upstream import ClientLeft
from proxy.wire import Served, restore_raw_head

# nginx' send_timeout: how long a client may take nothing of what is sent to it.
SEND_TIMEOUT_S = 60.0


class Gauge(Protocol):
    """Counts what is open."""

    def inc(self) -> None:
        """Count one more."""

    def dec(self) -> None:
        """Count one less."""


class _Response(web.StreamResponse):
    """A response that says what the backend said, without the headers that aiohttp adds where they are missing."""

    # The head waits in the writer until its raw bytes are restored.
    _send_headers_immediately = False

    async def _write_headers(self) -> None:
        if hdrs.SERVER not in self.said:
            self.headers.popall(hdrs.SERVER, None)
        if hdrs.CONTENT_TYPE not in self.said:
            self.headers.popall(hdrs.CONTENT_TYPE, None)
        if self.status == HTTPStatus.NOT_MODIFIED and hdrs.CONTENT_LENGTH in self.said:
            # Of what is not sent, as in an answer to HEAD (RFC 9110 §8.6); aiohttp takes it out.
            self.headers[hdrs.CONTENT_LENGTH] = self.said[hdrs.CONTENT_LENGTH]
        await super()._write_headers()
        line = f"HTTP/{self.version.major}.{self.version.minor} {self.status} {self.reason}"
        restore_raw_head(self._payload_writer, line, self.headers.items())
        if self._payload_writer is not None:
            self._payload_writer.send_headers()

    def __init__(self, status: int, reason: str | None, said: CIMultiDict[str], version: HttpVersion) -> None:
        super().__init__(status=status, reason=reason, headers=said)
        self.said = said
        self.version = version


class HttpClient:
    """One request's client on an HTTP connection."""

    def __init__(self, request: web.BaseRequest, streams: Gauge | None = None) -> None:
        """Answer `request`; `streams` counts the event streams that are open."""
        self._request = request
        self._streams = streams
        self._is_counted = False
        self.begun_at_s: float | None = None
        self.response: web.StreamResponse | None = None
        self.begun_status: int | None = None
        self.sent_bytes = 0
        self.is_closing = False
        self.is_done = False

    @property
    def has_idled(self) -> bool:
        """Whether the connection was kept alive, unused, when the drain began."""
        return isinstance(self._request.protocol, Served) and self._request.protocol.has_idled

    async def begin(self, status: int, reason: str | None, headers: Headers) -> None:
        """Write the status line and headers. Raises: ClientLeft."""
        response = _Response(status, reason, CIMultiDict(headers), self._request.version)
        connection = self._request.protocol
        if self.is_closing or (isinstance(connection, Served) and connection.is_leaving):
            response.force_close()
        self.response, self.begun_status, self.begun_at_s = response, status, time.perf_counter()
        if self._streams is not None and response.content_type == "text/event-stream":
            self._is_counted = True
            self._streams.inc()
        try:
            await response.prepare(self._request)
        except ConnectionError as error:
            raise ClientLeft from error

    async def write(self, data: bytes) -> None:
        """Write a part of the body, waiting while the client is slow. Raises: ClientLeft."""
        if self.response is None:
            raise RuntimeError("the answer has not begun")
        self.sent_bytes += len(data)
        await self._taken(self.response.write(data))

    async def end(self) -> None:
        """End the answer cleanly. Raises: ClientLeft."""
        if self.response is None:
            raise RuntimeError("the answer has not begun")
        self.is_done = True
        await self._taken(self.response.write_eof())

    async def _taken(self, writing: Awaitable[None]) -> None:
        """Wait while the client takes what is written, as long as it takes anything. Raises: ClientLeft."""
        watch = Watch(self._request.transport)
        try:
            await writing
        except ConnectionError as error:
            raise ClientLeft from error
        finally:
            watch.stop()

    def close(self) -> None:
        """Note that nothing more is sent."""
        if self._streams is not None and self._is_counted:
            self._is_counted = False
            self._streams.dec()

    def abort(self) -> None:
        """Close the connection short of the answer's promised end, once what was written has gone out."""
        response = self.response
        is_by_close = self._request.version < HttpVersion11 and response is not None and not response.content_length
        abort_answer(self._request.transport, is_ended_by_close=is_by_close)


def abort_answer(transport: asyncio.Transport | None, *, is_ended_by_close: bool) -> None:
    """Close a connection short of its answer's end; only a reset tells that from one that is ended by closing."""
    if transport is None:
        return
    if is_ended_by_close:
        linger = struct.pack("ii", 1, 0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        transport.abort()
    else:
        transport.close()


class Watch:
    """Breaks a connection off whose other end takes nothing for SEND_TIMEOUT_S, so that what waits for it goes on."""

    def __init__(self, transport: asyncio.Transport | None) -> None:
        self._transport = transport
        self._left_bytes: int | None = None
        self._next = asyncio.get_running_loop().call_later(SEND_TIMEOUT_S, self._look)

    def stop(self) -> None:
        """Watch no more."""
        self._next.cancel()

    def _look(self) -> None:
        if self._transport is None:
            return
        left_bytes = self._transport.get_write_buffer_size()
        if self._left_bytes is not None and left_bytes >= self._left_bytes:
            self._transport.abort()
            return
        self._left_bytes = left_bytes
        self._next = asyncio.get_running_loop().call_later(SEND_TIMEOUT_S, self._look)
