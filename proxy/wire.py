"""Both ends of a connection, as a proxy needs them: all that is used of aiohttp and is not its public API.

    client ══► Listener ─ Served (a connection) ─ lane? ─┬─ taken: answered where the bytes come in, by callbacks
                                                         └─ else: aiohttp's own way, a task and a handler
    backend ◄══ Connection ─ asker: told of the head, of more of the body, of the end

tests/test_wire.py holds each assumption, one test for each; pyproject.toml bounds aiohttp's version by them.

What a proxy can't leave as aiohttp has it:

- A request that is not HTTP is answered in OpenAI's shape, and never echoed. HTTP/0.9 and HTTP/2.0, which the parser
  lets through, are refused: the answers would claim to be of that version.
- An answer whose head could be read in two ways is not taken, and its connection not used again: aiohttp reads answers
  leniently, so that old servers can be asked, but a client might read otherwise.
- A backend that speaks on an idle connection (a second answer, the rest of a body that was longer than it said) is not
  listened to: aiohttp would hand that to the next request as its answer, and so to another client.
- Bytes of a header that are no UTF-8 go on as they came; aiohttp would leave them out.
- A body that goes on as no HTTP has failed; aiohttp's parser forgets it, so that its reader would wait on.
- A body that ends with its connection has failed where that is reset; aiohttp takes a reset for its end.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from http import HTTPStatus
from typing import Any, Protocol, cast

import aiohttp
from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError, RawRequestMessage, RawResponseMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from proxy import headers
from proxy.chunks import encode_json
from proxy.errors import ClientFault, ProxyError, ProxyFault
from proxy.headers import HeaderList, encode_head, fault_in, get, has_control, has_raw_bytes, head_bytes, of_wire
from proxy.held import Budget, Held
from proxy.outbox import Outbox

MAX_HEAD_BYTES = 1024 * 1024
# More of a head is not even taken in: with the longest names and values that admission.py lets pass.
MAX_REQUEST_HEAD_BYTES = 192 * 1024
MAX_LINE_BYTES = 128 * 1024
# How many passes of the event loop aiohttp's task takes at the most from an answer to its next request.
_ROUNDS = 8
# What is held of an answer's body while nobody takes it, before its backend has to wait.
READ_BYTES = 64 * 1024
# How long what is missing of a body is waited for, before it is read as it comes.
HOLD_S = 0.1
# Plain numbers: to look a member of HTTPStatus up takes longer than all that is done with it.
_LOWEST, _SWITCH, _LOWEST_FINAL = map(int, (HTTPStatus.CONTINUE, HTTPStatus.SWITCHING_PROTOCOLS, HTTPStatus.OK))


def take_body(body: StreamReader) -> bytes:
    """Return what has come of a body, also of one that failed after that. Raises: why it failed, once all is taken."""
    if body is EMPTY_PAYLOAD:
        return b""
    data = b""
    # Taking may let the parser go on with what it has, so that more comes.
    while body._buffer:  # noqa: SLF001 the public way raises while there still is something to be had
        part = body._read_nowait(-1)  # noqa: SLF001 as above
        data = data + part if data else part
    failure = body.exception()
    if failure is not None and not data:
        raise failure
    return data


def has_more_to_come(body: StreamReader) -> bool:
    """Return whether a body has been taken as far as it has come, and goes on."""
    return body is not EMPTY_PAYLOAD and not (body._buffer or body._eof or body._exception)  # noqa: SLF001 as above


class UnclearHead(aiohttp.ClientError):
    """An answer's head can't be passed on; says what it has, in words."""


class UnclearBody(aiohttp.ClientError):
    """An answer's body goes on as something that is no HTTP."""


class Asker(Protocol):
    """Who asked a backend something, and is told of the answer where its bytes come in."""

    def head_came(self, message: RawResponseMessage, said: HeaderList, body: StreamReader) -> None:
        """Take the head of the answer, its headers as text, and what its body is read from."""

    def more_came(self) -> None:
        """Look at the body: there may be more of it, or its end, or an exception; or the connection is gone."""


