"""When Python's collector of cycles looks at what: not at what is loaded, and soon after failed requests."""

from __future__ import annotations

import gc


def freeze() -> None:
    """Let what is loaded by now stay: the collector need not look at it again on every pass.

    A request that goes well leaves no cycles behind, so the passes may be rarer than by default, where they cost a
    tenth of all time. One that fails may leave some, so they may not be rare: a soak grew to ten times its memory.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 10, 10)
