"""The messages of a request: the list of them, their roles, and two of them made one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import AfterValidator

from proxy.matching.values import is_same
from proxy.repairs.conversions import text_of as text_of_json
from proxy.repairs.options import misfit
from proxy.repairs.parts import text_of

INSTRUCTORS: Final = ("system", "developer")
"""The roles that speak for the operator of the client."""

_SAYINGS: Final = ("tool_calls", "function_call", "audio", "reasoning_content", "reasoning", "refusal")
_REASONINGS: Final = ("reasoning_content", "reasoning")


def _sendable(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise misfit([((), "half of a surrogate pair can't be written as JSON")], text)
    return str(text)  # one that knows where it came from becomes a plain one


Text = Annotated[str, AfterValidator(_sendable)]
"""An option that is written into a message."""


def listed(body: Mapping[str, Any], name: str = "messages") -> list[Any]:
    """Return the list in the field; [] where it holds none."""
    value = body.get(name)
    return value if isinstance(value, list) else []


def role_of(message: Any) -> str | None:
    """Return the message's role; None of what is no message."""
    role = message.get("role") if isinstance(message, dict) else None
    return role if isinstance(role, str) else None


def is_instruction(message: Any) -> bool:
    """Return whether the message is a system or developer message."""
    return role_of(message) in INSTRUCTORS


def full_text(message: Any) -> str:
    """Return all text of the message's content, its parts one a line."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        return "\n".join(filter(None, map(text_of, content)))
    return content if isinstance(content, str) else ""


def json_text(value: Any) -> str | None:
    """Return the value's JSON text, or None where it is nested deeper than can be written."""
    try:
        return text_of_json(value)
    except RecursionError:
        return None


def is_empty(message: Any) -> bool:
    """Return whether the message says nothing: no content but empty text, no call, no reasoning."""
    if role_of(message) is None or any(message.get(name) for name in _SAYINGS):
        return False
    content = message.get("content")
    return not content or (isinstance(content, list) and all(text_of(part) == "" for part in content))


def is_joinable(message: Any) -> bool:
    """Return whether the message is one, with content that can be put behind other content."""
    return role_of(message) is not None and isinstance(message.get("content"), str | list | None)


def join(messages: Sequence[Mapping[str, Any]], separator: str) -> tuple[dict[str, Any], list[str]]:
    """Return one message of the first's role that says what all said, and the names of the fields that it can't hold.

    Of the fields beside the content the messages of the first's role have a say: reasoning is joined like text, tool
    calls are put in one list, and of all else the first value stays.
    """
    joined: dict[str, Any] = {}
    lost: list[str] = []
    for name in dict.fromkeys(name for message in messages for name in message):
        values = [message.get(name) for message in messages]
        if name == "role":
            joined[name] = values[0]
        elif name == "content":
            joined[name] = _join_contents(values, separator)
        else:
            own = [message.get(name) for message in messages if message["role"] == messages[0]["role"]]
            if name in messages[0] or any(value is not None for value in own):
                joined[name] = _join_values(name, own, separator)
            lost += [name] if _is_lost(name, values, own, joined.get(name)) else []
    return joined, lost


def _join_values(name: str, values: Sequence[Any], separator: str) -> Any:
    present = [value for value in values if value is not None]
    if _is_list_of(str, present) and name in _REASONINGS:
        return separator.join(filter(None, present))
    if _is_list_of(list, present) and name == "tool_calls":
        return [call for calls in present for call in calls]
    return present[0] if present else None


def _is_lost(name: str, values: Sequence[Any], own: Sequence[Any], joined: Any) -> bool:
    is_joined = name in _REASONINGS or name == "tool_calls"
    if is_joined and len(values) == len(own) and type(joined) in (str, list):
        return any(value is not None and type(value) is not type(joined) for value in own)
    return any(value not in (None, "", []) and not is_same(value, joined) for value in values)


def _is_list_of(kind: type, values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, kind) for value in values)


def _join_contents(contents: Sequence[Any], separator: str) -> Any:
    said = [content for content in contents if content]
    if not said:
        return next((content for content in contents if content is not None), None)
    if _is_list_of(str, said):
        return separator.join(said)
    return [part for content in said for part in (content if isinstance(content, list) else [_text_part(content)])]


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def join_texts(one: str, two: str, separator: str) -> str:
    """Return the texts with the separator between them, unless one is empty."""
    return one + separator + two if one and two else one or two