Relay = Callable[[bytes], bool]
"""Takes whole chunks of an answer as they came on the wire; False where they have to be parsed."""


class QuickAsker(Protocol):
    """Who asked a backend something, and may know its answer by its bytes, so that nothing has to parse it."""

    def took(self, data: bytes) -> bytes | None:
        """Take what the backend sent; return what has to be parsed, by who was given to `parse_for`, or None."""

    def is_lost(self) -> None:
        """Give `parse_for` somebody: the connection is gone."""


class Connection(ResponseHandler):
    """A connection to a backend; asked by `ask` or `ask_quickly`, or by a session of aiohttp's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.has_raw_head = False
        self.may_switch = False
        self.idle_since_s = 0.0
        self.is_sending = False  # a request's body: what is left of it would be taken for the next request
        self.resume: Callable[[], None] | None = None  # told when what was written has gone out
        self._asker: Asker | None = None
        self._quick: QuickAsker | None = None
        self._is_of_session = True
        self._has_answered = False
        self._body: StreamReader | None = None  # of the answer that came last
        self.relay: Relay | None = None  # asked first of all that comes in whole chunks
        self._ended_line = False  # what was parsed last

    def __bool__(self) -> bool:
        """Return true: this is also a queue of aiohttp's, and an empty one would be false."""
        return True

    def ask(self, asker: Asker, data: bytes, *, is_bare: bool, may_switch: bool = False) -> None:
        """Send a request's head, with its body where that is small, and tell `asker` of the answer.

        `is_bare`: the answer has no body, whatever its head says, as that to a HEAD.
        """
        self.may_switch = may_switch
        self.parse_for(asker, is_bare=is_bare)
        cast("asyncio.Transport", self.transport).write(data)

    def show(self, quick: QuickAsker) -> None:
        """Show `quick` what comes before it is parsed: the answer to a request that it sends, which has a body."""
        self._quick = quick

    def parse_for(self, asker: Asker, *, is_bare: bool = False) -> None:
        """Parse the answer that is to come, and tell `asker` of it."""
        self._asker, self._is_of_session, self._has_answered = asker, False, False
        self._quick = self._body = self.relay = None
        self.set_response_params(
            skip_payload=is_bare,
            read_until_eof=True,
            auto_decompress=False,
            read_bufsize=READ_BYTES,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
        )

    def release(self) -> bool:
        """Ask no more of this; return whether it can be asked again."""
        self._asker = self._quick = self._body = self.resume = self.relay = None
        is_open = self.transport is not None and not self.transport.is_closing()
        return is_open and not self.is_sending and not self.should_close

    def drop(self) -> None:
        """Close the connection, and tell nobody."""
        self._asker = self._quick = self.resume = self.relay = None
        if self.transport is not None and self.transport.get_extra_info("sslcontext") is not None:
            # A closed one would wait, up to half a minute, for a peer that says no goodbye.
            self.abort()
        else:
            self.close()

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """Take the head of an answer, or of an interim one, and what its body is read from."""
        message, body = data
        said = of_wire(message.raw_headers)
        fault = _fault_in(message, said, may_switch=self.may_switch)
        if fault is not None:
            if self.transport is not None:
                self.transport.close()
            self.set_exception(UnclearHead(fault))
        elif self._is_of_session:
            self._body = body
            super().feed_data(data, size)
        elif self._has_answered:
            # Nobody asked for a second one.
            self.force_close()
        elif message.code >= _LOWEST_FINAL or message.code == _SWITCH:
            self._has_answered = True
            self._body = body
            if self._asker is not None:
                self._asker.head_came(message, said, body)

    def data_received(self, data: bytes) -> None:
        """Take what the backend sent."""
        if self.relay is not None and self._is_between_chunks() and self.relay(data):
            return
        if self._quick is not None:
            left = self._quick.took(data)
            if left is None:
                return
            data = left
        if self._asker is None and not self._is_of_session and not self.upgraded:
            self.force_close()
            if self.transport is not None:
                self.transport.close()
            return
        # Before a chunk's size that is cut in two, or after it, the line's end would stand alone.
        self._ended_line = data.endswith(b"\n\r\n")
        super().data_received(data)
        if self.exception() is not None:
            self._fail_body(UnclearBody())
        if data and self._asker is not None:
            self._asker.more_came()

    def _is_between_chunks(self) -> bool:
        """Return whether the parser waits for the size of a chunk, so that a whole one may pass it by.

        Where it has just read one, or a part of it, what came last does not end in a line's end and another one.
        """
        body = self._body
        if body is None or not self._ended_line or body._eof or body._buffer or body._exception:  # noqa: SLF001 as above
            return False
        splits = body._http_chunk_splits  # noqa: SLF001 there is no public way to ask for it
        return splits is not None and body.total_bytes == (splits[-1] if splits else 0)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Take note that the connection is gone, and why where it did not just end."""
        if self._quick is not None:
            self._quick.is_lost()
        if exc is not None:
            self._fail_body(aiohttp.ClientPayloadError("reset"))
        super().connection_lost(exc)
        if self._asker is not None:
            self._asker.more_came()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Read on, where reading was paused: aiohttp would have the parser look at nothing."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def resume_writing(self) -> None:
        """Take note that what was written has gone out."""
        super().resume_writing()
        if self.resume is not None:
            self.resume()

    def _fail_body(self, error: aiohttp.ClientError) -> None:
        body = self._body
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(error)

    def is_connected(self) -> bool:
        """Return whether the connection is open, and nothing came on it that nobody asked for."""
        return super().is_connected() and not self.should_close

    @property
    def can_be_asked(self) -> bool:
        """Whether the connection is as it was released: what its last answer left open was looked at then."""
        return self.transport is not None and not self._should_close and not self.transport.is_closing()

    @property
    def writing_paused(self) -> bool:
        """Whether a request has to wait before it is written, be it to have its head replaced."""
        return self.has_raw_head or super().writing_paused


def _fault_in(message: RawResponseMessage, said: HeaderList, *, may_switch: bool) -> str | None:
    """Return what of an answer's head could be read in two ways, in words; None where nothing can."""
    is_switch = message.code == _SWITCH
    if message.code < _LOWEST or (is_switch and not may_switch):
        return f"a status ({message.code}) that is not one of an answer"
    if message.code < _LOWEST_FINAL and not is_switch:
        return None  # interim answers are not passed on
    if has_control(message.reason):
        return "a control character in its status line"
    if head_bytes(said) > MAX_HEAD_BYTES:
        return f"headers of more than {MAX_HEAD_BYTES} bytes"
    fault = fault_in(said)
    if fault is not None or said.names.are_usual:
        return fault
    coding = get(said, "transfer-encoding") or "chunked"
    return None if coding.lower() == "chunked" else "a Transfer-Encoding that is not understood"


