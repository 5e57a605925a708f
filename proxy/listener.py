"""aiohttp's server with errors of our own: what is no HTTP is answered in OpenAI's shape, and never echoed.

What is not aiohttp's public API here: that `web.Server` makes its protocols in `__call__`, and that a protocol asks
`handle_error` for the answer to what it could not parse. tests/edge/test_faults.py holds both. aiohttp's parser lets
HTTP/0.9 and HTTP/2.0 through, and its answers would then claim to be of that version: such requests are refused here.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import HttpVersion10, HttpVersion11, StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.web_protocol import RequestHandler

from proxy import headers
from proxy.chunks import encode_json
from proxy.errors import ClientFault, ProxyError, ProxyFault


class Listener(web.Server):
    """Accepts connections."""

    def __call__(self) -> RequestHandler:
        """Return the protocol of a new connection."""
        return _Protocol(self, loop=self._loop, **self._kwargs)


class _Protocol(RequestHandler):
    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Return the answer to what aiohttp refused. Its message quotes the client, so it is not passed on."""
        return _told(_error(status))


class _Foreign(web.BaseRequest):
    """A request of a version that is not spoken here; it is answered as 1.0, which every client reads."""


def _told(error: ProxyError) -> web.Response:
    answer = web.Response(body=encode_json(error.body()), status=error.status, content_type="application/json")
    answer.headers["Proxy-Status"] = headers.proxy_status(error.token)
    answer.headers["x-request-id"] = str(uuid.uuid4())
    answer.headers["Server"] = headers.PSEUDONYM
    answer.force_close()
    return answer


def _error(status: int) -> ProxyError:
    if status >= 500:
        return ProxyFault("The proxy failed to serve this request.", status=status, code="internal_error")
    return ClientFault("The request is not valid HTTP/1.1.", status=status, code="invalid_request")


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    if message.version in (HttpVersion10, HttpVersion11):
        return web.BaseRequest(message, payload, protocol, writer, task, loop)
    return _Foreign(message._replace(version=HttpVersion10), payload, protocol, writer, task, loop)


def listen(handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], **options: Any) -> Listener:
    """Return a server that cancels a request whose client has left, decodes no body and writes no access log."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if isinstance(request, _Foreign):
            # RFC 9110 §15.6.6
            return _told(ClientFault("HTTP/1.1 and 1.0 are spoken here.", status=505, code="http_version"))
        return await handler(request)

    return Listener(
        handle, request_factory=_request, handler_cancellation=True, access_log=None, auto_decompress=False, **options
    )
