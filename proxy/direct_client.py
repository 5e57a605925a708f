"""The connection to the client, written to directly: what was said goes out as it is, in as few writes as can be.

    start (head) · put (body) · finish        at once, for who is called where bytes come in
    tell (all of it)                          the same, of an answer that is there as a whole
    begin · write · end                       the same, waiting while the client is slow

A cut answer has to look cut: the connection closes before the length or the last chunk that was promised.

Source: RFC 9112 §6 (framing), §9.3 (persistence), RFC 9110 §6.6.1 (Date), §8.6 (Content-Length).
"""

from __future__ import annotations

import asyncio
import functools
import time
from email.utils import formatdate
from http import HTTPStatus

from aiohttp import HttpVersion11
from aiohttp.http import RawRequestMessage

from proxy.client import Gauge, Watch, abort_answer
from proxy.headers import Headers, encode_head, get
from proxy.upstream import ClientLeft
from proxy.wire import Sent, Served

_PHRASES = {int(status): status.phrase for status in HTTPStatus}
# Plain numbers: to look a member of HTTPStatus up takes longer than all that is done with it.
_SWITCH, _NO_BODY = int(HTTPStatus.SWITCHING_PROTOCOLS), int(HTTPStatus.NO_CONTENT)
_NO_CONTENT = frozenset({_NO_BODY, int(HTTPStatus.NOT_MODIFIED)})
# Above this a copy costs more than a second part for the kernel.
_JOINED_BYTES = 64 * 1024


