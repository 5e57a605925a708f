"""Jobs on stdin → results on stdout, both JSON; four at a time.

job: {id, call, base_url, path, stream, body}     result: {id: {answer | chunks | error}}
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

AT_A_TIME = 4
PATIENCE_S = 20

Job = dict[str, Any]
Call = Callable[[Job], Any]


def failure(error: Exception) -> dict[str, Any]:
    """Return what a program sees of an error."""
    told = {name: getattr(error, name, None) for name in ("status_code", "code", "param")}
    return {"kind": type(error).__name__, "message": getattr(error, "message", None) or str(error), **told}


def serve(calls: Mapping[str, Call]) -> None:
    """Do all jobs, by a call that blocks in a thread of its own."""
    json.dump(asyncio.run(_all(calls, json.load(sys.stdin))), sys.stdout)


async def _all(calls: Mapping[str, Call], jobs: list[Job]) -> dict[str, Any]:
    slots = asyncio.Semaphore(AT_A_TIME)

    async def one(job: Job) -> Any:
        async with slots:
            return await _one(calls[job["call"]], job)

    return dict(zip([job["id"] for job in jobs], await asyncio.gather(*map(one, jobs)), strict=True))


async def _one(call: Call, job: Job) -> dict[str, Any]:
    try:
        async with asyncio.timeout(PATIENCE_S):
            if inspect.iscoroutinefunction(call):
                return await call(job)
            return await asyncio.to_thread(call, job)
    except Exception as error:  # noqa: BLE001 whatever a client raises is what is looked at
        return {"error": failure(error)}
