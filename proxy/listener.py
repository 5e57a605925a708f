"""aiohttp's server with errors of our own: what is no HTTP is answered in OpenAI's shape, and never echoed.

What is not aiohttp's public API here: that `web.Server` makes its protocols in `__call__`, and that a protocol asks
`handle_error` for the answer to what it could not parse. tests/edge/test_faults.py holds both.
"""

from __future__ import annotations

import uuid
from typing import Any

from aiohttp import web
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
        answer = web.Response(body=encode_json(_error(status).body()), status=status, content_type="application/json")
        answer.headers["Proxy-Status"] = headers.proxy_status(_error(status).token)
        answer.headers["x-request-id"] = str(uuid.uuid4())
        answer.headers["Server"] = headers.PSEUDONYM
        answer.force_close()
        return answer


def _error(status: int) -> ProxyError:
    if status >= 500:
        return ProxyFault("The proxy failed to serve this request.", status=status, code="internal_error")
    return ClientFault("The request is not valid HTTP/1.1.", status=status, code="invalid_request")


def listen(handler: Any, **options: Any) -> Listener:
    """Return a server that cancels a request whose client has left, decodes no body and writes no access log."""
    return Listener(handler, handler_cancellation=True, access_log=None, auto_decompress=False, **options)
