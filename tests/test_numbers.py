"""What several processes counted, added up."""

from types import SimpleNamespace

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.engine import Request, plan
from proxy.errors import BackendFault
from proxy.exchange import Record
from proxy.exposition import as_text
from proxy.metrics import MAX_RULES, OTHER, Metrics
from proxy.numbers import FAMILIES, Numbers, join
from proxy.plans import Applied
from proxy.policy import load_policy

TEXT = """
version: 1
backends: {{main: {{url: "http://backend"}}}}
rules:
  - {{id: {rule}, when: {{body: {{stop: {{exists: true}}}}}}, repair: [drop: [stop], set: {{flat: true}}]}}
"""
POLICY = load_policy("policy.yaml", environ={}, text=TEXT.format(rule="one"))
OTHER_POLICY = load_policy("policy.yaml", environ={}, text=TEXT.format(rule="two"))


def counted(policy=POLICY, *, requests=1, seconds=0.5, in_flight=0, learned=0):
    metrics = Metrics()
    metrics.reloaded(policy)
    made = plan(Request("POST", "/v1/completions", "", [], b'{"stop": "x"}'), policy)
    for _ in range(requests):
        metrics.answered("/v1/completions", 200, Record(plan=made), seconds, seconds)
    for _ in range(in_flight):
        metrics.in_flight[()] += 1
    metrics.learned(learned)
    return metrics


def samples(numbers):
    return {
        (sample.name.removeprefix("mendproxy_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(as_text(numbers).decode())
        for sample in family.samples
    }


def test_one_process_s_numbers_are_as_they_are():
    metrics = counted(requests=3, in_flight=2)
    assert as_text(join([metrics.numbers])) == as_text(metrics.numbers) == metrics.text()


def test_numbers_go_to_another_process_unchanged():
    numbers = counted(requests=3).numbers
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(numbers), type=Numbers) == numbers


JOINED = [
    pytest.param(("requests_total", "200", "repaired", "/v1/completions"), 7, id="counters are summed"),
    pytest.param(("request_duration_seconds_count",), 7, id="what was measured is summed"),
    pytest.param(("request_duration_seconds_sum",), 3 * 0.5 + 4 * 3.0, id="and so is its sum"),
    pytest.param(("request_duration_seconds_bucket", "0.64"), 3, id="and each bucket"),
    pytest.param(("request_duration_seconds_bucket", "5.12"), 7, id="up to the last"),
    pytest.param(("requests_in_flight",), 3, id="what is in flight is summed"),
    pytest.param(("learned_repairs",), 5, id="all know the same lessons, or soon will"),
    pytest.param(("policy_last_reload_successful",), 0, id="a reload has failed where it failed in one"),
    pytest.param(("policy_info", POLICY.sha256), 1, id="a policy that one of them has is told"),
    pytest.param(("policy_info", OTHER_POLICY.sha256), 1, id="and one that another has"),
]


@pytest.mark.parametrize(("sample", "value"), JOINED)
def test_several_processes_numbers_are_as_those_of_one(sample, value):
    one = counted(requests=3, in_flight=1, learned=4)
    other = counted(OTHER_POLICY, requests=4, seconds=3.0, in_flight=2, learned=5)
    other.reloaded(None)
    found = samples(join([one.numbers, other.numbers]))
    by_labels = {(name, *sorted(labels)): told for (name, *labels), told in found.items()}
    assert by_labels[sample[0], *sorted(sample[1:])] == value


def test_there_is_one_version_whatever_the_number_of_processes():
    found = samples(join([counted().numbers, counted().numbers]))
    assert [value for (name, *_), value in found.items() if name == "build_info"] == [1]


def test_a_process_that_ended_counts_but_serves_nothing():
    dead = counted(requests=3, in_flight=2).numbers.of_the_dead()
    found = samples(join([counted(in_flight=1).numbers, dead]))
    assert found["requests_in_flight",] == 1
    assert found["request_duration_seconds_count",] == 4


def test_nothing_that_was_joined_is_changed_by_it():
    one, other = counted(requests=3), counted(requests=4)
    before = msgspec.msgpack.encode([one.numbers, other.numbers])
    join([join([one.numbers]), other.numbers])
    assert msgspec.msgpack.encode([one.numbers, other.numbers]) == before


def test_a_rule_is_counted_once_a_request_whatever_the_number_of_its_repairs():
    numbers = join([counted(requests=3).numbers, counted(OTHER_POLICY).numbers, counted(requests=2).numbers])
    assert {rule: (count.exact, count.lossy, count.observed) for rule, count in numbers.rules.items()} == {
        "one": (0, 5, 0),
        "two": (0, 1, 0),
    }
    assert numbers.rules["one"].last_s > 0


def test_rules_that_come_and_go_for_ever_are_counted_together_in_the_end():
    metrics = Metrics()
    for number in range(MAX_RULES + 5):
        made = SimpleNamespace(applied=(Applied(f"learned/{number}", ("drop",)),), observed=(), bodies=())
        metrics.answered("/v1/completions", 200, Record(plan=made), 0.1, None)
    assert len(metrics.numbers.rules) == MAX_RULES + 1
    assert metrics.numbers.counters["repairs_total"][OTHER, "drop", "exact"] == 5


def test_a_backend_that_is_up_again_is_told_as_up():
    metrics = Metrics()
    for outcome in (200, BackendFault("Gone."), 200):
        metrics.note("main", outcome)
    assert samples(metrics.numbers)["backend_up", "main"] == 1


def test_every_family_has_a_help_text_and_no_two_one_name():
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    assert all(family.text.endswith(".") for family in FAMILIES)
