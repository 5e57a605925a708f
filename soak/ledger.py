"""Every request that was begun, and how it ended: each exactly once. What was not as it was due is kept in words."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Final

from soak.scripts import Due, Fault, Script

# Enough to find a fault by; one that hits every request would fill the memory.
KEPT: Final = 40


class Outcome(StrEnum):
    """How a request ended. `BEHIND`: it was sent behind one after whose answer the connection was closed."""

    WHOLE = "whole"
    FAILED = "failed as injected"
    CUT = "cut as injected"
    LEFT = "left by the client"
    BEHIND = "behind a closing one"
    WRONG = "wrong"


OUTCOMES: Final = {Due.WHOLE: Outcome.WHOLE, Due.FAILED: Outcome.FAILED, Due.CUT: Outcome.CUT}


class Ledger:
    """What has been begun, and what has come of it."""

    def __init__(self) -> None:
        self._running: set[int] = set()
        self.begun: Counter[str] = Counter()
        self.ended: Counter[Outcome] = Counter()
        self.injected: Counter[Fault] = Counter()
        self.streams_finished = 0
        self.wrongs: list[str] = []

    @property
    def running(self) -> int:
        """How many requests have not ended."""
        return len(self._running)

    def begin(self, script: Script) -> None:
        """Note that a request is sent."""
        self._running.add(script.number)
        self.begun[script.shape] += 1

    def inject(self, fault: Fault) -> None:
        """Note that the backend misbehaves."""
        if fault is not Fault.NONE:
            self.injected[fault] += 1

    def end(self, script: Script, outcome: Outcome) -> None:
        """Note how a request ended. Raises: KeyError where it had ended already."""
        self._running.remove(script.number)
        self.ended[outcome] += 1
        self.streams_finished += outcome is Outcome.WHOLE and script.is_stream

    def wrong(self, script: Script, what: str) -> None:
        """Note that a request ended as it must not."""
        self.end(script, Outcome.WRONG)
        self.complain(f"request {script.number} ({script.shape}, fault: {script.fault}): {what}; {script.told()}")

    def complain(self, what: str) -> None:
        """Keep what is wrong, in words."""
        if len(self.wrongs) < KEPT:
            self.wrongs.append(what)

    def findings(self) -> list[str]:
        """Return what does not add up, now that nothing is sent any more."""
        begun, ended = self.begun.total(), self.ended.total()
        found = [] if begun == ended else [f"{begun} requests were begun and {ended} ended"]
        wrong = self.ended[Outcome.WRONG]
        if wrong > len(self.wrongs):
            found.append(f"{wrong} answers were wrong, of which the first {len(self.wrongs)} are told")
        return [*self.wrongs, *found]
