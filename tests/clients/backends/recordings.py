"""Recorded answers, whole or a branch's part of them.

A recording of n choices answers a request for n as it was recorded. A request without `n` is a branch of a fan-out,
which its seed tells apart: it gets its choice alone, and its part of the tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

STREAMS = Path(__file__).parents[2] / "data" / "streams"
DONE = b"data: [DONE]\n\n"


def event_of(value: Any) -> bytes:
    """Return an event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def stream_of(name: str, branch: int | None, finish: str = "") -> bytes:
    """Return a recorded stream, byte for byte unless a branch's part of it is asked for, or another `finish`."""
    raw = (STREAMS / f"{name}.sse").read_bytes()
    if finish:
        raw = raw.replace(b'"finish_reason":"length"', b'"finish_reason":"%b"' % finish.encode())
    if branch is None:
        return raw
    events = raw.split(b"\n\n")
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events if event.startswith(b"data: {")]
    n = 1 + max(choice["index"] for chunk in chunks for choice in chunk["choices"])
    own = [_part(chunk, branch, n) for chunk in chunks]
    return b"".join(event_of(part) for part in own if part is not None) + DONE


def answer_of(name: str, branch: int | None) -> bytes:
    """Return a recorded whole answer, as `stream_of`."""
    raw = (STREAMS / f"{name}.json").read_bytes()
    if branch is None:
        return raw
    answer = json.loads(raw)
    return json.dumps(_part(answer, branch, len(answer["choices"]))).encode()


def _part(told: dict[str, Any], branch: int, n: int) -> dict[str, Any] | None:
    own = [choice | {"index": 0} for choice in told["choices"] if choice["index"] == branch]
    if told["choices"] and not own:
        return None
    part = told | {"choices": own}
    return part | {"usage": _share(told["usage"], branch, n)} if told.get("usage") else part


def _share(usage: dict[str, Any], branch: int, n: int) -> dict[str, Any]:
    each, rest = divmod(usage["completion_tokens"], n)
    own = each + (rest if branch == 0 else 0)
    return usage | {"completion_tokens": own, "total_tokens": usage["prompt_tokens"] + own}