class SessionConnector(aiohttp.TCPConnector):
    """Connects a session of aiohttp's to backends, and keeps connections that are silent while nobody asks."""

    def __init__(self, **options: Any) -> None:
        """Take the options of aiohttp's own connector."""
        super().__init__(**options)
        self._factory = cast("Any", functools.partial(Connection, loop=asyncio.get_running_loop()))


class SessionRequest(aiohttp.ClientRequest):
    """A request of a session's whose headers go out byte for byte."""

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


def never_send_again(session: aiohttp.ClientSession) -> None:
    """Let a session not send a GET again by itself, also where a fresh connection died: the proxy decides that."""
    session._retry_connection = False  # noqa: SLF001 there is no public switch


def connections_in_use(session: aiohttp.ClientSession) -> int:
    """Return how many connections of a session are being used."""
    connector = session.connector
    return len(connector._acquired) if connector is not None else 0  # noqa: SLF001 there is no public count


def restore_raw_head(writer: Any, first_line: str | None, said: Collection[tuple[str, str]]) -> None:
    """Put the bytes that are no UTF-8 back into a head that waits to be sent, and into its first line where given."""
    if not has_raw_bytes([("", first_line or ""), *said]):
        return
    waiting = writer._headers_buf  # noqa: SLF001 the writer holds the head back for the first bytes of the body
    written = waiting.partition(b"\r\n")[0].decode("ascii")
    writer._headers_buf = encode_head(first_line or written, said)  # noqa: SLF001 as above


