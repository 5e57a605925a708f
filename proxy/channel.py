"""Questions and answers between the supervisor and a worker, over a pair of sockets.

    supervisor                           worker
    Ask(7, "snapshot") ───────────────►  handler
                       ◄───────────────  Told(7, …)
Each message is its length in four bytes and msgpack. The end of the stream is the end of the other process.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
Handlers = Mapping[str, Callable[[Any], Awaitable[Any]]]
_LENGTH = struct.Struct("!I")


class Gone(Exception):
    """The other process has ended, or does not answer."""


class Silent(Gone):
    """The other process runs, as far as is known, and does not answer."""


class Ask(msgspec.Struct, tag=True):
    """A question; `what` names the handler that answers it."""

    id: int
    what: str
    value: Any = None


class Told(msgspec.Struct, tag=True):
    """An answer."""

    id: int
    value: msgspec.Raw


class Channel:
    """One end. The supervisor's asks and the worker's answers; `run` has to be running for either."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._is_gone = False

    @classmethod
    async def open(cls, end: socket.socket) -> Channel:
        """Return the channel of one end of a pair of sockets."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    async def ask(self, what: str, type: type[T], value: Any = None, *, within_s: float) -> T:
        """Return the other's answer. Raises: Gone, Silent."""
        if self._is_gone:
            raise Gone
        number = next(self._ids)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(within_s):
                await self._send(Ask(number, what, value))
                return msgspec.msgpack.decode(await answer, type=type)
        except TimeoutError as error:
            raise Silent from error
        except OSError as error:
            raise Gone from error
        finally:
            del self._waiting[number]

    async def hear(self) -> None:
        """Take in answers until the other process ends."""
        while (raw := await self._receive()) is not None:
            told = msgspec.msgpack.decode(raw, type=Told)
            answer = self._waiting.get(told.id)
            if answer is not None and not answer.done():
                answer.set_result(told.value)
        self._is_gone = True
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(Gone())

    async def asked(self) -> Ask | None:
        """Return the next question, None where the other process has ended."""
        raw = await self._receive()
        return msgspec.msgpack.decode(raw, type=Ask) if raw is not None else None

    async def tell(self, asked: Ask, value: Any) -> None:
        """Answer a question."""
        try:
            await self._send(Told(asked.id, msgspec.Raw(msgspec.msgpack.encode(value))))
        except OSError:
            return  # who asked has ended, which the next `asked` says

    async def answer(self, handlers: Handlers) -> None:
        """Answer questions, each in a task of its own, until the other process ends."""
        async with asyncio.TaskGroup() as group:
            while (asked := await self.asked()) is not None:
                group.create_task(self._answer_one(handlers, asked))

    async def _answer_one(self, handlers: Handlers, asked: Ask) -> None:
        await self.tell(asked, await handlers[asked.what](asked.value))

    async def _send(self, message: Ask | Told) -> None:
        raw = msgspec.msgpack.encode(message)
        self._writer.write(_LENGTH.pack(len(raw)) + raw)
        await self._writer.drain()

    async def _receive(self) -> bytes | None:
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def close(self) -> None:
        """Let the other process see that this one has ended with it."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return  # it had closed before
