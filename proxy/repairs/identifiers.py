"""New identifiers for those that a backend would refuse: of its characters and length, no two alike, always the same.

    "call_Ünïq-1" ── of 9 letters and digits ──► "x8Kq02bLd"      "files.read" ── at most 64 of a-z_ ──► "files_read"

The new one is made of the old one alone, so that a conversation's next request has the same prefix as its last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import shake_256
from itertools import count
from typing import Final

import msgspec

from proxy.repairs.conversions import foreign_characters

MIN_CHARACTERS: Final = 10
"""The fewest characters to choose from; with 8 of them there are 10^8 identifiers, more than a body can hold."""

_VISIBLE: Final = tuple(map(chr, range(0x21, 0x7F)))
_TAIL: Final = 6


class Form(msgspec.Struct, frozen=True):
    """What an identifier must look like: its characters, and its exact length or the longest."""

    foreign: re.Pattern[str]
    characters: tuple[str, ...]
    length: int | None
    most: int | None

    @classmethod
    def of(cls, allowed: str, length: int | None, most: int | None) -> Form:
        """Return the form. Raises: ValueError where `allowed` is no set of at least MIN_CHARACTERS visible ones."""
        foreign = foreign_characters(allowed)
        characters = tuple(character for character in _VISIBLE if not foreign.search(character))
        if len(characters) < MIN_CHARACTERS:
            raise ValueError(f"{allowed!r} allows fewer than {MIN_CHARACTERS} visible characters")
        return cls(foreign, characters, length, most)

    def fits(self, text: str) -> bool:
        """Return whether the text is such an identifier."""
        if not text or self.foreign.search(text) or (self.most is not None and len(text) > self.most):
            return False
        return self.length is None or len(text) == self.length

    def renamed(self, texts: Iterable[str]) -> dict[str, str]:
        """Return the new identifier of each text that does not fit, none of them one of the texts, no two alike."""
        different = list(dict.fromkeys(texts))
        taken = set(different)
        new: dict[str, str] = {}
        for text in different:
            if not self.fits(text):
                new[text] = self._made(text, taken)
                taken.add(new[text])
        return new

    def _made(self, text: str, taken: set[str]) -> str:
        filled = "" if self.length is not None else self.foreign.sub(self._filler, text)[: self.most]
        if filled and filled not in taken:
            return filled
        tails = (self._digest(f"{number}:{text}", self.length or _TAIL) for number in count())
        return next(made for made in (self._joined(filled, tail) for tail in tails) if made not in taken)

    @property
    def _filler(self) -> str:
        return next((mark for mark in "_-" if mark in self.characters), self.characters[0])

    def _joined(self, stem: str, tail: str) -> str:
        if not stem:
            return tail
        room = len(stem) if self.most is None else self.most - len(tail) - 1
        return f"{stem[:room]}{self._filler}{tail}"

    def _digest(self, text: str, length: int) -> str:
        digest = shake_256(text.encode("utf-8", "surrogatepass")).digest(length)
        return "".join(self.characters[byte % len(self.characters)] for byte in digest)