class Sent:
    """What aiohttp takes for a response: one that has gone out already."""

    def __init__(self, *, is_closing: bool) -> None:
        """Say whether the connection ends with it."""
        self.keep_alive = not is_closing

    async def prepare(self, _request: web.BaseRequest) -> None:
        """Do nothing."""

    async def write_eof(self) -> None:
        """Do nothing."""


class Taken(Protocol):
    """A request that is answered in the lane."""

    def client_left(self) -> None:
        """Stop: the client has closed its connection."""


QuickLane = Callable[["Served", bytes, bytes | None], Taken | None]
"""A connection, what came on it while it was idle → what answers it without parsing it, or None where it takes more.

Where a body came after its head, these are two pieces, and both are whole.
"""

Lane = Callable[["Served", RawRequestMessage, StreamReader], Taken | None]
"""A connection, a whole request that came on it while it was idle → what answers it, or None where a task has to."""


class Listener(web.Server):
    """Accepts connections."""

    lane: Lane | None = None
    quick: QuickLane | None = None
    most: Callable[[], int] = staticmethod(lambda: sys.maxsize)
    open_connections = 0
    is_leaving = False

    def __init__(self, handler: Any, **options: Any) -> None:
        """Let `handler` answer requests; `outbox` is what its connections share."""
        super().__init__(handler, **options)
        self.outbox = Outbox()

    def leave(self) -> None:
        """Let answers end their connections from now on; mark those that are kept alive and unused just now."""
        self.is_leaving = True
        for connection in self.connections:
            if isinstance(connection, Served):
                connection.has_idled = connection.is_idle()

    def __call__(self) -> RequestHandler:
        """Return the protocol of a new connection."""
        return Served(self, self.lane, loop=self._loop, **self._kwargs)


