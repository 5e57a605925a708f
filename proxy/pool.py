"""The connections to backends, as aiohttp keeps them, but for five things that a proxy can't leave as they are.

- An answer whose head could be read in two ways is not taken, and its connection not used again: aiohttp reads answers
  leniently, so that old servers can be asked, but a client might read otherwise.
- A backend that speaks on an idle connection (a second answer, the rest of a body that was longer than it said) is not
  listened to: aiohttp would hand that to the next request as its answer, and so to another client.
- Bytes of a header that are no UTF-8 go on as they came; aiohttp would leave them out.
- A body that goes on as no HTTP has failed; aiohttp's parser forgets it, so that its reader would wait on.
- A body that ends with its connection has failed where that is reset; aiohttp takes a reset for its end.

What is not aiohttp's public API is used here alone; tests/edge/test_smuggling.py holds each assumption: a connector
makes its connections by `_factory`, asks `is_connected` before it uses one again; a connection is handed each head by
`feed_data`, with the body, which can be failed (tests/cases/b.yaml, B09); and a request's head waits in its writer
until `write_bytes`, which runs where there is a body or where writing is paused.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Collection
from http import HTTPStatus
from typing import Any, cast

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader

from proxy.headers import encode_head, fault_in, get, has_control, has_raw_bytes, head_bytes, of_wire

MAX_HEAD_BYTES = 1024 * 1024


class UnclearHead(aiohttp.ClientError):
    """An answer's head can't be passed on; says what it has, in words."""


class UnclearBody(aiohttp.ClientError):
    """An answer's body goes on as something that is no HTTP."""


class Pool(aiohttp.TCPConnector):
    """Connects to backends, and keeps connections that are silent while nobody asks."""

    def __init__(self, **options: Any) -> None:
        """Take the options of aiohttp's own connector."""
        super().__init__(**options)
        self._factory = cast("Any", functools.partial(Connection, loop=asyncio.get_running_loop()))


class Connection(ResponseHandler):
    """A connection to a backend."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.has_raw_head = False
        self.may_switch = False
        self._body: StreamReader | None = None  # of the answer that came last

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """Take the head of an answer, or of an interim one, and what its body is read from."""
        fault = _fault_in(data[0], may_switch=self.may_switch)
        if fault is None:
            self._body = data[1]
            super().feed_data(data, size)
            return
        if self.transport is not None:
            self.transport.close()
        self.set_exception(UnclearHead(fault))

    def data_received(self, data: bytes) -> None:
        """Take what the backend sent."""
        super().data_received(data)
        if self.exception() is not None:
            self._fail_body(UnclearBody())

    def connection_lost(self, exc: BaseException | None) -> None:
        """Take note that the connection is gone, and why where it did not just end."""
        if exc is not None:
            self._fail_body(aiohttp.ClientPayloadError("reset"))
        super().connection_lost(exc)

    def _fail_body(self, error: aiohttp.ClientError) -> None:
        body = self._body
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(error)

    def is_connected(self) -> bool:
        """Return whether the connection is open, and nothing came on it that nobody asked for."""
        return super().is_connected() and not self.should_close

    @property
    def writing_paused(self) -> bool:
        """Whether a request has to wait before it is written, be it to have its head replaced."""
        return self.has_raw_head or super().writing_paused


class RawRequest(aiohttp.ClientRequest):
    """A request whose headers go out byte for byte."""

    async def send(self, conn: Any) -> aiohttp.ClientResponse:
        """Send the request."""
        conn.protocol.may_switch = "Upgrade" in self.headers
        conn.protocol.has_raw_head = has_raw_bytes(self.headers.items())
        try:
            return await super().send(conn)
        finally:
            if conn.protocol is not None:
                conn.protocol.has_raw_head = False

    async def write_bytes(self, writer: AbstractStreamWriter, conn: Any, content_length: int | None = None) -> None:
        """Send the head, which waits in the writer, and the body."""
        restore_raw_head(writer, None, self.headers.items())
        await super().write_bytes(writer, conn, content_length)


def _fault_in(message: RawResponseMessage, *, may_switch: bool) -> str | None:
    """Return what of an answer's head could be read in two ways, in words; None where nothing can."""
    is_switch = message.code == HTTPStatus.SWITCHING_PROTOCOLS
    if message.code < HTTPStatus.CONTINUE or (is_switch and not may_switch):
        return f"a status ({message.code}) that is not one of an answer"
    if message.code < HTTPStatus.OK and not is_switch:
        return None  # interim answers are not passed on
    if has_control(message.reason):
        return "a control character in its status line"
    said = of_wire(message.raw_headers)
    if head_bytes(said) > MAX_HEAD_BYTES:
        return f"headers of more than {MAX_HEAD_BYTES} bytes"
    coding = get(said, "transfer-encoding") or "chunked"
    return fault_in(said) or (None if coding.lower() == "chunked" else "a Transfer-Encoding that is not understood")


def restore_raw_head(writer: Any, first_line: str | None, headers: Collection[tuple[str, str]]) -> None:
    """Put the bytes that are no UTF-8 back into a head that waits to be sent, and into its first line where given."""
    if not has_raw_bytes([("", first_line or ""), *headers]):
        return
    waiting = writer._headers_buf  # noqa: SLF001 see the module's docstring
    written = waiting.partition(b"\r\n")[0].decode("ascii")
    writer._headers_buf = encode_head(first_line or written, headers)  # noqa: SLF001 as above
