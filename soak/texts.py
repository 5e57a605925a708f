"""What the backend says: the same words from the same seed, of which no two requests share one."""

from __future__ import annotations

import json
from typing import Any, Final

DONE: Final = b"data: [DONE]\n\n"
CREATED: Final = 1_700_000_000


def word(seed: int, index: int, size_bytes: int) -> str:
    """Return a word of an answer; it tells whose it is."""
    said = f"{seed:x}.{index}"
    return said + "-" * max(0, size_bytes - len(said) - 1) + " "


def text(seed: int, words: int, size_bytes: int) -> str:
    """Return all words of a choice."""
    return "".join(word(seed, index, size_bytes) for index in range(words))


def events(seed: int, words: int, size_bytes: int) -> list[bytes]:
    """Return a stream's events: the role, the words, the end, and [DONE]."""
    said = [_chunk(seed, {"content": word(seed, index, size_bytes)}) for index in range(words)]
    return [_chunk(seed, {"role": "assistant", "content": ""}), *said, _chunk(seed, {}, "stop"), DONE]


def answer(seed: int, words: int, size_bytes: int) -> bytes:
    """Return the same as JSON."""
    message = {"role": "assistant", "content": text(seed, words, size_bytes)}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "meta_info": {"id": f"{seed:x}"}}
    usage = {"prompt_tokens": 3, "completion_tokens": words, "total_tokens": words + 3}
    return json.dumps({**_envelope(seed, "chat.completion"), "choices": [choice], "usage": usage}).encode()


def _chunk(seed: int, delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    told = {**_envelope(seed, "chat.completion.chunk"), "choices": [choice]}
    return b"data: " + json.dumps(told).encode() + b"\n\n"


def _envelope(seed: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{seed:x}", "object": kind, "created": CREATED, "model": "soak"}
