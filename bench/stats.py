"""Slices to summaries: medians, intervals, and ratios that are paired by round.

What disturbs a machine disturbs all candidates of a round alike, so each slice is compared with the reference's of the
same round; the median of these ratios is what is told, with the interval that order statistics give it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb


@dataclass(frozen=True, slots=True)
class Slice:
    """What one candidate did in one round. Units: a unit of work is an answer or an event; `cpu_us` is for one."""

    round: int
    rate: float
    cpu_us: float
    p50_us: float
    p99_us: float
    whole: int
    bad: int


@dataclass(frozen=True, slots=True)
class Ratio:
    """A median with the interval around it; `confidence` is how likely the interval holds the true median."""

    median: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True, slots=True)
class Summary:
    """One candidate in one scenario. A ratio above 1 is better than the reference."""

    rate: float
    cpu_us: float
    cpu_ratio: Ratio | None
    rate_ratio: Ratio | None
    added_p50_us: float | None
    added_p99_us: float | None
    whole: int
    bad: int
    rounds: int


def interval(values: Sequence[float], confidence: float = 0.95) -> Ratio:
    """Return the median and the narrowest interval between two order statistics that is at least this confident.

    Under six values none is, so the interval is the whole range, and says how confident that is.
    Source: David, Nagaraja, Order Statistics, 3rd ed., §7.1.
    """
    ordered, count = sorted(values), len(values)
    cut, sure = 0, _confidence(count, 0)
    while cut + 1 < (count + 1) // 2 and _confidence(count, cut + 1) >= confidence:
        cut += 1
        sure = _confidence(count, cut)
    return Ratio(statistics.median(ordered), ordered[cut], ordered[count - 1 - cut], sure)


def _confidence(count: int, cut: int) -> float:
    """Return how likely the median lies between the values that are left when `cut` are cut at either end."""
    return 1 - sum(comb(count, left) for left in range(cut + 1)) / 2.0 ** (count - 1)


def pairs(own: Sequence[Slice], other: Sequence[Slice]) -> list[tuple[Slice, Slice]]:
    """Return the slices of the rounds that both have."""
    others = {slice_.round: slice_ for slice_ in other}
    return [(slice_, others[slice_.round]) for slice_ in own if slice_.round in others]


def summarise(slices: Mapping[str, Sequence[Slice]], reference: str, direct: str | None = None) -> dict[str, Summary]:
    """Return each candidate's summary; `direct` names the one whose latency the others add to."""
    return {
        name: _summary(own, slices.get(reference, ()), slices.get(direct or "", ()))
        for name, own in slices.items()
        if own
    }


def _summary(own: Sequence[Slice], reference: Sequence[Slice], direct: Sequence[Slice]) -> Summary:
    paired, added = pairs(own, reference), pairs(own, direct)
    return Summary(
        rate=statistics.median(one.rate for one in own),
        cpu_us=statistics.median(one.cpu_us for one in own),
        cpu_ratio=_ratio([(theirs.cpu_us, mine.cpu_us) for mine, theirs in paired]),
        rate_ratio=_ratio([(mine.rate, theirs.rate) for mine, theirs in paired]),
        added_p50_us=statistics.median(mine.p50_us - theirs.p50_us for mine, theirs in added) if added else None,
        added_p99_us=statistics.median(mine.p99_us - theirs.p99_us for mine, theirs in added) if added else None,
        whole=sum(one.whole for one in own),
        bad=sum(one.bad for one in own),
        rounds=len(own),
    )


def _ratio(fractions: Sequence[tuple[float, float]]) -> Ratio | None:
    """Return the ratio of pairs of numbers; a round in which one of them is missing says nothing."""
    ratios = [above / below for above, below in fractions if above > 0 and below > 0]
    return interval(ratios) if ratios else None
