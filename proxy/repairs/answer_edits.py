"""Edits of an answer that no field repair can make: they remember what earlier chunks said, or what the request did.

An edit is made anew for each branch, and gets each chunk of its stream, or its one JSON answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec
from pydantic import Field, RootModel

from proxy.matching.values import is_integer
from proxy.repairs.card import Draft
from proxy.repairs.options import STRICT, Options, Where
from proxy.repairs.places import compile_where

Edit = Callable[[dict[str, Any], bool], dict[str, Any]]
"""(answer or chunk, whether it is a chunk) → it edited; {} where nothing of a chunk is to be sent."""

MakeEdit = Callable[[], Edit]

_BODIES: Final = ("message", "delta")
_CALLS: Final = ("tool_calls", "function_call")


class FinishWithCalls(RootModel[Literal["tool_calls", "function_call"]]):
    """The finish_reason of a choice that called a tool and says `stop`."""

    model_config = STRICT

    root: Literal["tool_calls", "function_call"] = Field(description="The finish_reason to write.")


class JoinParts(Options):
    """How a content that is a list of parts becomes text."""

    reasoning: str = Field(
        default="reasoning_content", min_length=1, description="The field of the message that the thinking goes to."
    )


class SkipChunks(RootModel[Where]):
    """Which chunks are not sent."""

    model_config = STRICT

    root: Where = Field(description="Tests on the chunk by path; it is skipped where all hold.")


class EchoPrompt(RootModel[Literal[True]]):
    """Put the prompt before the text, as `echo` asks."""

    model_config = STRICT

    root: Literal[True] = Field(description="true")


def with_choices(answer: dict[str, Any], edit: Callable[[int, dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Return the answer, or chunk, each of its choices edited; what is no choice stays."""
    choices = answer.get("choices")
    if not isinstance(choices, list):
        return answer
    edited = [
        edit(_index(choice, position), choice) if isinstance(choice, dict) else choice
        for position, choice in enumerate(choices)
    ]
    return answer | {"choices": edited}


def _index(choice: Mapping[str, Any], position: int) -> int:
    index = choice.get("index")
    return index if type(index) is int and index >= 0 else position


def _body(choice: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name and the value of what holds the choice's text and calls."""
    return next(((name, choice[name]) for name in _BODIES if isinstance(choice.get(name), dict)), ("", {}))


def finish_with_calls(options: FinishWithCalls) -> MakeEdit:
    """Return what makes the edit."""

    def make() -> Edit:
        called: set[int] = set()

        def edit(index: int, choice: dict[str, Any]) -> dict[str, Any]:
            _, body = _body(choice)
            if any(body.get(name) for name in _CALLS):
                called.add(index)
            is_wrong = index in called and choice.get("finish_reason") == "stop"
            return choice | {"finish_reason": options.root} if is_wrong else choice

        return lambda answer, _: with_choices(answer, edit)

    return make


def join_parts(options: JoinParts) -> MakeEdit:
    """Return what makes the edit."""

    def edit(_: int, choice: dict[str, Any]) -> dict[str, Any]:
        name, body = _body(choice)
        parted = _parted(body.get("content"))
        if parted is None:
            return choice
        text, thinking = parted
        told = body.get(options.reasoning)
        reasoning = {options.reasoning: (told if isinstance(told, str) else "") + thinking} if thinking else {}
        return choice | {name: body | reasoning | {"content": text}}

    return lambda: lambda answer, _: with_choices(answer, edit)


def _parted(content: Any) -> tuple[str, str] | None:
    """Return the text and the thinking of a list of parts; None where it holds anything else."""
    if not isinstance(content, list):
        return None
    text, thinking = "", ""
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else "text"
        told = part.get(kind) if isinstance(part, dict) and kind in ("text", "thinking") else part
        if kind == "thinking" and isinstance(told, list):
            told = "".join(inner for inner, _ in map(_parted_one, told))
        if not isinstance(told, str):
            return None
        text, thinking = (text, thinking + told) if kind == "thinking" else (text + told, thinking)
    return text, thinking


def _parted_one(part: Any) -> tuple[str, str]:
    return _parted([part]) or ("", "")


def skip_chunks(options: SkipChunks) -> MakeEdit:
    """Return what makes the edit."""
    holds = compile_where(options.root)
    return lambda: lambda answer, is_chunk: {} if is_chunk and holds and holds(answer, answer) else answer


class Echo(msgspec.Struct, frozen=True):
    """Makes the edit that puts the prompts before the texts; each prompt has `n` choices."""

    prompts: tuple[str, ...]
    n: int

    @classmethod
    def of(cls, draft: Draft) -> Echo | None:
        """Return the echo that the request asks for; None where it asks for none, or its prompts are no text."""
        prompt: Any = draft.body.get("prompt")
        prompts = prompt if isinstance(prompt, list) else [prompt]
        n: Any = draft.body.get("n")
        if draft.body.get("echo") is not True or not all(isinstance(item, str) for item in prompts):
            return None
        return cls(tuple(prompts), int(n) if is_integer(n) and n > 0 else 1)

    def __call__(self) -> Edit:
        """Return the edit."""
        begun: set[int] = set()

        def edit(index: int, choice: dict[str, Any]) -> dict[str, Any]:
            text, prompts = choice.get("text"), self.prompts[index // self.n :]
            if index in begun or not isinstance(text, str) or not prompts:
                return choice
            begun.add(index)
            return choice | {"text": prompts[0] + text}

        return lambda answer, _: with_choices(answer, edit)
