"""What an index remembers of the requests that it saw, bounded as a whole, since a client chooses what it sends."""

from __future__ import annotations

from typing import Any, Final, TypeVar

_MOST_ENTRIES: Final = 16 * 1024

T = TypeVar("T")


class Memory:
    """Hands out dicts, and forgets what is in all of them when it has become too much."""

    def __init__(self, most_entries: int = _MOST_ENTRIES) -> None:
        self._most_entries = most_entries
        self._entries = 0
        self._dicts: list[dict[Any, Any]] = []

    def new(self) -> dict[Any, Any]:
        """Return a dict to look things up in; only `keep` adds to it."""
        self._dicts.append({})
        return self._dicts[-1]

    def keep(self, known: dict[Any, Any], key: object, value: T) -> T:
        """Remember a value in one of the dicts, and return it."""
        if self._entries >= self._most_entries:
            self._entries = 0
            for each in self._dicts:
                each.clear()
        self._entries += 1
        known[key] = value
        return value
