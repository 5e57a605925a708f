"""What a stand-in has seen of its clients, for those who test with it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from aiohttp import web

_REMEMBERED: Final = 1000


@dataclass(frozen=True, slots=True)
class Received:
    """One request, as it came. Header names are lower case; of a repeated header the last value stands."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Call:
    """A request on its way through a backend. Units: `pace_s` between two tokens."""

    request: web.Request
    body: bytes
    pace_s: float


class Backend(Protocol):
    """One kind of server; it answers calls and keeps what state the real one keeps."""

    async def answer(self, call: Call) -> web.StreamResponse:
        """Return the answer, which may have been sent already."""
        ...


class Standin:
    """A running stand-in: where it is and what it has seen.

    `requests` holds the latest 1000. `open_answers` are being written now; `clients_left` counts those whose client
    closed the connection before their end.
    """

    def __init__(self, kind: str, backend: Backend, pace_s: float) -> None:
        self.kind = kind
        self.url = ""
        self.requests: deque[Received] = deque(maxlen=_REMEMBERED)
        self.open_answers = 0
        self.clients_left = 0
        self.is_closing = False
        self._backend = backend
        self._pace_s = pace_s
        self._changed = asyncio.Condition()

    async def until(self, holds: Callable[[Standin], bool]) -> None:
        """Wait until a condition on the fields holds: `await standin.until(lambda s: s.clients_left == 1)`."""
        async with self._changed:
            await self._changed.wait_for(lambda: holds(self))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request and keep the books."""
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append(Received(request.method, request.path_qs, headers, body))
        self.open_answers += 1
        await self._tell()
        try:
            return await self._backend.answer(Call(request, body, self._pace(headers)))
        except (asyncio.CancelledError, ConnectionResetError):
            self.clients_left += not self.is_closing
            raise
        finally:
            self.open_answers -= 1
            await self._tell()

    def _pace(self, headers: dict[str, str]) -> float:
        asked = headers.get("x-standin-pace-ms", "")
        return int(asked) / 1000 if asked.isascii() and asked.isdigit() else self._pace_s

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
