"""Alerts and dashboard ask for what /metrics answers, in a way that can work."""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from proxy.engine import Request, plan
from proxy.errors import BackendFault
from proxy.exchange import Record
from proxy.metrics import Metrics
from proxy.policy import load_policy

ROOT = Path(__file__).parent.parent.parent
PROMETHEUS = ROOT / "deploy" / "prometheus"
ALERTS = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())
ALERT_TESTS = yaml.safe_load((PROMETHEUS / "alerts_test.yaml").read_text())
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "mendproxy.json").read_text())
RUNBOOK = "docs/operating.md"

RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
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


FAMILIES = list(text_string_to_metric_families(exposition()))
# Prometheus' own: whether a target could be scraped.
SERIES = {"up": set()} | {
    sample.name: set(sample.labels) for family in FAMILIES for sample in family.samples if sample.labels is not None
}
OF_A_TARGET = {"job", "instance"}


def dashboard_queries():
    for panel in PANELS:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for annotation in DASHBOARD["annotations"]["list"]:
        yield f"annotation {annotation['name']}", annotation["expr"]


def queries():
    named = [(rule["alert"], rule["expr"]) for rule in RULES] + list(dashboard_queries())
    return [pytest.param(text, id=name) for name, text in named]


def parse(text):
    """Return the expression; what Grafana fills in is filled in."""
    return promql_parser.parse(text.replace("$__rate_interval", "5m"))


def nodes(expression, kind):
    found = []
    promql_parser.walk(expression, lambda node: found.append(node) if isinstance(node, kind) else None)
    return found


def selectors(expression):
    return nodes(expression, promql_parser.VectorSelector)


def labels(selector):
    return {matcher.name for matcher in selector.matchers.matchers}


def faults(text):
    """Return what a query asks for that isn't there."""
    expression = parse(text)
    chosen = selectors(expression)
    found = [f"no series {each.name}" for each in chosen if each.name not in SERIES]
    found += [
        f"no label {label} on {each.name}"
        for each in chosen
        for label in labels(each) - SERIES.get(each.name, set()) - OF_A_TARGET
    ]
    for aggregate in nodes(expression, promql_parser.AggregateExpr):
        kept = set(aggregate.modifier.labels) if aggregate.modifier is not None else set()
        found += [
            f"no label {label} on {each.name} to be kept"
            for each in selectors(aggregate.expr)
            for label in kept - SERIES.get(each.name, set()) - OF_A_TARGET
        ]
    return found + quantile_faults(expression) + rate_faults(expression)


def quantile_faults(expression):
    """Return the quantiles of anything but buckets whose bounds are kept."""
    calls = [call for call in nodes(expression, promql_parser.Call) if call.func.name == "histogram_quantile"]
    return [
        f"a quantile of {each.name}"
        for call in calls
        for aggregate in nodes(call.args[1], promql_parser.AggregateExpr) or [call.args[1]]
        for each in selectors(aggregate)
        if not each.name.endswith("_bucket") or "le" not in aggregate.modifier.labels
    ]


def rate_faults(expression):
    """Return the gauges that are asked for a rate, and the counters that are asked for without one."""
    rated = {
        each.name
        for call in nodes(expression, promql_parser.Call)
        if call.func.name in ("rate", "increase")
        for each in selectors(call)
    }
    counted = re.compile(r"_(total|bucket|count|sum)$")
    return [f"a rate of {name}" for name in rated if not counted.search(name)] + [
        f"no rate of {each.name}"
        for each in selectors(expression)
        if counted.search(each.name) and each.name not in rated
    ]