class Served(RequestHandler):
    """A client's connection."""

    def __init__(self, manager: Listener, lane: Lane | None, **options: Any) -> None:
        super().__init__(manager, **options)
        self._listener = manager
        self._is_counted = False
        self._lane = lane
        self._quick = manager.quick
        self.outbox = manager.outbox
        self._was_parsed = True  # the request in the lane
        self._held: Held | None = None
        self.head_key = b""  # of the head that came last, where the quick lane could know it
        self.head_comes_again = False
        self._taken: Taken | None = None
        self._parked: asyncio.Future[None] | None = None
        self._handed_over: tuple[Any, Callable[[], None]] | None = None
        # Whether nothing is left to do of the last request, so that aiohttp's task will soon wait for the next one.
        self.is_answered = True
        self.has_idled = False  # when the drain began
        self._early = b""
        self._body: StreamReader = EMPTY_PAYLOAD  # of the request that came last
        self._head_bytes = 0
        self.resume: Callable[[], None] | None = None  # told when what was written has gone out

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or turn it away where there are too many."""
        if self._listener.open_connections >= self._listener.most():
            self._force_close = True
            cast("asyncio.Transport", transport).write(_FULL)
            transport.close()
            return
        self._is_counted = True
        self._listener.open_connections += 1
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Take what the client sent."""
        if self._force_close or self._close:
            return
        if self._held is not None:
            self._hold_on(self._held, data)
            return
        if self._payload_parser is not None or self._upgraded:
            super().data_received(data)
        elif not self._early and (self._waiter is not None or self._lane is None or not self._will_be_idle(data)):
            self._take_data(data)
        else:
            self._keep_for_later(data)

    def _take_data(self, data: bytes, body: bytes | None = None) -> None:
        is_idle, quick = self._lane is not None and self._is_idle(), self._quick
        if is_idle and quick is not None and (self._take_quickly(quick, data, body) or self._held is not None):
            return
        messages, upgraded, tail = self._parsed(data if body is None else data + body)
        if is_idle and len(messages) == 1 and not upgraded and self._take(*messages[0]):
            return
        self._queue(messages, upgraded=upgraded, tail=tail)

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Read on, where reading was paused: aiohttp would have the parser look at nothing."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def _will_be_idle(self, data: bytes) -> bool:
        """Return whether the task has but to come round, as after a start, and when an answer has just gone out.

        Who answers fast would else never find the lane free again.
        """
        return bool(data) and self.is_answered and self._waiter is None and self._taken is None and not self._messages

    def _keep_for_later(self, data: bytes) -> None:
        if not self._early:
            self._loop.call_soon(self._come_round, _ROUNDS)
        self._early += data

    def _come_round(self, rounds: int) -> None:
        """Take what came early once the task waits; after some rounds without that, let it do as it does."""
        if self.transport is None:
            self._early = b""
        elif rounds and not self._is_idle() and self._will_be_idle(self._early):
            self._loop.call_soon(self._come_round, rounds - 1)
        else:
            data, self._early = self._early, b""
            self._take_data(data)

    def _is_idle(self) -> bool:
        """Return whether aiohttp's task waits for a request, and nothing else is going on."""
        waiter = self._waiter
        return (
            waiter is not None
            and not waiter.done()
            and not self._messages
            and not self._upgraded
            and not self._force_close
            and not self._close
            and self._payload_parser is None
        )

    def is_idle(self) -> bool:
        """Return whether it is kept alive after an answer, and nothing of another request has come."""
        has_more = self._held is not None or self._head_bytes or self._early
        return self._is_idle() and self._request_count > 0 and not has_more

    def _parsed(self, data: bytes) -> tuple[Sequence[tuple[Any, StreamReader]], bool, bytes]:
        """Return the requests whose heads are whole now, as the parser does; a head may not go on for ever."""
        is_of_head = self._body.is_eof()
        try:
            found: tuple[Sequence[tuple[Any, StreamReader]], bool, bytes] = cast("Any", self._parser).feed_data(data)
        except HttpProcessingError as error:
            return [(_ErrInfo(status=400, exc=error, message=error.message), EMPTY_PAYLOAD)], False, b""
        if found[0]:
            self._body, self._head_bytes = found[0][-1][1], 0
        elif is_of_head:
            self._head_bytes += len(data)
        if self._head_bytes <= MAX_REQUEST_HEAD_BYTES:
            return found
        too_large = HttpProcessingError(code=431, message="too large")
        return [(_ErrInfo(status=431, exc=too_large, message=too_large.message), EMPTY_PAYLOAD)], False, b""

    def _take_quickly(self, quick: QuickLane, data: bytes, body: bytes | None) -> bool:
        self._parked, self._waiter = self._waiter, None
        self.is_answered = self._was_parsed = False
        taken = quick(self, data, body)
        if taken is None:
            self._was_parsed = True
            self._unpark()
            return False
        if self._parked is not None:
            self._taken = taken
        return True

    def hold(self, head: bytes, part: bytes, missing: int, reserve: Budget) -> None:
        """Wait a moment for the rest of a request: most clients send a body after its head, or a large one in parts.

        Not for long, and not for many small parts: then the parser reads it as it comes.
        """
        self._held = Held(head, part, missing, reserve, self._loop.call_later(HOLD_S, self._look_at_held))

    def _hold_on(self, held: Held, data: bytes) -> None:
        if held.takes(data):
            return
        self._held = None
        if held.missing == len(data):
            self._take_data(held.head, held.end_with(data))
        else:
            self._parse_in_parts([held.head, *held.end(), data])

    def _look_at_held(self) -> None:
        held, self._held = self._held, None
        if held is None:
            return
        if held.has_grown():
            self._held, held.timer = held, self._loop.call_later(HOLD_S, self._look_at_held)
        elif self.transport is not None:
            self._parse_in_parts([held.head, *held.end()])

    def _parse_in_parts(self, parts: Sequence[bytes]) -> None:
        for part in filter(None, parts):
            messages, upgraded, tail = self._parsed(part)
            self._queue(messages, upgraded=upgraded, tail=tail)

    def retake(self, taken: Taken) -> None:
        """Let another go on with the request in the lane."""
        self._taken = taken

    def _take(self, message: Any, body: StreamReader) -> bool:
        if self._lane is None or isinstance(message, _ErrInfo) or not body.is_eof():
            return False
        # A message may end while it is being taken, so all that its end undoes is done before.
        self._parked, self._waiter = self._waiter, None
        self.is_answered = False
        taken = self._lane(self, message, body)
        if taken is None:
            self._unpark()
            return False
        if self._parked is not None:
            self._taken = taken
        return True

    def _queue(self, messages: Sequence[tuple[Any, StreamReader]], *, upgraded: bool, tail: bytes) -> None:
        """Give requests to aiohttp's task, as `data_received` of aiohttp's own does."""
        self._request_count += len(messages)
        self._messages.extend(messages)
        if messages and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if not self._buffer_paused and len(self._messages) >= self._max_msg_queue_size:
            self._pause_reading_for_buffer()
        self._upgraded = upgraded
        if upgraded and tail:
            self._message_tail = tail

    @functools.cached_property
    def peer(self) -> str | None:
        """The client's address."""
        peername = self.peername
        return peername[0] if isinstance(peername, tuple) else peername or None

    @property
    def is_leaving(self) -> bool:
        """Whether an answer that begins now has to end the connection."""
        return self._listener.is_leaving

    @property
    def scheme(self) -> str:
        """`https` where the connection is by TLS, else `http`."""
        return "http" if self.ssl_context is None else "https"

    def finish(self, *, is_closing: bool) -> None:
        """Take note that the request in the lane is answered."""
        self._unpark()
        self.is_answered = True
        self._request_count += 1
        if self._manager is not None:
            self._manager.requests_count += 1
        if self._was_parsed and self._parser is not None:
            self._parser.message_consumed()
        self._was_parsed = True
        if is_closing or self._close or self._force_close or self.transport is None:
            self.force_close()
        elif self._messages:
            self._wake()
        else:
            self._keepalive = True
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
            if self._keepalive_handle is None:
                self._keepalive_handle = self._loop.call_at(self._next_keepalive_close_time, self._process_keepalive)

    def hand_over(self, message: RawRequestMessage, body: StreamReader, work: Any, abandon: Callable[[], None]) -> None:
        """Let a task go on with the request in the lane; its handler gets `work` from `handed_over`.

        `abandon` is called instead where the client leaves before the task has begun.
        """
        self._unpark()
        if self.transport is None:
            abandon()
            return
        self._handed_over = work, abandon
        self._request_count += 1
        self._messages.appendleft((message, body))
        self._wake()

    def handed_over(self) -> Any:
        """Return what the lane has handed over to the handler that asks, once; else None."""
        work, self._handed_over = self._handed_over, None
        return work[0] if work is not None else None

    def _unpark(self) -> None:
        self._waiter, self._parked, self._taken = self._parked, None, None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Take note that the client has left."""
        if self._held is not None:
            self._held.end()
            self._held = None
        taken, parked, handed_over = self._taken, self._parked, self._handed_over
        self._taken = self._handed_over = None
        if self._is_counted:
            self._is_counted = False
            self._listener.open_connections -= 1
        super().connection_lost(exc)
        if handed_over is not None:
            handed_over[1]()
        if parked is not None:
            self._parked = None
            parked.cancel()
        if taken is not None:
            taken.client_left()

    def resume_writing(self) -> None:
        """Take note that what was written has gone out."""
        super().resume_writing()
        if self.resume is not None:
            self.resume()

    async def drained(self) -> None:
        """Return when the client takes what was written. Raises: ConnectionError."""
        await self._drain_helper()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Return the answer to what aiohttp refused. Its message quotes the client, so it is not passed on."""
        return _told(_error(status))


