"""What the policy would do with a request, as values for scripts and as text for people."""

import json

import pytest

from proxy.engine import Request
from proxy.explain import as_text, explain
from proxy.policy import load_policy

RULES = """
version: 1
backends:
  main: {url: "http://main", models: [tiny]}
rules:
  - {id: misses, when: {body: {n: {gt: 1}}}, repair: [drop: [n]]}
  - {id: absent, when: {body: {n: 1, zzz: true}}, repair: [drop: [zzz]]}
  - {id: idle, when: {body: {n: 1}}, repair: [drop: [none]]}
  - {id: waits, on_error: {status: 400}, repair: [drop: [x]]}
  - {id: watches, mode: observe, repair: [drop: [n]]}
  - {id: acts, when: {body: {x: 1}}, repair: [{drop: [x]}, {default: {y: 2}}]}
  - {id: fans, when: {body: {n: {lt: 0}}}, repair: [{set: {n: 2}}, {fan_out: {}}]}
  - {id: whole, when: {body: {stream: true}}, repair: [stream: false]}
  - {id: refuses, when: {body: {bad: true}}, repair: [reject: "Not so."]}
  - {id: last, when: {header: {authorization: "Bearer k"}}, repair: [warn: careful]}
"""
KEYS = {"backend", "rules", "before", "after", "untouched", "answer", "told", "refused"}
LONG = "x" * 500


def explained(body, *headers):
    raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    policy = load_policy("policy.yaml", environ={}, text=RULES)
    return explain(Request("POST", "/v1/chat/completions", "", headers, raw), policy)


REQUESTS = [
    pytest.param({"model": "tiny"}, id="untouched"),
    pytest.param({"model": "tiny", "x": 1}, id="repaired"),
    pytest.param({"model": "tiny", "n": -1, "stream": True}, id="fanned out"),
    pytest.param({"model": "tiny", "bad": True}, id="refused"),
    pytest.param({"model": "other"}, id="for no backend"),
    pytest.param(b"hello", id="no JSON"),
    pytest.param(None, id="without a body"),
]


@pytest.mark.parametrize("body", REQUESTS)
def test_an_explanation_has_the_same_keys_and_is_json(body):
    told = explained(body)
    assert told.keys() == KEYS
    assert json.loads(json.dumps(told)) == told
    assert as_text(told).endswith("\n")


def rule(told, name):
    return next(rule for rule in told["rules"] if rule["id"] == name)


HELLO = {"model": "tiny", "n": 1, "x": 1, "m": LONG}

WHY = [
    pytest.param("misses", {"fired": False, "failed": "body.n: {gt: 1}", "met": 1}, id="what was met instead"),
    pytest.param("absent", {"fired": False, "failed": "body.zzz: true", "met": "absent"}, id="what was absent"),
    pytest.param("idle", {"fired": False, "why": "matched, and found nothing to do"}, id="nothing to do"),
    pytest.param("waits", {"fired": False, "why": "waits for a refusal"}, id="a reactive rule"),
    pytest.param(
        "watches",
        {"fired": False, "repairs": ["drop"], "loses": "field n", "why": "only observes"},
        id="a rule that would",
    ),
    pytest.param("acts", {"fired": True, "repairs": ["drop", "default"], "loses": "field x"}, id="a rule that fires"),
    pytest.param(
        "last", {"fired": False, "failed": 'header.authorization: "Bearer k"', "met": "absent"}, id="an absent header"
    ),
]


@pytest.mark.parametrize(("name", "expected"), WHY)
def test_each_rule_says_whether_it_fires_and_why_not(name, expected):
    assert rule(explained(HELLO), name) == {"id": name} | expected


def test_the_rules_stand_in_the_order_of_the_policy():
    names = [each["id"] for each in explained(HELLO)["rules"]]
    assert names == ["misses", "absent", "idle", "waits", "watches", "acts", "fans", "whole", "refuses", "last"]


def test_a_header_s_value_is_not_shown():
    told = explained(HELLO, ("Authorization", "Bearer secret"))
    assert rule(told, "last")["met"] == "present"
    assert "secret" not in json.dumps(told) + as_text(told)


def test_a_long_value_that_a_rule_met_is_cut_short():
    text = "version: 1\nbackends: {main: {url: http://b}}\nrules: [{id: a, when: {body: {m: y}}, repair: [drop: [m]]}]"
    request = Request("POST", "/v1/chat/completions", "", (), json.dumps({"m": LONG}).encode())
    met = rule(explain(request, load_policy("p", environ={}, text=text)), "a")["met"]
    assert met == '"' + "x" * 76 + "…"


def test_what_an_any_met_is_told_of_each_field():
    text = (
        "version: 1\nbackends: {main: {url: http://b}}\n"
        "rules: [{id: a, when: {any: [body: {m: 1}, body: {n: 1}]}, repair: [drop: [m]]}]"
    )
    request = Request("POST", "/v1/chat/completions", "", (), b'{"m": 2}')
    met = rule(explain(request, load_policy("p", environ={}, text=text)), "a")["met"]
    assert met == {"body.m: 1": 2, "body.n: 1": "absent"}


def test_an_untouched_request():
    told = explained({"model": "tiny"})
    assert told["untouched"]
    assert told["after"] == [told["before"]] == [{"model": "tiny"}]
    assert told["answer"] == "the backend's answer is relayed as it comes"
    assert told["told"] is None
    assert told["refused"] is None
    assert "upstream: as the client sent it" in as_text(told)


def test_a_repaired_request():
    told = explained(HELLO | {"stream": True})
    assert not told["untouched"]
    assert told["after"] == [{"model": "tiny", "n": 1, "m": LONG, "y": 2, "stream": False}]
    assert told["answer"] == "one upstream request, restored to an event stream"
    assert told["told"] == 'acts;loss="field x", whole;loss="none"'
    lines = as_text(told).splitlines()
    assert "fired  acts     drop, default (loses: field x)" in lines
    assert "would  watches  drop (loses: field n)" in lines
    assert "passed misses   body.n: {gt: 1}: met 1" in lines
    assert '-  "x": 1,' in lines
    assert f"Mendproxy-Repairs: {told['told']}" in lines


def test_a_request_that_is_fanned_out():
    told = explained({"model": "tiny", "n": -1, "seed": 5})
    assert told["after"] == [{"model": "tiny", "seed": 5}, {"model": "tiny", "seed": 6}]
    assert told["answer"] == "2 upstream requests, restored to one JSON answer of 2 choices"
    text = as_text(told)
    assert "+++ branch 0" in text
    assert "+++ branch 1" in text


def test_a_refused_request():
    told = explained({"model": "tiny", "bad": True})
    assert told["refused"] == {
        "message": "Not so. (rule 'refuses')",
        "type": "invalid_request_error",
        "param": None,
        "code": "request_rejected",
        "status": 400,
    }
    assert (told["after"], told["untouched"]) == ([], False)
    assert told["answer"] == "the proxy answers 400 itself"
    assert rule(told, "last")["why"] == "not reached: the rule 'refuses' refuses the request"
    text = as_text(told)
    assert "refused: 400 Not so. (rule 'refuses')" in text
    assert "upstream" not in text


def test_a_request_for_a_model_that_no_backend_has():
    told = explained({"model": "other"})
    assert (told["backend"], told["rules"], told["after"]) == (None, [], [])
    assert (told["refused"]["status"], told["refused"]["code"]) == (404, "model_not_found")
    assert as_text(told).startswith("backend: none\n")
