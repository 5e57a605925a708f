"""HTTP/1.1 messages from a wire, as far as they come. Source: RFC 9112 §6, §7.1."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from soak.wire import Ended, Wire

BARE = (101, 204, 304)


@dataclass(slots=True)
class Message:
    """A request or an answer, as far as it has come. `first_line` is empty where nothing has."""

    first_line: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False

    @property
    def status(self) -> int:
        """An answer's status, 0 where none has come."""
        return int(self.first_line.split()[1]) if self.first_line.startswith("HTTP/") else 0

    @property
    def keeps_connection(self) -> bool:
        """Whether another message may follow it."""
        return self.is_whole and self.headers.get("connection", "").lower() != "close"


async def receive_head(wire: Wire, message: Message) -> None:
    """Take the head of the next message. Raises: Ended."""
    raw = await wire.until(b"\r\n\r\n")
    first, *lines = raw.decode("latin-1").rstrip().split("\r\n")
    message.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    message.first_line = first


async def receive(wire: Wire, message: Message, pause_s: float = 0.0) -> None:
    """Take the next answer, with a pause before each piece of its body. Raises: Ended."""
    await receive_head(wire, message)
    while 100 <= message.status < 200 and message.status not in BARE:
        await receive_head(wire, message)
    if message.status in BARE:
        message.is_whole = True
    else:
        await receive_body(wire, message, pause_s)


async def receive_body(wire: Wire, message: Message, pause_s: float = 0.0) -> None:
    """Take the body of a message whose head has come. Raises: Ended."""
    if message.headers.get("transfer-encoding") == "chunked":
        await _chunks(wire, message, pause_s)
    else:
        await _exactly(wire, message, int(message.headers.get("content-length", 0)), pause_s)
        message.is_whole = True


async def _chunks(wire: Wire, message: Message, pause_s: float) -> None:
    while size := int(await wire.until(b"\r\n"), 16):
        await _exactly(wire, message, size, pause_s)
        await wire.until(b"\r\n")
    await wire.until(b"\r\n")
    message.is_whole = True


async def _exactly(wire: Wire, message: Message, size: int, pause_s: float) -> None:
    end = len(message.body) + size
    while len(message.body) < end:
        if pause_s:
            await asyncio.sleep(pause_s)
        message.body += await wire.some(end - len(message.body))


async def exchange(wire: Wire, request: bytes) -> Message:
    """Return the answer to a request, as far as it comes."""
    answer = Message()
    wire.send(request)
    try:
        await receive(wire, answer)
    except Ended:
        answer.is_whole = False
    return answer


def chunk(data: bytes) -> bytes:
    """Return a piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
