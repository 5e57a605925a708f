"""A whole answer of the usual shape → the events that a stream would have brought, made at once.

    answer ── explode ──► chunks ── Merger of one branch ──► chunks ──► events      any answer
    answer ── events_of ────────────────────────────────────────────► events      a usual one, the same to the byte

What is unusual (a failure, no id, other indexes, a choice that has not ended) is left to those two.

Source: as in `answers` and `merge`; tests/properties/test_prop_exploded.py holds it to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from proxy.answers import introduction, parts_of
from proxy.chunks import FAILED_FINISHES, IDENTITY, OBJECTS, Kind
from proxy.errors import BackendFault
from proxy.merge import MAX_CHOICES, once

_WHOLE: Final[Mapping[Kind, str]] = {"chat": "chat.completion", "text": "text_completion"}
_ENVELOPE: Final = frozenset({*IDENTITY, "choices", "usage"})
_ENCODER: Final = msgspec.json.Encoder()


def events_of(answer: Mapping[str, Any], kind: Kind, *, include_usage: bool) -> bytes | None:
    """Return the events that bring this answer, without the sentinel; None where it is not of the usual shape."""
    identity = _identity(answer, kind)
    parts = _parts(answer.get("choices"), kind) if identity is not None else None
    if identity is None or parts is None:
        return None
    chunks: list[dict[str, Any]] = [{**identity, "choices": [part]} for part in parts]
    rest = {} if answer.keys() <= _ENVELOPE else {key: answer[key] for key in answer if key not in _ENVELOPE}
    if not (include_usage and "usage" in answer):
        chunks[-1] |= rest
        return _encoded(chunks)
    usage = answer["usage"]
    if not usage or not isinstance(usage, dict):
        return None
    return _encoded([*chunks, {**identity, "choices": [], "usage": usage, **rest}])


def _identity(answer: Mapping[str, Any], kind: Kind) -> dict[str, Any] | None:
    """Return what every chunk bears; None where something of it would have to be made up."""
    told, created, model = answer.get("id"), answer.get("created"), answer.get("model")
    if not (told and type(told) is str and created and type(created) is int and model and type(model) is str):
        return None
    if answer.get("object") != _WHOLE[kind] or "error" in answer:
        return None
    identity = {"id": told, "object": OBJECTS[kind], "created": created, "model": model}
    if "system_fingerprint" in answer:
        identity["system_fingerprint"] = answer["system_fingerprint"]
    return identity


def _parts(choices: Any, kind: Kind) -> list[dict[str, Any]] | None:
    """Return what each chunk has for its one choice: all introductions, then one choice's chunks after the other's."""
    if not isinstance(choices, list) or not 0 < len(choices) <= MAX_CHOICES:
        return None
    parts: list[dict[str, Any]] = []
    try:
        for index, choice in enumerate(choices):
            if not _is_usual(choice, index):
                return None
            if kind == "chat":
                parts.insert(index, _introduction(index, choice))
            parts += [part for part in parts_of(index, choice, kind) if _is_new(part)]
    except BackendFault:
        return None
    return parts


def _is_usual(choice: Any, index: int) -> bool:
    """Return whether a choice stands in its place, has ended well, and holds nothing that is joined in a way apart."""
    if not isinstance(choice, dict) or choice.get("index") != index or "delta" in choice:
        return False
    finish, message = choice.get("finish_reason"), choice.get("message")
    if isinstance(message, dict) and message.get("function_call"):
        return False
    return bool(finish) and finish not in FAILED_FINISHES


def _introduction(index: int, choice: Mapping[str, Any]) -> dict[str, Any]:
    part = introduction(index, choice)
    part["delta"]["role"] = "assistant"
    return part


def _is_new(part: dict[str, Any]) -> bool:
    """Return whether a part tells something; its tool calls are made to tell each thing once."""
    delta = part.get("delta")
    if delta is None:
        return bool(part["text"] or part["finish_reason"] or part.get("logprobs") is not None)
    if "tool_calls" in delta:
        delta["tool_calls"] = [once(call, set()) | {"index": call["index"]} for call in delta["tool_calls"]]
    return True


def _encoded(chunks: list[dict[str, Any]]) -> bytes | None:
    try:
        lines = _ENCODER.encode_lines(chunks)
    except (UnicodeEncodeError, RecursionError, ValueError):
        return None
    # No line of JSON has a line's end in it.
    return b"data: %b\n\n" % lines[:-1].replace(b"\n", b"\n\ndata: ")
