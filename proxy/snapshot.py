"""What a process says of itself when it is asked: the admin port's picture of it, in one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from proxy.health import Belief
from proxy.lessons import Lesson
from proxy.numbers import Numbers
from proxy.policy import Policy


class Snapshot(msgspec.Struct):
    """A process that serves. Units: seconds since the epoch."""

    pid: int
    started_s: float
    in_flight: int
    numbers: Numbers
    beliefs: dict[str, Belief]


@dataclass(frozen=True, slots=True)
class Picture:
    """All processes that serve, and what was counted in them and in those before them.

    `expected` processes should serve, and `answering` of them said so just now.
    """

    processes: Sequence[Snapshot]
    numbers: Numbers
    expected: int = 1
    answering: int = 1


class Operated(Protocol):
    """What the admin port speaks of: one process that serves, or several."""

    @property
    def policy(self) -> Policy:
        """The policy in force."""

    def learned(self) -> list[Lesson]:
        """Return what refusals taught, the latest last."""

    async def picture(self) -> Picture:
        """Return how everything is now."""

    async def beliefs(self) -> dict[str, Belief]:
        """Return what is believed of each backend of the policy, looking where the last news of it is old."""