@pytest.mark.parametrize("text", queries())
def test_a_query_asks_for_series_and_labels_that_are_there(text):
    assert selectors(parse(text))
    assert faults(text) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param("mendproxy_gone", "no series mendproxy_gone", id="a series that is not there"),
        pytest.param(
            'mendproxy_backend_up{model="m"}', "no label model on mendproxy_backend_up", id="a label that is not there"
        ),
        pytest.param(
            "sum by (rule) (mendproxy_backend_up)",
            "no label rule on mendproxy_backend_up to be kept",
            id="a label that can't be kept",
        ),
        pytest.param(
            "histogram_quantile(0.9, sum by (job) (rate(mendproxy_request_duration_seconds_bucket[5m])))",
            "a quantile of mendproxy_request_duration_seconds_bucket",
            id="a quantile without the buckets' bounds",
        ),
        pytest.param("mendproxy_requests_total", "no rate of mendproxy_requests_total", id="a bare counter"),
        pytest.param("rate(mendproxy_streams_open[5m])", "a rate of mendproxy_streams_open", id="a gauge's rate"),
    ],
)
def test_a_query_that_can_not_work_is_found(text, fault):
    assert faults(text) == [fault]


def test_everything_that_is_counted_has_been_seen():
    assert [family.name for family in FAMILIES if not family.samples] == []


def test_every_series_is_on_the_dashboard():
    shown = {each.name for _, text in dashboard_queries() for each in selectors(parse(text))}
    families = {family.name + "_total" * (family.type == "counter") for family in FAMILIES}
    assert {name for name in families if not any(each.startswith(name) for each in shown)} == set()


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule["alert"]) for rule in RULES])
def test_an_alert_says_how_bad_it_is_what_it_means_and_where_to_read_on(rule):
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert re.fullmatch(r"\d+m", rule["for"])
    assert rule["annotations"].keys() == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"{RUNBOOK}#{rule['alert'].lower()}"
    kept = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    [*_, last] = nodes(parse(rule["expr"]), promql_parser.AggregateExpr) or [None]
    assert kept <= (set(last.modifier.labels) if last is not None else OF_A_TARGET)


def test_the_runbook_has_a_section_for_each_alert_and_for_nothing_else():
    headings = re.findall(r"^### (Mendproxy\w+)$", (ROOT / RUNBOOK).read_text(), re.MULTILINE)
    assert headings == [rule["alert"] for rule in RULES]


def test_each_alert_is_tested_where_it_fires_and_where_it_does_not():
    tried = Counter(
        (case["alertname"], bool(case["exp_alerts"]))
        for test in ALERT_TESTS["tests"]
        for case in test["alert_rule_test"]
    )
    assert {name for name, _ in tried} == {rule["alert"] for rule in RULES}
    assert [rule["alert"] for rule in RULES if not (tried[rule["alert"], True] and tried[rule["alert"], False])] == []


@pytest.mark.real
@pytest.mark.parametrize("what", [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]])
def test_promtool_is_content(what):
    done = subprocess.run(  # noqa: S603 the command is this test's own
        ["promtool", *what],  # noqa: S607 wherever it is installed
        cwd=PROMETHEUS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_have_ids_of_their_own_and_do_not_overlap():
    assert [
        number for number, count in Counter(panel["id"] for panel in DASHBOARD["panels"]).items() if count > 1
    ] == []
    cells = Counter(
        (x, y)
        for at in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    )
    assert max(cells.values()) == 1
    assert max(x for x, _ in cells) < 24


def sources(value):
    """Return every data source that is named anywhere in a value."""
    if isinstance(value, dict):
        yield from (item for key, item in value.items() if key == "datasource")
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from sources(item)


def test_the_data_source_is_the_readers_choice_everywhere():
    found = list(sources(DASHBOARD))
    assert len(found) > 2 * len(PANELS)
    assert [source for source in found if source != {"type": "prometheus", "uid": "${datasource}"}] == []


def test_a_reader_can_choose_the_data_source_the_job_and_the_instances():
    chosen = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert chosen["datasource"]["type"] == "datasource"
    assert [name for name in ("job", "instance") if not (chosen[name]["multi"] and chosen[name]["includeAll"])] == []
    assert set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(DASHBOARD))) <= set(chosen)


@pytest.mark.parametrize(("name", "text"), [pytest.param(*query, id=query[0]) for query in dashboard_queries()])
def test_a_query_of_the_dashboard_heeds_the_choice(name, text):
    assert [each.name for each in selectors(parse(text)) if not labels(each) >= OF_A_TARGET] == []
