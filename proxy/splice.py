"""Events of a branch that differ from one before in their text alone: merged by their bytes, and not decoded.

    {"id":"b","choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}]}      decoded, merged, and learned
    └──────────────── prefix ───────────────────────────┘     └────── suffix ───────┘
    data: {"id":"a", … "choices":[{"index":2,"delta":{"content":"Hel"}, … }]}              what was made of it
    └──────────────── before ──────────────────────────────────┘     └─ after ┘

A later event with the same prefix and suffix says the same but for the text between them, which is one JSON string, so
the same is made of it. Whatever else it is (a role, a finish_reason, a usage, a tool call, an error, another spelling)
has other bytes there, and is decoded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from proxy import sse
from proxy.chunks import Kind, is_blank
from proxy.merge import further_fields

_STRING = msgspec.json.Decoder(str)
_STANDING_IN: Final = b"9d3c41f2-the-text-goes-here"
# Streams whose events differ in more than their text (logprobs, token ids) are not learned from again and again.
_MOST_VAIN: Final = 64


@dataclass(frozen=True, slots=True)
class Template:
    """What an event was, around its text, and what was made of it. `rest`: its further fields."""

    prefix: bytes
    suffix: bytes
    before: bytes
    after: bytes
    rest: Mapping[str, Any]


class Spliced(msgspec.Struct, frozen=True):
    """An event that is ready to be written, of a chunk that nobody decoded."""

    data: bytes
    rest: Mapping[str, Any]


class Splicer:
    """Learns from the events of one branch, and merges those that are alike."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._template: Template | None = None
        self._vain = 0  # templates that were of no use, one after the other
        self._wait = 0  # for how many events no other is made

    def splice(self, event: sse.Event) -> Spliced | None:
        """Return what is made of an event, or None where it has to be decoded."""
        template = self._template
        if template is None or event.event:
            return None
        data, prefix, suffix = event.data, template.prefix, template.suffix
        if not data.startswith(prefix) or not data.endswith(suffix):
            return None
        try:
            text = _STRING.decode(data[len(prefix) : len(data) - len(suffix)])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if not text:
            return None
        self._vain = 0
        return Spliced(b"%b%b%b" % (template.before, msgspec.json.encode(text), template.after), template.rest)

    def learn(self, data: bytes, chunk: Mapping[str, Any], merged: Sequence[Mapping[str, Any]]) -> None:
        """Take in an event, the chunk that it holds, and the chunks that were made of it."""
        if self._wait:
            self._wait -= 1
            return
        template = _template(data, chunk, merged, self._kind)
        if template is not None:
            self._template = template
            self._vain += 1
            self._wait = min(self._vain, _MOST_VAIN) - 1


def _template(
    data: bytes, chunk: Mapping[str, Any], merged: Sequence[Mapping[str, Any]], kind: Kind
) -> Template | None:
    """Return what an event was and what was made of it, where it is one that others can be like."""
    name = _speaking(chunk, kind)
    if name is None or len(merged) != 1 or len(merged[0]["choices"]) != 1:
        return None
    found = list(re.finditer(rb'"%b"\s*:\s*("(?:[^"\\]|\\.)*")' % re.escape(name.encode()), data))
    if len(found) != 1:
        return None
    prefix, suffix = data[: found[0].start(1)], data[found[0].end(1) :]
    # A name that is spelt with escapes hides from the search, so what was found is tried.
    if _read(prefix + b'"%b"' % _STANDING_IN + suffix) != _with_text(chunk, name, kind):
        return None
    before, _, after = msgspec.json.encode(_with_text(merged[0], name, kind)).partition(b'"%b"' % _STANDING_IN)
    if not after or _STANDING_IN in after:
        return None
    return Template(prefix, suffix, sse.encode(before)[: -len(b"\n\n")], after + b"\n\n", further_fields(chunk))


def _speaking(chunk: Mapping[str, Any], kind: Kind) -> str | None:
    """Return the name of the field that a chunk's one choice says some text in, where it does nothing else."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or chunk.get("usage") is not None:
        return None
    choice = choices[0]
    if choice.get("finish_reason"):
        return None
    if kind == "text":
        return "text" if isinstance(choice.get("text"), str) and choice["text"] else None
    delta = choice.get("delta")
    if not isinstance(delta, dict) or delta.get("tool_calls") or delta.get("function_call"):
        return None
    said = [name for name, value in delta.items() if name != "role" and not is_blank(value)]
    return said[0] if len(said) == 1 and isinstance(delta[said[0]], str) else None


def _with_text(chunk: Mapping[str, Any], name: str, kind: Kind) -> dict[str, Any]:
    choice = chunk["choices"][0]
    said = {name: _STANDING_IN.decode()}
    new = choice | said if kind == "text" else choice | {"delta": choice["delta"] | said}
    return {**chunk, "choices": [new]}


def _read(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
