"""The tool calls and results of a conversation, written so that each call has its result and each result its call.

    [assistant(c1, c2), user, tool c2, tool c9] → [assistant(c1, c2), tool c1 (stub), tool c2, user]

Sources: OpenAI's chat API ("must be followed by tool messages responding to each 'tool_call_id'"); sglang's checks for
MiniMax-M3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from proxy.repairs.messages import is_empty, role_of
from proxy.repairs.parts import Loss
from proxy.repairs.tool_calls import Call, Pairing, is_call_item, is_models


class Wishes(msgspec.Struct, frozen=True):
    """What becomes of calls and results that don't fit."""

    orphans: Literal["keep", "drop", "user"]
    missing: Literal["keep", "drop", "stub"]
    stub: str
    in_order: bool


class History:
    """One list of messages (`is_chat`) or of Responses' items, being written anew."""

    def __init__(self, items: list[Any], pairing: Pairing, wishes: Wishes, *, is_chat: bool) -> None:
        self._items = items
        self._pairing = pairing
        self._wishes = wishes
        self._is_chat = is_chat
        self._result_of = pairing.result_of()
        self._calls_of: dict[int, list[Call]] = {}
        for call in pairing.calls:
            self._calls_of.setdefault(call.item, []).append(call)
        self._results = {result.item for result in pairing.results}
        self._orphans = self._results - set(pairing.call_of)
        # A stub needs an id to answer to.
        unanswered = (call for call in pairing.calls if call not in self._result_of)
        self._unanswered = {call for call in unanswered if wishes.missing != "stub" or pairing.ids[call] is not None}

    def written(self) -> list[Any]:
        """Return the list as it is to be."""
        return [new for entry in self._order() for new in self._entry(entry)]

    def losses(self) -> list[Loss]:
        """Return what that costs."""
        orphans, missing = _ORPHANS[self._wishes.orphans], _MISSING[self._wishes.missing]
        losses: list[Loss] = [("tool result", "paired by place")] * self._pairing.guesses
        losses += [("tool result", orphans)] * len(self._orphans) if orphans else []
        losses += [("tool call", missing)] * len(self._unanswered) if missing else []
        return losses + self._moves()

    def _moves(self) -> list[Loss]:
        new = [entry for entry in self._order() if isinstance(entry, int) and any(True for _ in self._entry(entry))]
        moved = [was for was, now in zip(sorted(new), new, strict=True) if was != now]
        results = sum(index in self._results for index in moved)
        return [("tool result", "moved")] * results or [("tool call", "moved")] * sum(
            is_call_item(self._items[index]) for index in moved
        )

    def _order(self) -> Iterator[int | Call]:
        """Yield the old list's indexes in the new order; a call where its stub is to stand."""
        for block in self._blocks():
            for index in _calls_last(self._items, block) if self._wishes.in_order else block:
                if not (self._wishes.in_order and index in self._pairing.call_of):
                    yield index
            for call in (call for index in block for call in self._calls_of.get(index, ())):
                if call in self._result_of and self._wishes.in_order:
                    yield self._result_of[call].item
                elif call in self._unanswered:
                    yield call

    def _blocks(self) -> Iterator[range]:
        """Yield what stays together: a message, or the items of the model's turn."""
        start = 0
        while start < len(self._items):
            end = start + 1
            while not self._is_chat and end < len(self._items) and all(map(is_models, self._items[end - 1 : end + 1])):
                end += 1
            yield range(start, end)
            start = end

    def _entry(self, entry: int | Call) -> Iterator[Any]:
        if isinstance(entry, Call):
            if self._wishes.missing == "stub":
                yield self._stub(entry)
        elif entry in self._orphans:
            yield from self._orphan(self._items[entry])
        elif entry in self._results:
            yield self._named(self._items[entry], self._pairing.call_of[entry])
        else:
            calls = self._calls_of.get(entry, [])
            yield from self._caller(self._items[entry], calls) if calls else (self._items[entry],)

    def _stub(self, call: Call) -> dict[str, Any]:
        call_id, stub = self._pairing.ids[call], self._wishes.stub
        if self._is_chat:
            return {"role": "tool", "tool_call_id": call_id, "content": stub}
        kind = self._items[call.item]["type"]
        return {"type": f"{kind}_output", "call_id": call_id, "output": stub}

    def _orphan(self, item: dict[str, Any]) -> Iterator[Any]:
        if self._wishes.orphans == "keep":
            yield item
        elif self._wishes.orphans == "user":
            yield {"role": "user", "content": item.get("content" if self._is_chat else "output") or ""}

    def _named(self, item: dict[str, Any], call: Call) -> dict[str, Any]:
        call_id, name = self._pairing.ids[call], "tool_call_id" if self._is_chat else "call_id"
        return item if call_id is None or item.get(name) == call_id else item | {name: call_id}

    def _caller(self, item: dict[str, Any], calls: list[Call]) -> Iterator[Any]:
        dropped = [call for call in calls if call in self._unanswered and self._wishes.missing == "drop"]
        if not self._is_chat:
            yield from () if dropped else (self._named(item, calls[0]),)
            return
        named = {call.index: self._id(item["tool_calls"][call.index], call) for call in calls}
        gone = {call.index for call in dropped}
        left = [named.get(index, call) for index, call in enumerate(item["tool_calls"]) if index not in gone]
        new = item | {"tool_calls": left} if left else {name: item[name] for name in item if name != "tool_calls"}
        if left or not is_empty(new):
            yield new

    def _id(self, tool_call: dict[str, Any], call: Call) -> dict[str, Any]:
        call_id = self._pairing.ids[call]
        return tool_call if call_id is None or tool_call.get("id") == call_id else tool_call | {"id": call_id}


def _calls_last(items: list[Any], block: range) -> list[int]:
    """Return the block with the messages that stand between its calls ahead of them."""
    first = next((index for index in block if is_call_item(items[index])), block.stop)
    return sorted(block, key=lambda index: (index >= first and role_of(items[index]) != "assistant", index))


_ORPHANS: Final[Mapping[str, str | None]] = {"keep": None, "drop": "dropped", "user": "said as the user's"}
_MISSING: Final[Mapping[str, str | None]] = {
    "keep": None,
    "drop": "without a result dropped",
    "stub": "answered by a stub",
}
