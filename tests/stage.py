"""The edge under test: a backend whose every byte the test writes, a rude client, and the real data port between them.

A plugin, so that the tests of all folders share its fixture `stage`.

Nothing here sleeps. Whoever waits for bytes or for an end waits with a time limit, and fails when it runs out.
"""

import asyncio
import os
import re
import socket
import struct
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
from aiohttp import web

from proxy.data_path import make_server, make_upstream
from proxy.policy import load_policy
from proxy.server import DataPort

PATIENCE_S = 10.0
# Which data path is under test: `make test-session` runs all of this over the other one.
DATA_PATH = os.environ.get("MENDPROXY_DATA_PATH", "direct")
HOST = "127.0.0.1"


class Wire(asyncio.Protocol):
    """One end of a TCP connection. What came in is kept in `received` until somebody takes it."""

    def __init__(self):
        self.received = bytearray()
        self.total_bytes = 0
        self.has_ended = False
        self.is_lost = False
        self.was_reset = False
        self.transport = None
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received += data
        self.total_bytes += len(data)
        self._news.set()

    def eof_received(self):
        self.has_ended = True
        self._news.set()
        return True

    def connection_lost(self, exc):
        self.has_ended = self.is_lost = True
        self.was_reset = exc is not None
        self._news.set()
        self._writable.set()

    def pause_writing(self):
        self._writable.clear()

    def resume_writing(self):
        self._writable.set()

    async def wait(self, holds):
        """Wait until `holds()`, which may become true with each thing that comes in."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._news.clear()
                await self._news.wait()

    def send(self, data):
        self.transport.write(data)

    async def drained(self, within_s=PATIENCE_S):
        """Return whether the other end took what was sent."""
        try:
            async with asyncio.timeout(within_s):
                await self._writable.wait()
        except TimeoutError:
            return False
        return True

    def half_close(self):
        self.transport.write_eof()

    def close(self):
        self.transport.close()

    def reset(self):
        """Break the connection off: the other end gets a RST."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def drop(self):
        """Close at once, whatever is still to be sent."""
        if not self.is_lost:
            self.transport.abort()

    def cut(self, size):
        data = bytes(self.received[:size])
        del self.received[:size]
        return data

    async def until(self, marker):
        """Return what came up to and with `marker`."""
        await self.sees(marker)
        return self.cut(self.received.index(marker) + len(marker))

    async def sees(self, marker):
        """Wait until `marker` has come, and take nothing."""
        await self.wait(lambda: marker in self.received or self.has_ended)
        assert marker in self.received, f"{marker} is not in {bytes(self.received)}"

    async def exactly(self, size):
        """Return the next `size` bytes, or fewer where the connection ended."""
        await self.wait(lambda: len(self.received) >= size or self.has_ended)
        return self.cut(size)

    async def gone(self):
        """Wait until the other end has closed."""
        await self.wait(lambda: self.has_ended)

    async def rest(self):
        """Return all that comes until the other end closes."""
        await self.gone()
        return self.cut(len(self.received))

    async def part(self):
        """Return the next chunk of a chunked body, b"" at its end."""
        size = int(await self.until(b"\r\n"), 16)
        return (await self.exactly(size + 2))[:size]

    async def answer(self, method="POST"):
        """Return the next answer on this connection."""
        head = Head.parse(await self.until(b"\r\n\r\n"))
        body, is_whole = await _body(self, head, is_bare=method == "HEAD" or head.status in (101, 204, 304))
        return Answer(head.status, head.headers, body, is_whole, head.first_line)


async def _body(wire, head, *, is_bare=False, is_request=False):
    """Return a message's body and whether it came whole. Source: RFC 9112 §6.3."""
    length = head.get("content-length")
    if is_bare:
        return b"", True
    if head.get("transfer-encoding") is not None:
        return await _chunked(wire)
    if length is not None:
        body = await wire.exactly(int(length))
        return body, len(body) == int(length)
    return (b"", True) if is_request else (await wire.rest(), True)


async def _chunked(wire):
    parts = []
    while True:
        await wire.wait(lambda: b"\r\n" in wire.received or wire.has_ended)
        if b"\r\n" not in wire.received:
            return b"".join(parts), False
        size = int(await wire.until(b"\r\n"), 16)
        part = await wire.exactly(size + 2)
        parts.append(part[:size])
        if not size or len(part) < size + 2:
            return b"".join(parts), part == b"\r\n"


