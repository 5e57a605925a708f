"""The clients: each goes on asking until told to stop, over connections that it keeps for a while.

Now and then one reads slowly, sends several requests at once, lets its body trickle, or leaves without a word.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from soak.judge import Wrong, echo, judge, judge_part, judge_tunnel, request_id, said
from soak.ledger import OUTCOMES, Ledger, Outcome
from soak.messages import Message, chunk, receive
from soak.scripts import HEADER, Drawer, Fault, Script, Shape
from soak.wire import HELD_BYTES, Ended, Wire

HOST: Final = "127.0.0.1"
# Far above what the longest script takes, faults and all: who waits for so long waits for ever.
PATIENCE_S: Final = 60.0
_SLOW_BUFFER_BYTES: Final = 8 * 1024
_TRICKLE_BYTES: Final = 32 * 1024


@dataclass(frozen=True, slots=True)
class Manner:
    """How a client behaves. Units: `pause_s` before each piece that is read."""

    leaves_after_s: float | None = None
    pause_s: float = 0.0
    is_trickling: bool = False


class Clients:
    """All clients of one proxy."""

    def __init__(self, port: int, ledger: Ledger) -> None:
        """Ask the proxy at `port`."""
        self._port = port
        self._ledger = ledger
        self._numbers: Iterator[int] = itertools.count(1)
        self.is_stopping = False

    async def run(self, drawer: Drawer, pace: float) -> None:
        """Be one client until all are stopped."""
        await asyncio.sleep(drawer.random.uniform(0, 2 * pace))
        while not self.is_stopping:
            is_slow = drawer.random.random() < 0.05
            await self._connection(drawer, pace, is_slow=is_slow)

    async def _connection(self, drawer: Drawer, pace: float, *, is_slow: bool) -> None:
        wire = await self._connect(is_slow=is_slow)
        try:
            is_kept = True
            while is_kept and not self.is_stopping:
                is_kept = await self._batch(wire, drawer, pace, is_slow=is_slow) and drawer.random.random() < 0.8
        finally:
            wire.close() if drawer.random.random() < 0.7 else wire.reset()

    async def _connect(self, *, is_slow: bool) -> Wire:
        loop = asyncio.get_running_loop()
        connection = socket.socket()
        connection.setblocking(False)
        if is_slow:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)
        await loop.sock_connect(connection, (HOST, self._port))
        held_bytes = _SLOW_BUFFER_BYTES if is_slow else HELD_BYTES
        _, wire = await loop.create_connection(lambda: Wire(held_bytes), sock=connection)
        return wire

    async def _batch(self, wire: Wire, drawer: Drawer, pace: float, *, is_slow: bool) -> bool:
        """Ask once, or several times at once. Return whether the connection may be asked again."""
        draw = drawer.random
        count = draw.choice((1, 1, 1, 1, 1, 1, 1, 2, 3)) if not is_slow else 1
        asked = [drawer.draw(next(self._numbers), is_slow=is_slow, is_small=count > 1) for _ in range(count)]
        asked = [one for one in asked if one.shape is not Shape.TUNNEL] or asked[:1]
        manner = Manner(
            draw.uniform(0, 4 * pace) if draw.random() < 0.15 else None,
            draw.uniform(0.02, 0.1) * pace if is_slow else 0.0,
            draw.random() < 0.3 and asked[0].fault is not Fault.EARLY,
        )
        for one in asked:
            self._ledger.begin(one)
            if one.fault is Fault.REFUSED:
                self._ledger.inject(one.fault)
        return await _Asking(wire, self._ledger, asked, manner).run()


class _Asking:
    """Requests on one connection, and their answers in turn."""

    def __init__(self, wire: Wire, ledger: Ledger, asked: list[Script], manner: Manner) -> None:
        self._wire = wire
        self._ledger = ledger
        self._asked = asked
        self._manner = manner
        self._answer = Message()

    async def run(self) -> bool:
        """Ask, and judge. Return whether the connection may be asked again."""
        leaves_after_s = self._manner.leaves_after_s
        try:
            async with asyncio.timeout(PATIENCE_S if leaves_after_s is None else leaves_after_s):
                return await self._run()
        except TimeoutError:
            if leaves_after_s is None:
                self._ledger.wrong(self._asked.pop(0), f"no end within {PATIENCE_S:.0f} s")
        finally:
            # Whoever is still here has left, or was made to when the load stopped.
            self._leave()
        return False

    async def _run(self) -> bool:
        if self._asked[0].shape is Shape.TUNNEL:
            await self._tunnel(self._asked[0])
            return False
        await self._send()
        while self._asked:
            self._answer = Message()
            with suppress(Ended):
                await receive(self._wire, self._answer, self._manner.pause_s)
            self._judge(self._asked.pop(0))
            if not self._answer.keeps_connection:
                for behind in self._asked:
                    self._ledger.end(behind, Outcome.BEHIND)
                self._asked.clear()
                return False
        return True

    def _judge(self, script: Script) -> None:
        try:
            due = judge(script, self._answer)
        except Wrong as wrong:
            self._ledger.wrong(script, str(wrong))
        else:
            self._ledger.end(script, OUTCOMES[due])

    def _leave(self) -> None:
        for index, script in enumerate(self._asked):
            try:
                if not index:
                    judge_part(script, self._answer)
            except Wrong as wrong:
                self._ledger.wrong(script, str(wrong))
            else:
                self._ledger.end(script, Outcome.LEFT)
        self._asked.clear()

    async def _send(self) -> None:
        if not self._manner.is_trickling:
            self._wire.send(b"".join(_request(script) for script in self._asked))
            return
        for script in self._asked:
            request = _request(script, is_chunked=script.number % 2 == 0)
            for at in range(0, len(request), _TRICKLE_BYTES):
                self._wire.send(request[at : at + _TRICKLE_BYTES])
                await asyncio.sleep(0.005)

    async def _tunnel(self, script: Script) -> None:
        head = f"GET /v1/realtime HTTP/1.1\r\n{_fields(script)}Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        self._wire.send(head.encode())
        with suppress(Ended):
            await receive(self._wire, self._answer)
        if self._answer.status != 101:
            self._judge(self._asked.pop(0))
            return
        echoes = await self._talk(script)
        self._asked.pop(0)
        try:
            self._ledger.end(script, OUTCOMES[judge_tunnel(script, echoes)])
        except Wrong as wrong:
            self._ledger.wrong(script, str(wrong))

    async def _talk(self, script: Script) -> bytes:
        """Return what comes back by a tunnel for this script's words."""
        echoes = b""
        with suppress(Ended):
            for index in range(script.words):
                self._wire.send(said(script, index))
                while not echoes.endswith(echo(script, index)):
                    echoes += await self._wire.until(b"\n")
                await asyncio.sleep(script.gap_s)
        return echoes + self._wire.left()


def _fields(script: Script) -> str:
    return f"Host: {HOST}\r\nX-Request-Id: {request_id(script)}\r\n{HEADER}: {script.told()}\r\n"


def _request(script: Script, *, is_chunked: bool = False) -> bytes:
    body = script.body()
    head = f"POST /v1/chat/completions HTTP/1.1\r\n{_fields(script)}Content-Type: application/json\r\n"
    if is_chunked:
        return head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(body) + b"0\r\n\r\n"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
