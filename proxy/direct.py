"""The way to a backend over connections of our own, for who waits in a task, and for who wants to be called.

`Reply` is for the first; the lane and forward.py ask by `ask_idle` and `ask_fresh`, and follow what `Answering` brings.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError

from proxy.errors import BackendFault, ProxyError
from proxy.headers import get
from proxy.policy import Backend
from proxy.pool import Answering, Origin, Pool, is_stale, origin_of
from proxy.upstream import Call, ClientLeft, Reply, Streamed, Upstream, before_head, in_body
from proxy.wire import Connection


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
            return await self._asked(idle if idle is not None else await self._connected(), call)
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
    connection.resume, connection.is_sending = resumed.set, True
    try:
        async for part in call.body:
            if connection.transport is None:
                return
            # Not `writelines`: in Python 3.12 and 3.13 it may not tell that writing has to pause (CVE-2024-12254).
            connection.transport.write(b"%x\r\n%b\r\n" % (len(part), part) if is_chunked else part)
            while connection.writing_paused and connection.connected:
                resumed.clear()
                await resumed.wait()
        if is_chunked and connection.transport is not None:
            connection.transport.write(b"0\r\n\r\n")
        connection.is_sending = False
    except (ProxyError, ClientLeft) as error:
        # It was the client who failed, so there is nothing to be told of the backend.
        answering.failed(error)
