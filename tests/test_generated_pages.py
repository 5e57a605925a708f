"""The pages that are made from presets and their cases: docs/presets.md, docs/coverage.md."""

import importlib
from pathlib import Path

import pytest

from proxy.policy import preset_names
from proxy.policy_tests import run_suite

ROOT = Path(__file__).parent.parent

CASES = """
preset: sglang
about: For a test.
tests:
  - name: repaired
    row: top_p | 0
    request: {body: {messages: [], top_p: 0, temperature: 2}}
    expect: {rules: [sglang/top-p-zero]}
  - name: repaired again, at a loss
    row: top_p | 0
    request: {body: {messages: [], top_p: 0, repetition_penalty: 9}}
    expect: {rules: [sglang/top-p-zero, sglang/repetition-penalty]}
  - name: served
    row: n on a stream
    request: {body: {messages: [], stream: true, n: 3}}
    expect: {untouched: true}
  - name: passed on
    row: a model that is not there
    request: {body: {model: m, messages: []}}
    after: {status: 404, body: {error: {message: no such model}}}
    expect: {retried: false}
  - name: of no row
    request: {body: {messages: []}}
    expect: {untouched: true}
  - row: input too long
    impossible: Nothing may be left out.
"""
BY = "`sglang/top-p-zero`<br>`sglang/repetition-penalty`"
ROWS = [
    rf"| top\_p \| 0 | repaired | {BY} | repetition\_penalty 9 becomes 2 |  |",
    "| n on a stream | served as it is |  |  |  |",
    "| a model that is not there | passed on |  |  |  |",
    "| input too long | impossible |  |  | Nothing may be left out. |",
]


@pytest.fixture
def coverage(monkeypatch):
    """Return the module that makes docs/coverage.md."""
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("docs.print_coverage")


@pytest.fixture
def presets(monkeypatch):
    """Return the module that makes docs/presets.md."""
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("docs.print_presets")


@pytest.fixture
def write(tmp_path):
    """Return what writes cases to a file."""

    def write_text(text):
        file = tmp_path / "sglang.yaml"
        file.write_text(text, "utf-8")
        return file

    return write_text


def test_each_row_says_what_is_done_about_it_and_at_what_price(coverage, write):
    page = coverage.page(run_suite(write(CASES), {}))
    assert [line for line in page.splitlines() if line.startswith("| ") and "row" not in line] == ROWS
    assert "4 rows: 1 repaired, 1 served as it is, 1 passed on, 1 impossible." in page


@pytest.mark.parametrize(
    ("name", "expect", "kind"),
    [
        pytest.param("llamafactory", "{rules: [llamafactory/messages-empty], refused: true}", "told", id="a refusal"),
        pytest.param("sglang", "{untouched: true}", "served as it is", id="no rule at all"),
    ],
)
def test_what_becomes_of_a_request_is_read_off_its_plan(name, expect, kind, coverage, write):
    text = f"preset: {name}\ntests:\n  - {{name: n, row: r, request: {{body: {{messages: []}}}}, expect: {expect}}}\n"
    (row,) = coverage.rows(run_suite(write(text), {}))
    assert row.kind == kind
    assert bool(row.reasons) is (kind == "told")


def test_nothing_is_claimed_where_a_case_fails(coverage, write):
    with pytest.raises(SystemExit, match="this case fails, so there is nothing to claim"):
        list(coverage.suites([write(CASES.replace("{untouched: true}", "{untouched: false}"))]))


def test_nothing_is_claimed_where_cases_are_faulty(coverage, write):
    with pytest.raises(SystemExit, match='unknown key "row_"'):
        list(coverage.suites([write(CASES.replace("row: n", "row_: n"))]))


@pytest.mark.parametrize("name", preset_names())
def test_every_rule_of_a_preset_is_on_its_page(name, presets):
    page = presets.page(name)
    assert page.startswith(f"## {name}\n")
    for rule in presets.rules(name):
        assert page.count(f"| `{rule.id}`") == 1
    assert all(line.replace("\\|", "").count("|") == 6 for line in page.splitlines() if line.startswith("| "))


def test_a_rule_is_told_with_its_conditions_and_what_it_costs(presets):
    lines = {line.split("`")[1]: line for line in presets.page("sglang").splitlines() if line.startswith("| `")}
    assert "| `body: {top_p: {le: 0}}` | `set: {temperature: 0}`<br>" in lines["sglang/top-p-zero"]
    assert lines["sglang/top-p-zero"].endswith("| nothing |")
    assert "(reactive)" in lines["sglang/max-tokens-beyond-context"]
    assert "refused with `status: 400" in lines["sglang/max-tokens-beyond-context"]
