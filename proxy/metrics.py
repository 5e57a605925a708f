"""What the process counts, as it happens. Labels are bounded: none holds what a client made up.

One event loop counts, so nothing is locked; a series costs a look into a table. `numbers` has the names.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import Final

from proxy import __version__
from proxy.engine import Applied
from proxy.errors import BackendFault
from proxy.exchange import Record
from proxy.numbers import BUCKETS, Cells, Numbers, RuleCount, Series
from proxy.policy import Policy

PATHS: Final = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/models",
        "/v1/rerank",
        "/v1/responses",
    }
)
# Learned rules have ids of their own, and come and go for as long as the process runs.
MAX_RULES: Final = 2000
OTHER: Final = "other"


class Gauge:
    """A number of things that come and go."""

    __slots__ = ("_series",)

    def __init__(self, series: Series) -> None:
        self._series = series
        series[()] = 0.0

    def inc(self) -> None:
        """Count one that came."""
        self._series[()] += 1

    def dec(self) -> None:
        """Count one that went."""
        self._series[()] -= 1


class Histogram:
    """Values by the bucket that they fall into."""

    __slots__ = ("_bounds", "_cells")

    def __init__(self, bounds: tuple[float, ...], cells: Cells) -> None:
        self._bounds = bounds
        self._cells = cells

    def observe(self, value: float) -> None:
        """Count a value."""
        self._cells.counts[bisect_left(self._bounds, value)] += 1
        self._cells.total += value


class Metrics:
    """What the process counts. `numbers` is all of it."""

    def __init__(self) -> None:
        self.numbers = numbers = Numbers.none()
        self._requests: dict[tuple[str, int, str], tuple[str, str, str]] = {}
        self._answers: dict[tuple[str, int], tuple[str, str]] = {}
        self._answered = numbers.counters["requests_total"]
        self._repairs = numbers.counters["repairs_total"]
        self._upstream = numbers.counters["upstream_requests_total"]
        self._upstream_errors = numbers.counters["upstream_errors_total"]
        self._disconnects = numbers.counters["client_disconnects_total"]
        self._truncated = numbers.counters["streams_truncated_total"]
        self._backend_up = numbers.gauges["backend_up"]
        self._duration, self._first_byte, self._branches = (
            Histogram(BUCKETS[name], numbers.histograms[name])
            for name in ("request_duration_seconds", "time_to_first_byte_seconds", "fanout_branches")
        )
        self.in_flight = numbers.gauges["requests_in_flight"]
        self.in_flight[()] = 0.0
        self.streams_open = Gauge(numbers.gauges["streams_open"])
        numbers.gauges["build_info"][(__version__,)] = 1.0
        numbers.gauges["policy_last_reload_successful"][()] = 0.0
        self.learned(0)

    def note(self, backend: str, outcome: BackendFault | int) -> None:
        """Count what came of a request to a backend: a status, or a fault where no head came."""
        if isinstance(outcome, int):
            key = backend, outcome
            labels = self._answers.get(key)
            if labels is None:
                labels = self._answers[key] = backend, str(outcome)
            self._upstream[labels] = self._upstream.get(labels, 0.0) + 1
            self._backend_up[(backend,)] = 1.0
        else:
            _count(self._upstream_errors, backend, outcome.token)
            self._backend_up[(backend,)] = 0.0

    def learned(self, count: int) -> None:
        """Note how many learned repairs there are."""
        self.numbers.gauges["learned_repairs"][()] = float(count)

    def reloaded(self, policy: Policy | None) -> None:
        """Note the policy in force, or with None that a reload has failed."""
        self.numbers.gauges["policy_last_reload_successful"][()] = float(policy is not None)
        if policy is not None:
            self.numbers.gauges["policy_info"] = {(policy.sha256,): 1.0}

    def answered(self, path: str, status: int, record: Record, seconds: float, first_byte_s: float | None) -> None:
        """Count a request that is over. Units: seconds; `first_byte_s` is None where nothing was sent."""
        path = path if path in PATHS else OTHER
        key = path, status, outcome(status, record)
        labels = self._requests.get(key)
        if labels is None:
            labels = self._requests[key] = path, str(status), key[2]
        self._answered[labels] = self._answered.get(labels, 0.0) + 1
        self._duration.observe(seconds)
        if first_byte_s is not None:
            self._first_byte.observe(first_byte_s)
        plan = record.plan
        if plan is not None:
            for applied in plan.applied:
                self._repaired(applied, "lossy" if applied.loses else "exact")
            for applied in plan.observed:
                self._repaired(applied, "observed")
            if len(plan.bodies) > 1:
                self._branches.observe(len(plan.bodies))
        if record.has_left:
            _count(self._disconnects)
        if record.is_truncated:
            _count(self._truncated)

    def _repaired(self, applied: Applied, loss: str) -> None:
        rules, rule = self.numbers.rules, applied.rule
        count = rules.get(rule)
        if count is None:
            rule = rule if len(rules) < MAX_RULES else OTHER
            count = rules.setdefault(rule, RuleCount())
        setattr(count, loss, getattr(count, loss) + 1)
        count.last_s = time.time()
        for repair in dict.fromkeys(applied.repairs):
            _count(self._repairs, rule, repair, loss)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        # Who is never asked does without Prometheus' library.
        from proxy.exposition import as_text

        return as_text(self.numbers)


def _count(series: Series, *labels: str) -> None:
    series[labels] = series.get(labels, 0.0) + 1


def outcome(status: int, record: Record) -> str:
    """Return what became of a request: untouched, repaired, refused (by the proxy itself), failed (no whole answer)."""
    if record.is_truncated or (record.error is not None and record.error.status >= 500):
        return "failed"
    if record.error is not None:
        return "refused"
    if status >= 500 and status != 501:
        return "failed"
    return "repaired" if record.plan is not None and record.plan.applied else "untouched"
