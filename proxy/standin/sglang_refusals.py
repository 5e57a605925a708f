"""What sglang refuses once the types are right: rows of (test → message), in the order in which it looks.

    _validate_request (type BadRequestError) → conversion (BadRequest) → TokenizerManager (BadRequestError)
    → scheduler (in a stream told as an event of a 200)

Source: recorded refusals of sglang 0.5.23; sglang.md §3, §4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from proxy.standin.sglang_grammar import grammar_fault
from proxy.standin.sglang_messages import Message
from proxy.standin.sglang_sampling import sampling_fault
from proxy.standin.sglang_schema import Chat, Completion, ResponseFormat
from proxy.standin.sglang_tools import arguments_fault, tools_fault

CONTEXT_TOKENS: Final = 512


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error answer; a late one comes when a stream's 200 is already out."""

    message: str
    type: str = "BadRequestError"
    status: int = 400
    is_late: bool = False

    def body(self) -> dict[str, Any]:
        """Return the flat error object of an answer that is not streamed."""
        return {
            "object": "error", "message": self.message, "type": self.type, "param": None, "code": self.status,
        }  # fmt: skip


Ask = Chat | Completion
Found = Iterator[str | None]


def refuse(ask: Ask, prompt_tokens: int) -> Refusal | None:
    """Return the first refusal of a request whose types are right."""
    for type_, is_late, look in _PHASES:
        for message in look(ask, prompt_tokens):
            if message is not None:
                return _refusal(message, type_, is_late)
    return None


def _refusal(message: str, type_: str, is_late: bool) -> Refusal:
    if message.startswith("Internal server error"):
        return Refusal(message, "InternalServerError", 500)
    return Refusal(message, type_, is_late=is_late)


def _validate(ask: Ask, _: int) -> Found:
    if isinstance(ask, Completion):
        yield "Prompt cannot be empty" if not ask.prompt else None
        return
    yield "Messages cannot be empty." if not ask.messages else None
    for field in ("return_sampling_mask", "return_flat_raw_output_top_logprobs"):
        if getattr(ask, field) and not ask.return_meta_info:
            yield f"{field} requires return_meta_info=true."
    yield from tools_fault(ask)
    if ask.limit is not None and ask.limit > CONTEXT_TOKENS:
        yield (
            f"max_completion_tokens is too large: {ask.limit}."
            f"This model supports at most {CONTEXT_TOKENS} completion tokens."
        )
    yield _schema_missing(ask)
    yield from (_media(message) for message in ask.messages)
    if "chat_template" in (ask.chat_template_kwargs or {}):
        yield (
            "Request-supplied chat_template is not allowed. "
            "Start the server with --trust-request-chat-template to permit it."
        )
    yield "input_ids cannot be empty." if ask.input_ids == [] else None


def _schema_missing(ask: Ask) -> str | None:
    format_ = ask.response_format
    if not isinstance(format_, ResponseFormat) or format_.type != "json_schema":
        return None
    if format_.json_schema is not None and format_.json_schema.schema_ is not None:
        return None
    return "schema_ is required for json_schema response format request."


def _media(message: Message) -> str | None:
    for part in message.content if isinstance(message.content, list) else []:
        if part.type in ("image_url", "video_url", "audio_url", "input_audio"):
            return f"Model only supports text input; received unsupported content type '{part.type}'."
    return None


_STREAMED: Final = {
    "return_prompt_token_ids": "return_prompt_token_ids is not supported with streaming",
    "return_token_ids": "return_token_ids is not supported with streaming on /v1/chat/completions",
    "return_meta_info": "return_meta_info is not supported with streaming",
}


def _convert(ask: Ask, _: int) -> Found:
    if isinstance(ask, Completion):
        yield _schema_missing(ask)
        return
    yield from (arguments_fault(message) for message in ask.messages)
    for field, fault in _STREAMED.items():
        if ask.stream and getattr(ask, field):
            yield f"{fault}. Please set stream=false when using {field}=true."
    if (ask.tool_choice == "required" or ask.named_tool is not None) and _constrains(ask):
        yield (
            "tool_choice 'required' or a named tool cannot be combined with response_format, regex, or ebnf: "
            "the tool-call constraint and the output constraint cannot both be honored."
        )