class _Foreign(web.BaseRequest):
    """A request of a version that is not spoken here; it is answered as 1.0, which every client reads."""


def message_of(request: web.BaseRequest) -> RawRequestMessage:
    """Return a request as the parser gave it."""
    return request._message  # noqa: SLF001 there is no public name


def is_spoken(message: RawRequestMessage) -> bool:
    """Return whether a request is of a version that is spoken here."""
    return message.version in (HttpVersion11, HttpVersion10)


def _told(error: ProxyError) -> web.Response:
    answer = web.Response(body=encode_json(error.body()), status=error.status, content_type="application/json")
    answer.headers["Proxy-Status"] = headers.proxy_status(error.token)
    answer.headers["x-request-id"] = str(uuid.uuid4())
    answer.headers["Server"] = headers.PSEUDONYM
    answer.force_close()
    return answer


def _error(status: int) -> ProxyError:
    if status >= 500:
        return ProxyFault("The proxy failed to serve this request.", status=status, code="internal_error")
    if status == 431:
        text = f"The request's headers are larger than {MAX_REQUEST_HEAD_BYTES} bytes."
        return ClientFault(text, status=status, code="headers_too_large")
    return ClientFault("The request is not valid HTTP/1.1.", status=status, code="invalid_request")


def _full() -> bytes:
    body = encode_json(
        ProxyFault("The proxy has as many connections as its policy's limits.connections.", code="overloaded").body()
    )
    said = [
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
        ("Retry-After", "1"),
        ("Proxy-Status", headers.proxy_status("connection_limit_reached")),
    ]
    return encode_head("HTTP/1.1 503 Service Unavailable", said) + body


