"""sglang's streamed chat completions, the choices interleaved.

    role(0) text(0) role(1) text(1) text(0) … finish(0) finish(1) [sglext] [usage] [DONE]

Each choice has an id of its own; what comes after the deltas has the id of the choice that spoke last. With n=0 and
usage asked for the real server divides by n, and the stream is cut.

Source: transcripts c03 to c24, b03 to b13, n06 of sglang 0.5.23; sglang.md §7.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from proxy.standin.generation import Finish, Token, rounds
from proxy.standin.record import Call
from proxy.standin.sglang_chat import call_id, called, chat_tasks, choice_ids, prompt_ids, sglext
from proxy.standin.sglang_refusals import Refusal
from proxy.standin.sglang_schema import Chat
from proxy.standin.sglang_shapes import Tally, chat_logprobs, count
from proxy.standin.wire import EventStream, compact


@dataclass
class ChatStream:
    """One streamed answer on its way."""

    ask: Chat
    out: EventStream
    prompt: list[int]
    ids: list[str]
    last: str = ""
    created: int = field(default_factory=lambda: int(time.time()))
    tokens: dict[int, list[Token]] = field(default_factory=dict)
    ends: list[tuple[int, Finish]] = field(default_factory=list)

    async def send(self, choices: list[dict[str, Any]], event: str = "", **more: Any) -> None:
        """Send one chunk under the id of the choice that spoke last."""
        head = {"id": self.last, "object": "chat.completion.chunk", "created": self.created, "model": self.ask.model}
        await self.out.send(compact(head | {"choices": choices} | more), event)

    async def delta(self, index: int, delta: dict[str, Any], finish: Finish | None = None, **more: Any) -> None:
        """Send one choice's chunk."""
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": more.pop("logprobs", None),
            "finish_reason": finish.reason if finish else None,
            "matched_stop": finish.matched if finish else None,
        }
        await self.send([choice], **more)

    async def token(self, index: int, token: Token) -> None:
        """Send what one token shows, the choice's role before its first."""
        self.last = self.ids[index]
        if index not in self.tokens:
            self.tokens[index] = []
            await self.delta(index, {"reasoning_content": None, "role": "assistant", "content": ""})
        self.tokens[index].append(token)
        if token.text:
            await self._text(index, token)
        if token.finish:
            self.ends.append((index, token.finish))

    async def _text(self, index: int, token: Token) -> None:
        more: dict[str, Any] = {"logprobs": self._logprobs(token)}
        if self._counts:
            more["usage"] = count(len(self.prompt), self.tokens[index]).usage()
        if token.kind == "reasoning":
            await self.delta(index, {"reasoning_content": token.text}, **more)
        elif self.ask.tools and self.ask.tool_choice != "none":
            await self.delta(index, _tool_delta(token), **({"usage": None} | more))
        else:
            await self.delta(index, {"reasoning_content": None, "content": token.text}, **more)

    @property
    def _counts(self) -> bool:
        return bool(self.ask.stream_options and self.ask.stream_options.continuous_usage_stats)

    def _logprobs(self, token: Token) -> dict[str, Any] | None:
        return chat_logprobs([token], self.ask.top_logprobs or 0) if self.ask.logprobs else None


def _tool_delta(token: Token) -> dict[str, Any]:
    if token.kind == "content":
        return {"role": None, "content": token.text, "reasoning_content": None}
    is_name = token.kind == "name"
    call = called(call_id(), token.text, "") if is_name else called(None, None, token.text)
    return {"role": None, "content": None, "reasoning_content": None, "tool_calls": [call]}


async def streamed(call: Call, ask: Chat, refusal: Refusal | None) -> web.StreamResponse:
    """Send the streamed answer; a refusal that comes late is its first event."""
    out = EventStream(call.request)
    stream = ChatStream(ask, out, prompt_ids(ask), choice_ids(ask))
    await out.open()
    if refusal:
        stream.last = stream.ids[0]
        await out.send(late_error(refusal))
        counted = Tally(1, 1)
    else:
        async for tokens in rounds(chat_tasks(ask), call.pace_s):
            for index, token in tokens:
                await stream.token(index, token)
        for index, finish in stream.ends:
            await stream.delta(index, {"reasoning_content": None}, finish)
        await _send_extension(call, stream)
        counted = count(len(stream.prompt), [token for row in stream.tokens.values() for token in row])
    if ask.stream_options and ask.stream_options.include_usage:
        if ask.n == 0:
            return out.cut()
        await stream.send([], usage=counted.usage())
    await out.send("[DONE]")
    return await out.close()


async def _send_extension(call: Call, stream: ChatStream) -> None:
    tokens = [stream.tokens[index] for index in sorted(stream.tokens)]
    if extension := sglext(stream.ask, stream.prompt, tokens):
        is_framed = call.request.headers.get("x-sglext-ids-framed") == "1"
        await stream.send([], "sglext_ids" if is_framed else "", usage=None, sglext=extension)


def late_error(refusal: Refusal) -> str:
    """Return the event that tells a refusal in a stream; json.dumps has its spaces here."""
    error = refusal.body() | {"type": "BAD_REQUEST"}
    return json.dumps({"error": error})
