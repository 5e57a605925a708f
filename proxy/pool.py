"""Connections of our own to backends: the idle ones, a request on one of them, and what its answer brings.

Call ── ask ──► Connection (idle ones last in, first out) ── head_came, more_came ──► Answering
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
from aiohappyeyeballs import AddrInfoType, start_connection
from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader

from proxy.errors import BackendFault
from proxy.headers import HeaderList, encode_head, get, of_wire
from proxy.tls import Tls, backend_context
from proxy.upstream import PART_BYTES, POOL_KEEP_ALIVE_S, Call, Streamed, fault
from proxy.wire import Connection, has_more_to_come, take_body

# How long one address of a name is waited for before the next one is tried beside it (RFC 8305 §5).
EYEBALLS_S = 0.25
_NEVER_S = float("inf")
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
            if connection.can_be_asked and connection.idle_since_s >= oldest_s:
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

    __slots__ = (
        "_timer",
        "_until_s",
        "_waiter",
        "body",
        "connection",
        "failure",
        "follower",
        "headed_at_s",
        "message",
        "origin",
        "pool",
        "said",
        "sent_at_s",
    )

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
        self.headed_at_s: float | None = None  # where its head came before it was parsed
        self._waiter: asyncio.Future[None] | None = None
        self._until_s = _NEVER_S
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, call: Call) -> None:
        """Send the request, with its body where that is small."""
        if self.connection is not None:
            may_switch = call.method == "GET" and get(call.headers, "upgrade") is not None
            data = encode_call(call, self.origin)
            self.connection.ask(self, data, is_bare=call.method == "HEAD", may_switch=may_switch)
            if isinstance(call.body, bytes) and len(call.body) > PART_BYTES:
                send_large(self.connection, call.body)

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
        self._until_s = _NEVER_S if wait_s is None else loop.time() + wait_s
        # One timer for many reads: where it fires too early it is set anew.
        if self._timer is None or self._timer.when() > self._until_s:
            self._set_timer()
        try:
            await waiter
        finally:
            self._waiter = None

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._until_s < _NEVER_S:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._until_s, self._look_at_the_time, loop)

    def _look_at_the_time(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the wait where it is over, or look again when it will be."""
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if loop.time() < self._until_s:
            self._set_timer()
        else:
            self._waiter.set_exception(TimeoutError())

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
    def has_all_been_taken(self) -> bool:
        """Whether nothing is there to be taken, nor known of the end: more has to come first."""
        return self.body is not None and self.connection is not None and has_more_to_come(self.body)

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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if connection is None:
            return
        if self.body is not None and self.body.at_eof() and self.failure is None:
            self.pool.give_back(self.origin, connection)
        else:
            self.pool.drop(connection)


def send_large(connection: Connection, *pieces: bytes | memoryview) -> None:
    """Send a body in parts, each when the one before has gone out: all of it would be held a second time."""
    _Pump(connection, pieces)()


class _Pump:
    """What sends a large body."""

    def __init__(self, connection: Connection, pieces: Sequence[bytes | memoryview]) -> None:
        self._connection = connection
        self._left, *more = [memoryview(piece) for piece in pieces if piece]
        self._pieces = iter(more)
        connection.resume = self
        connection.is_sending = True

    def __call__(self) -> None:
        transport = self._connection.transport
        while self._left and transport is not None and not self._connection.writing_paused:
            part, self._left = self._left[:PART_BYTES], self._left[PART_BYTES:]
            transport.write(part)
            if not self._left:
                self._left = next(self._pieces, self._left)
        self._connection.is_sending = bool(self._left)
