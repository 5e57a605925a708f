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
_NOTHING: Final[Mapping[Kind, bytes]] = {"chat": b'"delta":{}', "text": b'"text":""'}
_OF_CHOICE: Final = frozenset({"index", "message", "text", "logprobs", "finish_reason"})
_ENVELOPE: Final = frozenset({*IDENTITY, "choices", "usage"})
_encode: Final = msgspec.json.Encoder().encode


def events_of(answer: Mapping[str, Any], kind: Kind, *, include_usage: bool) -> bytes | None:
    """Return the events that bring this answer, without the sentinel; None where it is not of the usual shape."""
    identity, usage = _identity(answer, kind), answer.get("usage") if include_usage else None
    if identity is None or (include_usage and "usage" in answer and not (usage and isinstance(usage, dict))):
        return None
    try:
        parts = _parts(answer.get("choices"), kind)
        if parts is None:
            return None
        start = b'data: %b,"choices":[' % _encode(identity)[:-1]
        between = b"]}\n\n" + start
        last = b"%b],%b" % (between, _encode({"usage": usage})[1:-1]) if usage else b"]"
        return b"%b%b%b%b}\n\n" % (start, between.join(parts), last, _further(answer, _ENVELOPE))
    except (BackendFault, RecursionError, ValueError):
        return None


def _further(fields: Mapping[str, Any], known: frozenset[str]) -> bytes:
    """Return the fields beside those that are known, as they follow others in an object."""
    if fields.keys() <= known:
        return b""
    return b"," + _encode({key: fields[key] for key in fields if key not in known})[1:-1]


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


def _parts(choices: Any, kind: Kind) -> list[bytes] | None:
    """Return what each chunk has for its one choice: all introductions, then one choice's chunks after the other's.

    Raises: BackendFault, and ValueError or RecursionError where something of it can't be encoded.
    """
    if not isinstance(choices, list) or not 0 < len(choices) <= MAX_CHOICES:
        return None
    introductions: list[bytes] = []
    parts: list[bytes] = []
    for index, choice in enumerate(choices):
        if not _is_usual(choice, index, kind):
            return None
        none = b',"logprobs":null' if "logprobs" in choice else b""
        if kind == "text":
            said = _text(choice)
        else:
            delta, said = _message(choice["message"])
            introductions.append(b'{"index":%d,"delta":%b%b,"finish_reason":null}' % (index, _encode(delta), none))
        # The logprobs ride on the first.
        logprobs = b',"logprobs":' + _encode(choice["logprobs"]) if none else none
        for body in said:
            parts.append(b'{"index":%d,%b%b,"finish_reason":null}' % (index, body, logprobs))
            logprobs = none
        end = index, _NOTHING[kind], logprobs, _encode(choice["finish_reason"]), _further(choice, _OF_CHOICE)
        parts.append(b'{"index":%d,%b%b,"finish_reason":%b%b}' % end)
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


def _text(choice: dict[str, Any]) -> list[bytes]:
    """Return what says a choice's text: nothing where there is neither text nor anything about it."""
    text = choice.get("text")
    return [b'"text":' + _encode(text or "")] if text or choice.get("logprobs") is not None else []


def _message(message: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    """Return the delta that introduces a message, which has what of it says nothing, and those that say the rest.

    Raises: BackendFault.
    """
    introduction: dict[str, Any] = {"role": "assistant"}
    names: list[str] = []
    for name, value in message.items():
        if name == "role":
            continue
        if not value and is_blank(value):
            introduction[name] = value
            continue
        names.append(name)
        if name == "content" and isinstance(value, str):
            introduction[name] = ""
    if len(names) > 1:
        names.sort(key=rank)
    return introduction, [
        b'"delta":' + _encode({name: _calls(message[name]) if name == "tool_calls" else message[name]})
        for name in names
    ]


def _calls(value: Any) -> list[dict[str, Any]]:
    """Return a message's calls as a chunk tells them: each its id, type and name once. Raises: BackendFault."""
    return [{"index": index, **once(call, set())} for index, call in enumerate(whole_calls(value))]
