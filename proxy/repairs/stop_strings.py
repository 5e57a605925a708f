"""Finds the first of several stop strings in a text that comes in pieces.

    "Thought: x\nOb"  "serv"  "ation: y"   with the stop string "\nObservation:"
    "Thought: x"      ""      ""           and it is stopped

What may still become a stop string is held back, and no more than that; so any cut of the same text gives the same.

Source: Knuth, Morris, Pratt, Fast Pattern Matching in Strings (1977): each character costs the same, whatever a client
makes its stop strings of.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Needle(msgspec.Struct, frozen=True):
    """A string to look for. `fallback[i]` is how much of it ends its first i + 1 characters, and is not all of them."""

    text: str
    fallback: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> Needle:
        """Return the needle for a text, which must not be empty."""
        fallback, matched = [0], 0
        for character in text[1:]:
            while matched and text[matched] != character:
                matched = fallback[matched - 1]
            matched += text[matched] == character
            fallback.append(matched)
        return cls(text, tuple(fallback))

    def advance(self, matched: int, piece: str) -> tuple[int, int | None]:
        """Return how much of the needle the text ends with after `piece`, and the piece's offset where it is complete.

        `matched` is how much it ended with before.
        """
        position = 0
        while position < len(piece):
            if not matched:
                position = piece.find(self.text[0], position)
                if position < 0:
                    return 0, None
            while matched and self.text[matched] != piece[position]:
                matched = self.fallback[matched - 1]
            matched += self.text[matched] == piece[position]
            position += 1
            if matched == len(self.text):
                return matched, position
        return matched, None


class StopSearch:
    """Reads one text. Units: offsets count characters from the text's beginning."""

    def __init__(self, needles: Sequence[Needle]) -> None:
        self.is_stopped = False
        self.released = 0
        self._seen = 0
        self._held = ""
        self._found: int | None = None  # where the first complete needle begins
        self._watched = [(needle, 0) for needle in needles]

    @property
    def held(self) -> int:
        """How much of the text so far was not given away: what is held back, or cut off."""
        return self._seen - self.released

    @property
    def is_holding(self) -> bool:
        """Whether a part of the text is held back."""
        return self.held > 0 and not self.is_stopped

    def feed(self, piece: str, *, is_last: bool = False) -> str:
        """Return what of the text is known to stand before any stop string; after the last piece nothing is held."""
        if self.is_stopped:
            return ""
        self._watch(piece)
        self._held += piece
        self._seen += len(piece)
        limit = self._limit(is_last=is_last)
        self.is_stopped = self._found is not None and self._found == limit
        out = self._held[: limit - self.released]
        self._held = self._held[limit - self.released :]
        self.released = limit
        return out

    def flush(self) -> str:
        """Return what is held back: the text is over, and what comes after it is another."""
        out = self.feed("", is_last=True)
        self._watched = [(needle, 0) for needle, _ in self._watched]
        return out

    def _watch(self, piece: str) -> None:
        watched = []
        for needle, matched in self._watched:
            now, end = needle.advance(matched, piece)
            if end is None:
                watched.append((needle, now))
                continue
            start = self._seen + end - len(needle.text)
            self._found = start if self._found is None else min(self._found, start)
        self._watched = watched

    def _limit(self, *, is_last: bool) -> int:
        """Return up to where the text can be given away: to the earliest thing that is, or may become, a needle."""
        starts = [] if is_last else [self._seen - matched for _, matched in self._watched]
        return min([self._seen, *starts, *([] if self._found is None else [self._found])])
