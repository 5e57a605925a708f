"""/metrics answers under names that Prometheus' own linter, `promtool check metrics`, lets pass."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.engine import Request, plan
from proxy.errors import BackendFault
from proxy.exchange import Record
from proxy.metrics import Metrics
from proxy.policy import load_policy

POLICY = load_policy(
    "policy.yaml",
    environ={},
    text="""
version: 1
backends: {main: {url: "http://backend"}}
rules:
  - {id: fanned, when: {body: {n: {gt: 1}}}, repair: [fan_out: {}]}
""",
)


def exposition():
    """Return what /metrics says once everything has happened at least once."""
    metrics = Metrics()
    metrics.reloaded(POLICY)
    metrics.note("main", 200)
    metrics.note("main", BackendFault("dead"))
    fanned = plan(Request("POST", "/v1/chat/completions", "", [], b'{"n": 2}'), POLICY)
    metrics.answered("/v1/chat/completions", 200, Record(plan=fanned), 1.0, 0.5)
    return metrics.text().decode()


KINDS = ("counter", "gauge", "histogram", "summary")
# What promtool takes for a unit that is not the base one. Source: prometheus/client_golang, promlint's units.go.
UNITS = re.compile(
    r"(?:^|_)(?:(?:milli|micro|nano|kilo|mega|giga|kibi|mebi)(?:seconds|bytes|meters)|minutes|hours|days|weeks|bits"
    r"|percent|ms|us|ns|sec|secs|min|mins|hrs?|kb|mb|gb|kib|mib)(?:_|$)"
)


def lint(text):
    """Return what `promtool check metrics` says of an exposition, a line each."""
    families = list(text_string_to_metric_families(text))
    return [said for family in families for said in [*_lint_names(family, text), *_lint_labels(family)]]


def _lint_names(family, text):
    name = family.name + "_total" * (family.type == "counter")
    if not family.documentation:
        yield f"{name}: no help text"
    if f"# TYPE {name} {family.type}" not in text:
        yield f"{name}: a counter's name ends with _total, and no other's"
    if family.type in ("gauge", "untyped", "unknown", "counter") and re.search(
        r"_(bucket|count|sum|total)$", family.name
    ):
        yield f"{name}: a suffix that belongs to another kind"
    if set(family.name.split("_")) & set(KINDS):
        yield f"{name}: its kind stands in its name"
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        yield f"{name}: not snake_case, or a colon"
    if UNITS.search(family.name):
        yield f"{name}: not in a base unit"
    if not name.startswith("mendproxy_"):
        yield f"{name}: not of this application"


def _lint_labels(family):
    for label in {label for sample in family.samples for label in sample.labels}:
        bucket = family.type == "histogram" and label == "le"
        if label in ("le", "quantile") and not bucket:
            yield f"{family.name}: the label {label} belongs to histograms and summaries"
        if not re.fullmatch(r"[a-z][a-z0-9_]*", label) or label.startswith("__") or label in ("job", "instance"):
            yield f"{family.name}: the label {label} is not snake_case, or Prometheus' own"
        if label in KINDS or re.search(r"(^|_)(total|bucket|count|sum)$", label):
            yield f"{family.name}: the label {label} is a metric's suffix"


def test_the_names_are_as_prometheus_wants_them():
    assert lint(exposition()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("# TYPE mendproxy_a gauge\nmendproxy_a 1\n", "no help text", id="no help"),
        pytest.param(
            "# HELP mendproxy_a A.\n# TYPE mendproxy_a counter\nmendproxy_a 1\n",
            "a counter's name ends with _total",
            id="a counter that does not say so",
        ),
        pytest.param(
            "# HELP mendproxy_a_count A.\n# TYPE mendproxy_a_count gauge\nmendproxy_a_count 1\n",
            "a suffix that belongs to another kind",
            id="a gauge that ends as a histogram does",
        ),
        pytest.param(
            "# HELP mendproxy_a_gauge A.\n# TYPE mendproxy_a_gauge gauge\nmendproxy_a_gauge 1\n",
            "its kind stands in its name",
            id="a gauge that says so",
        ),
        pytest.param(
            "# HELP mendproxy_aB A.\n# TYPE mendproxy_aB gauge\nmendproxy_aB 1\n", "not snake_case", id="camel case"
        ),
        pytest.param(
            "# HELP mendproxy_a_milliseconds A.\n# TYPE mendproxy_a_milliseconds gauge\nmendproxy_a_milliseconds 1\n",
            "not in a base unit",
            id="milliseconds",
        ),
        pytest.param("# HELP other_a A.\n# TYPE other_a gauge\nother_a 1\n", "not of this application", id="no prefix"),
        pytest.param(
            '# HELP mendproxy_a A.\n# TYPE mendproxy_a gauge\nmendproxy_a{le="1"} 1\n',
            "the label le belongs to histograms",
            id="a bound on a gauge",
        ),
        pytest.param(
            '# HELP mendproxy_a A.\n# TYPE mendproxy_a gauge\nmendproxy_a{instance="1"} 1\n',
            "or Prometheus' own",
            id="a label that scraping sets",
        ),
        pytest.param(
            '# HELP mendproxy_a A.\n# TYPE mendproxy_a gauge\nmendproxy_a{a_total="1"} 1\n',
            "is a metric's suffix",
            id="a label named like a counter",
        ),
    ],
)
def test_a_name_that_prometheus_does_not_want_is_found(text, said):
    [found] = lint(text)
    assert said in found
