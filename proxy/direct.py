"""The way to a backend over connections of our own: a request is one write, and its answer is told where it comes in.

    Call ── ask ──► Connection (idle ones last in, first out) ── head_came, more_came ──► Answering ──► Reply.read

`Reply` is for who waits in a task; who wants to be called instead (forward.py) takes the answer from it by `follow`.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import aiohttp
from aiohappyeyeballs import AddrInfoType, start_connection
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError, RawResponseMessage
from aiohttp.streams import StreamReader

from proxy.errors import BackendFault, ProxyError
from proxy.headers import HeaderList, encode_head, get, of_wire
from proxy.policy import Backend
from proxy.tls import Tls, backend_context
from proxy.upstream import (
    PART_BYTES,
    POOL_KEEP_ALIVE_S,
    Call,
    ClientLeft,
    Reply,
    Streamed,
    Upstream,
    before_head,
    fault,
    in_body,
)
from proxy.wire import Connection, take_body

# How long one address of a name is waited for before the next one is tried beside it (RFC 8305 §5).
EYEBALLS_S = 0.25
# How long it is believed where a name leads.
NAME_S = 10.0
# A request of these has a body, if an empty one (RFC 9110 §8.6).
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_NO_HEAD = of_wire(())


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a backend is: `host` and `port` to connect to, what Host says, and what its paths begin with."""

    is_tls: bool
    host: str
    port: int
    authority: str
    prefix: str


@functools.lru_cache(maxsize=256)
def origin_of(base: str) -> Origin:
    """Return the origin of a backend's address."""
    parts = urlsplit(base)
    is_tls = parts.scheme == "https"
    usual = 443 if is_tls else 80
    host = parts.hostname or ""
    port = parts.port or usual
    named = f"[{host}]" if ":" in host else host
    authority = named if port == usual else f"{named}:{port}"
    return Origin(is_tls, host, port, authority, parts.path.rstrip("/"))


def encode_call(call: Call, origin: Origin) -> bytes:
    """Return a request as it goes on the wire: its head, and its body where that is bytes and small."""
    said = [("Host", origin.authority), *call.headers]
    body = call.body
    if isinstance(body, Streamed):
        if get(call.headers, "content-length") is None:
            said.append(("Transfer-Encoding", "chunked"))
    elif (body or call.method in _WITH_BODY) and get(call.headers, "content-length") is None:
        said.append(("Content-Length", str(len(body or b""))))
    head = encode_head(f"{call.method} {origin.prefix}{call.target} HTTP/1.1", said)
    return head + body if isinstance(body, bytes) and len(body) <= PART_BYTES else head


