"""The stand-in of LlamaFactory's API server with its HF engine: one generation at a time.

A stream sends its role chunk at once and then waits for its turn. A hung stream (class C) keeps nobody waiting.

Source: llamafactory.md §1; transcripts 01 to 20v of LlamaFactory 0.9.5.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import web

from proxy.standin import text
from proxy.standin.generation import Task, Written, collect, rounds
from proxy.standin.llamafactory_body import read
from proxy.standin.llamafactory_refusals import Refusal, refuse
from proxy.standin.llamafactory_schema import Chat, Role, Score
from proxy.standin.record import Call
from proxy.standin.routing import Refused, Routes, route
from proxy.standin.wire import CRASH, EventStream, Reply

MODEL: Final = "tiny-model"
_PING_S: Final = 15.0
_MAX_NEW_TOKENS: Final = 1024
_TEMPLATE_TOKENS: Final = 25
_MESSAGE_TOKENS: Final = 5
_WORD = re.compile(r"\S*\s+")


class LlamaFactory:
    """LlamaFactory 0.9.5 with its HF engine, MAX_CONCURRENT=1 and no API key."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)

    async def answer(self, call: Call) -> web.StreamResponse:
        """Return the answer, which may have been sent already."""
        routes: Routes = {
            "/v1/models": {"GET": _models},
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/score/evaluation": {"POST": _score},
        }
        return await route(call, routes)

    async def _chat(self, call: Call) -> web.StreamResponse:
        ask = read(call, Chat)
        refusal = refuse(ask)
        if ask.stream:
            return await self._streamed(call, ask, refusal)
        if refusal is not None:
            raise Refused(_told(refusal))
        async with self._turn:
            choices = await collect(_tasks(ask), call.pace_s)
        return _whole(ask, choices).response()

    async def _streamed(self, call: Call, ask: Chat, refusal: Refusal | None) -> web.StreamResponse:
        headers = {"cache-control": "no-store", "connection": "keep-alive", "x-accel-buffering": "no"}
        out = EventStream(call.request, **headers)
        await out.open()
        if refusal is not None and refusal.failure == "A":
            return out.cut()
        id_ = f"chatcmpl-{uuid.uuid4().hex}"
        await out.send(_chunk(id_, ask, {"role": "assistant", "content": ""}))
        if refusal is not None and refusal.failure == "B":
            return out.cut()
        while refusal is not None:
            await asyncio.sleep(_PING_S)
            await _ping(out)
        await self._wait_for_turn(out)
        try:
            await _send_words(out, id_, ask, call.pace_s)
        finally:
            self._turn.release()
        await out.send("[DONE]")
        return await out.close()

    async def _wait_for_turn(self, out: EventStream) -> None:
        while True:
            try:
                async with asyncio.timeout(_PING_S):
                    await self._turn.acquire()
                    return
            except TimeoutError:
                await _ping(out)


async def _send_words(out: EventStream, id_: str, ask: Chat, pace_s: float) -> None:
    held = ""
    async for tokens in rounds(_tasks(ask), pace_s):
        held += "".join(token.text for _, token in tokens)
        if words := "".join(_WORD.findall(held)):
            held = held[len(words) :]
            await out.send(_chunk(id_, ask, {"content": words}))
    if held:
        await out.send(_chunk(id_, ask, {"content": held}))
    await out.send(_chunk(id_, ask, {}, "stop"))


async def _ping(out: EventStream) -> None:
    await out.comment(f"ping - {datetime.now(UTC)}")


def _chunk(id_: str, ask: Chat, delta: dict[str, Any], finish: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return json.dumps({"id": id_, "model": ask.model, "choices": [choice]}, ensure_ascii=False)


def _tasks(ask: Chat) -> list[Task]:
    last = ask.messages[-1]
    tools = [tool.model_dump() for tool in ask.tools or []]
    call = text.tool_call(tools, None, last.text) if tools and last.role is Role.USER else None
    return [
        Task(
            prompt=last.text,
            variant=0 if ask.temperature == 0 else index,
            max_tokens=ask.max_tokens or (None if text.is_endless(last.text) else _MAX_NEW_TOKENS),
            call=call,
        )
        for index in range(max(ask.n, 1))
    ]


def _whole(ask: Chat, choices: Sequence[Written]) -> Reply:
    prompt = _TEMPLATE_TOKENS + sum(_MESSAGE_TOKENS + len(text.pieces(message.text)) for message in ask.messages)
    prompt += sum(len(text.pieces(tool.model_dump_json())) for tool in ask.tools or [])
    completion = sum(choice.count() for choice in choices)
    return Reply.of(
        {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": ask.model,
            "choices": [_choice(index, choice) for index, choice in enumerate(choices)],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
            },
        }
    )


def _choice(index: int, choice: Written) -> dict[str, Any]:
    calls = None
    if name := choice.joined("name"):
        function = {"name": name, "arguments": choice.joined("arguments")}
        calls = [{"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}]
    content = None if calls else choice.joined("content")
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    return {"index": index, "message": message, "finish_reason": choice.finish.reason}


async def _models(_: Call) -> web.StreamResponse:
    card = {"id": MODEL, "object": "model", "created": int(time.time()), "owned_by": "owner"}
    return Reply.of({"object": "list", "data": [card]}).response()


async def _score(call: Call) -> web.StreamResponse:
    read(call, Score)
    return Reply.of({"detail": "Not allowed"}, 405).response()


def _told(refusal: Refusal) -> Reply:
    return CRASH if refusal.message is None else Reply.of({"detail": refusal.message}, refusal.status)
