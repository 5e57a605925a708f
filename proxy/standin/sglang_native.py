"""sglang's own endpoint /generate: its errors and streams have shapes of their own, its texts are cumulative.

Source: transcripts o13 to o16d of sglang 0.5.23; sglang.md §2, §4.12.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from proxy.standin import text
from proxy.standin.generation import Finish, Task, Token, Written, rounds
from proxy.standin.record import Call
from proxy.standin.routing import Refused
from proxy.standin.sglang_shapes import meta_info, token_ids
from proxy.standin.wire import EventStream, Reply, compact

_PARAMETERS: Final = (
    "`max_new_tokens`, `stop`, `stop_token_ids`, `stop_regex`, `temperature`, `top_p`, `top_k`, `min_p`, "
    "`frequency_penalty`, `presence_penalty`, `repetition_penalty`, `min_new_tokens`, `n`, `json_schema`, `regex`, "
    "`ebnf`, `structural_tag`, `ignore_eos`, `skip_special_tokens`, `spaces_between_special_tokens`, `no_stop_trim`, "
    "`stream_interval`, `logit_bias`, `sampling_seed`, `custom_params`, `beam_width`, `watermark`, `choice`"
)
_MAX_NEW_TOKENS: Final = 128
_NO_PROMPT: Final = "Either text, input_ids or input_embeds should be provided."


@dataclass(frozen=True, slots=True)
class _Run:
    prompt_tokens: int
    tasks: list[Task]
    ids: list[str]
    started: float

    def entry(self, index: int, tokens: list[Token]) -> dict[str, Any]:
        """Return a choice as far as it is written."""
        finish = tokens[-1].finish
        written = Written(tuple(tokens), finish or Finish("running"))
        info = meta_info(self.ids[index], self.prompt_tokens, written, None, self.started)
        info |= {"cached_tokens": 0, "cached_tokens_details": None}
        if finish is None:
            info = {name: value for name, value in info.items() if name not in ("weight_versions", "e2e_latency")}
            info["finish_reason"] = None
        return {"text": written.joined("content"), "output_ids": token_ids(tokens), "meta_info": info}


async def generate(call: Call) -> web.StreamResponse:
    """Return the answer to a prompt, a list of answers where n is above 1."""
    ask = _decode(call.body)
    parameters = ask.get("sampling_params") or {}
    if unknown := next((name for name in parameters if f"`{name}`" not in _PARAMETERS), None):
        raise Refused(Reply.of({"error": f"unknown field `{unknown}`, expected one of {_PARAMETERS}"}, 400))
    if (fault := _fault(ask, parameters)) is not None:
        return await _refuse(call, ask, fault)
    run = _run(str(ask["text"]), parameters)
    return await _streamed(call, run) if ask.get("stream") else await _whole(call, run)


def _decode(body: bytes) -> dict[str, Any]:
    try:
        ask = json.loads(body)
    except ValueError as error:
        raise Refused(Reply.of({"error": {"message": str(error)}}, 400)) from error
    return ask if isinstance(ask, dict) else {}


def _fault(ask: dict[str, Any], parameters: dict[str, Any]) -> str | None:
    if not ask.get("text"):
        return _NO_PROMPT
    temperature = parameters.get("temperature") or 0
    if temperature < 0:
        return f"temperature must be a non-negative finite number, got {temperature}."
    return None


async def _refuse(call: Call, ask: dict[str, Any], fault: str) -> web.StreamResponse:
    if not ask.get("stream"):
        raise Refused(Reply.of({"error": {"message": fault}}, 400))
    out = EventStream(call.request)
    await out.open()
    error = {"message": fault, "type": "invalid_request_error", "code": 400, "retryable": False}
    await out.send(compact({"error": error}))
    await out.send("[DONE]")
    return await out.close()


def _run(prompt: str, parameters: dict[str, Any]) -> _Run:
    choices = max(int(parameters.get("n") or 1), 1)
    limit = int(parameters.get("max_new_tokens") or _MAX_NEW_TOKENS)
    tasks = [Task(prompt=prompt, variant=index, max_tokens=limit) for index in range(choices)]
    ids = [uuid.uuid4().hex for _ in tasks]
    return _Run(len(text.pieces(prompt)), tasks, ids, time.monotonic())


async def _whole(call: Call, run: _Run) -> web.StreamResponse:
    rows: list[list[Token]] = [[] for _ in run.tasks]
    async for tokens in rounds(run.tasks, call.pace_s):
        for index, token in tokens:
            rows[index].append(token)
    entries = [run.entry(index, row) for index, row in enumerate(rows)]
    return Reply.of(entries[0] if len(entries) == 1 else entries).response()


async def _streamed(call: Call, run: _Run) -> web.StreamResponse:
    out = EventStream(call.request)
    await out.open()
    rows: list[list[Token]] = [[] for _ in run.tasks]
    async for tokens in rounds(run.tasks, call.pace_s):
        for index, token in tokens:
            rows[index].append(token)
            entry = run.entry(index, rows[index])
            if token.finish:
                del entry["meta_info"]["response_sent_to_client_ts"]
            await out.send(compact(entry | {"index": index}))
    await out.send("[DONE]")
    return await out.close()
