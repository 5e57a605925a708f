"""The content parts of a list of messages, each converted by the entry for its type.

    message.content: [part, part] → [part] + parts that go into a user message behind it

Sources: OpenAI's chat schema (a tool's result may hold text only, results stand right behind their call).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec

from proxy.body import Body
from proxy.repairs.media import as_input_audio, as_input_image, as_url_part
from proxy.repairs.messages import listed, role_of
from proxy.repairs.parts import Loss, as_text_part, counted, kind_of, noun_of, placeholder_of
from proxy.repairs.places import Condition

_CONTENTS: Final = ("content", "output")

_SHAPES: Final[Mapping[str, Callable[[Any], dict[str, Any] | None]]] = {
    **{kind: partial(as_text_part, kind) for kind in ("text", "input_text", "output_text")},
    **{f"{noun}_url": partial(as_url_part, noun) for noun in ("image", "video", "audio")},
    "input_image": as_input_image,
    "input_audio": as_input_audio,
}


class Entry(msgspec.Struct, frozen=True):
    """What becomes of parts of one type."""

    to: str
    where: Condition | None
    message: Condition | None
    keep_last: int
    text: str | None


@dataclass(slots=True)
class Converted:
    """The parts of one content after their conversion: those that stay, and those for a user message."""

    stay: list[Any] = field(default_factory=list)
    move: list[Any] = field(default_factory=list)


class Conversions(msgspec.Struct, frozen=True):
    """All entries, by part type, and the types that they make, which `*` leaves alone."""

    entries: Mapping[str, Entry]
    made: frozenset[str]

    def run(self, name: str, body: Body) -> tuple[Body, str | None]:
        """Return the body with the parts in the list `name` converted, and what that loses; the same where none was."""
        items = listed(body, name)
        run = _Run(self, body, name, self._budget(items, body))
        converted = list(run.items(items))
        return (body.put((name,), converted), counted(run.losses)) if run.is_changed else (body, None)

    def due(self, part: Any, message: Any, root: Mapping[str, Any]) -> str | None:
        """Return the key of the entry that is to convert the part of this message."""
        kind = kind_of(part)
        key = kind if kind in self.entries else "*"
        entry = self.entries.get(key or "*")
        if entry is None or key is None or (key == "*" and kind in self.made):
            return None
        if entry.to == "user" and role_of(message) == "user":
            return None
        is_asked = entry.where is None or entry.where(part, root)
        return key if is_asked and (entry.message is None or entry.message(message, root)) else None

    def _budget(self, items: list[Any], root: Mapping[str, Any]) -> Counter[str]:
        """Return how many parts each entry that leaves the last ones alone may convert."""
        keys = (self.due(part, item, root) for item in items for name in _CONTENTS for part in _parts(item, name))
        return Counter(
            {
                key: max(count - self.entries[key].keep_last, 0)
                for key, count in Counter(key for key in keys if key is not None).items()
                if self.entries[key].keep_last
            }
        )


class _Run:
    """One list being converted."""

    def __init__(self, conversions: Conversions, root: Mapping[str, Any], name: str, budget: Counter[str]) -> None:
        self._conversions = conversions
        self._root = root
        self._text_type = "text" if name == "messages" else "input_text"
        self._budget = budget
        self.losses: list[Loss] = []
        self.is_changed = False

    def items(self, items: list[Any]) -> Iterator[Any]:
        """Yield the items; what goes into a user message stands behind the results that follow one another."""
        waiting: list[Any] = []
        for item in items:
            if waiting and not _is_result(item):
                yield {"role": "user", "content": waiting}
                waiting = []
            new = item
            for name in _CONTENTS:
                if _parts(item, name):
                    new, moved = self._item(new, name)
                    waiting += moved
            yield new
        if waiting:
            yield {"role": "user", "content": waiting}

    def _item(self, item: dict[str, Any], name: str) -> tuple[dict[str, Any], list[Any]]:
        parts = item[name]
        converted = Converted()
        for part in parts:
            self._part(part, item, converted)
        if converted.stay == parts and not converted.move:
            return item, []
        self.is_changed = True
        emptied = placeholder_of(kind_of(converted.move[-1])) if converted.move else ""
        return item | {name: converted.stay or emptied}, self._introduced(item, converted.move)

    def _introduced(self, item: Mapping[str, Any], moved: list[Any]) -> list[Any]:
        if not moved:
            return []
        entry = self._conversions.entries.get(kind_of(moved[0]) or "*") or self._conversions.entries["*"]
        text = _introduction(item) if entry.text is None else entry.text
        label = Converted()
        if text:
            self._part({"type": self._text_type, "text": text}, {"role": "user"}, label)
        return [*label.stay, *moved]

    def _part(self, part: Any, item: Any, into: Converted) -> None:
        """Convert a part, and what becomes of it as long as there is an entry for that."""
        for _ in range(len(self._conversions.entries) + 1):
            entry = self._taken(part, item)
            if entry is None or entry.to == "keep":
                break
            if entry.to in ("drop", "user"):
                self.losses.append((f"{noun_of(kind_of(part))} part", _DEEDS[entry.to]))
                into.move += [part] if entry.to == "user" else []
                return
            old, part = part, self._said(part, entry)
            if kind_of(part) == kind_of(old):
                break
        into.stay.append(part)

    def _taken(self, part: Any, item: Any) -> Entry | None:
        key = self._conversions.due(part, item, self._root)
        if key is None:
            return None
        if key in self._budget:
            self._budget[key] -= 1
            if self._budget[key] < 0:
                return None
        return self._conversions.entries[key]

    def _said(self, part: Any, entry: Entry) -> Any:
        """Return the part in its new shape, or as it is where that can't be."""
        noun = noun_of(kind_of(part))
        if entry.to == "placeholder":
            text = placeholder_of(kind_of(part)) if entry.text is None else entry.text
            new: Any = {"type": self._text_type, "text": text}
            self.losses += [(f"{noun} part", _DEEDS["placeholder"])] if new != part else []
            return new
        new = _SHAPES[entry.to](part) if isinstance(part, dict | str) else None
        if new is None or new == part:
            return part
        self.losses += [(noun, "said as text")] if noun in ("refusal", "thinking") else []
        self.losses += [
            ("part", f"left without {name}") for name in _NOTES if _holds(part, name) and not _holds(new, name)
        ]
        return new


_DEEDS: Final = {"drop": "dropped", "user": "moved to a user message", "placeholder": "replaced by a placeholder"}


_NOTES: Final = ("annotations", "logprobs", "citations")


def _holds(part: Any, name: str) -> bool:
    return isinstance(part, dict) and bool(part.get(name))


def _parts(item: Any, name: str) -> list[Any]:
    value = item.get(name) if isinstance(item, dict) else None
    return value if isinstance(value, list) else []


def _is_result(item: Any) -> bool:
    kind = item.get("type") if isinstance(item, dict) else None
    return role_of(item) in ("tool", "function") or (isinstance(kind, str) and kind.endswith("_call_output"))


def _introduction(item: Mapping[str, Any]) -> str:
    call = item.get("tool_call_id") or item.get("call_id")
    return f"From the result of tool call {call}:" if isinstance(call, str) else "From the message above:"
