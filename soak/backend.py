"""The backend: does what each request's script says, and keeps count of what the proxy holds open."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress
from itertools import pairwise
from typing import Final

from soak import faults, texts
from soak.judge import echo, said
from soak.ledger import Ledger
from soak.messages import Message, chunk, receive_body, receive_head
from soak.scripts import HEADER, MIDDLE, SEEDS, Fault, Script, Shape
from soak.wire import Ended, Wire

HOST: Final = "127.0.0.1"
STREAM: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_SWITCH: Final = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
# Small buffers, so that a large body is still being sent when the script answers it.
_BUFFER_BYTES: Final = 64 * 1024


class _Connection(Wire):
    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._backend.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._backend.closed(self)


class Backend:
    """A server. `busy`: requests that it has not done with."""

    def __init__(self, group: asyncio.TaskGroup, ledger: Ledger) -> None:
        """Serve each connection in a task of `group`, and tell `ledger` of faults, and of requests that are wrong."""
        self._group = group
        self._ledger = ledger
        self._wires: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self.busy = 0
        self.port = 0

    @property
    def connections(self) -> int:
        """How many connections the proxy holds open."""
        return len(self._wires)

    async def listen(self) -> None:
        """Listen on a port of its own."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        listener.bind((HOST, 0))
        self.port = listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), sock=listener, backlog=4096)

    def close(self) -> None:
        """Listen no more, and close what is still open."""
        if self._server is not None:
            self._server.close()
        for wire in list(self._wires):
            wire.reset()

    def opened(self, wire: _Connection) -> None:
        """Serve a connection."""
        self._wires.add(wire)
        self._group.create_task(self._serve(wire))

    def closed(self, wire: _Connection) -> None:
        """Note that a connection is gone."""
        self._wires.discard(wire)

    async def _serve(self, wire: Wire) -> None:
        with suppress(Ended):  # the proxy may close whenever it likes; what it owed its client is judged there
            while await self._answer(wire):
                pass
        wire.close()

    async def _answer(self, wire: Wire) -> bool:
        """Answer the next request. Return whether the connection is kept. Raises: Ended."""
        request = Message()
        await receive_head(wire, request)
        self.busy += 1
        try:
            if HEADER not in request.headers:
                wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                return True
            script = Script.parse(request.headers[HEADER])
            if script.shape is Shape.TUNNEL:
                return await self._tunnel(wire, script)
            if script.fault is Fault.EARLY:
                self._ledger.inject(script.fault)
                return await faults.answer_early(wire)
            await receive_body(wire, request)
            return await self._play(wire, script, bytes(request.body))
        finally:
            self.busy -= 1

    async def _play(self, wire: Wire, script: Script, body: bytes) -> bool:
        fields = faults.parsed(body)
        seed = fields.get("seed", -1)
        if seed // SEEDS != script.number or fields["messages"][0]["content"] != script.prompt():
            self._ledger.complain(f"the backend got the body of request {seed // SEEDS} for {script.number}")
        # What a backend can't do it refuses each branch; one that came late would find the answer begun.
        is_hit = seed - script.seed == script.target or script.fault in (Fault.IDLE_CLOSE, Fault.REPAIRED)
        fault = script.fault if is_hit else Fault.NONE
        if fault is Fault.REPAIRED and "legacy" not in fields:
            fault = Fault.NONE
        self._ledger.inject(fault)
        if fault in faults.BEFORE and not await faults.before(wire, script):
            return fault is Fault.REPAIRED
        is_stream = fields.get("stream") is True
        pieces = texts.events if is_stream else _pieces
        is_kept = await _say(wire, script, pieces(seed, script.words, script.word_bytes), fault, is_stream=is_stream)
        if fault is Fault.IDLE_CLOSE:
            await asyncio.sleep(script.gap_s * script.at / script.words)
            return False
        return is_kept

    async def _tunnel(self, wire: Wire, script: Script) -> bool:
        self._ledger.inject(script.fault)
        if script.fault in faults.BEFORE and not await faults.before(wire, script):
            return False
        wire.send(_SWITCH)
        for index in range(script.words):
            word = await wire.until(b"\n")
            if word != said(script, index):
                self._ledger.complain(f"the backend got {word!r} by the tunnel of request {script.number}")
            if script.fault in MIDDLE and index == script.at:
                await faults.in_the_middle(wire, script.fault)
                return False
            wire.send(echo(script, index))
        await wire.gone()
        return False


def _pieces(seed: int, words: int, size_bytes: int) -> list[bytes]:
    """Return the answer as JSON, in as many pieces as a stream has words."""
    whole = texts.answer(seed, words, size_bytes)
    bounds = [len(whole) * number // words for number in range(words + 1)]
    return [whole[at:end] for at, end in pairwise(bounds)]


async def _say(wire: Wire, script: Script, pieces: list[bytes], fault: Fault, *, is_stream: bool) -> bool:
    """Send an answer piece by piece. Return whether it is whole. Raises: Ended."""
    is_chunked = is_stream or fault in (Fault.BROKEN, Fault.UNASKED)
    length = sum(map(len, pieces))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    head += b"Transfer-Encoding: chunked\r\n\r\n" if is_chunked else b"Content-Length: %d\r\n\r\n" % length
    wire.send(STREAM if is_stream else head)
    # JSON comes faster: all of it has to come within the time that a stream has for its first word.
    began_s, gap_s = time.monotonic(), script.gap_s if is_stream else script.gap_s / 2
    for index, piece in enumerate(pieces):
        if fault in MIDDLE and index == script.at:
            sent = piece[: len(piece) // 2]
            wire.send(chunk(sent) if is_chunked and sent else sent)
            await faults.in_the_middle(wire, fault)
            return False
        wire.send(chunk(piece) if is_chunked else piece)
        await wire.drained()
        # By the clock, so that what one pause is too long, the next ones are shorter.
        await asyncio.sleep(began_s + gap_s * min(index + 1, script.words) - time.monotonic())
    if fault is Fault.UNASKED:
        await faults.answer_again(wire)
        return False
    wire.send(b"0\r\n\r\n" if is_chunked else b"")
    return True
