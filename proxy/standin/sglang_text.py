"""sglang's text completions: several prompts, n choices of each, index = prompt × n + choice.

Source: transcripts p01 to p54 of sglang 0.5.23; sglang.md §4.10, §7.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from proxy.standin import text
from proxy.standin.generation import Finish, Task, Token, Written, collect, rounds
from proxy.standin.record import Call
from proxy.standin.sglang_chat import schema, stops
from proxy.standin.sglang_refusals import Refusal
from proxy.standin.sglang_schema import Completion
from proxy.standin.sglang_shapes import Tally, count, metadata, tally, text_logprobs, token_id, token_ids
from proxy.standin.sglang_stream import late_error
from proxy.standin.wire import EventStream, Reply, compact

_VARIANTS: Final = 4096


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, as the tokens that it is."""

    pieces: tuple[str, ...]
    ids: tuple[int, ...]

    @classmethod
    def of(cls, prompt: str | list[int]) -> Prompt:
        """Return a prompt; token ids stand for themselves."""
        if isinstance(prompt, list):
            return cls(tuple(f" <{id_}>" for id_ in prompt), tuple(prompt))
        pieces = tuple(text.pieces(prompt))
        return cls(pieces, tuple(token_id(piece) for piece in pieces))


def prompts(ask: Completion) -> list[Prompt]:
    """Return every prompt."""
    return [Prompt.of(prompt) for prompt in ask.prompts]


def _spread(ask: Completion) -> list[Prompt]:
    return [prompt for prompt in prompts(ask) for _ in range(max(ask.n, 1))]


def _tasks(ask: Completion) -> list[Task]:
    choices = max(ask.n, 1)
    return [
        Task(
            prompt="".join(prompt.pieces),
            variant=0 if ask.temperature == 0 else ((ask.seed or 0) + index % choices) % _VARIANTS,
            max_tokens=ask.limit,
            stops=stops(ask.stop),
            schema=schema(ask.response_format),
        )
        for index, prompt in enumerate(_spread(ask))
    ]


def _ids(ask: Completion) -> list[str]:
    if ask.n <= 1 and isinstance(ask.rid, list):
        return ask.rid
    if ask.n <= 1 and isinstance(ask.rid, str) and len(ask.prompts) == 1:
        return [ask.rid]
    return [uuid.uuid4().hex for _ in _spread(ask)]


async def whole(call: Call, ask: Completion) -> Reply:
    """Return the answer that is not streamed."""
    choices = await collect(_tasks(ask), call.pace_s)
    if ask.n == 0:
        return Reply.of(Refusal("range() arg 3 must not be zero", "BadRequest").body(), 400)
    spread = enumerate(zip(_spread(ask), choices, strict=True))
    counted = sum(len(prompt.ids) for prompt in prompts(ask)) if ask.n > 0 else 0
    return Reply.of(
        {
            "id": _ids(ask)[0],
            "object": "text_completion",
            "created": int(time.time()),
            "model": ask.model,
            "choices": [_whole_choice(ask, index, prompt, choice) for index, (prompt, choice) in spread],
            "usage": tally(counted, choices).usage(),
            "metadata": metadata(choices[0].count()),
        }
    )


def _whole_choice(ask: Completion, index: int, prompt: Prompt, choice: Written) -> dict[str, Any]:
    return _choice(ask, index, prompt if ask.echo else None, choice.tokens, choice.finish) | _token_ids(
        ask, prompt, choice.tokens
    )


def _choice(
    ask: Completion, index: int, echoed: Prompt | None, tokens: Sequence[Token], finish: Finish | None
) -> dict[str, Any]:
    generated = [token.text for token in tokens]
    pieces = echoed.pieces if echoed else ()
    logprobs = text_logprobs(pieces, [piece for piece in generated if piece], ask.logprobs or 0)
    return {
        "index": index,
        "text": "".join([*pieces, *generated]),
        "logprobs": None if ask.logprobs is None or not logprobs["tokens"] else logprobs,
        "finish_reason": finish.reason if finish else None,
        "matched_stop": finish.matched if finish else None,
    }


def _token_ids(ask: Completion, prompt: Prompt | None, tokens: Sequence[Token]) -> dict[str, Any]:
    if not ask.return_token_ids:
        return {}
    return {"token_ids": token_ids(tokens)} | ({"prompt_token_ids": list(prompt.ids)} if prompt else {})


@dataclass
class TextStream:
    """One streamed answer on its way."""

    ask: Completion
    out: EventStream
    ids: list[str]
    prompts: list[Prompt]
    last: str = ""
    created: int = field(default_factory=lambda: int(time.time()))
    tokens: dict[int, list[Token]] = field(default_factory=dict)

    async def send(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> None:
        """Send one chunk under the id of the choice that spoke last."""
        head = {"id": self.last, "object": "text_completion", "created": self.created, "model": self.ask.model}
        await self.out.send(compact(head | {"choices": choices, "usage": usage}))

    async def token(self, index: int, token: Token) -> None:
        """Send one token, the prompt before a choice's first if it is to be echoed."""
        self.last = self.ids[index]
        prompt = None if index in self.tokens else self.prompts[index]
        row = self.tokens.setdefault(index, [])
        row.append(token)
        choice = _choice(self.ask, index, prompt if self.ask.echo else None, [token], token.finish)
        choice |= _token_ids(self.ask, prompt, [token])
        options = self.ask.stream_options
        counts = options is not None and options.continuous_usage_stats
        await self.send([choice], count(len(self.prompts[index].ids), row).usage() if counts else None)

    def tally(self) -> Tally:
        """Return the tally of all choices."""
        prompt_tokens = sum(len(prompt.ids) for prompt in prompts(self.ask))
        return count(prompt_tokens, [token for row in self.tokens.values() for token in row])


async def streamed(call: Call, ask: Completion, refusal: Refusal | None) -> web.StreamResponse:
    """Send the streamed answer; a refusal that comes late is its first event."""
    stream = TextStream(ask, EventStream(call.request), _ids(ask), _spread(ask))
    await stream.out.open()
    if refusal:
        stream.last = stream.ids[0]
        await stream.out.send(late_error(refusal))
        counted = Tally(1, 1)
    else:
        async for tokens in rounds(_tasks(ask), call.pace_s):
            for index, token in tokens:
                await stream.token(index, token)
        counted = stream.tally()
    if ask.stream_options and ask.stream_options.include_usage:
        await _send_usage(stream, counted)
    await stream.out.send("[DONE]")
    return await stream.out.close()


async def _send_usage(stream: TextStream, counted: Tally) -> None:
    if stream.ask.n == 0:
        await stream.out.send(late_error(Refusal("integer modulo by zero")).replace("BAD_REQUEST", "BadRequestError"))
        return
    usage = {name: value for name, value in counted.usage().items() if value is not None}
    head = {"id": stream.last, "object": "text_completion", "created": stream.created, "model": stream.ask.model}
    await stream.out.send(compact(head | {"choices": [], "usage": usage}))
