"""The effective policy: complete, without secrets, and a policy itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from proxy.matching import Facts
from proxy.policy import effective_text

EXAMPLE = (Path(__file__).parent / "example.yaml").read_text("utf-8")
TWO = """\
version: 1
backends:
  a: {url: 'http://x', models: [m], presets: [sglang], api_key: sk-literal}
  b: {url: 'http://${HOST}', presets: [lax, sglang], api_key: '${KEY:-sk-default}', timeouts: {idle: 90}}
auth: {keys: [k-literal, '${KEYS}']}
keep_alive: 0.25
limits: {body: 1024}
disable: [sglang/meta-info]
rules:
  - id: own
    when: {path: /v1/*, body: {a: 'yes', b: '1e3', c: '0o7', d: null, e: '', f: '~', g: 1.0, h: '${HOST}'}}
    repair: [{map: {n: {null: 1, true: 2, '3': '4'}}}]
  - id: sglang/top-p-zero
    when: {backend: a}
    repair: [{drop: [x]}]
"""
ENVIRON = {"HOST": "h", "KEY": "sk-variable", "KEYS": "k-variable"}


@pytest.mark.parametrize("text", [EXAMPLE, TWO], ids=["the documented example", "two backends with presets"])
def test_it_loads_again_to_the_same(text, load):
    shown = effective_text(load(text, environ=ENVIRON))
    again = load(shown, environ=ENVIRON, presets={})
    assert effective_text(again) == shown


def test_a_backend_s_rules_stay_as_they_were_but_for_those_of_others(load):
    policy = load(TWO, environ=ENVIRON)
    again = load(effective_text(policy), environ=ENVIRON, presets={})
    for before, after in zip(policy.backends, again.backends, strict=True):
        kept = [rule.id for rule in after.rules if is_for(rule, before.name)]
        assert kept == [rule.id for rule in before.rules if is_for(rule, before.name)]


def is_for(rule, backend):
    facts = Facts("POST", "/v1/completions", {}, {}, "m", backend, None)
    return all(check.holds(facts) for check in rule.matcher.checks if check.label.startswith("backend"))


def test_no_secret_is_shown(load):
    shown = effective_text(load(TWO, environ=ENVIRON))
    assert "sk-" not in shown
    assert "k-literal" not in shown
    assert "k-variable" not in shown
    values = yaml.safe_load(shown)
    assert values["auth"]["keys"] == ["***", "${KEYS}"]
    assert [backend["api_key"] for backend in values["backends"].values()] == ["***", "${KEY:-***}"]


def test_presets_are_unfolded_for_the_backends_that_have_them(load):
    values = yaml.safe_load(effective_text(load(TWO, environ=ENVIRON)))
    assert [(rule["id"], rule["when"].get("backend")) for rule in values["rules"]] == [
        ("sglang/top-p-zero", "a"),
        ("lax/n-string", ["b"]),
        ("own", None),
    ]
    assert all(backend["presets"] == [] for backend in values["backends"].values())


def test_defaults_are_filled_in_and_units_are_told(load):
    values = yaml.safe_load(effective_text(load(TWO, environ=ENVIRON)))
    assert values["backends"]["b"]["timeouts"] == {"connect": "5s", "first_content": "10m", "idle": "90s"}
    assert values["limits"] == {
        "body": "1KiB",
        "response": "64MiB",
        "event": "8MiB",
        "branches": 16,
        "total": "1GiB",
        "connections": 10000,
    }
    assert values["keep_alive"] == "250ms"
    assert values["rules"][1]["when"]["path"] == ["/v1/chat/completions", "/v1/completions"]


def test_strings_that_look_like_other_types_stay_strings(load):
    shown = effective_text(load(TWO, environ=ENVIRON))
    checks = load(shown, environ=ENVIRON).backends[0].rules[-1].matcher.checks
    assert [check.label.partition(": ")[2] for check in checks[1:]] == [
        '"yes"', '"1e3"', '"0o7"', "null", '""', '"~"', "1.0", "${HOST}"]  # fmt: skip
