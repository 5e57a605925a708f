"""Both ends of the proxy in one thread, on plain sockets that block: each byte is waited for before the next one goes.

    client ── request ──► proxy ── request ──► backend ── answer, event by event ──► proxy ── seen by the client?

So what the proxy does for a request is the same each time, and its calls can be counted.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Self

PATIENCE_S = 20.0
HOST = "127.0.0.1"
_CHUNK = (
    'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"mock",'
    '"choices":[{"index":0,"delta":%s,"finish_reason":%s}]}\n\n'
)
_ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"mock","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"One, two."},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,'
    b'"total_tokens":12,"completion_tokens":3}}'
)
_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Wire:
    """One connection, and what has come on it and was not taken yet."""

    def __init__(self, connection: socket.socket, pause: Callable[[], None]) -> None:
        """Wait for `pause` before anything is sent."""
        self._pause = pause
        connection.settimeout(PATIENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self._received = b""

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self._pause()
        self.socket.sendall(data)

    def until(self, marker: bytes) -> bytes:
        """Return what comes up to and with a marker. Raises: ConnectionError where the connection ends before."""
        while (at := self._received.find(marker)) < 0:
            self._more()
        return self._take(at + len(marker))

    def message(self) -> bytes:
        """Return the body of the next request or answer."""
        head = self.until(b"\r\n\r\n").lower()
        if b"\r\ntransfer-encoding: chunked\r\n" in head:
            return self.until(b"\r\n0\r\n\r\n")
        _, _, length = head.partition(b"\r\ncontent-length:")
        size = int(length.partition(b"\r\n")[0] or 0)
        while len(self._received) < size:
            self._more()
        return self._take(size)

    def is_closed(self) -> bool:
        """Return whether the other end has closed rather than sent something; waits for either."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            return True

    def _more(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError(f"The connection ended after {self._received[-300:]!r}")
        self._received += data

    def _take(self, size: int) -> bytes:
        taken, self._received = self._received[:size], self._received[size:]
        return taken


class Ends:
    """A client of the proxy on one connection, and its backend."""

    def __init__(self, pause: Callable[[], None]) -> None:
        """Listen as the backend; `pause` waits until the proxy waits too."""
        self._pause = pause
        self._listener = socket.create_server((HOST, 0))
        self.backend_port: int = self._listener.getsockname()[1]
        self._wires: list[Wire] = []
        self._client: Wire | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for wire in [*self._wires, *([self._client] if self._client is not None else [])]:
            wire.socket.close()
        self._listener.close()

    def dial(self, port: int) -> None:
        """Connect the client. Raises: OSError where the proxy does not serve yet."""
        self._client = Wire(socket.create_connection((HOST, port), PATIENCE_S), self._pause)

    def _ask(self, body: bytes) -> Wire:
        if self._client is None:
            raise RuntimeError("the client is not connected")
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}\r\nUser-Agent: bench\r\nAccept: */*\r\n"
        head += f"Content-Type: application/json\r\nAuthorization: Bearer bench\r\nContent-Length: {len(body)}\r\n\r\n"
        self._client.send(head.encode() + body)
        return self._client

    def _asked(self) -> Wire:
        """Return the connection on which the backend is asked next, the request read."""
        while True:
            watched = {wire.socket: wire for wire in self._wires}
            ready, _, _ = select.select([self._listener, *watched], [], [], PATIENCE_S)
            if not ready:
                raise TimeoutError("The backend is not asked.")
            if self._listener in ready:
                self._wires.append(Wire(self._listener.accept()[0], self._pause))
                continue
            if wire := self._heard(watched[ready[0]]):
                return wire

    def _heard(self, wire: Wire) -> Wire | None:
        """Return the connection once its request is read; None where the proxy has closed it, as it may between two."""
        if wire.is_closed():
            self._wires.remove(wire)
            wire.socket.close()
            return None
        wire.message()
        return wire

    def json(self, body: bytes) -> None:
        """Ask once, and get JSON."""
        if self._answered(body) != _ANSWER:
            raise ConnectionError("The answer is not what the backend said.")

    def exploded(self, body: bytes) -> None:
        """Ask once, and get a stream of what the backend says as JSON."""
        if b"One, two." not in self._answered(body):
            raise ConnectionError("The stream does not bring what the backend said.")

    def _answered(self, body: bytes) -> bytes:
        """Return what the client gets where the backend answers with JSON."""
        client = self._ask(body)
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(_ANSWER)}\r\n\r\n"
        self._asked().send(head.encode() + _ANSWER)
        return client.message()

    def stream(self, body: bytes, events: int, branches: int = 1) -> None:
        """Ask once, and get a stream: so many events, sent by so many branches in turn, each seen before the next."""
        client = self._ask(body)
        asked = [self._asked() for _ in range(branches)]
        for wire in asked:
            wire.send(_STREAM + _event('{"role":"assistant","content":""}'))
        for number in range(events):
            asked[number % branches].send(_event(f'{{"content":" word {number}."}}'))
            client.until(f" word {number}.".encode())
        for wire in asked:
            wire.send(_event("{}", '"stop"') + _chunk("data: [DONE]\n\n") + b"0\r\n\r\n")
        client.until(b"\r\n0\r\n\r\n")


def _event(delta: str, finish: str = "null") -> bytes:
    return _chunk(_CHUNK % (delta, finish))


def _chunk(text: str) -> bytes:
    return f"{len(text):x}\r\n{text}\r\n".encode()