class Pool:
    """Idle connections by origin, the last one used first; what is idle for POOL_KEEP_ALIVE_S is closed."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        """Keep nothing yet; `tls` is how a backend's certificate is checked, by default against the system's trust."""
        self._idle: dict[tuple[bool, str, int], list[Connection]] = {}
        self._busy: set[Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._found: dict[Origin, tuple[Sequence[AddrInfoType], float]] = {}
        self._tls = tls
        self.is_closed = False

    def take(self, origin: Origin) -> Connection | None:
        """Return an idle connection to the origin, or None where a new one has to be made."""
        idle = self._idle.get((origin.is_tls, origin.host, origin.port))
        oldest_s = time.monotonic() - POOL_KEEP_ALIVE_S
        while idle:
            connection = idle.pop()
            if connection.is_connected() and connection.idle_since_s >= oldest_s:
                self._busy.add(connection)
                return connection
            connection.drop()
        return None

    async def connect(self, origin: Origin, connect_s: float) -> Connection:
        """Return a new connection. Raises: BackendFault."""
        loop = asyncio.get_running_loop()
        tls = self._context() if origin.is_tls else None
        try:
            async with asyncio.timeout(connect_s):
                reached = await start_connection(
                    await self._addresses(origin), happy_eyeballs_delay=EYEBALLS_S, interleave=1
                )
                _, connection = await loop.create_connection(
                    lambda: Connection(loop), sock=reached, ssl=tls, server_hostname=origin.host if tls else None
                )
        except TimeoutError as error:
            self._found.pop(origin, None)
            raise fault(504, "connection_timeout", "did not accept a connection in time") from error
        except OSError as error:
            # A backend that can't be reached may have moved.
            self._found.pop(origin, None)
            raise _unconnected(error) from error
        self._busy.add(connection)
        return connection

    async def _addresses(self, origin: Origin) -> Sequence[AddrInfoType]:
        """Return where an origin's name leads. Raises: OSError."""
        if _is_address(origin.host):
            family = socket.AF_INET6 if ":" in origin.host else socket.AF_INET
            place = (origin.host, origin.port, 0, 0) if ":" in origin.host else (origin.host, origin.port)
            return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", place)]
        known = self._found.get(origin)
        if known is None or time.monotonic() - known[1] > NAME_S:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
            known = self._found[origin] = (found, time.monotonic())
        return known[0]

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = backend_context(Tls())
        return self._tls

    def give_back(self, origin: Origin, connection: Connection) -> None:
        """Keep a connection for the next request, or close it where it can't be used again."""
        self._busy.discard(connection)
        if not connection.release() or self.is_closed:
            connection.drop()
            return
        connection.idle_since_s = time.monotonic()
        self._idle.setdefault((origin.is_tls, origin.host, origin.port), []).append(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(POOL_KEEP_ALIVE_S, self._close_old)

    def drop(self, connection: Connection) -> None:
        """Close a connection whose answer is not wanted, or has failed."""
        self._busy.discard(connection)
        connection.drop()

    def _close_old(self) -> None:
        self._sweep = None
        oldest_s = time.monotonic() - POOL_KEEP_ALIVE_S
        for key, idle in list(self._idle.items()):
            kept = [one for one in idle if one.is_connected() and one.idle_since_s > oldest_s]
            for connection in set(idle) - set(kept):
                connection.drop()
            if kept:
                self._idle[key] = kept
            else:
                del self._idle[key]
        if self._idle:
            self._sweep = asyncio.get_running_loop().call_later(POOL_KEEP_ALIVE_S / 4, self._close_old)

    @property
    def busy(self) -> int:
        """How many connections are in use."""
        return len(self._busy)

    def close(self) -> None:
        """Close every connection."""
        self.is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in [*self._busy, *(one for idle in self._idle.values() for one in idle)]:
            connection.drop()
        self._idle.clear()
        self._busy.clear()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _unconnected(error: OSError) -> BackendFault:
    """Return the fault of a connection that could not be made. Source: RFC 9209 §2.3."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return fault(502, "tls_certificate_error", "has a certificate that is not trusted")
    if isinstance(error, ssl.SSLError):
        return fault(502, "tls_protocol_error", "does not speak TLS as it should")
    if isinstance(error, socket.gaierror):
        return fault(502, "dns_error", "has an address that can't be resolved")
    return fault(502, "connection_refused", "does not accept connections")


def is_stale(error: BaseException) -> bool:
    """Return whether a request died with its connection before any answer: if that was an old one, it was closed."""
    return isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)


class Answering:
    """One request on one connection, until its answer is read, cut off or has failed."""

    def __init__(self, pool: Pool, origin: Origin, connection: Connection) -> None:
        """Ask on `connection`, which is the pool's again when the answer was read to its end."""
        self.pool = pool
        self.origin = origin
        self.connection: Connection | None = connection
        self.message: RawResponseMessage | None = None
        self.said = _NO_HEAD
        self.body: StreamReader | None = None
        self.failure: BaseException | None = None  # of the request's own body
        self.follower: Callable[[], None] | None = None
        self.sent_at_s = time.monotonic()
        self._waiter: asyncio.Future[None] | None = None

    def ask(self, call: Call) -> None:
        """Send the request, with its body where that is small."""
        if self.connection is not None:
            may_switch = call.method == "GET" and get(call.headers, "upgrade") is not None
            data = encode_call(call, self.origin)
            self.connection.ask(self, data, is_bare=call.method == "HEAD", may_switch=may_switch)
            if isinstance(call.body, bytes) and len(call.body) > PART_BYTES:
                _Pump(self.connection, call.body)()

    def head_came(self, message: RawResponseMessage, said: HeaderList, body: StreamReader) -> None:
        """Take the head of the answer."""
        self.message, self.said, self.body = message, said, body

    def more_came(self) -> None:
        """Tell who waits."""
        if self.follower is not None:
            self.follower()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def error(self) -> BaseException | None:
        """What went wrong with the connection, or with the request's body; the answer's body tells its own failure."""
        if self.failure is not None:
            return self.failure
        if self.connection is None:
            return aiohttp.ServerDisconnectedError()
        if self.connection.exception() is not None:
            return self.connection.exception()
        return None if self.connection.connected else aiohttp.ServerDisconnectedError()

    def failed(self, error: BaseException) -> None:
        """Take note that the request's body could not be sent to its end."""
        self.failure = error
        self.more_came()

    async def wait(self, wait_s: float | None) -> None:
        """Return when there is news. Raises: TimeoutError when there is none in `wait_s`."""
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        timer = None if wait_s is None or wait_s == float("inf") else loop.call_later(wait_s, _run_out, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    async def head(self, wait_s: float) -> None:
        """Return when the head of the answer is there.

        Raises: TimeoutError, what aiohttp says of a connection that died, or what failed of the request's body.
        """
        until_s = time.monotonic() + wait_s
        while self.message is None:
            if self.error is not None:
                raise self.error
            await self.wait(max(0.0, until_s - time.monotonic()))

    def take(self) -> bytes:
        """Return what of the body has come. Raises: what failed of it."""
        body = self.body
        if body is None or self.connection is None:
            return b""
        return take_body(body)

    @property
    def is_over(self) -> bool:
        """Whether the body has come and been taken to its end."""
        return self.connection is None or (self.body is not None and self.body.at_eof())

    @property
    def is_whole(self) -> bool:
        """Whether the body has come to its end, and has not failed; it may still have to be taken."""
        return self.body is not None and self.body.is_eof() and self.body.exception() is None

    def end(self) -> None:
        """Give the connection back where the answer was read to its end, else close it."""
        connection, self.connection = self.connection, None
        self.follower = None
        if connection is None:
            return
        if self.body is not None and self.body.at_eof() and self.failure is None:
            self.pool.give_back(self.origin, connection)
        else:
            self.pool.drop(connection)


def _run_out(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())


class DirectReply(Reply):
    """A backend's answer on a connection of our own."""

    def __init__(self, answering: Answering, sent_at_s: float) -> None:
        """Read what `answering` brings; its head has come."""
        if answering.message is None:
            raise RuntimeError("the answer has no head yet")
        self.answering = answering
        self.sent_at_s = sent_at_s
        self.status = answering.message.code
        self.reason = answering.message.reason
        self.headers = answering.said
        self.has_length = get(self.headers, "content-length") is not None

    @property
    def connection(self) -> ResponseHandler | None:
        """The connection of an answer that switched protocols; None where it is gone, or is the pool's again."""
        connection = self.answering.connection
        return connection if connection is not None and connection.connected else None

    async def read(self, wait_s: float | None) -> bytes:
        """Return what of the body has arrived, waiting for the first byte of it; b"" at the end.

        Raises: TimeoutError when nothing came in `wait_s`, BackendFault when the body is cut or is no HTTP.
        """
        answering = self.answering
        while True:
            try:
                data = answering.take()
            except (aiohttp.ClientError, OSError) as error:
                raise in_body(error) from error
            if data or answering.is_over:
                return data
            if answering.failure is not None:
                raise answering.failure
            await answering.wait(wait_s)

    async def finish(self) -> None:
        """Let the last bytes of a finished answer come in, so that its connection can be used again."""
        if not self.answering.is_over:
            await super().finish()

    def close(self) -> None:
        """Cut off what is still to come."""
        self.answering.end()


class _Pump:
    """Sends a large body in parts, each when the one before has gone out: all of it would be held a second time."""

    def __init__(self, connection: Connection, body: bytes) -> None:
        self._connection = connection
        self._left = memoryview(body)
        connection.resume = self

    def __call__(self) -> None:
        transport = self._connection.transport
        while self._left and transport is not None and not self._connection.writing_paused:
            part, self._left = self._left[:PART_BYTES], self._left[PART_BYTES:]
            transport.write(part)


class DirectUpstream(Upstream):
    """Sends branches over connections of our own."""

    def __init__(self, note: Callable[[str, BackendFault | int], None], tls: ssl.SSLContext | None = None) -> None:
        """Open no connection yet; `note` is told, by the backend's name, of each status or fault."""
        super().__init__(note)
        self.pool = Pool(tls)

    async def close(self) -> None:
        """Close every connection."""
        self.pool.close()

    @property
    def busy(self) -> int:
        """How many connections are in use."""
        return self.pool.busy

    def answer(self, backend: Backend, base: str, call: Call, sent_at_s: float) -> AbstractAsyncContextManager[Reply]:
        """Send a request and give its answer; leaving the context closes one that was not read to its end."""
        return _Asking(self, backend, origin_of(base), call, sent_at_s)

    def ask_idle(self, base: str, call: Call) -> Answering | None:
        """Send a request on an idle connection to `base`, at once; return None where there is none."""
        origin = origin_of(base)
        connection = self.pool.take(origin)
        if connection is None:
            return None
        answering = Answering(self.pool, origin, connection)
        answering.ask(call)
        return answering

    async def ask_fresh(self, base: str, call: Call, connect_s: float) -> Answering:
        """Send a request on a new connection to `base`. Raises: BackendFault."""
        origin = origin_of(base)
        answering = Answering(self.pool, origin, await self.pool.connect(origin, connect_s))
        answering.ask(call)
        return answering


class _Asking(AbstractAsyncContextManager[Reply]):
    """One request of a task's, from its being sent until its answer was read, or is not wanted any more."""

    def __init__(
        self, upstream: DirectUpstream, backend: Backend, origin: Origin, call: Call, sent_at_s: float
    ) -> None:
        self._upstream = upstream
        self._pool = upstream.pool
        self._backend = backend
        self._origin = origin
        self._call = call
        self._sent_at_s = sent_at_s
        self._answering: Answering | None = None
        self._streaming: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Reply:
        try:
            answering = await self._head()
        except BaseException as error:
            await self._end()
            if isinstance(error, BackendFault):
                self._upstream.note(self._backend.name, error)
            raise
        reply = DirectReply(answering, self._sent_at_s)
        self._upstream.note(self._backend.name, reply.status)
        return reply

    async def __aexit__(self, *_error: object) -> None:
        await self._end()

    async def _head(self) -> Answering:
        """Return what brings the answer, once its head is there. Raises: BackendFault."""
        call = self._call
        idle = None if call.is_fresh else self._pool.take(self._origin)
        try:
            return await self._asked(idle or await self._connected(), call)
        except (aiohttp.ClientError, OSError, HttpProcessingError) as error:
            body = call.body.again() if isinstance(call.body, Streamed) else call.body
            if idle is None or not is_stale(error) or (body is None and call.body is not None):
                raise before_head(error) from error
        await self._end()
        try:
            return await self._asked(await self._connected(), replace(call, body=body))
        except (aiohttp.ClientError, OSError, HttpProcessingError) as error:
            raise before_head(error) from error

    async def _connected(self) -> Connection:
        return await self._pool.connect(self._origin, self._backend.timeouts.connect_s)

    async def _asked(self, connection: Connection, call: Call) -> Answering:
        """Send a request and return when its answer's head is there."""
        self._answering = answering = Answering(self._pool, self._origin, connection)
        answering.ask(call)
        if isinstance(call.body, Streamed):
            self._streaming = asyncio.get_running_loop().create_task(_stream(answering, call))
        await answering.head(self._backend.timeouts.first_content_s)
        return answering

    async def _end(self) -> None:
        """Give the connection back, or close it where more of the answer could come."""
        try:
            if self._streaming is not None:
                await _stop(self._streaming)
        finally:
            if self._answering is not None:
                self._answering.end()


async def _stop(task: asyncio.Task[None]) -> None:
    """End a task, whatever it was at."""
    task.cancel()
    await asyncio.wait([task])


async def _stream(answering: Answering, call: Call) -> None:
    """Send a body as it comes, waiting while the backend takes none of it."""
    connection, is_chunked = answering.connection, get(call.headers, "content-length") is None
    if connection is None or not isinstance(call.body, Streamed):
        return
    resumed = asyncio.Event()
    connection.resume = resumed.set
    try:
        async for part in call.body:
            if connection.transport is None:
                return
            connection.transport.writelines((b"%x\r\n" % len(part), part, b"\r\n") if is_chunked else (part,))
            while connection.writing_paused and connection.connected:
                resumed.clear()
                await resumed.wait()
        if is_chunked and connection.transport is not None:
            connection.transport.write(b"0\r\n\r\n")
    except (ProxyError, ClientLeft) as error:
        # It was the client who failed, so there is nothing to be told of the backend.
        answering.failed(error)
