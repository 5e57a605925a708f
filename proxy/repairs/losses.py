"""What a client is told that it lost: names of fields, and of values only numbers, booleans and null.

A sentence ends in a header and a log line, so it stays short, printable ASCII, and free of what a user wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from proxy.fields import ABSENT

SHOWN_NAMES: Final = 12
NAME_CHARACTERS: Final = 64


def fields_lost(names: Sequence[str]) -> str:
    """Return the sentence of fields that were removed. Shape: [a, b] → "fields a, b"."""
    if len(names) == 1:
        return f"field {plain(names[0])}"
    different = list(dict.fromkeys(names))
    more = len(different) - SHOWN_NAMES
    tail = f" and {more} more" if more > 0 else ""
    return f"field{'s' if len(different) > 1 else ''} {', '.join(map(plain, different[:SHOWN_NAMES]))}{tail}"


def replaced(name: str, changes: Sequence[tuple[Any, Any]]) -> str | None:
    """Return the sentence of a field whose values (old, new) were replaced; None where it was only added to."""
    lost = [(old, new) for old, new in changes if old is not ABSENT]
    if not lost:
        return None
    sentences = {f"{plain(name)} {becomes(old, new)}" for old, new in lost if is_told(old) and is_told(new)}
    if len(sentences) == 1 and all(is_told(value) for change in lost for value in change):
        return sentences.pop()
    return f"{plain(name)} replaced"


def join_losses(sentences: Iterable[str | None]) -> str | None:
    """Return the sentences of a repair's entries as one; None where nothing was lost."""
    return ", ".join(dict.fromkeys(sentence for sentence in sentences if sentence)) or None


def becomes(old: Any, new: Any) -> str:
    """Return the words of one value becoming another. Shape: 3, 1 → "3 becomes 1"."""
    return f"{word(old)} becomes {word(new)}"


def word(value: Any) -> str:
    """Return the value as JSON, a string without its quotes."""
    return plain(value if isinstance(value, str) else json.dumps(value))


def is_told(value: Any) -> bool:
    """Return whether the value says nothing about its user: a number, a boolean, null."""
    return value is None or isinstance(value, bool | int | float)


def plain(text: str) -> str:
    """Return the text fit for a header: characters beyond printable ASCII escaped, and not too many of them."""
    short = text if len(text) <= NAME_CHARACTERS else f"{text[: NAME_CHARACTERS - 3]}..."
    return short if short.isascii() and short.isprintable() else short.encode("unicode_escape").decode("ascii")