@dataclass(frozen=True)
class Head:
    """A message's head, its header fields in order and as they were spelt."""

    first_line: str
    headers: tuple

    @classmethod
    def parse(cls, raw):
        first, *lines = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        return cls(first, tuple(tuple(re.split(r": *", line, maxsplit=1)) for line in lines))

    @property
    def status(self):
        return int(self.first_line.split()[1])

    def get(self, name):
        return next((value for key, value in self.headers if key.lower() == name), None)

    def all(self, name):
        return [value for key, value in self.headers if key.lower() == name]

    def names(self):
        return {key.lower() for key, _ in self.headers}


@dataclass(frozen=True)
class Answer(Head):
    """What a client was answered."""

    def __init__(self, status, headers, body, is_whole, first_line):
        super().__init__(first_line, headers)
        object.__setattr__(self, "body", body)
        object.__setattr__(self, "is_whole", is_whole)


class BackendWire(Wire):
    """The backend's end of a connection: announces each request as its head is there."""

    def __init__(self, backend):
        super().__init__()
        self._backend = backend
        self._is_busy = False

    def connection_made(self, transport):
        super().connection_made(transport)
        self._backend.wires.append(self)

    def data_received(self, data):
        super().data_received(data)
        self.look()

    def look(self):
        if self._is_busy:
            return
        end = self.received.find(b"\r\n\r\n")
        if end >= 0:
            self._is_busy = True
            self._backend.calls.put_nowait(Call(self, Head.parse(self.cut(end + 4))))

    def free(self):
        self._is_busy = False
        self.look()


class Call:
    """One request as the backend sees it, and the way to answer it."""

    def __init__(self, wire, head):
        self.wire = wire
        self.head = head
        self.method, self.target, self.version = head.first_line.split(" ")
        self.get = head.get

    async def body(self):
        body, is_whole = await _body(self.wire, self.head, is_request=True)
        assert is_whole, f"the request's body was cut after {body}"
        return body

    def send(self, *parts):
        self.wire.send(b"".join(parts))

    def answer(self, *parts):
        """Send an answer and take the next request on this connection."""
        self.send(*parts)
        self.wire.free()

    def close(self):
        self.wire.close()

    def reset(self):
        self.wire.reset()

    async def gone(self):
        await self.wire.gone()


class Backend:
    """A backend that the test plays: `call` waits for the next request."""

    def __init__(self):
        self.calls = asyncio.Queue()
        self.wires = []
        self.url = ""

    async def call(self):
        async with asyncio.timeout(PATIENCE_S):
            return await self.calls.get()

    async def listen(self, stack):
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: BackendWire(self), HOST, 0)
        stack.callback(server.close)
        stack.callback(lambda: [wire.drop() for wire in self.wires])
        self.url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}"


class WatchedPort(DataPort):
    """The data port, which tells when requests come and go."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._news = asyncio.Event()

    def came(self):
        super().came()
        self._news.set()

    def went(self, *arguments):
        super().went(*arguments)
        self._news.set()

    async def serves(self, count):
        """Wait until `count` requests are being served."""
        async with asyncio.timeout(PATIENCE_S):
            while self.in_flight != count:
                self._news.clear()
                await self._news.wait()


class Stage:
    """The real data port between a scripted backend and rude clients."""

    def __init__(self, stack, backend):
        self._stack = stack
        self.backend = backend
        self.port = 0
        self.data_port = None
        self.data_path = DATA_PATH
        self.listener = None
        self.notes = []

    async def proxy(self, text, **environ):
        """Serve by a policy, in which ${BACKEND} is the backend's address, ${LOCALHOST} the same by its name."""
        own = {"BACKEND": self.backend.url, "LOCALHOST": self.backend.url.replace(HOST, "localhost")}
        policy = load_policy("policy.yaml", environ=own | environ, text=text)
        upstream = make_upstream(self.data_path, lambda name, fault: self.notes.append((name, fault)))
        self._stack.push_async_callback(upstream.close)
        self.data_port = WatchedPort(policy, upstream, lambda backend: backend.url)
        self.listener = make_server(self.data_port)
        runner = web.ServerRunner(self.listener, shutdown_timeout=0.1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, HOST, 0)
        await site.start()
        self.port = runner.addresses[0][1]

    async def client(self, make=Wire):
        """Return a new connection to the proxy, of the kind that `make` gives."""
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(make, HOST, self.port)
        self._stack.callback(wire.drop)
        return wire

    async def ask(self, raw):
        """Return a new connection on which `raw` was sent."""
        wire = await self.client()
        wire.send(raw)
        return wire


@pytest.fixture
async def stage():
    async with AsyncExitStack() as stack:
        backend = Backend()
        await backend.listen(stack)
        yield Stage(stack, backend)
