"""What is seen of the proxy from outside, sample by sample → what is left over, and what has grown. Pure.

Its memory is compared with itself: after a warm-up of half the time the line through what follows has to be flat. The
line is Theil and Sen's, the median of the slopes between all pairs of samples, which no outlier moves.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Final

MIB: Final = 1024 * 1024
# How much the second half may add: an allocator that serves ever new sizes does not settle to the byte.
GROWTH_SHARE: Final = 0.02
GROWTH_BYTES: Final = 2 * MIB
# In less than this memory is still being warmed up, and says nothing.
JUDGED_S: Final = 60.0
# Threads are made when they are first needed, and kept: Python's pool for blocking calls, uvloop's for files and names.
THREADS: Final = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """The proxy at one time, all its processes together. `upstream`: its connections to the backend."""

    at_s: float
    rss_bytes: int
    descriptors: int
    threads: int
    in_flight: int
    streams_open: int
    upstream: int


@dataclass(frozen=True, slots=True)
class Growth:
    """What the second half of a time has added to the memory, and what it may add."""

    bytes: float
    allowed_bytes: float
    span_s: float

    @property
    def bytes_per_minute(self) -> float:
        """The slope of the line."""
        return self.bytes / self.span_s * 60 if self.span_s else 0.0


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return Theil and Sen's slope through points of (x, y). Source: Sen, JASA 63 (1968), 1379–1389."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if b[0] != a[0]]
    return statistics.median(slopes) if slopes else 0.0


def growth(samples: Sequence[Sample]) -> Growth:
    """Return how the memory has grown in the second half of the time that the samples span."""
    if not samples:
        return Growth(0.0, GROWTH_BYTES, 0.0)
    middle_s = (samples[0].at_s + samples[-1].at_s) / 2
    later = [sample for sample in samples if sample.at_s >= middle_s]
    span_s = later[-1].at_s - later[0].at_s
    allowed = max(GROWTH_BYTES, GROWTH_SHARE * statistics.median(sample.rss_bytes for sample in later))
    return Growth(slope([(sample.at_s, sample.rss_bytes) for sample in later]) * span_s, allowed, span_s)


def grown(samples: Sequence[Sample]) -> list[str]:
    """Return a finding where the memory has grown by more than it may, over a time that tells."""
    found = growth(samples)
    if found.span_s < JUDGED_S or found.bytes <= found.allowed_bytes:
        return []
    told = f"{found.bytes / MIB:.1f} MiB in {found.span_s:.0f} s, {found.bytes_per_minute / MIB:.2f} MiB a minute"
    return [f"memory grows: {told}; {found.allowed_bytes / MIB:.1f} MiB in this time are allowed"]


def left_over(before: Sample, after: Sample) -> list[str]:
    """Return what there is after the load that was not there before it."""
    allowed = {"descriptors": 0, "threads": THREADS, "in_flight": 0, "streams_open": 0, "upstream": 0}
    found = []
    for field in fields(Sample):
        was, now = getattr(before, field.name), getattr(after, field.name)
        if field.name in allowed and now > was + allowed[field.name]:
            found.append(f"left over: {field.name} {now}, {was} before the load")
    return found


def at_share(samples: Sequence[Sample], share: float) -> Sample:
    """Return the sample at this share of the time."""
    wanted_s = samples[0].at_s + share * (samples[-1].at_s - samples[0].at_s)
    return min(samples, key=lambda sample: abs(sample.at_s - wanted_s))
