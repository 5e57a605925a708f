"""sglang's chat completions: what each choice is to say, and the answer that is not streamed.

Source: transcripts c01 to c24, b03 to b13 of sglang 0.5.23; sglang.md §7.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any, Final

from proxy.standin import text
from proxy.standin.generation import Task, Token, Written, collect
from proxy.standin.record import Call
from proxy.standin.sglang_messages import text_of
from proxy.standin.sglang_refusals import Refusal
from proxy.standin.sglang_schema import Chat, ResponseFormat
from proxy.standin.sglang_shapes import chat_logprobs, meta_info, metadata, tally, token_id, token_ids
from proxy.standin.wire import Reply

_TEMPLATE_TOKENS: Final = 5
_MESSAGE_TOKENS: Final = 7
_VARIANTS: Final = 4096


def prompt_ids(ask: Chat) -> list[int]:
    """Return the prompt's token ids, the chat template's among them."""
    if ask.input_ids:
        return ask.input_ids
    ids = [1] * _TEMPLATE_TOKENS
    for message in ask.messages:
        ids += [1] * _MESSAGE_TOKENS + [token_id(piece) for piece in text.pieces(text_of(message))]
    for tool in ask.tools or []:
        ids += [token_id(piece) for piece in text.pieces(tool.model_dump_json())]
    return ids


def chat_tasks(ask: Chat) -> list[Task]:
    """Return what each choice is to say."""
    prompt = next((text_of(message) for message in reversed(ask.messages) if message.role == "user"), "")
    choices = max(ask.n, 1)
    return [
        Task(
            prompt=prompt,
            variant=0 if ask.temperature == 0 else ((ask.seed or 0) + index) % _VARIANTS,
            max_tokens=ask.limit,
            stops=stops(ask.stop),
            is_thinking=bool((ask.chat_template_kwargs or {}).get("enable_thinking")) and ask.separate_reasoning,
            schema=schema(ask.response_format),
            call=_call(ask, prompt),
        )
        for index in range(choices)
    ]


def stops(stop: list[str] | str | None) -> tuple[str, ...]:
    """Return the stop strings."""
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def schema(format_: Any) -> dict[str, Any] | None:
    """Return the schema that the text must fit; {} where any object does, None where any text does."""
    if not isinstance(format_, ResponseFormat) or format_.type == "text":
        return None
    return (format_.json_schema.schema_ if format_.json_schema else None) or {}


def _call(ask: Chat, prompt: str) -> tuple[str, str] | None:
    tools = [tool.model_dump() for tool in ask.tools or []]
    if not tools or ask.tool_choice == "none" or schema(ask.response_format) is not None:
        return None
    name = tools[0]["function"]["name"] if ask.tool_choice == "required" else ask.named_tool
    if name is None and ask.messages[-1].role != "user":
        return None
    return text.tool_call(tools, name, prompt)


def choice_ids(ask: Chat) -> list[str]:
    """Return the id of each choice: the client's own, if there is but one choice."""
    if isinstance(ask.rid, str) and ask.n <= 1:
        return [ask.rid]
    return [uuid.uuid4().hex for _ in range(max(ask.n, 1))]


async def whole(call: Call, ask: Chat) -> Reply:
    """Return the answer that is not streamed."""
    started, ids, prompt = time.monotonic(), choice_ids(ask), prompt_ids(ask)
    choices = await collect(chat_tasks(ask), call.pace_s)
    if ask.n == 0:
        return Reply.of(Refusal("range() arg 3 must not be zero", "BadRequest").body(), 400)
    body: dict[str, Any] = {
        "id": ids[0],
        "object": "chat.completion",
        "created": int(time.time()),
        "model": ask.model,
        "choices": [
            _choice(ask, index, choice) | _extras(ask, ids[index], prompt, choice, started)
            for index, choice in enumerate(choices)
        ],
        "usage": tally(len(prompt) if ask.n > 0 else 0, choices).usage(),
        "metadata": metadata(choices[0].count()),
    }
    if extension := sglext(ask, prompt, [choice.tokens for choice in choices]):
        body["sglext"] = extension
    return Reply.of(body)


def sglext(ask: Chat, prompt: list[int], choices: Sequence[Sequence[Token]]) -> dict[str, Any]:
    """Return sglang's own extension of an answer; {} where nothing of it was asked for."""
    found: dict[str, Any] = {}
    if ask.return_input_ids_in_sglext:
        found["input_ids"] = prompt
    if ask.return_output_ids_in_sglext:
        found["output_ids"] = [token_ids(tokens) for tokens in choices]
    if ask.return_cached_tokens_details:
        found["cached_tokens_details"] = {"device": len(prompt) - 1, "host": 0}
    return found


def _choice(ask: Chat, index: int, choice: Written) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": choice.joined("content"),
        "reasoning_content": choice.joined("reasoning") or None,
    }
    if name := choice.joined("name"):
        message["tool_calls"] = [called(call_id(), name, choice.joined("arguments"))]
    return {
        "index": index,
        "message": message,
        "logprobs": chat_logprobs(choice.tokens, ask.top_logprobs or 0) if ask.logprobs else None,
        "finish_reason": choice.finish.reason,
        "matched_stop": choice.finish.matched,
    }


def _extras(ask: Chat, rid: str, prompt: list[int], choice: Written, started: float) -> dict[str, Any]:
    extras: dict[str, Any] = {}
    if ask.return_prompt_token_ids or ask.return_token_ids:
        extras["prompt_token_ids"] = prompt
    if ask.return_token_ids:
        extras["response_token_ids"] = token_ids(choice.tokens)
    if ask.return_meta_info:
        top = (ask.top_logprobs or 0) if ask.logprobs else None
        extras["meta_info"] = meta_info(rid, len(prompt), choice, top, started)
    return extras


def call_id() -> str:
    """Return a new tool call's id."""
    return f"call_{uuid.uuid4().hex[:24]}"


def called(id_: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    """Return a tool call, or a fragment of one."""
    return {"id": id_, "index": 0, "type": "function", "function": {"name": name, "arguments": arguments}}
