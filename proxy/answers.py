"""Completion JSON ⇄ chunks.

    answer → `explode` → chunks → `Collector` → answer

What is handed in is never changed; what is handed out shares values with it.

Source: as in `chunks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from proxy.chunks import (
    IDENTITY,
    OBJECTS,
    Kind,
    choices_of,
    failure_of,
    indexed_choices,
    invalid,
    is_blank,
    kind_of,
    require_finished,
)
from proxy.chunks import text as text_of
from proxy.usage import join_usage

__all__ = ["Collector", "ToolSlots", "explode", "join_usage", "rank", "whole_calls", "with_text_arguments"]

_Fields = dict[str, Any]

_WHOLE: Final = frozenset({"index", "message", "text", "logprobs", "finish_reason"})
_RANKS: Final = {"content": 1, "refusal": 2, "tool_calls": 4, "function_call": 5}


def explode(answer: Mapping[str, Any], *, include_usage: bool) -> list[dict[str, Any]]:
    """Return the chunks that a stream would have brought.

    Shape: a role chunk for each choice, in order; then for each choice its deltas and its finish chunk, which carries
    the choice's further fields; then the usage. The answer's further fields ride on the last chunk.
    Raises: BackendFault, where the answer tells of a failure or is none.
    """
    fault = failure_of(answer)
    if fault:
        raise fault
    choices = sorted(choices_of(answer), key=lambda pair: pair[0])
    kind = kind_of(answer, choices)
    head = {key: answer[key] for key in IDENTITY if key in answer} | {"object": OBJECTS[kind]}
    parts = [] if kind == "text" else [_introduction(index, choice) for index, choice in choices]
    for index, choice in choices:
        parts += _parts(index, choice, kind)
    chunks = [{**head, "choices": [part]} for part in parts]
    rest = {key: value for key, value in answer.items() if key not in (*IDENTITY, "choices", "usage")}
    if include_usage and "usage" in answer:
        usage = {"usage": answer["usage"]}
        if usage["usage"] is not None:
            return [*chunks, {**head, "choices": [], **usage, **rest}]
        rest = usage | rest
    if rest:
        last = chunks.pop() if chunks else {**head, "choices": []}
        chunks.append(last | rest)
    return chunks


def _message(choice: Mapping[str, Any]) -> dict[str, Any]:
    message = choice.get("message")
    if message is None:
        return {}
    if not isinstance(message, dict):
        raise invalid("a choice's message is no object")
    return message


def _introduction(index: int, choice: Mapping[str, Any]) -> dict[str, Any]:
    message = _message(choice)
    delta: dict[str, Any] = {"role": message.get("role") or "assistant"}
    for key, value in message.items():
        if key == "content" and isinstance(value, str):
            delta[key] = ""
        elif key != "role" and is_blank(value):
            delta[key] = value
    return {"index": index, "delta": delta, **_no_logprobs(choice), "finish_reason": None}


def _no_logprobs(choice: Mapping[str, Any]) -> dict[str, Any]:
    return {"logprobs": None} if "logprobs" in choice else {}


def _parts(index: int, choice: Mapping[str, Any], kind: Kind) -> list[dict[str, Any]]:
    """Return a choice's chunks after its introduction. The logprobs ride on the first."""
    rest = {} if choice.keys() <= _WHOLE else {key: choice[key] for key in choice if key not in _WHOLE}
    bodies: list[dict[str, Any]]
    empty: dict[str, Any]
    if kind == "text":
        bodies, empty = [{"text": choice.get("text") or ""}], {"text": ""}
    else:
        bodies, empty = [{"delta": delta} for delta in _deltas(_message(choice))], {"delta": {}}
    blank = _no_logprobs(choice)
    parts = [{"index": index, **body, **blank, "finish_reason": None} for body in bodies]
    parts.append({"index": index, **empty, **blank, "finish_reason": choice.get("finish_reason") or None, **rest})
    if blank:
        parts[0]["logprobs"] = choice["logprobs"]
    return parts


def rank(name: str) -> int:
    """Return which of a message's fields a stream brings before which."""
    return 0 if name.startswith("reasoning") else _RANKS.get(name, 3)


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    said = [name for name, value in message.items() if name != "role" and not is_blank(value)]
    if len(said) > 1:
        said.sort(key=rank)
    for name in said:
        value = message[name]
        if name == "tool_calls":
            yield {name: [{"index": index, **call} for index, call in enumerate(whole_calls(value))]}
        elif name == "function_call" and isinstance(value, dict):
            yield {name: with_text_arguments(value)}
        else:
            yield {name: value}


