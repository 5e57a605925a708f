"""How a stand-in answers on the wire: whole replies, and event streams that may be cut short."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer. `has_origin`: it went through the CORS layer, as all do but a crash."""

    status: int = 200
    body: bytes = b""
    content_type: str | None = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    has_origin: bool = True

    @classmethod
    def of(cls, value: Any, status: int = 200, **headers: str) -> Reply:
        """Return a JSON answer, written as uvicorn's frameworks do: compact, not escaped."""
        return cls(status, compact(value).encode(), headers=headers)

    def response(self) -> web.Response:
        """Return the answer as aiohttp sends it."""
        headers = {"server": "uvicorn"} | dict(self.headers)
        if self.has_origin:
            headers.setdefault("vary", "Origin")
        if self.content_type:
            headers["content-type"] = self.content_type
        return web.Response(status=self.status, body=self.body, headers=headers)


CRASH: Final = Reply(500, b"Internal Server Error", "text/plain; charset=utf-8", has_origin=False)
"""What Starlette sends when a handler or a validator raised what nobody caught."""


def compact(value: Any) -> str:
    """Return JSON text without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class EventStream:
    """A 200 event stream, one event an HTTP chunk."""

    def __init__(self, request: web.Request, **headers: str) -> None:
        self._request = request
        content = {"server": "uvicorn", "vary": "Origin", "content-type": "text/event-stream; charset=utf-8"}
        self.response = web.StreamResponse(headers=content | headers)
        self.response.enable_chunked_encoding()

    async def open(self) -> None:
        """Send the head; nothing of the body yet."""
        await self.response.prepare(self._request)

    async def send(self, data: str, event: str = "") -> None:
        """Send one event."""
        name = f"event: {event}\n" if event else ""
        await self.response.write(f"{name}data: {data}\n\n".encode())

    async def comment(self, comment: str) -> None:
        """Send one comment."""
        await self.response.write(f": {comment}\n\n".encode())

    async def close(self) -> web.StreamResponse:
        """End the stream as HTTP wants it."""
        await self.response.write_eof()
        return self.response

    def cut(self) -> web.StreamResponse:
        """End the connection without the last chunk: curl's exit 18."""
        if self._request.transport is not None:
            self._request.transport.close()
        return self.response
