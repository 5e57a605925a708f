"""Tunnels: a GET that asks for another protocol (WebSocket or any other) is passed on, and after a 101 bytes both ways.

    client ── GET, Upgrade ──► backend ── 101 ──► client ◄══ bytes ══► backend, until either side closes
                                       └─ anything else is relayed as a plain answer

Source: RFC 9110 §7.8, RFC 6455 §4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus

from aiohttp import HttpVersion11, web
from aiohttp.http import StreamWriter

from proxy import engine
from proxy.bodies import answer_expect, stream_body
from proxy.engine import Plan
from proxy.errors import BackendFault
from proxy.exchange import Client, Exchange, tell_error
from proxy.relay import pass_on
from proxy.upstream import Call, ClientLeft, Reply, Streamed
from proxy.wire import take_raw_bytes

# What is held of either direction while the other side is slow.
BUFFER_BYTES = 64 * 1024

# Behind a switch to HTTP/2 or TLS requests would pass that no key and no rule was held against.
_REFUSED_PROTOCOLS = ("h2c", "http", "tls")


async def tunnel(exchange: Exchange, request: web.BaseRequest) -> None:
    """Pass a request for another protocol on, and then whatever either side says.

    Raises: ClientFault 404 where no backend takes requests without a model, BackendFault, ClientLeft.
    """
    plan = engine.plan(exchange.request, exchange.policy)
    exchange.record.plan = plan
    if plan.refusal is not None:
        await tell_error(exchange, plan, plan.refusal)
        return
    if request.body_exists:
        await answer_expect(request)
        exchange.body = Streamed(stream_body(request, exchange.policy.limits.body_bytes))
    protocols = _protocols(request)
    exchange.record.rounds = exchange.record.branches = 1
    backend = plan.backend
    async with exchange.upstream.send(backend, exchange.address(backend), _call(exchange, plan, protocols)) as reply:
        if reply.status == HTTPStatus.SWITCHING_PROTOCOLS:
            if not protocols:
                raise BackendFault("The backend switched to a protocol that it was not asked for.")
            await _switch(exchange, plan, request, reply)
        else:
            await pass_on(exchange, plan, reply)


def _protocols(request: web.BaseRequest) -> list[str]:
    """Return the protocols that the backend may switch to; where there is none, the request is a plain one."""
    options = ",".join(request.headers.getall("Connection", ())).lower().split(",")
    if request.version < HttpVersion11 or "upgrade" not in map(str.strip, options):
        return []
    asked = map(str.strip, ",".join(request.headers.getall("Upgrade", ())).split(","))
    return [name for name in asked if name and not name.lower().startswith(_REFUSED_PROTOCOLS)]


def _call(exchange: Exchange, plan: Plan, protocols: list[str]) -> Call:
    call = exchange.call(plan, 0)
    if not protocols:
        return call
    return replace(call, headers=[*call.headers, ("Connection", "Upgrade"), ("Upgrade", ", ".join(protocols))])


class _Source:
    """The raw bytes that a connection brings, from now on; what aiohttp calls a parser."""

    def __init__(self, transport: asyncio.Transport | None) -> None:
        """Read what comes by `transport`; None where it has closed already."""
        self._transport = transport
        self._held = bytearray()
        self._has_ended = transport is None
        self._news = asyncio.Event()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take what came in. Return that this is not the end, and that nothing is left over."""
        self._held += data
        self._news.set()
        if len(self._held) > BUFFER_BYTES and self._transport is not None:
            self._transport.pause_reading()
        return False, b""

    def feed_eof(self) -> None:
        """Note that nothing more will come."""
        self._has_ended = True
        self._news.set()

    def is_eof(self) -> bool:
        """Whether nothing more will come."""
        return self._has_ended

    async def read(self) -> bytes:
        """Return what has come, waiting for it; b"" at the end."""
        while not self._held and not self._has_ended:
            self._news.clear()
            await self._news.wait()
        return self.take()

    def take(self) -> bytes:
        """Return what has come, and go on reading."""
        data = bytes(self._held)
        self._held.clear()
        if self._transport is not None:
            self._transport.resume_reading()
        return data


async def _switch(exchange: Exchange, plan: Plan, request: web.BaseRequest, reply: Reply) -> None:
    """Pass the 101 on, and from then on bytes both ways, until one side has closed; then close the other."""
    client, backend = request.protocol, reply.connection
    if backend is None:
        raise BackendFault("The backend closed the connection with its answer.", token="connection_terminated")
    if client.transport is None:
        raise ClientLeft
    from_client, from_backend = _Source(client.transport), _Source(backend.transport)
    take_raw_bytes(client, from_client)
    take_raw_bytes(backend, from_backend)
    try:
        upgrade = [(name, value) for name, value in reply.headers if name.lower() == "upgrade"]
        head = [*exchange.passed_on(plan, reply.headers), ("Connection", "Upgrade"), *upgrade]
        await exchange.client.begin(reply.status, reply.reason, head)
        await _pipe(exchange.client, from_client, from_backend, StreamWriter(backend, asyncio.get_running_loop()))
    finally:
        if backend.transport is not None:
            # What a client said just before it left is still said: closing sends it on.
            backend.transport.write(from_client.take())
        exchange.client.abort()


async def _pipe(client: Client, from_client: _Source, from_backend: _Source, backend: StreamWriter) -> None:
    """Pass bytes both ways until one side has nothing more to say. Raises: ClientLeft."""
    async with asyncio.TaskGroup() as group:
        outward = group.create_task(_copy(from_client, backend.write))
        inward = group.create_task(_copy(from_backend, client.write))
        await asyncio.wait((outward, inward), return_when=asyncio.FIRST_COMPLETED)
        outward.cancel()
        inward.cancel()


async def _copy(source: _Source, write: Callable[[bytes], Awaitable[None]]) -> None:
    try:
        while data := await source.read():
            await write(data)
    except (ConnectionError, ClientLeft):
        # Who can't be written to has left; the other side is closed for that.
        return