class DirectClient:
    """One request's client, on its connection."""

    __slots__ = (
        "_has_length",
        "_head",
        "_is_bare",
        "_is_chunked",
        "_is_counted",
        "_message",
        "_streams",
        "begun_at_s",
        "begun_status",
        "connection",
        "is_closing",
        "is_done",
        "sent_bytes",
    )

    def __init__(self, connection: Served, message: RawRequestMessage, streams: Gauge | None = None) -> None:
        """Answer `message`; `streams` counts the event streams that are open."""
        self.connection = connection
        self._message = message
        self._streams = streams
        self._is_counted = False
        self._is_chunked = False
        self._is_bare = False
        self._has_length = False
        self._head = b""  # that waits for the first bytes of the body
        self.begun_at_s: float | None = None
        self.begun_status: int | None = None
        self.sent_bytes = 0
        self.is_closing = False
        self.is_done = False

    @property
    def response(self) -> Sent | None:
        """What aiohttp takes for the response, once it has begun."""
        return Sent(is_closing=self.is_closing) if self.begun_status is not None else None

    @property
    def has_idled(self) -> bool:
        """Whether the connection was kept alive, unused, when the drain began."""
        return self.connection.has_idled

    @property
    def is_full(self) -> bool:
        """Whether the client does not take what is sent to it just now."""
        return self.connection.writing_paused

    def start(self, status: int, reason: str | None, headers: Headers) -> bytes:
        """Write the status line and headers, with the first bytes of the body or at the end; return them."""
        message = self._message
        is_1_1 = message.version >= HttpVersion11
        is_stream = (get(headers, "content-type") or "").lower().startswith("text/event-stream")
        said = list(headers)
        self._has_length = get(headers, "content-length") is not None
        self._is_bare = message.method == "HEAD" or status in _NO_CONTENT
        if status == _NO_BODY and self._has_length:
            said = [(name, value) for name, value in said if name.lower() != "content-length"]
        is_switch = status == _SWITCH
        if not (self._is_bare or self._has_length or is_switch):
            self._is_chunked = is_1_1
            self.is_closing = self.is_closing or not is_1_1
            said += [("Transfer-Encoding", "chunked")] if is_1_1 else []
        if get(headers, "date") is None:
            said.append(("Date", date_now()))
        self.is_closing = self.is_closing or message.should_close or self.connection.is_leaving
        if not is_switch:
            said += _persistence(is_1_1=is_1_1, is_closing=self.is_closing)
        line = f"HTTP/{message.version.major}.{message.version.minor} {status} {_phrase(status, reason)}"
        self._head = encode_head(line, said)
        self.begun_status, self.begun_at_s = status, time.perf_counter()
        if self._streams is not None and is_stream:
            self._is_counted = True
            self._streams.inc()
        return self._head

    def go_on(self, status: int, begun_at_s: float, sent_bytes: int) -> None:
        """Go on with an event stream, in chunks, that was begun, and is counted, already."""
        self._is_chunked, self._is_counted = True, self._streams is not None
        self.begun_status, self.begun_at_s, self.sent_bytes = status, begun_at_s, sent_bytes

    @property
    def takes_chunks(self) -> bool:
        """Whether the body is being sent in chunks."""
        return self._is_chunked and self.begun_status is not None and not self._head

    def put_chunks(self, chunks: bytes, size: int) -> None:
        """Write chunks as they stand on the wire; `size` is that of what is in them. Raises: ClientLeft."""
        transport = self.connection.transport
        if transport is None or transport.is_closing():
            raise ClientLeft
        self.sent_bytes += size
        self.connection.outbox.put(transport, chunks)

    def put(self, data: bytes) -> None:
        """Write a part of the body. Raises: ClientLeft."""
        self.sent_bytes += len(data)
        if self._is_chunked and not self._head and 0 < len(data) <= _JOINED_BYTES:
            # An event of a stream: most of all that is ever written.
            self._send(b"%x\r\n%b\r\n" % (len(data), data))
            return
        head, self._head = self._head, b""
        if self._is_bare or not data:
            self._send(head)
        elif len(data) > _JOINED_BYTES:
            self._send(
                head, b"%x\r\n" % len(data) if self._is_chunked else b"", data, b"\r\n" if self._is_chunked else b""
            )
        elif self._is_chunked:
            self._send(b"%b%x\r\n%b\r\n" % (head, len(data), data))
        else:
            self._send(head + data if head else data)

    def finish(self) -> None:
        """End the answer cleanly. Raises: ClientLeft."""
        self.is_done = True
        head, self._head = self._head, b""
        last = b"0\r\n\r\n" if self._is_chunked else b""
        if head or last:
            self._send(head + last)

    def tell(self, status: int, reason: str | None, headers: Headers, body: bytes) -> bytes:
        """Write a whole answer, and return its head. Raises: ClientLeft."""
        head = self.start(status, reason, headers)
        if body and (self._is_bare or len(body) > _JOINED_BYTES):
            self.put(body)
            self.finish()
            return head
        self._head = b""
        self.sent_bytes = len(body)
        if self._is_chunked:
            self._send(b"%b%x\r\n%b\r\n0\r\n\r\n" % (head, len(body), body) if body else head + b"0\r\n\r\n")
        else:
            self._send(head + body)
        self.is_done = True
        return head

    def _send(self, *parts: bytes) -> None:
        transport = self.connection.transport
        if transport is None or transport.is_closing():
            raise ClientLeft
        self.connection.outbox.flush()
        # Not `writelines`: of Python 3.12 and 3.13 it does not always say that writing has to pause (CVE-2024-12254).
        for part in parts:
            if part:
                transport.write(part)

    def flush(self) -> None:
        """Send a head that still waits for a body."""
        transport = self.connection.transport
        if self._head and transport is not None and not transport.is_closing():
            head, self._head = self._head, b""
            self.connection.outbox.flush()
            transport.write(head)

    async def begin(self, status: int, reason: str | None, headers: Headers) -> None:
        """Write the status line and headers. Raises: ClientLeft."""
        transport = self.connection.transport
        if transport is None or transport.is_closing():
            raise ClientLeft
        self.start(status, reason, headers)
        asyncio.get_running_loop().call_soon(self.flush)

    async def write(self, data: bytes) -> None:
        """Write a part of the body, waiting while the client is slow. Raises: ClientLeft."""
        self.put(data)
        await self._taken()

    async def end(self) -> None:
        """End the answer cleanly. Raises: ClientLeft."""
        self.finish()
        await self._taken()

    async def _taken(self) -> None:
        """Wait while the client takes what is written, as long as it takes anything. Raises: ClientLeft."""
        if not self.is_full:
            return
        watch = Watch(self.connection.transport)
        try:
            await self.connection.drained()
        except ConnectionError as error:
            raise ClientLeft from error
        finally:
            watch.stop()
        if self.connection.transport is None:
            raise ClientLeft

    def close(self) -> None:
        """Note that nothing more is sent."""
        if self._streams is not None and self._is_counted:
            self._is_counted = False
            self._streams.dec()

    def abort(self) -> None:
        """Close the connection short of the answer's promised end, once what was written has gone out."""
        self.connection.outbox.flush()
        self.is_closing = self.is_done = True
        has_begun = self.begun_status is not None
        is_by_close = self._message.version < HttpVersion11 and has_begun and not self._has_length
        abort_answer(self.connection.transport, is_ended_by_close=is_by_close)


def _persistence(*, is_1_1: bool, is_closing: bool) -> Headers:
    if is_1_1:
        return (("Connection", "close"),) if is_closing else ()
    return () if is_closing else (("Connection", "keep-alive"),)


def _phrase(status: int, reason: str | None) -> str:
    return reason if reason is not None else _PHRASES.get(status, "")


def date_now() -> str:
    """Return the time as a Date tells it."""
    return _date(int(time.time()))


@functools.lru_cache(maxsize=1)
def _date(now_s: int) -> str:
    return formatdate(now_s, usegmt=True)
