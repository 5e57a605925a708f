"""The stand-in of sglang: its endpoints, and how a request goes through its phases.

    path, method → types → refusals → a whole answer, or a stream

Source: sglang.md §3, §7, §8; transcripts h06 to h15, o01 to o29 of sglang 0.5.23.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from proxy.standin import sglang_chat, sglang_native, sglang_stream, sglang_text
from proxy.standin.record import Call
from proxy.standin.routing import Refused, Routes, route
from proxy.standin.sglang_body import read
from proxy.standin.sglang_refusals import CONTEXT_TOKENS, Refusal, refuse
from proxy.standin.sglang_schema import Chat, Completion
from proxy.standin.wire import Reply

MODEL: Final = "tiny"


class SGLang:
    """sglang 0.5.23 with a tool-call parser, a 512-token context and no API key."""

    def __init__(self) -> None:
        self._created = int(time.time())

    async def answer(self, call: Call) -> web.StreamResponse:
        """Return the answer, which may have been sent already."""
        if call.request.path.startswith("/v1/models/"):
            return self._model(call).response()
        return await route(call, self._routes())

    def _routes(self) -> Routes:
        return {
            "/": {"GET": _fixed("SGLang is running"), "HEAD": _fixed("SGLang is running")},
            "/health": {"GET": _empty},
            "/health_generate": {"GET": _empty},
            "/ready": {"GET": _empty},
            "/abort_request": {"POST": _empty},
            "/model_info": {"GET": _fixed(_MODEL_INFO)},
            "/v1/models": {"GET": _fixed({"object": "list", "data": [self._card()]})},
            "/v1/chat/completions": {"POST": _chat},
            "/v1/completions": {"POST": _completion},
            "/generate": {"POST": sglang_native.generate, "PUT": sglang_native.generate},
            "/v1/embeddings": {"POST": _no_embeddings},
            "/v1/classify": {"POST": _no_embeddings},
            "/v1/rerank": {"POST": _no_embeddings, "PUT": _no_embeddings},
        }

    def _model(self, call: Call) -> Reply:
        name = call.request.path.removeprefix("/v1/models/")
        if name == MODEL:
            return Reply.of(self._card())
        error = {
            "message": f"The model '{name}' does not exist",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
        return Reply.of({"error": error}, 404)

    def _card(self) -> dict[str, Any]:
        return {
            "id": MODEL,
            "object": "model",
            "created": self._created,
            "owned_by": "sglang",
            "root": MODEL,
            "parent": None,
            "max_model_len": CONTEXT_TOKENS,
        }


_MODEL_INFO: Final = {
    "model_path": "/sgl/tiny",
    "served_model_name": MODEL,
    "tokenizer_path": "/sgl/tiny",
    "is_generation": True,
    "preferred_sampling_params": None,
    "weight_version": "default",
    "load_format": "auto",
    "reasoning_parser": None,
    "tool_call_parser": "hermes",
    "disaggregation_mode": "null",
    "has_image_understanding": False,
    "has_audio_understanding": False,
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
}


def _fixed(value: Any) -> Callable[[Call], Awaitable[web.StreamResponse]]:
    async def answer(_: Call) -> web.StreamResponse:
        return Reply.of(value).response()

    return answer


async def _empty(_: Call) -> web.StreamResponse:
    return Reply(content_type=None).response()


async def _no_embeddings(_: Call) -> web.StreamResponse:
    message = (
        "This model does not appear to be an embedding model by default. "
        "Please add `--is-embedding` when launching the server or try another model."
    )
    return Reply.of(Refusal(message).body(), 400).response()


async def _chat(call: Call) -> web.StreamResponse:
    ask = read(call, Chat)
    late = _refuse(call, ask, len(sglang_chat.prompt_ids(ask)))
    if ask.stream:
        return await sglang_stream.streamed(call, ask, late)
    return (await sglang_chat.whole(call, ask)).response()


async def _completion(call: Call) -> web.StreamResponse:
    ask = read(call, Completion)
    late = _refuse(call, ask, max((len(prompt.ids) for prompt in sglang_text.prompts(ask)), default=0))
    if ask.stream:
        return await sglang_text.streamed(call, ask, late)
    return (await sglang_text.whole(call, ask)).response()


def _refuse(call: Call, ask: Chat | Completion, prompt_tokens: int) -> Refusal | None:
    rank = call.request.headers.get("x-data-parallel-rank", "0")
    if not rank.lstrip("-").isdigit():
        message = f"Invalid X-Data-Parallel-Rank header: must be an integer, got '{rank}'"
        raise Refused(Reply.of(Refusal(message, "400").body(), 400))
    refusal = refuse(ask, prompt_tokens)
    if refusal is None or (refusal.is_late and ask.stream):
        return refusal
    raise Refused(Reply.of(refusal.body(), refusal.status))
