"""The backends of the matrix: sglang's stand-in, and one that replays recordings and fails on cue.

Prints their addresses as JSON and serves until stdin ends. The second does what the model's name says after its
slash: `any/sglang-n3` and `any/answers/sglang-text` replay those recordings, `any/sglang-n3@stop` with other
finish reasons than `length`, `any/dies` begins an answer and dies.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from failures import FIRST_SEED, fail
from recordings import STREAMS, answer_of, stream_of

from proxy import standin


async def answer(request: web.Request) -> web.StreamResponse:
    """Answer as the model's name says."""
    ask: dict[str, Any] = await request.json()
    cue = ask["model"].partition("/")[2]
    is_whole = ask.get("n") is not None or "seed" not in ask
    branch = None if is_whole else ask["seed"] - FIRST_SEED
    recording, _, finish = cue.partition("@")
    if (STREAMS / f"{recording}.sse").exists():
        return web.Response(body=stream_of(recording, branch, finish), headers={"Content-Type": "text/event-stream"})
    if (STREAMS / f"{cue}.json").exists():
        return web.Response(body=answer_of(cue, branch), headers={"Content-Type": "application/json"})
    return await fail(request, ask, cue)


@asynccontextmanager
async def scripted():
    """Serve the second backend while the block runs, and give its address."""
    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def main() -> None:
    """Serve both."""
    async with standin.serve("sglang") as sglang, scripted() as address:
        sys.stdout.write(json.dumps({"sglang": sglang.url, "scripted": address}) + "\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
