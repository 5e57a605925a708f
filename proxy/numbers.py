"""What was counted, as one value that goes from process to process and adds up.

    each worker: Numbers ─┐
    a worker that died ───┼─► join ─► exposition.as_text
    the supervisor's own ─┘
Counters and histograms are sums. Of a gauge it is told in `FAMILIES` how several processes' values make one.

Source: design §9 (names); Prometheus' naming practices; buckets to 655 s, since answers take minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

SECONDS: Final = tuple(0.01 * 2**power for power in range(17))
BRANCHES: Final = (1, 2, 4, 8, 16, 32)

Labels = tuple[str, ...]
Series = dict[Labels, float]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric of the contract. `joined`: how several processes' values of a gauge make one."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    text: str
    labels: Labels = ()
    buckets: tuple[float, ...] = ()
    joined: Callable[[float, float], float] = float.__add__


FAMILIES: Final = (
    Family("counter", "requests_total", "Requests answered.", ("path", "code", "outcome")),
    Family(
        "counter",
        "repairs_total",
        "Repairs done; loss `observed`: only would have been.",
        ("rule", "repair", "loss"),
    ),
    Family("histogram", "request_duration_seconds", "From the request's head to the answer's end.", (), SECONDS),
    Family("histogram", "time_to_first_byte_seconds", "From the request's head to the answer's.", (), SECONDS),
    Family("counter", "upstream_requests_total", "Answers of backends, by status.", ("backend", "code")),
    Family("counter", "upstream_errors_total", "Requests without an answer.", ("backend", "error")),
    Family("histogram", "fanout_branches", "Upstream requests of a fanned-out request.", (), BRANCHES),
    Family("gauge", "requests_in_flight", "Requests being served."),
    Family("gauge", "streams_open", "Event streams being sent."),
    Family("gauge", "backend_up", "Whether a backend answered last time.", ("backend",), joined=max),
    Family("counter", "client_disconnects_total", "Clients that left before their answer was whole."),
    Family("counter", "streams_truncated_total", "Answers that broke off after they had begun."),
    Family("gauge", "learned_repairs", "Repairs remembered from refusals.", joined=max),
    Family("gauge", "policy_last_reload_successful", "Whether the last reload was free of faults.", joined=min),
    Family("gauge", "policy_info", "The policy in force.", ("sha256",), joined=max),
    Family("gauge", "build_info", "The version.", ("version",), joined=max),
)
BUCKETS: Final = {family.name: family.buckets for family in FAMILIES if family.buckets}
_JOINED: Final = {family.name: family.joined for family in FAMILIES}


class Cells(msgspec.Struct):
    """A histogram: how many values fell into each bucket, the last one being all above, and their sum."""

    counts: list[int]
    total: float = 0.0


class RuleCount(msgspec.Struct):
    """How often a rule fired, and when last. Units: seconds since the epoch."""

    exact: int = 0
    lossy: int = 0
    observed: int = 0
    last_s: float = 0.0


class Numbers(msgspec.Struct):
    """All that was counted, by the names of FAMILIES; and what the status tells of each rule."""

    counters: dict[str, Series]
    histograms: dict[str, Cells]
    gauges: dict[str, Series]
    rules: dict[str, RuleCount]

    @classmethod
    def none(cls) -> Numbers:
        """Return what is counted before anything was."""
        return cls(
            counters={f.name: {} if f.labels else {(): 0.0} for f in FAMILIES if f.kind == "counter"},
            histograms={name: Cells([0] * (len(buckets) + 1)) for name, buckets in BUCKETS.items()},
            gauges={family.name: {} for family in FAMILIES if family.kind == "gauge"},
            rules={},
        )

    def of_the_dead(self) -> Numbers:
        """Return what still counts when the process has ended: a counter never goes down."""
        return msgspec.structs.replace(self, gauges={})


def join(parts: Iterable[Numbers]) -> Numbers:
    """Return several processes' numbers as those of one."""
    joined = Numbers.none()
    for part in parts:
        for name, series in part.counters.items():
            _add(joined.counters[name], series, float.__add__)
        for name, series in part.gauges.items():
            _add(joined.gauges[name], series, _JOINED[name])
        for name, cells in part.histograms.items():
            known = joined.histograms[name]
            known.counts = [a + b for a, b in zip(known.counts, cells.counts, strict=True)]
            known.total += cells.total
        for rule, count in part.rules.items():
            joined.rules[rule] = _both(joined.rules.get(rule, RuleCount()), count)
    return joined


def _add(to: Series, series: Series, joined: Callable[[float, float], float]) -> None:
    for labels, value in series.items():
        to[labels] = joined(to[labels], value) if labels in to else value


def _both(one: RuleCount, other: RuleCount) -> RuleCount:
    return RuleCount(
        one.exact + other.exact,
        one.lossy + other.lossy,
        one.observed + other.observed,
        max(one.last_s, other.last_s),
    )
