"""Prometheus metrics of the process, in a registry of their own. Labels are bounded: none holds what a client made up.

Source: design §9 (names); Prometheus' naming practices; buckets to 655 s, since answers take minutes.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from proxy import __version__
from proxy.engine import Applied
from proxy.errors import BackendFault
from proxy.exchange import Record
from proxy.policy import Policy

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = tuple(0.01 * 2**power for power in range(17))
BRANCHES = (1, 2, 4, 8, 16, 32)
PATHS = frozenset(
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


class Metrics:
    """What the process counts."""

    def __init__(self) -> None:
        # The times at which series began are series of their own to this library, and none of the contract's.
        disable_created_metrics()  # type: ignore[no-untyped-call] # the library leaves it untyped
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"mendproxy_{name}", text, labels, registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"mendproxy_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"mendproxy_{name}", text, labels, buckets=buckets, registry=self.registry)

        self._requests = counter("requests_total", "Requests answered.", "path", "code", "outcome")
        self._repairs = counter(
            "repairs_total",
            "Repairs done; loss `observed`: only would have been.",
            "rule",
            "repair",
            "loss",
        )
        self._duration = histogram("request_duration_seconds", "From the request's head to the answer's end.", SECONDS)
        self._first_byte = histogram("time_to_first_byte_seconds", "From the request's head to the answer's.", SECONDS)
        self._upstream = counter("upstream_requests_total", "Answers of backends, by status.", "backend", "code")
        self._upstream_errors = counter("upstream_errors_total", "Requests without an answer.", "backend", "error")
        self._branches = histogram("fanout_branches", "Upstream requests of a fanned-out request.", BRANCHES)
        self.in_flight = gauge("requests_in_flight", "Requests being served.")
        self.streams_open = gauge("streams_open", "Event streams being sent.")
        self._backend_up = gauge("backend_up", "Whether a backend answered last time.", "backend")
        self._disconnects = counter("client_disconnects_total", "Clients that left before their answer was whole.")
        self._truncated = counter("streams_truncated_total", "Answers that broke off after they had begun.")
        self._learned = gauge("learned_repairs", "Repairs remembered from refusals.")
        self._reload = gauge("policy_last_reload_successful", "Whether the last reload was free of faults.")
        self._policy = gauge("policy_info", "The policy in force.", "sha256")
        gauge("build_info", "The version.", "version").labels(__version__).set(1)
        self._learned.set(0)

    def note(self, backend: str, outcome: BackendFault | int) -> None:
        """Count what came of a request to a backend: a status, or a fault where no head came."""
        if isinstance(outcome, int):
            self._upstream.labels(backend, str(outcome)).inc()
        else:
            self._upstream_errors.labels(backend, outcome.token).inc()
        self._backend_up.labels(backend).set(isinstance(outcome, int))

    def learned(self, count: int) -> None:
        """Note how many learned repairs there are."""
        self._learned.set(count)

    def reloaded(self, policy: Policy | None) -> None:
        """Note the policy in force, or with None that a reload has failed."""
        self._reload.set(policy is not None)
        if policy is not None:
            self._policy.clear()
            self._policy.labels(policy.sha256).set(1)

    def answered(self, path: str, status: int, record: Record, seconds: float, first_byte_s: float | None) -> None:
        """Count a request that is over. Units: seconds; `first_byte_s` is None where nothing was sent."""
        self._requests.labels(path if path in PATHS else "other", str(status), _outcome(status, record)).inc()
        self._duration.observe(seconds)
        if first_byte_s is not None:
            self._first_byte.observe(first_byte_s)
        if record.plan is not None:
            for applied in record.plan.applied:
                self._repaired(applied, "lossy" if applied.loses else "exact")
            for applied in record.plan.observed:
                self._repaired(applied, "observed")
            if len(record.plan.bodies) > 1:
                self._branches.observe(len(record.plan.bodies))
        if record.has_left:
            self._disconnects.inc()
        if record.is_truncated:
            self._truncated.inc()

    def _repaired(self, applied: Applied, loss: str) -> None:
        for repair in dict.fromkeys(applied.repairs):
            self._repairs.labels(applied.rule, repair, loss).inc()

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


def _outcome(status: int, record: Record) -> str:
    """Return what became of a request: untouched, repaired, refused (by the proxy itself), failed (no whole answer)."""
    if record.is_truncated or (record.error is not None and record.error.status >= 500):
        return "failed"
    if record.error is not None:
        return "refused"
    if status >= 500 and status != 501:
        return "failed"
    return "repaired" if record.plan is not None and record.plan.applied else "untouched"
