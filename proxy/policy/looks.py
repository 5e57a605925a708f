"""A look at the value of one top-level field: the bits of the clues that hold for it.

a number, a word → judged once, and remembered by its bytes; a short list or object too
a list or object → its words, and what they tell is remembered; its bytes are hardly ever the same again
messages         → where they are turns, the same told of their roles, and the long texts among them not even decoded
a long text      → judged each time
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from proxy.body import Body
from proxy.matching.clues import LONGEST_WORD, MISSING, Clue, Word, words_of, words_of_scalar
from proxy.policy.memory import Memory
from proxy.turns import MESSAGES, Turn, read_turns

_SHORT_BYTES: Final = 64
_MOST_WORDS: Final = 64
_MOST_STRINGS: Final = 16
_QUOTE: Final = ord('"')
_LIST: Final = ord("[")
_MOST_BYTES_OF_A_CHARACTER: Final = 12  # "\\ud83d\\ude00"

_decode = msgspec.json.decode


class Look:
    """The clues on one field."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._whole: list[tuple[int, Clue]] = []
        self._inner: list[tuple[int, Clue]] = []
        self._vocabulary: frozenset[Word] = frozenset()
        self._missing: tuple[str, ...] = ()
        self._names: tuple[str, ...] = ()
        self.absent = 0  # the bits of the clues that hold where the field is absent
        self.leaves = -1  # all other bits
        self._by_value: dict[object, int] = memory.new()
        self._by_words: dict[object, int] = memory.new()
        self._by_turns: dict[object, int] = memory.new()
        self._longest = 0  # bytes of a text that may be a word which a clue asks for
        self._names_content = False

    def add(self, bit: int, clue: Clue) -> None:
        """Take in a clue, which stands for a bit."""
        if clue.takes_absent:
            self.absent |= bit
            self.leaves = ~self.absent
        (self._whole if clue.is_whole else self._inner).append((bit, clue))
        if clue.is_whole:
            return
        words = frozenset[Word]().union(*clue.words)
        lacking = {word[0] for word in words if isinstance(word, tuple) and word[1] == MISSING}
        self._vocabulary |= words
        lengths = [len(word) for word in words if isinstance(word, str)]
        self._longest = max([self._longest, *(_MOST_BYTES_OF_A_CHARACTER * length + len('""') for length in lengths)])
        self._missing = tuple(sorted({*self._missing, *lacking}))
        self._names = tuple(sorted({*self._names, *([clue.name] if clue.name is not None else [])}))
        self._names_content = "content" in self._names

    def bits(self, body: Body, name: str, value: Any, seen: dict[int, int]) -> int:
        """Return the bits of the clues that hold for the field's value, as it stands in the body.

        `seen` keeps those of the lists, objects and long texts that a request came with.
        Raises: UnreadableBody where the value can't be decoded.
        """
        if type(value) is not msgspec.Raw:
            return self._of_edited(value)
        view = memoryview(value)
        if view.nbytes <= _SHORT_BYTES:
            text = bytes(view)
            known = self._by_value.get(text)
            return self._remember(text, body[name]) if known is None else known
        known = seen.get(id(value))
        if known is None:
            turns = read_turns(value) if name == MESSAGES and view[0] == _LIST else None
            known = self.of_turns(body, turns) if turns else self._of_long(body[name])
            seen[id(value)] = known
        return known

    def of_turns(self, body: Body, turns: Sequence[Turn]) -> int:
        """Return the bits of the clues that hold for the body's messages, which are these turns, at least one.

        Raises: UnreadableBody where a content can't be decoded.
        """
        key = self._key_of(turns) if body.source.isascii() or _is_utf8(body.source) else None
        if key is None:
            return self._of_long(body[MESSAGES])
        bits = self._of_whole(body[MESSAGES]) if self._whole else 0
        if not self._inner:
            return bits
        known = self._by_turns.get(key)
        if known is None:
            known = self._of_words(body[MESSAGES])
            if len(key) <= _MOST_WORDS and sum(map(len, key)) <= _MOST_WORDS * LONGEST_WORD:
                self._memory.keep(self._by_turns, key, known)
        return bits | known

    def _key_of(self, turns: Sequence[Turn]) -> frozenset[Word] | None:
        """Return all that the clues inside may ask of turns, where their contents are texts: the roles and the words.

        A word is told from a role by standing for itself in a tuple. None where only the value can tell.
        """
        if self._names_content:
            return None
        found: set[Word] = set()
        longest, vocabulary = self._longest, self._vocabulary
        for turn in turns:
            content = memoryview(turn.content)
            if content[0] != _QUOTE:
                return None
            if content.nbytes <= longest:
                text = _decode(content)
                if text in vocabulary:
                    found.add((text, None))
            found.add(turn.role)
        return frozenset(found)

    def _of_edited(self, value: Any) -> int:
        if isinstance(value, list | dict) or (isinstance(value, str) and len(value) > _SHORT_BYTES):
            return self._of_long(value)
        key = (type(value), value)
        known = self._by_value.get(key)
        return self._remember(key, value) if known is None else known

    def _remember(self, key: object, value: Any) -> int:
        if isinstance(value, list | dict):
            bits = self._of_long(value)
            # What the words let pass is worth a closer look, since the value will come again.
            held = {bit for bit, clue in self._inner if bits & bit and clue.holds(value)}
            return self._memory.keep(self._by_value, key, self._of_whole(value) | sum(held) if bits else 0)
        words = words_of_scalar(value)
        held = {bit for bit, clue in self._whole if clue.may_hold(words) and clue.holds(value)}
        held |= {bit for bit, clue in self._inner if clue.holds(value)}
        return self._memory.keep(self._by_value, key, sum(held))

    def _of_long(self, value: Any) -> int:
        bits = self._of_whole(value)
        if self._inner and isinstance(value, list | dict):
            bits |= self._of_words(value)
        return bits

    def _of_whole(self, value: Any) -> int:
        bits = 0
        for bit, clue in self._whole:
            if not bits & bit and clue.holds(value):
                bits |= bit
        return bits

    def _of_words(self, value: list[Any] | dict[str, Any]) -> int:
        words = self._vocabulary & words_of(value)
        for name in self._missing:
            if _column(value, name) is None:
                words |= {(name, MISSING)}
        names = [_strings(_column(value, name)) for name in self._names]
        key = (words, *names)
        bits = self._by_words.get(key)
        if bits is None:
            told = {name for name, strings in zip(self._names, names, strict=True) if strings is not None}
            bits = sum({bit for bit, clue in self._inner if _holds(clue, value, words, told)})
            if len(words) <= _MOST_WORDS:
                self._memory.keep(self._by_words, key, bits)
        return bits


def _is_utf8(source: bytes) -> bool:
    try:
        source.decode()
    except UnicodeDecodeError:
        return False
    return True


def _holds(clue: Clue, value: Any, words: frozenset[Word], told: set[str]) -> bool:
    return clue.holds(value) if clue.name in told else clue.may_hold(words)


def _column(value: list[Any] | dict[str, Any], name: str) -> list[Any] | None:
    """Return the field's value in each element of a list; None where one lacks it, or is no object."""
    if type(value) is not list:
        return None
    try:
        return [element[name] for element in value]
    except (TypeError, KeyError):
        return None


def _strings(column: list[Any] | None) -> frozenset[str] | None:
    """Return the values, where all are short strings, and few."""
    try:
        found = frozenset(column or ())
    except TypeError:
        return None
    if column is None or len(found) > _MOST_STRINGS:
        return None
    for one in found:
        if type(one) is not str or len(one) > LONGEST_WORD:
            return None
    return found
