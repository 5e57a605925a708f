"""How FastAPI finds a handler, and what it says where there is none: 404, 405, 307, CORS preflights.

Source: transcripts h06 to h15 of sglang 0.5.23, 10 and 11 of LlamaFactory 0.9.5.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from proxy.standin.record import Call
from proxy.standin.wire import Reply

Handler = Callable[[Call], Awaitable[web.StreamResponse]]
Routes = Mapping[str, Mapping[str, Handler]]
_PREFLIGHT_VARY: Final = (
    "Origin, Access-Control-Request-Method, Access-Control-Request-Headers, Access-Control-Request-Private-Network"
)
_METHODS: Final = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT, QUERY"


class Refused(Exception):
    """The request gets this answer instead of a generated one."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


async def route(call: Call, routes: Routes) -> web.StreamResponse:
    """Return the answer of the path's handler, or what FastAPI answers itself."""
    request = call.request
    if request.method == "OPTIONS" and {"origin", "access-control-request-method"} <= set(
        map(str.lower, request.headers)
    ):
        return _preflight(request.headers["origin"]).response()
    methods = routes.get(request.path)
    if methods is None:
        return _missing(request, routes).response()
    handler = methods.get(request.method)
    if handler is None:
        return Reply.of({"detail": "Method Not Allowed"}, 405, allow=", ".join(methods)).response()
    try:
        return await handler(call)
    except Refused as refused:
        return refused.reply.response()


def _missing(request: web.Request, routes: Routes) -> Reply:
    bare = request.path.rstrip("/")
    if bare != request.path and bare in routes:
        query = f"?{request.query_string}" if request.query_string else ""
        return Reply(307, content_type=None, headers={"location": f"http://{request.host}{bare}{query}"})
    return Reply.of({"detail": "Not Found"}, 404)


def _preflight(origin: str) -> Reply:
    headers = {
        "vary": _PREFLIGHT_VARY,
        "access-control-allow-methods": _METHODS,
        "access-control-max-age": "600",
        "access-control-allow-credentials": "true",
        "access-control-allow-origin": origin,
    }
    return Reply(200, b"OK", "text/plain; charset=utf-8", headers)
