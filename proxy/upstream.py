"""The aiohttp client: send a branch to its backend, yield the bytes of its answer, map every failure to one error.

    Call ── send ──► Reply (status, headers) ── read ──► bytes … b"" at the end

aiohttp's defaults that hurt a proxy are off: 100 connections, 300 s in all, redirects, the cookie jar, decompression,
keep-alive for longer than uvicorn's 5 s, proxies from the environment, short limits on lines.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from multidict import CIMultiDict
from yarl import URL

from proxy.errors import BackendFault, ClientFault
from proxy.headers import Headers, of_wire
from proxy.policy import Backend
from proxy.pool import Pool, RawRequest, UnclearHead

# uvicorn closes an idle connection after 5 s: a pool that keeps it longer sends requests into closed connections.
POOL_KEEP_ALIVE_S = 4.0
MAX_LINE_BYTES = 128 * 1024
PART_BYTES = 256 * 1024
DRAIN_S = 0.05
# How much of a body that is streamed on is kept until its answer begins.
KEPT_BYTES = 1024 * 1024

# Headers that aiohttp would add of its own: the client's are sent, or none.
_NO_AUTO_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


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
    """One upstream request. `target` is the path and query as they go on the wire; a body is bytes or streamed."""

    method: str
    target: str
    headers: Headers
    body: bytes | Streamed | None


class Reply:
    """A backend's answer, its head read and its body still to come."""

    def __init__(self, response: aiohttp.ClientResponse, sent_at_s: float) -> None:
        """Wrap a response; `sent_at_s` is when its request was sent, on the monotonic clock."""
        self._response = response
        self.sent_at_s = sent_at_s
        self.status = response.status
        self.reason = response.reason or ""
        self.headers: Headers = of_wire(response.raw_headers)

    @property
    def has_length(self) -> bool:
        """Whether the answer's head says how long the body is, so that a cut can be told from the end."""
        return "Content-Length" in self._response.headers

    @property
    def connection(self) -> ResponseHandler | None:
        """The connection of an answer that switched protocols; None where it is gone, or is the pool's again."""
        connection = self._response.connection
        return connection.protocol if connection is not None else None

    async def read(self, wait_s: float | None) -> bytes:
        """Return what of the body has arrived, waiting for the first byte of it; b"" at the end.

        Raises: TimeoutError when nothing came in `wait_s`, BackendFault when the body is cut or is no HTTP.
        """
        content = self._response.content
        try:
            data = content.read_nowait()
            if data:
                return data
            async with asyncio.timeout(wait_s):
                return await content.readany()
        except (aiohttp.ClientError, OSError) as error:
            # TimeoutError is an OSError too, and is the caller's to judge.
            if isinstance(error, TimeoutError):
                raise
            raise _in_body(error) from error

    async def read_up_to(self, limit: int, wait_s: float | None) -> tuple[bytes, bool]:
        """Return the body, or its first bytes once there are more than `limit`, and whether that was all of it.

        Units: bytes. Raises: as `read`.
        """
        # One buffer: a list of parts would cost forty times their size where they come byte by byte.
        body = bytearray()
        while len(body) <= limit:
            data = await self.read(wait_s)
            if not data:
                return bytes(body), True
            body += data
        return bytes(body), False

    async def finish(self) -> None:
        """Let the last bytes of a finished answer come in, so that its connection can be used again."""
        try:
            async with asyncio.timeout(DRAIN_S):
                while await self.read(None):
                    continue
        except (BackendFault, TimeoutError):
            self._response.close()