def whole_calls(value: Any) -> Iterator[dict[str, Any]]:
    """Yield a message's calls as chunks tell them, but for their indexes. Raises: BackendFault."""
    if not isinstance(value, list) or not all(isinstance(call, dict) for call in value):
        raise invalid("its tool_calls are no list of objects")
    for call in value:
        yield _complete({key: part for key, part in call.items() if key != "index"})


def _complete(call: _Fields) -> _Fields:
    """Return a whole call of a function with what every client reads of it: a type, and arguments that are text."""
    function = call.get("function")
    if not isinstance(function, dict):
        return call
    arguments = {"arguments": ""} if function.get("arguments") is None else {}
    return call | {"type": call.get("type") or "function", "function": with_text_arguments(function) | arguments}


def with_text_arguments(function: dict[str, Any]) -> dict[str, Any]:
    """Return a function with its arguments as JSON text, which some backends leave an object."""
    arguments = function.get("arguments")
    if isinstance(arguments, (dict, list)):
        return function | {"arguments": text_of(arguments)}
    return function


class ToolSlots:
    """Tells which call of a choice a fragment belongs to, also where indexes are missing or all the same."""

    def __init__(self) -> None:
        self._by_id: dict[str, int] = {}
        self._by_index: dict[int, int] = {}  # where the fragments of a told index go now
        self._ids: dict[int, str] = {}
        self._names: dict[int, str] = {}
        self._indexes: dict[int, int] = {}
        self._last = -1
        self._next = 0

    def find(self, call: Mapping[str, Any], position: int, count: int) -> int:
        """Return the index of the call that the fragment at `position` of `count` continues or begins."""
        told, index = call.get("id"), call.get("index")
        name = _name_of(call)
        if type(index) is int and index >= 0:
            slot = self._numbered(index, told, name)
            self._by_index[index] = slot
            self._indexes.setdefault(slot, index)
        else:
            slot = self._guess(told, name, position if count > 1 else None)
        if told and isinstance(told, str):
            self._by_id.setdefault(told, slot)
            self._ids.setdefault(slot, told)
        if name:
            self._names.setdefault(slot, name)
        self._last = slot
        self._next = max(self._next, slot + 1)
        return slot

    def _numbered(self, index: int, told: Any, name: str) -> int:
        """Gemini numbers all of its calls 0; LM Studio gives each fragment of a call an id of its own, but no name."""
        slot = self._by_index.get(index, index)
        if not isinstance(told, str) or not told or self._ids.get(slot, told) == told:
            return slot
        known = self._by_id.get(told)
        if known is not None and self._indexes.get(known) == index:
            return known
        return self._next if name else slot

    def _guess(self, told: Any, name: str, position: int | None) -> int:
        if told:
            return self._by_id.get(told, self._next) if isinstance(told, str) else self._next
        if position is not None:
            return position
        is_another = name and self._names.get(self._last, name) != name
        return self._next if is_another or self._last < 0 else self._last


