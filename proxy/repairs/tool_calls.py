"""Which tool result answers which tool call, in a chat's messages or in the items of Responses.

    assistant.tool_calls[id] … {role: tool, tool_call_id}
    {type: function_call, call_id} … {type: function_call_output, call_id}

Source: OpenAI's chat and Responses schemas. Some engines give the same ids again in each turn (`call_0`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from proxy.repairs.messages import role_of


class Call(msgspec.Struct, frozen=True):
    """A tool call: the index of its message or item, and its own within the message."""

    item: int
    index: int
    turn: int
    id: str | None
    name: str


class Result(msgspec.Struct, frozen=True):
    """A tool's result: the index of its message or item. `turn` is that of the call message before it."""

    item: int
    turn: int
    id: str | None


class Pairing(msgspec.Struct, frozen=True):
    """The calls and results of a conversation: `call_of` by the result's item, `ids` as each call is to be named."""

    calls: tuple[Call, ...]
    results: tuple[Result, ...]
    call_of: Mapping[int, Call]
    ids: Mapping[Call, str | None]
    guesses: int

    def result_of(self) -> dict[Call, Result]:
        """Return the result of each call that has one."""
        return {self.call_of[result.item]: result for result in self.results if result.item in self.call_of}


def pair(items: list[Any], *, is_chat: bool, makes_ids: bool) -> Pairing:
    """Return who answers whom: by id, the latest call first, and with `makes_ids` by place where an id says nothing."""
    found = list(_chat(items) if is_chat else _responses(items))
    calls = tuple(entry for entry in found if isinstance(entry, Call))
    results = tuple(entry for entry in found if isinstance(entry, Result))
    call_of = _by_id(found)
    guessed = _by_place(calls, results, call_of) if makes_ids else {}
    ids = _unique_ids(calls, results) if makes_ids else {call: call.id for call in calls}
    return Pairing(calls, results, call_of | guessed, ids, len(guessed))


def is_call_item(item: Any) -> bool:
    """Return whether the item of Responses is a tool call that wants a result."""
    kind = item.get("type") if isinstance(item, dict) else None
    return isinstance(kind, str) and kind.endswith("_call") and ("call_id" in item or kind == "function_call")


def is_result_item(item: Any) -> bool:
    """Return whether the item of Responses is a tool's result."""
    kind = item.get("type") if isinstance(item, dict) else None
    return isinstance(kind, str) and kind.endswith("_call_output")


def calls_in(message: Any) -> list[Any]:
    """Return the tool calls of an assistant message of a chat."""
    calls = message.get("tool_calls") if role_of(message) == "assistant" else None
    return calls if isinstance(calls, list) else []


def _chat(messages: list[Any]) -> Iterator[Call | Result]:
    turn = -1
    for item, message in enumerate(messages):
        calls = [(index, call) for index, call in enumerate(calls_in(message)) if isinstance(call, dict)]
        turn = item if calls else turn
        for index, call in calls:
            yield Call(item, index, turn, _usable(call.get("id")), _name(call.get("function")))
        if role_of(message) == "tool":
            yield Result(item, turn, _usable(message.get("tool_call_id")))


def _responses(items: list[Any]) -> Iterator[Call | Result]:
    turn = last = -1
    for place, item in enumerate(items):
        if place == 0 or not is_models(items[place - 1]):
            turn = place
        if is_call_item(item):
            last = turn
            yield Call(place, 0, turn, _usable(item.get("call_id")), _name(item))
        elif is_result_item(item):
            yield Result(place, last, _usable(item.get("call_id")))


def is_models(item: Any) -> bool:
    """Return whether the item of Responses was made by the model."""
    kind = item.get("type") if isinstance(item, dict) else None
    return is_call_item(item) or kind == "reasoning" or role_of(item) == "assistant"


def _usable(id: Any) -> str | None:
    return id if isinstance(id, str) and id else None


def _name(function: Any) -> str:
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else "?"


def _by_id(found: list[Call | Result]) -> dict[int, Call]:
    pairs: dict[int, Call] = {}
    waiting: dict[str, list[deque[Call]]] = {}  # by id, then by turn: the latest turn's first call is answered first
    for entry in found:
        turns = waiting.setdefault(entry.id, []) if entry.id is not None else []
        if isinstance(entry, Call):
            if turns and turns[-1][0].turn == entry.turn:
                turns[-1].append(entry)
            else:
                turns.append(deque([entry]))
        elif turns:
            pairs[entry.item] = turns[-1].popleft()
            turns[-1:] = filter(None, turns[-1:])
    return pairs


def _by_place(calls: tuple[Call, ...], results: tuple[Result, ...], call_of: Mapping[int, Call]) -> dict[int, Call]:
    answered = set(call_of.values())
    known = {call.id for call in calls} - {None}
    waiting: dict[int, deque[Call]] = {}
    for call in calls:
        if call not in answered:
            waiting.setdefault(call.turn, deque()).append(call)
    lost = (result for result in results if result.item not in call_of and result.id not in known)
    return {result.item: waiting[result.turn].popleft() for result in lost if waiting.get(result.turn)}


def _unique_ids(calls: tuple[Call, ...], results: tuple[Result, ...]) -> dict[Call, str | None]:
    taken = {call.id for call in calls} | {result.id for result in results}
    fresh = (name for number in range(1, len(taken) + len(calls) + 1) if (name := f"call_{number}") not in taken)
    ids: dict[Call, str | None] = {}
    seen: set[str] = set()
    for call in calls:
        ids[call] = next(fresh) if call.id is None or call.id in seen else call.id
        seen.add(ids[call] or "")
    return ids