def _constrains(ask: Ask) -> bool:
    format_ = ask.response_format
    return bool(ask.regex or ask.ebnf or (format_ is not None and format_.type != "text"))


def _manage(ask: Ask, prompt_tokens: int) -> Found:
    yield _rid(ask)
    for name in ("extra_key", "cache_salt"):
        is_single = isinstance(ask, Chat) or len(ask.prompts) == 1
        yield (
            f"{name} should be a string for a single request."
            if is_single and isinstance(getattr(ask, name), list)
            else None
        )
    adapter = ask.lora_path or ask.model.partition(":")[2]
    if adapter:
        wanted = adapter[0] if isinstance(adapter, list) else adapter
        yield (
            f"LoRA adapter '{wanted}' was requested, but LoRA is not enabled. Please launch the server with "
            "--enable-lora flag and preload adapters using --lora-paths or /load_lora_adapter endpoint."
        )
    yield from _unserved(ask)
    yield from _length(ask, prompt_tokens)
    if getattr(ask, "sampling_logprobs_mode", None) and not getattr(ask, "return_sampling_mask", False):
        yield "sampling_logprobs_mode can only be set when return_sampling_mask=true."
    yield from sampling_fault(ask, ask.limit)


def _rid(ask: Ask) -> str | None:
    if not isinstance(ask.rid, list):
        return None
    size = len(ask.prompts) if isinstance(ask, Completion) else 1
    if size == 1 and ask.n <= 1:
        return "Internal server error: unhashable type: 'list'"
    if len(ask.rid) != size:
        return "The specified rids length mismatch with the batch_size for batch processing."
    return None


def _unserved(ask: Ask) -> Found:
    if ask.return_hidden_states:
        yield (
            "The server is not configured to return hidden states. Please set `--return-hidden-states-mode last`, "
            "`--return-hidden-states-mode full`, or the legacy `--enable-return-hidden-states` flag."
        )
    if ask.custom_logit_processor:
        yield (
            "The server is not configured to enable custom logit processor. "
            "Please set `--enable-custom-logit-processor` to enable this feature."
        )
    if ask.watermark:
        yield "request watermarking requires the server to enable --enable-watermark"
    if ask.routed_dp_rank not in (None, 0):
        yield f"routed_dp_rank={ask.routed_dp_rank} out of range [0, 1)"


def _length(ask: Ask, prompt_tokens: int) -> Found:
    if prompt_tokens >= CONTEXT_TOKENS:
        yield (
            f"The input ({prompt_tokens} tokens) is longer than the model's context length ({CONTEXT_TOKENS} tokens)."
        )
    if ask.limit is not None and prompt_tokens + ask.limit > CONTEXT_TOKENS:
        yield (
            f"Requested token count exceeds the model's maximum context length of {CONTEXT_TOKENS} tokens. "
            f"You requested a total of {prompt_tokens + ask.limit} tokens: {prompt_tokens} tokens from the input "
            f"messages and {ask.limit} tokens for the completion. Please reduce the number of tokens in the input "
            "messages or the completion to fit within the limit."
        )


def _schedule(ask: Ask, _: int) -> Found:
    if getattr(ask, "return_sampling_mask", False) and not 1 <= (ask.top_k or -1) <= 4096:
        yield (
            "return_sampling_mask requires top_k=1 for greedy sampling or finite 1 < top_k <= 4096; "
            "got top_k=1073741824. Lower top_k or increase --sampling-mask-max-tokens."
        )
    yield grammar_fault(ask)


_PHASES: Final[tuple[tuple[str, bool, Callable[[Ask, int], Found]], ...]] = (
    ("BadRequestError", False, _validate),
    ("BadRequest", False, _convert),
    ("BadRequestError", False, _manage),
    ("BadRequestError", True, _schedule),
)
