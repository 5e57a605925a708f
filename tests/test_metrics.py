"""What is counted of a request, and under which names."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.engine import Request, plan
from proxy.errors import BackendFault, ClientFault
from proxy.exchange import Record
from proxy.metrics import Metrics
from proxy.policy import load_policy

CHAT = "/v1/chat/completions"
POLICY = load_policy(
    "policy.yaml",
    environ={},
    text="""
version: 1
backends: {main: {url: "http://backend"}}
rules:
  - {id: stop-dropped, when: {body: {stop: {exists: true}}}, repair: [drop: [stop]]}
  - {id: fanned, when: {body: {n: {gt: 1}}}, repair: [fan_out: {}]}
""",
)
# Source: design §9.
NAMES = {
    "mendproxy_requests_total",
    "mendproxy_repairs_total",
    "mendproxy_request_duration_seconds",
    "mendproxy_time_to_first_byte_seconds",
    "mendproxy_upstream_requests_total",
    "mendproxy_upstream_errors_total",
    "mendproxy_fanout_branches",
    "mendproxy_requests_in_flight",
    "mendproxy_streams_open",
    "mendproxy_backend_up",
    "mendproxy_client_disconnects_total",
    "mendproxy_streams_truncated_total",
    "mendproxy_learned_repairs",
    "mendproxy_policy_last_reload_successful",
    "mendproxy_policy_info",
    "mendproxy_build_info",
}


def record(body: bytes = b"{}", **fields: object) -> Record:
    return Record(plan=plan(Request("POST", CHAT, "", [], body), POLICY), **fields)


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[str]], float]:
    return {
        (sample.name.removeprefix("mendproxy_"), frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


def test_the_names_are_those_of_the_contract() -> None:
    families = text_string_to_metric_families(Metrics().text().decode())
    names = {family.name.removesuffix("_total") + "_total" * (family.type == "counter") for family in families}
    assert names == NAMES


OUTCOMES = [
    pytest.param(record(), 200, "untouched", id="untouched"),
    pytest.param(record(b'{"stop": "x"}'), 200, "repaired", id="repaired"),
    pytest.param(record(b'{"stop": "x"}'), 400, "repaired", id="refused by the backend although repaired"),
    pytest.param(record(error=ClientFault("no")), 400, "refused", id="refused by the proxy"),
    pytest.param(record(error=BackendFault("dead")), 502, "failed", id="no answer"),
    pytest.param(record(error=BackendFault("dead"), is_truncated=True), 200, "failed", id="broken off"),
    pytest.param(record(), 500, "failed", id="the backend's own failure"),
]


@pytest.mark.parametrize(("what", "status", "outcome"), OUTCOMES)
def test_a_request_is_counted_by_its_outcome(what: Record, status: int, outcome: str) -> None:
    metrics = Metrics()
    metrics.answered(CHAT, status, what, 0.5, 0.1)
    assert samples(metrics)["requests_total", frozenset({CHAT, str(status), outcome})] == 1


def test_a_path_that_a_client_made_up_is_no_label() -> None:
    metrics = Metrics()
    metrics.answered("/v1/made-up", 404, record(), 0.5, 0.1)
    assert samples(metrics)["requests_total", frozenset({"other", "404", "untouched"})] == 1


def test_repairs_branches_and_breaks_are_counted() -> None:
    metrics = Metrics()
    what = record(b'{"stop": "x", "n": 3}', is_truncated=True, has_left=True)
    metrics.answered(CHAT, 200, what, 3.0, None)
    found = samples(metrics)
    assert found["repairs_total", frozenset({"stop-dropped", "drop", "lossy"})] == 1
    assert found["repairs_total", frozenset({"fanned", "fan_out", "exact"})] == 1
    assert found["fanout_branches_sum", frozenset()] == 3
    assert found["client_disconnects_total", frozenset()] == found["streams_truncated_total", frozenset()] == 1
    assert found["time_to_first_byte_seconds_count", frozenset()] == 0
    assert found["request_duration_seconds_bucket", frozenset({"5.12"})] == 1
    assert found["request_duration_seconds_bucket", frozenset({"2.56"})] == 0


def test_backends_are_counted_by_what_they_answer() -> None:
    metrics = Metrics()
    metrics.note("main", 400)
    assert samples(metrics)["backend_up", frozenset({"main"})] == 1
    metrics.note("main", BackendFault("dead", token="connection_refused"))
    found = samples(metrics)
    assert found["upstream_requests_total", frozenset({"main", "400"})] == 1
    assert found["upstream_errors_total", frozenset({"main", "connection_refused"})] == 1
    assert found["backend_up", frozenset({"main"})] == 0


def test_a_failed_reload_keeps_the_policy_that_is_told() -> None:
    metrics = Metrics()
    metrics.reloaded(POLICY)
    metrics.reloaded(None)
    found = samples(metrics)
    assert found["policy_last_reload_successful", frozenset()] == 0
    assert found["policy_info", frozenset({POLICY.sha256})] == 1
