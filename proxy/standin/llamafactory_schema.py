"""LlamaFactory's request types, so far as a refusal can tell; pydantic words the errors as the real server does.

Unknown fields are ignored at every level, among them `seed`, `stream_options`, `tool_choice` and `response_format`.

Source: recorded refusals 06 to 08, 20 of LlamaFactory 0.9.5; llamafactory.md §1.4.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel


class Role(StrEnum):
    """Who may speak."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    FUNCTION = "function"
    TOOL = "tool"


class FunctionDefinition(BaseModel):
    """A tool's function; all three are due."""

    name: str
    description: str
    parameters: dict[str, Any]


class FunctionAvailable(BaseModel):
    """A tool."""

    type: Literal["function", "code_interpreter"] = "function"
    function: FunctionDefinition | None = None


class CalledFunction(BaseModel):
    """A call's function."""

    name: str
    arguments: str


class FunctionCall(BaseModel):
    """A call that an assistant made."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Url(BaseModel):
    """Where a medium is."""

    url: str
    detail: Literal["auto", "low", "high"] = "auto"


class MultimodalInputItem(BaseModel):
    """A part of a message."""

    type: Literal["text", "image_url", "video_url", "audio_url"]
    text: str | None = None
    image_url: Url | None = None
    video_url: Url | None = None
    audio_url: Url | None = None

    @property
    def medium(self) -> Url | None:
        """Where the part's medium is; None for text."""
        return self.image_url or self.video_url or self.audio_url


class ChatMessage(BaseModel):
    """A message."""

    role: Role
    content: str | list[MultimodalInputItem] | None = None
    tool_calls: list[FunctionCall] | None = None

    @property
    def parts(self) -> list[MultimodalInputItem]:
        """The message's parts; none where it is text or nothing."""
        return self.content if isinstance(self.content, list) else []

    @property
    def text(self) -> str:
        """The message's text, its parts joined."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text or "" for part in self.parts)


class Chat(BaseModel):
    """POST /v1/chat/completions."""

    model: str
    messages: list[ChatMessage]
    tools: list[FunctionAvailable] | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int = 1
    presence_penalty: float | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False


class Score(BaseModel):
    """POST /v1/score/evaluation."""

    model: str
    messages: list[str]
    max_length: int | None = None
