"""The way to a backend through aiohttp's client session: slower than direct.py, and what it is compared with.

aiohttp's defaults that hurt a proxy are off: 100 connections, 300 s in all, redirects, the cookie jar, decompression,
keep-alive for longer than uvicorn's 5 s, proxies from the environment, short limits on lines.
"""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from multidict import CIMultiDict
from yarl import URL

from proxy.errors import BackendFault
from proxy.headers import Headers, of_wire
from proxy.policy import Backend
from proxy.upstream import (
    PART_BYTES,
    POOL_KEEP_ALIVE_S,
    UNREACHED,
    Call,
    Reply,
    Streamed,
    Upstream,
    before_head,
    in_body,
)
from proxy.wire import MAX_LINE_BYTES, SessionConnector, SessionRequest, connections_in_use, never_send_again

# Headers that aiohttp would add of its own: the client's are sent, or none.
_NO_AUTO_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class SessionReply(Reply):
    """A backend's answer, its head read and its body still to come."""

    def __init__(self, response: aiohttp.ClientResponse, sent_at_s: float) -> None:
        """Wrap a response; `sent_at_s` is when its request was sent, on the monotonic clock."""
        self._response = response
        self.sent_at_s = sent_at_s
        self.status = response.status
        self.reason = response.reason or ""
        self.headers: Headers = of_wire(response.raw_headers)
        self.has_length = "Content-Length" in response.headers

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
            raise in_body(error) from error

    def close(self) -> None:
        """Cut off what is still to come."""
        self._response.close()


class SessionUpstream(Upstream):
    """Sends branches through two sessions: one that keeps its connections, and one that does not."""

    def __init__(self, note: Callable[[str, BackendFault | int], None], tls: ssl.SSLContext | None = None) -> None:
        """Open no connection yet; `note` is told, by the backend's name, of each status or fault."""
        super().__init__(note)
        self._session = _session(tls, force_close=False)
        self._fresh = _session(tls, force_close=True)

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()
        await self._fresh.close()

    @property
    def busy(self) -> int:
        """How many connections are in use."""
        return connections_in_use(self._session) + connections_in_use(self._fresh)

    @asynccontextmanager
    async def answer(self, backend: Backend, base: str, call: Call, sent_at_s: float) -> AsyncIterator[Reply]:
        """Send a request and give its answer; leaving the context closes one that was not read to its end."""
        try:
            response = await self._head(backend, base, call)
        except BackendFault as fault:
            if fault.token in UNREACHED:
                self._forget_addresses()
            self.note(backend.name, fault)
            raise
        self.note(backend.name, response.status)
        try:
            yield SessionReply(response, sent_at_s)
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
                raise before_head(error) from error
        except (aiohttp.ClientError, OSError) as error:
            raise before_head(error) from error
        try:
            return await self._request(self._fresh, backend, base, replace(call, body=body), attempt)
        except (aiohttp.ClientError, OSError) as error:
            raise before_head(error) from error

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


def _session(tls: ssl.SSLContext | None, *, force_close: bool) -> aiohttp.ClientSession:
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_reuse)
    options: dict[str, Any] = {"force_close": True} if force_close else {"keepalive_timeout": POOL_KEEP_ALIVE_S}
    session = aiohttp.ClientSession(
        connector=SessionConnector(limit=0, ttl_dns_cache=10, ssl=tls if tls is not None else True, **options),
        request_class=SessionRequest,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        max_line_size=MAX_LINE_BYTES,
        max_field_size=MAX_LINE_BYTES,
        trace_configs=[trace],
    )
    # aiohttp would send a GET again by itself, also where a fresh connection died; `_head` decides that.
    never_send_again(session)
    return session


async def _note_reuse(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx.is_reused = True
