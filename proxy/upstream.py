"""The way to a backend, whatever carries it: what is asked, what comes back, how many may ask at once, how it fails.

    Call ── send ──► Reply (status, headers) ── read ──► bytes … b"" at the end

direct.py and session.py are the two carriers. Every failure of aiohttp's becomes one error of ours here, in one table.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError

from proxy.errors import BackendFault, ClientFault
from proxy.headers import Headers
from proxy.policy import Backend
from proxy.tracing import BranchSpan, watched
from proxy.wire import UnclearHead

# uvicorn closes an idle connection after 5 s: a pool that keeps it longer sends requests into closed connections.
POOL_KEEP_ALIVE_S = 4.0
PART_BYTES = 256 * 1024
DRAIN_S = 0.05
# How much of a body that is streamed on is kept until its answer begins.
KEPT_BYTES = 1024 * 1024


class ClientLeft(Exception):
    """The client closed its connection. Nobody is left to tell anything."""


class Streamed:
    """A body that is streamed on. A small one is kept as it goes by, should it have to be sent again."""

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        """Stream these parts, once."""
        self._parts = parts
        self._kept: bytearray | None = bytearray()
        self._is_whole = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the parts as they come."""
        async for part in self._parts:
            if self._kept is not None:
                self._kept += part
                self._kept = self._kept if len(self._kept) <= KEPT_BYTES else None
            yield part
        self._is_whole = True

    def again(self) -> bytes | None:
        """Return the body, where all of it went by and is still known."""
        return bytes(self._kept) if self._is_whole and self._kept is not None else None


@dataclass(frozen=True, slots=True)
class Call:
    """One upstream request. `target` is the path and query as they go on the wire; a body is bytes or streamed.

    `is_fresh`: it takes a new connection, since no idle one is there, or the one that it was sent on was an old one.
    """

    method: str
    target: str
    headers: Headers
    body: bytes | Streamed | None
    is_fresh: bool = False
    span: BranchSpan | None = None


class Reply:
    """A backend's answer, its head read and its body still to come; `sent_at_s` is when its request was sent.

    `has_length`: the head says how long the body is, so that a cut can be told from the end.
    """

    sent_at_s: float
    status: int
    reason: str
    headers: Headers
    has_length: bool

    @property
    def connection(self) -> ResponseHandler | None:
        """The connection of an answer that switched protocols; None where it is gone, or is the pool's again."""
        raise NotImplementedError

    async def read(self, wait_s: float | None) -> bytes:
        """Return what of the body has arrived, waiting for the first byte of it; b"" at the end.

        Raises: TimeoutError when nothing came in `wait_s`, BackendFault when the body is cut or is no HTTP.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Cut off what is still to come."""
        raise NotImplementedError

    async def read_up_to(
        self, limit: int, wait_s: float | None, hold: Callable[[int], None] | None = None
    ) -> tuple[bytes, bool]:
        """Return the body, or its first bytes once there are more than `limit`, and whether that was all of it.

        `hold` is told of the bytes before they are kept. Units: bytes. Raises: as `read`, and as `hold`.
        """
        # One buffer: a list of parts would cost forty times their size where they come byte by byte.
        body = bytearray()
        while len(body) <= limit:
            data = await self.read(wait_s)
            if not data:
                return bytes(body), True
            if hold is not None:
                hold(len(data))
            body += data
        return bytes(body), False

    async def finish(self) -> None:
        """Let the last bytes of a finished answer come in, so that its connection can be used again."""
        try:
            async with asyncio.timeout(DRAIN_S):
                while await self.read(None):
                    continue
        except (BackendFault, TimeoutError):
            self.close()