_FULL = _full()


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    if is_spoken(message):
        return web.BaseRequest(message, payload, protocol, writer, task, loop)
    return _Foreign(message._replace(version=HttpVersion10), payload, protocol, writer, task, loop)


def listen(
    handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
    lane: Lane | None = None,
    most: Callable[[], int] = lambda: sys.maxsize,
    quick: QuickLane | None = None,
    **options: Any,
) -> Listener:
    """Return a server that cancels a request whose client has left, decodes no body and writes no access log.

    `most` says how many connections it takes.
    """

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if isinstance(request, _Foreign):
            # RFC 9110 §15.6.6
            return _told(ClientFault("HTTP/1.1 and 1.0 are spoken here.", status=505, code="http_version"))
        return await handler(request)

    listener = Listener(
        handle, request_factory=_request, handler_cancellation=True, access_log=None, auto_decompress=False, **options
    )
    listener.lane, listener.most, listener.quick = lane, most, quick
    return listener


class RawSource(Protocol):
    """Takes the raw bytes of a connection; what aiohttp calls a parser."""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take bytes. Return that this is not the end, and that nothing is left over."""

    def feed_eof(self) -> None:
        """Note that nothing more will come."""

    def is_eof(self) -> bool:
        """Whether nothing more will come."""


def take_raw_bytes(protocol: RequestHandler | ResponseHandler, source: RawSource) -> None:
    """Let `source` have the bytes that a connection brings from now on, and those that came with its head."""
    if isinstance(protocol, ResponseHandler):
        protocol.set_parser(source, source)
    else:
        protocol.set_parser(cast("Any", source))
