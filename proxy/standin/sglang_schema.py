"""sglang's request types, so far as a refusal can tell: pydantic words every type error as the real server does.

The names of classes, validators and fields show in the refusals' `loc`, and their order is the order of the errors.

Source: recorded refusals of sglang 0.5.23; sglang.md §4.2, §4.5 to §4.7.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    StrictBool,
    field_validator,
    model_validator,
)

from proxy.standin.sglang_messages import Message

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"]


class StreamOptions(BaseModel):
    """What rides on a stream."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class JsonSchemaResponseFormat(BaseModel):
    """A named JSON schema."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] | None = Field(alias="schema", default=None)
    strict: StrictBool | None = False


class ResponseFormat(BaseModel):
    """OpenAI's response formats; the schema may also stand at the top."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaResponseFormat | None = None

    @model_validator(mode="before")
    @classmethod
    def lift_schema(cls, values: Any) -> Any:
        """Accept `{"type": "json_schema", "schema": …}`."""
        if isinstance(values, dict) and "schema" in values and "json_schema" not in values:
            return values | {"json_schema": {"name": "schema", "schema": values["schema"]}}
        return values


class LegacyStructuralTagResponseFormat(BaseModel):
    """xgrammar's older structural tags."""

    type: Literal["structural_tag"]
    structures: list[Any]
    triggers: list[str]


class StructuralTag(BaseModel):
    """xgrammar's structural tags."""

    type: Literal["structural_tag"] = "structural_tag"
    format: Any


class Function(BaseModel):
    """A tool's function."""

    description: str | None = None
    name: str
    parameters: dict[str, Any] | None = None
    strict: bool = False


class Tool(BaseModel):
    """A tool; its type is not looked at."""

    type: str = "function"
    function: Function


class ToolChoiceFuncName(BaseModel):
    """The tool that must be called."""

    name: str | None = None


class ToolChoice(BaseModel):
    """One named tool."""

    function: ToolChoiceFuncName
    type: Literal["function"] = "function"


AnyFormat = ResponseFormat | LegacyStructuralTagResponseFormat | StructuralTag


class Shared(BaseModel):
    """What both endpoints take alike."""

    model: str = "default"
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] | None = None
    n: int = 1
    presence_penalty: float = 0.0
    response_format: AnyFormat | None = None
    seed: int | None = None
    stop: list[str] | str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    min_tokens: int = 0
    regex: str | None = None
    ebnf: str | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: list[str] | str | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    lora_path: list[str | None] | str | None = None
    rid: list[str] | str | None = None
    extra_key: list[str] | str | None = None
    cache_salt: list[str] | str | None = None
    priority: int | None = None
    custom_logit_processor: list[str | None] | str | None = None
    watermark: Any = None
    routed_dp_rank: int | None = None
    return_hidden_states: bool | Literal["last"] = False
    return_token_ids: bool = False


class Chat(Shared):
    """POST /v1/chat/completions."""

    messages: list[Message]
    logprobs: bool = False
    top_logprobs: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | Literal["auto", "required", "none"] | None = "auto"
    parallel_tool_calls: bool = True
    reasoning_effort: Effort | Annotated[float, Field(ge=0, le=0.99)] | None = None
    separate_reasoning: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    input_ids: list[int] | None = None
    task: Literal["action", "query", "authority", "domain", "title", "read_url"] | None = None
    return_meta_info: bool = False
    return_prompt_token_ids: bool = False
    return_flat_raw_output_top_logprobs: bool = False
    return_sampling_mask: bool = False
    return_input_ids_in_sglext: bool = False
    return_output_ids_in_sglext: bool = False
    return_cached_tokens_details: bool = False
    sampling_logprobs_mode: str | None = None

    @field_validator("reasoning_effort", mode="before")
    @classmethod
    def refuse_boolean_effort(cls, value: Any) -> Any:
        """Refuse true and false, which would pass for numbers."""
        if isinstance(value, bool):
            raise ValueError("reasoning_effort must not be a boolean")
        return value

    @model_validator(mode="before")
    @classmethod
    def fill_in(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Read OpenRouter's `reasoning`, and choose no tool where there is none."""
        reasoning = values.get("reasoning")
        effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
        if effort is not None and effort not in get_args(Effort):
            raise ValueError(f"invalid reasoning effort: {effort!r}")
        if values.get("tool_choice") is None:
            return values | {"tool_choice": "auto" if values.get("tools") else "none"}
        return values

    @property
    def limit(self) -> int | None:
        """The most tokens to generate; `max_completion_tokens` goes first, and 0 there is none."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def named_tool(self) -> str | None:
        """The one tool that must be called."""
        return self.tool_choice.function.name if isinstance(self.tool_choice, ToolChoice) else None


def _positive(value: int) -> int:
    if value <= 0:
        raise ValueError("max_tokens must be positive")
    return value


class Completion(Shared):
    """POST /v1/completions."""

    prompt: list[int] | list[list[int]] | str | list[str]
    echo: bool = False
    logprobs: int | None = None
    max_tokens: Annotated[int, AfterValidator(_positive)] = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @property
    def limit(self) -> int | None:
        """The most tokens to generate."""
        return self.max_tokens

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """Every prompt, as text or token ids."""
        prompt: Any = self.prompt
        is_one = isinstance(prompt, str) or (prompt != [] and isinstance(prompt[0], int))
        found: list[str] | list[list[int]] = [prompt] if is_one else prompt
        return found