class Upstream:
    """Sends branches to backends. One for the life of the process: policies come and go, connections stay."""

    def __init__(self, note: Callable[[str, BackendFault | int], None]) -> None:
        """Open no connection yet; `note` is told, by the backend's name, of each status or fault."""
        self.note = note
        self._slots: dict[tuple[str, int], asyncio.Semaphore] = {}

    async def close(self) -> None:
        """Close every connection."""
        raise NotImplementedError

    @property
    def busy(self) -> int:
        """How many connections are in use."""
        raise NotImplementedError

    def answer(self, backend: Backend, base: str, call: Call, sent_at_s: float) -> AbstractAsyncContextManager[Reply]:
        """Send a request and give its answer; leaving the context closes one that was not read to its end."""
        raise NotImplementedError

    def send(self, backend: Backend, base: str, call: Call) -> AbstractAsyncContextManager[Reply]:
        """Send a request to `base`, the backend's address, and give its answer once the head is there.

        Leaving the context closes an answer that was not read to its end, so that the backend stops working on it.

        Raises: BackendFault. A request that died with a kept-alive connection is sent once more, on a fresh one.
        """
        if backend.max_concurrency or call.span is not None:
            return self._send(backend, base, call)
        return self.answer(backend, base, call, time.monotonic())

    @asynccontextmanager
    async def _send(self, backend: Backend, base: str, call: Call) -> AsyncIterator[Reply]:
        """Send a request that needs a slot of the backend's first, or is traced."""
        async with AsyncExitStack() as stack:
            if backend.max_concurrency:
                stack.callback((await self._slot(backend)).release)
            if call.span is not None:
                stack.enter_context(watched(call.span))
            reply = await stack.enter_async_context(self.answer(backend, base, call, time.monotonic()))
            if call.span is not None:
                call.span.answered(reply.status)
            yield reply

    async def _slot(self, backend: Backend) -> asyncio.Semaphore:
        """Take one of the backend's slots, waiting for it no longer than for the backend itself.

        Raises: BackendFault 503.
        """
        key = (backend.name, backend.max_concurrency)
        slots = self._slots.setdefault(key, asyncio.Semaphore(backend.max_concurrency))
        try:
            async with asyncio.timeout(backend.timeouts.first_content_s):
                await slots.acquire()
        except TimeoutError:
            token = "connection_limit_reached"
            text = "The backend was busy for too long: all of its max_concurrency are taken."
            busy = BackendFault(text, status=503, code=token, token=token)
            self.note(backend.name, busy)
            raise busy from None
        return slots


def fault(status: int, token: str, text: str) -> BackendFault:
    """Return the fault of a backend that `text`."""
    return BackendFault(f"The backend {text}.", status=status, code=token, token=token)


# The first row that fits counts, so the more special class stands first. Source: RFC 9209 §2.3.
_BEFORE_HEAD: tuple[tuple[type[BaseException], int, str, str], ...] = (
    (aiohttp.ConnectionTimeoutError, 504, "connection_timeout", "did not accept a connection in time"),
    (TimeoutError, 504, "http_response_timeout", "sent no answer in time"),
    (aiohttp.ClientConnectorDNSError, 502, "dns_error", "has an address that can't be resolved"),
    (aiohttp.ClientConnectorCertificateError, 502, "tls_certificate_error", "has a certificate that is not trusted"),
    (aiohttp.ClientConnectorSSLError, 502, "tls_protocol_error", "does not speak TLS as it should"),
    (aiohttp.ClientConnectorError, 502, "connection_refused", "does not accept connections"),
    (aiohttp.ServerDisconnectedError, 502, "connection_terminated", "closed the connection without an answer"),
    (aiohttp.ClientOSError, 502, "connection_terminated", "broke the connection off without an answer"),
    (aiohttp.ClientError, 502, "http_protocol_error", "sent something that is not HTTP"),
    (HttpProcessingError, 502, "http_protocol_error", "sent something that is not HTTP"),
    (OSError, 502, "connection_terminated", "could not be reached"),
)

# Where a connection is what could not be had.
UNREACHED = frozenset({"connection_timeout", "dns_error", "connection_refused"})


def before_head(error: BaseException) -> BackendFault:
    """Return the fault of a request that got no answer. Raises: what is the client's fault, or no failure of a wire."""
    if isinstance(error.__cause__, ClientFault):
        # The body that was being streamed on is at fault.
        raise error.__cause__
    if isinstance(error, UnclearHead):
        return BackendFault(f"The backend's answer has {error}.", code="http_protocol_error")
    for kind, status, token, text in _BEFORE_HEAD:
        if isinstance(error, kind):
            return fault(status, token, text)
    raise error


def in_body(error: BaseException) -> BackendFault:
    """Return the fault of an answer whose body failed."""
    is_cut = isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError | OSError)
    token = "http_response_incomplete" if is_cut else "http_protocol_error"
    text = "cut its answer off" if is_cut else "sent a body that is not HTTP"
    return BackendFault(f"The backend {text}.", code=token, token=token)


def silent(what: str) -> BackendFault:
    """Return the fault of a backend that stopped in the middle of an answer. `what` it did not send, in words."""
    token = "connection_read_timeout"
    return BackendFault(f"The backend {what}.", status=504, code=token, token=token)


def empty() -> BackendFault:
    """Return the fault of an answer that ended where its content should have begun."""
    token = "http_response_incomplete"
    return BackendFault("The backend's answer ended before any content.", code=token, token=token)