def _name_of(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


class _Text:
    """A string that comes in fragments; joined once, so that a long one costs no more than its length."""

    __slots__ = ("fragments",)

    def __init__(self, first: str) -> None:
        self.fragments = [first]


_NESTED: Final = ("function", "custom", "function_call")


def _keep(fields: _Fields, key: str, value: Any) -> None:
    """Lists grow, else the last value wins; null is no value where there was one."""
    old = fields.get(key)
    if value is None:
        fields.setdefault(key, None)
    elif isinstance(value, list):
        if isinstance(old, list):
            old.extend(value)
        else:
            fields[key] = value.copy()
    else:
        fields[key] = value


def _append(fields: _Fields, key: str, value: Any) -> None:
    """As `_keep`, but a string is a fragment."""
    old = fields.get(key)
    if not isinstance(value, str):
        _keep(fields, key, value)
    elif isinstance(old, _Text):
        old.fragments.append(value)
    else:
        fields[key] = _Text(value)


def _join_call(fields: _Fields, call: Mapping[str, Any]) -> None:
    """Add a fragment of a call: names count once, arguments grow."""
    for key, value in call.items():
        if key in ("id", "type", "name"):
            if key not in fields or (value and not fields[key]):
                fields[key] = value
        elif key in ("arguments", "input"):
            _append(fields, key, text_of(value) if isinstance(value, (dict, list)) else value)
        elif key in _NESTED and isinstance(value, dict):
            if not isinstance(fields.get(key), dict):
                fields[key] = {}
            _join_call(fields[key], value)
        elif key != "index":
            _keep(fields, key, value)


def _joined(fields: _Fields) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in fields.items():
        if isinstance(value, _Text):
            result[key] = "".join(value.fragments)
        elif key in _NESTED and isinstance(value, dict):
            result[key] = _joined(value)
        else:
            result[key] = value
    return result


class _Choice:
    """One choice while its chunks come in."""

    def __init__(self) -> None:
        self._fields: _Fields = {}
        self._message: _Fields = {}
        self._calls: dict[int, _Fields] = {}
        self._slots = ToolSlots()

    def feed(self, choice: Mapping[str, Any]) -> None:
        for key, value in choice.items():
            if key == "delta":
                if isinstance(value, dict):
                    self._delta(value)
            elif key == "text":
                _append(self._message, key, value)
            elif key == "finish_reason":
                _keep(self._fields, key, value or None)
            elif key == "logprobs" and isinstance(value, dict):
                self._logprobs(value)
            elif key != "index":
                _keep(self._fields, key, value)

    def _delta(self, delta: Mapping[str, Any]) -> None:
        for key, value in delta.items():
            if key == "role":
                self._message["role"] = self._message.get("role") or value
            elif key == "tool_calls" and isinstance(value, list):
                self._message["tool_calls"] = []
                self._tool_calls(value)
            elif key == "function_call":
                _join_call(self._message, {key: value})
            else:
                _append(self._message, key, value)

    def _tool_calls(self, calls: list[Any]) -> None:
        for position, call in enumerate(calls):
            if not isinstance(call, dict):
                raise invalid("a tool call is no object")
            slot = self._slots.find(call, position, len(calls))
            _join_call(self._calls.setdefault(slot, {}), call)

    def _logprobs(self, value: Mapping[str, Any]) -> None:
        if not isinstance(self._fields.get("logprobs"), dict):
            self._fields["logprobs"] = {}
        for key, part in value.items():
            _keep(self._fields["logprobs"], key, part)

    def result(self, index: int, kind: Kind) -> dict[str, Any]:
        message = _joined(self._message)
        if kind == "text":
            return {"index": index, "text": message.get("text") or "", **self._fields}
        if self._calls:
            message["tool_calls"] = [_complete(_joined(self._calls[slot])) for slot in sorted(self._calls)]
        message["role"] = message.get("role") or "assistant"
        return {"index": index, "message": {"role": "", "content": None} | message, **self._fields}


class Collector:
    """Collects the chunks of one stream into the JSON answer that they are of. `kind` None: as the chunks say."""

    def __init__(self, kind: Kind | None = None) -> None:
        self._kind = kind
        self._fields: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}

    def feed(self, chunk: Mapping[str, Any]) -> None:
        """Take in a chunk. Raises: BackendFault, where it tells of a failure or is none."""
        fault = failure_of(chunk)
        if fault:
            raise fault
        for key, value in chunk.items():
            old = self._fields.get(key)
            if key in IDENTITY:
                self._fields[key] = old or value
            elif key != "choices":
                # A usage is cumulative; one that says nothing takes nothing back.
                self._fields[key] = old if value is None or (key == "usage" and not value and old) else value
        choices = indexed_choices(chunk)
        if choices and self._kind is None:
            self._kind = kind_of(chunk, choices)
        for index, choice in choices:
            self._choices.setdefault(index, _Choice()).feed(choice)

    def result(self) -> dict[str, Any]:
        """Return the answer. Raises: BackendFault `answer_incomplete`, where a choice has no good end."""
        kind = self._kind or "chat"
        choices = [self._choices[index].result(index, kind) for index in sorted(self._choices)]
        require_finished(choices)
        head = {key: self._fields[key] for key in IDENTITY if key in self._fields}
        head["object"] = "text_completion" if kind == "text" else "chat.completion"
        return {**head, "choices": choices, **{key: self._fields[key] for key in self._fields if key not in head}}
