"""Embedded backends without a model: they answer, refuse and misbehave exactly as the recorded real servers do.

`standin://sglang` and `standin://llamafactory` run these for a newcomer who has no backend yet; the tests put them
behind the proxy. Each is a real HTTP server on a loopback port.

Source: transcripts of sglang 0.5.23 and LlamaFactory 0.9.5 (tests/data/transcripts).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from proxy.standin import llamafactory, sglang
from proxy.standin.record import Backend, Received, Standin

__all__ = ["KINDS", "Received", "Standin", "serve"]

_BACKENDS: Final[dict[str, type[Backend]]] = {"llamafactory": llamafactory.LlamaFactory, "sglang": sglang.SGLang}
KINDS: Final = tuple(_BACKENDS)
_BODY_BYTES: Final = 1 << 30  # the real servers have no limit
_KEEP_ALIVE_S: Final = 5.0  # uvicorn's
_SHUTDOWN_S: Final = 0.01  # what still runs when a stand-in stops is cancelled; aiohttp takes 0 for "for ever"


@asynccontextmanager
async def serve(kind: str, *, host: str = "127.0.0.1", port: int = 0, pace_s: float = 0.0) -> AsyncIterator[Standin]:
    """Run a stand-in while the block runs; port 0 takes a free one.

    Units: `pace_s` passes between two tokens, also where the answer is not streamed. A request's header
    `x-standin-pace-ms` sets its own pace; real servers ignore it.
    Raises: ValueError for an unknown kind, OSError where the port can't be had.
    """
    if kind not in _BACKENDS:
        raise ValueError(f"there is no stand-in {kind!r}; known are {', '.join(KINDS)}")
    standin = Standin(kind, _BACKENDS[kind](), pace_s)
    app = web.Application(client_max_size=_BODY_BYTES)
    app.router.add_route("*", "/{anything:.*}", standin.handle)
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        keepalive_timeout=_KEEP_ALIVE_S,
        shutdown_timeout=_SHUTDOWN_S,
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        standin.url = f"http://{host}:{runner.addresses[0][1]}"
        yield standin
    finally:
        standin.is_closing = True
        await runner.cleanup()
