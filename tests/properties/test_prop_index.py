"""The index leaves out no rule that would do something: what it plans is what trying every rule plans."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.engine import Request, plan
from proxy.errors import ProxyError
from proxy.policy import load_policy
from proxy.policy_tests.cases import Case, read_cases
from proxy.repairs import REPAIRS

HERE = Path(__file__).parents[1] / "presets"
CASES = {file.stem: read_cases(file.read_text(), file.name) for file in sorted(HERE.glob("*.yaml"))}
REQUESTS = [case.request for file in CASES.values() for case in file.cases if isinstance(case, Case)]
BACKEND = "version: 1\nbackends:\n  main: {{url: http://backend, presets: [{}]}}\n"
POLICIES = {name: load_policy("p.yaml", environ={}, text=BACKEND.format(name)) for name in CASES}
POLICIES["all"] = load_policy("p.yaml", environ={}, text=BACKEND.format(", ".join(CASES)))

# What a body may hold that no reader but a lenient one takes, and spellings that hide a word.
ODD = [
    b"1e999",
    b'"\xff"',
    b'[{"role": "user", "content": 1e999}]',
    b'[{"\\u0072ole": "d\\u0065veloper", "content": "\\"\\\\"}]',
    b'[{"role": "user"}]',
    b'[{"role": "user", "content": null}, {"role": ["x"], "content": [{"type": "input_text"}]}, 1, null, []]',
    b'{"role": "developer", "x": {"role": "bot"}}',
    b'"%s"' % (b"long text, " * 20),
    b"[" * 60 + b"]" * 60,
]


def shown(made):
    """Return all of a plan, the functions that undo its answers by their number."""
    if isinstance(made, ProxyError):
        return made.body()
    restoring = made.restore
    return (
        made.backend.name,
        made.bodies,
        restoring and (restoring.stream, restoring.include_usage, restoring.spreads, restoring.total, restoring.asked),
        len(made.draft.undos),
        made.applied,
        made.observed,
        made.refusal and made.refusal.body(),
        made.may_react,
        made.facts.body and made.facts.body.encode(),
        made.is_untouched,
    )


def planned(request, policy, trace=None):
    try:
        return shown(plan(request, policy, trace))
    except ProxyError as error:
        return shown(error)


def assert_same(request, policy):
    assert planned(request, policy) == planned(request, policy, [])


@pytest.mark.parametrize("name", POLICIES)
def test_a_preset_does_the_same_to_every_request_that_is_known_of_any(name):
    assert len(REQUESTS) > 500
    for request in REQUESTS:
        assert_same(request, POLICIES[name])


@given(data=st.data())
def test_a_preset_does_the_same_to_requests_mixed_of_those_that_are_known(data):
    some = data.draw(st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=4))
    fields = {}
    for request in some:
        try:
            fields |= {name: json.dumps(value).encode() for name, value in json.loads(request.body or b"{}").items()}
        except (ValueError, AttributeError):
            continue
    names = st.sampled_from(sorted(fields) or ["messages"])
    fields |= data.draw(st.dictionaries(names | st.just("messages"), st.sampled_from(ODD), max_size=2))
    order = data.draw(st.permutations(sorted(fields)))
    body = b"{" + b",".join(json.dumps(name).encode() + b":" + fields[name] for name in order) + b"}"
    request = Request("POST", some[0].path, "", [], body)
    assert_same(request, POLICIES[data.draw(st.sampled_from(sorted(POLICIES)))])


@pytest.mark.parametrize("name", sorted(REPAIRS))
@settings(max_examples=15)
@given(data=st.data())
def test_any_policy_does_the_same_to_any_body(name, policies, raw_requests, data):
    text, _ = data.draw(policies(name))
    policy = load_policy("p.yaml", environ={}, text=text)
    for _ in range(4):
        path, query, headers, body = data.draw(raw_requests)
        assert_same(Request("POST", path, query, headers, body), policy)