class Upstream:
    """Sends branches to backends. One for the life of the process: policies come and go, connections stay."""

    def __init__(self, note: Callable[[str, BackendFault | int], None]) -> None:
        """Open no connection yet; `note` is told, by the backend's name, of each status or fault."""
        self._note = note
        self._session = _session(force_close=False)
        self._fresh = _session(force_close=True)
        self._slots: dict[tuple[str, int], asyncio.Semaphore] = {}

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()
        await self._fresh.close()

    @asynccontextmanager
    async def send(self, backend: Backend, base: str, call: Call) -> AsyncIterator[Reply]:
        """Send a request to `base`, the backend's address, and give its answer once the head is there.

        Leaving the context closes an answer that was not read to its end, so that the backend stops working on it.

        Raises: BackendFault. A request that died with a kept-alive connection is sent once more, on a fresh one.
        """
        async with AsyncExitStack() as stack:
            if backend.max_concurrency:
                stack.callback((await self._slot(backend)).release)
            sent_at_s = time.monotonic()
            yield Reply(await stack.enter_async_context(self._answer(backend, base, call)), sent_at_s)

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
            fault = BackendFault(text, status=503, code=token, token=token)
            self._note(backend.name, fault)
            raise fault from None
        return slots

    @asynccontextmanager
    async def _answer(self, backend: Backend, base: str, call: Call) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            response = await self._head(backend, base, call)
        except BackendFault as fault:
            if fault.token in _UNREACHED:
                self._forget_addresses()
            self._note(backend.name, fault)
            raise
        self._note(backend.name, response.status)
        try:
            yield response
        finally:
            # An answer that was read to its end has given its connection back already; any other is cut off.
            response.close()

    def _forget_addresses(self) -> None:
        """Have names resolved anew: a backend that can't be reached may have moved."""
        for session in (self._session, self._fresh):
            if isinstance(session.connector, aiohttp.TCPConnector):
                session.connector.clear_dns_cache()

    async def _head(self, backend: Backend, base: str, call: Call) -> aiohttp.ClientResponse:
        attempt = SimpleNamespace(is_reused=False)
        try:
            return await self._request(self._session, backend, base, call, attempt)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            is_stale = attempt.is_reused and not isinstance(error, aiohttp.ClientConnectorError)
            body = call.body.again() if isinstance(call.body, Streamed) else call.body
            if not is_stale or (body is None and call.body is not None):
                raise _before_head(error) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _before_head(error) from error
        try:
            return await self._request(self._fresh, backend, base, replace(call, body=body), attempt)
        except (aiohttp.ClientError, OSError) as error:
            raise _before_head(error) from error

    async def _request(
        self, session: aiohttp.ClientSession, backend: Backend, base: str, call: Call, attempt: SimpleNamespace
    ) -> aiohttp.ClientResponse:
        timeouts = backend.timeouts
        async with asyncio.timeout(timeouts.first_content_s):
            return await session.request(
                call.method,
                URL(base.rstrip("/") + call.target, encoded=True),
                headers=CIMultiDict(call.headers),
                data=_written_in_parts(call.body),
                allow_redirects=False,
                skip_auto_headers=_NO_AUTO_HEADERS,
                timeout=aiohttp.ClientTimeout(total=None, connect=timeouts.connect_s),
                trace_request_ctx=attempt,
            )


def _written_in_parts(body: bytes | Streamed | None) -> io.BytesIO | bytes | Streamed | None:
    """Return the body as aiohttp writes it: a large one in parts, or all of it would be held a second time."""
    return io.BytesIO(body) if isinstance(body, bytes) and len(body) > PART_BYTES else body


def _session(*, force_close: bool) -> aiohttp.ClientSession:
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_reuse)
    options: dict[str, Any] = {"force_close": True} if force_close else {"keepalive_timeout": POOL_KEEP_ALIVE_S}
    session = aiohttp.ClientSession(
        connector=Pool(limit=0, ttl_dns_cache=10, **options),
        request_class=RawRequest,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        max_line_size=MAX_LINE_BYTES,
        max_field_size=MAX_LINE_BYTES,
        trace_configs=[trace],
    )
    # aiohttp would send a GET again by itself, also where a fresh connection died; `_head` decides that.
    session._retry_connection = False  # noqa: SLF001 there is no public switch
    return session


async def _note_reuse(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx.is_reused = True


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
    (OSError, 502, "connection_terminated", "could not be reached"),
)

# Where a connection is what could not be had.
_UNREACHED = frozenset({"connection_timeout", "dns_error", "connection_refused"})


def _before_head(error: BaseException) -> BackendFault:
    if isinstance(error.__cause__, ClientFault):
        # The body that was being streamed on is at fault.
        raise error.__cause__
    if isinstance(error, UnclearHead):
        return BackendFault(f"The backend's answer has {error}.", code="http_protocol_error")
    for kind, status, token, text in _BEFORE_HEAD:
        if isinstance(error, kind):
            return BackendFault(f"The backend {text}.", status=status, code=token, token=token)
    raise error


def _in_body(error: BaseException) -> BackendFault:
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
