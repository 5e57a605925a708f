"""What a request asks for, what the backend is told to do about it, and what has to come of it: drawn from a seed.

A script goes along with its request in a header, so that backend and client know the same thing without talking.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

HEADER: Final = "x-soak"
MODEL, NOBODY = "soak", "nobody"
# A branch of a fan-out is told by its seed, which the proxy counts up; so many numbers belong to one request.
SEEDS: Final = 16


class Shape(StrEnum):
    """What the client asks for, and so which way its answer takes."""

    RELAYED = "relayed"  # a stream, as the backend gives it
    RESTORED = "restored"  # a stream that the backend is asked for as JSON
    FANNED = "fanned"  # a stream of n choices from n branches
    COLLECTED = "collected"  # JSON that the backend is asked for as a stream
    PLAIN = "plain"  # JSON, as the backend gives it
    MERGED = "merged"  # JSON of n choices from n branches
    TUNNEL = "tunnel"  # a WebSocket


class Fault(StrEnum):
    """What the backend does wrong, or oddly."""

    NONE = "none"
    INTERIM = "1xx before the answer"
    IDLE_CLOSE = "idle connection closed"
    REPAIRED = "4xx that a rule repairs"
    SLOW_HEAD = "slow head"
    UNASKED = "one more answer that nobody asked for"
    REFUSED = "connection refused"
    DROPPED = "closed without an answer"
    GARBAGE = "garbage for an answer"
    EARLY = "answered before the body"
    SILENT = "never an answer"
    CUT = "cut in the middle"
    RESET = "reset in the middle"
    STALL = "stalled in the middle"
    BROKEN = "garbage in the middle"


class Due(StrEnum):
    """What has to come of a request."""

    WHOLE = "whole"
    FAILED = "failed"
    CUT = "cut"


# The status that stands for a fault which ends a request before its answer has begun.
STATUSES: Final[Mapping[Fault, frozenset[int]]] = {
    Fault.REFUSED: frozenset({502}),
    Fault.DROPPED: frozenset({502}),
    Fault.GARBAGE: frozenset({502}),
    Fault.EARLY: frozenset({413}),
    Fault.SILENT: frozenset({504}),
    Fault.CUT: frozenset({502}),
    Fault.RESET: frozenset({502}),
    Fault.STALL: frozenset({504}),
    Fault.BROKEN: frozenset({502}),
}
MIDDLE: Final = frozenset({Fault.CUT, Fault.RESET, Fault.STALL, Fault.BROKEN})
_SHAPES: Final = {"relayed": 34, "restored": 15, "fanned": 20, "collected": 5, "plain": 14, "merged": 4, "tunnel": 8}
_FAULTS: Final = dict(zip(Fault, (60, 4, 6, 5, 4, 2, 2, 3, 2, 0, 1, 4, 3, 2, 2), strict=True))
_IN_TUNNELS: Final = frozenset({Fault.NONE, Fault.DROPPED, Fault.GARBAGE, Fault.CUT, Fault.RESET})
_AS_IT_COMES: Final = frozenset({Shape.RELAYED, Shape.PLAIN})
_STREAMS: Final = frozenset({Shape.RELAYED, Shape.RESTORED, Shape.FANNED})
_FANNED: Final = frozenset({Shape.FANNED, Shape.MERGED})


@dataclass(frozen=True, slots=True)
class Script:
    """One request. `at`: how many words come before a fault in the middle; `target`: the branch that it hits."""

    number: int
    shape: Shape
    fault: Fault = Fault.NONE
    words: int = 8
    gap_s: float = 0.1
    at: int = 0
    choices: int = 1
    target: int = 0
    word_bytes: int = 0
    body_bytes: int = 0

    @property
    def seed(self) -> int:
        """The seed of the first branch."""
        return self.number * SEEDS

    @property
    def is_stream(self) -> bool:
        """Whether the client asks for a stream."""
        return self.shape in _STREAMS

    @property
    def due(self) -> Due:
        """What has to come of it."""
        if self.fault in MIDDLE:
            return Due.CUT
        return Due.FAILED if self.fault in STATUSES else Due.WHOLE

    def told(self) -> str:
        """Return the script as its header's value."""
        return json.dumps([getattr(self, name) for name in self.__slots__])

    @classmethod
    def parse(cls, value: str) -> Self:
        """Return the script of a header's value."""
        number, shape, fault, *rest = json.loads(value)
        return cls(number, Shape(shape), Fault(fault), *rest)

    def prompt(self) -> str:
        """Return what the request says to the model."""
        said = f"say {self.number} "
        return said + "x" * max(0, self.body_bytes - len(said))

    def body(self) -> bytes:
        """Return the request's body."""
        fields: dict[str, Any] = {
            "model": NOBODY if self.fault is Fault.REFUSED else MODEL,
            "messages": [{"role": "user", "content": self.prompt()}],
            "seed": self.seed,
        }
        fields |= {"stream": True} if self.is_stream else {}
        fields |= {"return_meta_info": True} if self.shape is Shape.RESTORED else {}
        fields |= {"collect": True} if self.shape is Shape.COLLECTED else {}
        fields |= {"n": self.choices} if self.choices > 1 else {}
        fields |= {"legacy": 1} if self.fault is Fault.REPAIRED else {}
        return json.dumps(fields).encode()


class Drawer:
    """Draws scripts. The same seed draws the same ones."""

    def __init__(self, seed: str, pace: float, shapes: Collection[Shape], faults: Collection[Fault]) -> None:
        """Draw of these shapes and faults only; `pace` stretches all pauses."""
        self.random = random.Random(seed)  # noqa: S311 nothing is kept secret by it
        self._pace = pace
        self._shapes = [shape for shape in Shape if shape in shapes]
        self._faults = faults

    def draw(self, number: int, *, is_slow: bool = False, is_small: bool = False) -> Script:
        """Return a script. `is_slow`: its client takes long to read; `is_small`: it is sent together with others."""
        draw = self.random
        shape = draw.choices(self._shapes, [_SHAPES[one] for one in self._shapes])[0]
        is_large = not is_small and shape is not Shape.TUNNEL and draw.random() < 0.06
        fault = self._fault(shape, is_large=is_large)
        words = draw.randint(3, 24)
        choices = draw.randint(2, 4) if shape in _FANNED else 1
        return Script(
            number,
            shape,
            fault,
            words,
            round(draw.uniform(0.1, 0.4) * self._pace, 4),
            draw.randrange(words),
            choices,
            draw.randrange(choices),
            draw.choice((8_000, 30_000)) if is_slow else draw.choice((0, 0, 0, 200)),
            draw.randint(200_000, 1_000_000) if is_large else draw.choice((0, 500, 4000)),
        )

    def _fault(self, shape: Shape, *, is_large: bool) -> Fault:
        fault = self.random.choices(list(Fault), list(_FAULTS.values()))[0]
        if is_large and shape in _AS_IT_COMES and self.random.random() < 0.2:
            # Only what takes a while to send can be answered while it is being sent.
            fault = Fault.EARLY
        fits = shape is not Shape.TUNNEL or fault in _IN_TUNNELS
        return fault if fits and fault in self._faults else Fault.NONE
