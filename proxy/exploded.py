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

from proxy.answers import rank, whole_calls
from proxy.chunks import FAILED_FINISHES, IDENTITY, OBJECTS, Kind, is_blank
from proxy.errors import BackendFault
from proxy.merge import MAX_CHOICES, once

_WHOLE: Final[Mapping[Kind, str]] = {"chat": "chat.completion", "text": "text_completion"}
_NOTHING: Final[Mapping[Kind, dict[str, Any]]] = {"chat": {"delta": {}}, "text": {"text": ""}}
_OF_CHOICE: Final = frozenset({"index", "message", "text", "logprobs", "finish_reason"})
_ENVELOPE: Final = frozenset({*IDENTITY, "choices", "usage"})
_ENCODER: Final = msgspec.json.Encoder()


def events_of(answer: Mapping[str, Any], kind: Kind, *, include_usage: bool) -> bytes | None:
    """Return the events that bring this answer, without the sentinel; None where it is not of the usual shape."""
    identity = _identity(answer, kind)
    if identity is None:
        return None
    try:
        parts = _parts(answer.get("choices"), kind)
    except BackendFault:
        return None
    if parts is None:
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
    introductions: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for index, choice in enumerate(choices):
        if not _is_usual(choice, index, kind):
            return None
        blank = {"logprobs": None} if "logprobs" in choice else {}
        if kind == "text":
            said = _text(choice)
        else:
            delta, said = _message(choice["message"])
            introductions.append({"index": index, "delta": delta, **blank, "finish_reason": None})
        told = [{"index": index, **body, **blank, "finish_reason": None} for body in said]
        told.append({"index": index, **_NOTHING[kind], **blank, "finish_reason": choice["finish_reason"]})
        if blank:
            told[0]["logprobs"] = choice["logprobs"]
        if not choice.keys() <= _OF_CHOICE:
            told[-1] |= {key: choice[key] for key in choice if key not in _OF_CHOICE}
        parts += told
    return introductions + parts


def _is_usual(choice: Any, index: int, kind: Kind) -> bool:
    """Return whether a choice stands in its place, has ended well, and holds nothing that is joined in a way apart."""
    if not isinstance(choice, dict) or choice.get("index") != index or "delta" in choice:
        return False
    finish = choice.get("finish_reason")
    if not finish or finish in FAILED_FINISHES:
        return False
    message = choice.get("message")
    return kind == "text" or (isinstance(message, dict) and not message.get("function_call"))


def _text(choice: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts that say a choice's text: none where there is neither text nor anything about it."""
    text = choice.get("text")
    return [{"text": text or ""}] if text or choice.get("logprobs") is not None else []


def _message(message: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the delta that introduces a message, which has what of it says nothing, and the parts that say the rest.

    Raises: BackendFault.
    """
    introduction: dict[str, Any] = {"role": "assistant"}
    names: list[str] = []
    for name, value in message.items():
        if name == "role":
            continue
        if is_blank(value):
            introduction[name] = value
            continue
        names.append(name)
        if name == "content" and isinstance(value, str):
            introduction[name] = ""
    if len(names) > 1:
        names.sort(key=rank)
    return introduction, [{"delta": {name: _said(name, message[name])}} for name in names]


def _said(name: str, value: Any) -> Any:
    """Return what a chunk says of a field of a message; each call tells its id, type and name once."""
    if name == "tool_calls":
        return [{"index": index, **once(call, set())} for index, call in enumerate(whole_calls(value))]
    return value


def _encoded(chunks: list[dict[str, Any]]) -> bytes | None:
    try:
        lines = _ENCODER.encode_lines(chunks)
    except (UnicodeEncodeError, RecursionError, ValueError):
        return None
    # No line of JSON has a line's end in it.
    return b"data: %b\n\n" % lines[:-1].replace(b"\n", b"\n\ndata: ")
