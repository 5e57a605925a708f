"""sglang's message types; a bad message is told of in the words of every arm of their unions.

Source: recorded refusals m03 to m23 of sglang 0.5.23.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, field_validator, model_validator

_ROLES: Final = ("system", "assistant", "tool", "function", "developer", "latest_reminder", "root")


class ChatCompletionMessageContentTextPart(BaseModel):
    """Text."""

    type: Literal["text"]
    text: str


class ChatCompletionMessageContentThinkingPart(BaseModel):
    """What an assistant thought."""

    type: Literal["thinking", "reasoning"]
    thinking: str | None = None
    text: str | None = None

    @model_validator(mode="after")
    def validate_payload(self) -> ChatCompletionMessageContentThinkingPart:
        """Take any payload; the name is part of the wire."""
        return self


class Url(BaseModel):
    """Where a medium is."""

    url: str


class ChatCompletionMessageContentImagePart(BaseModel):
    """An image."""

    type: Literal["image_url"]
    image_url: Url


class ChatCompletionMessageContentVideoPart(BaseModel):
    """A video."""

    type: Literal["video_url"]
    video_url: Url


class ChatCompletionMessageContentAudioURLPart(BaseModel):
    """Sound at a URL."""

    type: Literal["audio_url"]
    audio_url: Url


class InputAudio(BaseModel):
    """Sound in the request."""

    data: str
    format: Literal["wav", "mp3"]


class ChatCompletionMessageContentAudioInlinePart(BaseModel):
    """Sound in the request, as OpenAI has it."""

    type: Literal["input_audio"]
    input_audio: InputAudio


class ChatCompletionMessageContentToolReferenceBlock(BaseModel):
    """A tool that was found."""

    type: Literal["tool_reference"]
    name: str


def _to_audio_url_part(part: Any) -> Any:
    return part


Audio = Annotated[
    ChatCompletionMessageContentAudioURLPart | ChatCompletionMessageContentAudioInlinePart,
    AfterValidator(_to_audio_url_part),
]
Part = (
    ChatCompletionMessageContentTextPart
    | ChatCompletionMessageContentThinkingPart
    | ChatCompletionMessageContentImagePart
    | ChatCompletionMessageContentVideoPart
    | Audio
    | ChatCompletionMessageContentToolReferenceBlock
)


class FunctionResponse(BaseModel):
    """A call's function."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class ToolCall(BaseModel):
    """A call that an assistant made."""

    id: str | None = None
    index: int | None = None
    type: Literal["function"] = "function"
    function: FunctionResponse


class ChatCompletionMessageGenericParam(BaseModel):
    """A message of anybody but the user."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: list[ToolCall] | None = None

    @field_validator("role", mode="after")
    @classmethod
    def know_role(cls, value: str) -> str:
        """Return the role in lower case, if it is one."""
        if value.lower() not in _ROLES:
            raise ValueError(f"'role' must be one of {', '.join(map(repr, _ROLES))} (case-insensitive).")
        return value.lower()

    @model_validator(mode="after")
    def validate_thinking_parts_role(self) -> ChatCompletionMessageGenericParam:
        """Refuse thoughts of others than the assistant."""
        _refuse_thoughts(self.role, self.content)
        return self


class ChatCompletionMessageUserParam(BaseModel):
    """A message of the user."""

    role: Literal["user"]
    content: str | list[Part]

    @model_validator(mode="after")
    def validate_thinking_parts_role(self) -> ChatCompletionMessageUserParam:
        """Refuse thoughts of the user."""
        _refuse_thoughts(self.role, self.content)
        return self


def _refuse_thoughts(role: str, content: Any) -> None:
    parts = content if isinstance(content, list) else []
    if role != "assistant" and any(isinstance(part, ChatCompletionMessageContentThinkingPart) for part in parts):
        raise ValueError("thinking content parts are only valid in assistant messages")


Message = ChatCompletionMessageGenericParam | ChatCompletionMessageUserParam


def text_of(message: Message) -> str:
    """Return the message's text, its parts joined."""
    if isinstance(message.content, list):
        return "".join(part.text for part in message.content if isinstance(part, ChatCompletionMessageContentTextPart))
    return message.content or ""
