"""What rules made of a body's frame is remembered: a plan is the same as where each rule is run and looked at."""

import json
from functools import cache

from hypothesis import example, given
from hypothesis import strategies as st

from proxy import engine
from proxy.engine import Request
from proxy.errors import ClientFault
from proxy.policy import load_policy

POLICY = """
version: 1
backends:
  main: {url: "http://127.0.0.1:1", presets: [sglang]}
  other: {url: "http://127.0.0.1:2", models: [b]}
rules:
  - {id: plain, when: {body: {a: true}}, repair: [drop: [a]]}
  - {id: chained, when: {body: {b: {exists: true}}, not: {body: {a: {exists: true}}}}, repair: [drop: [b]]}
  - {id: by-path, when: {path: "*", any: [{path: "/v1/x/chat/completions"}, {body: {c: 2}}]}, repair: [drop: [c]]}
  - {id: by-header, when: {header: {x-h: "1"}, body: {d: {exists: true}}}, repair: [drop: [d]]}
  - {id: by-messages, when: {body: {"messages[*].role": developer, e: {exists: true}}}, repair: [drop: [e]]}
  - {id: by-content, when: {body: {f: true}, not: {body: {"messages[*].content": {matches: x+}}}}, repair: [drop: [f]]}
  - {id: watched, mode: observe, when: {body: {g: {exists: true}}}, repair: [drop: [g]]}
  - {id: nested, when: {body: {h: {exists: true}}}, repair: [drop: [h.i]]}
  - {id: gone, when: {body: {j: true}}, repair: [drop: [messages]]}
  - {id: whole, when: {body: {k: true}}, repair: [stream: false, drop: [k]]}
  - {id: streamed, when: {body: {l: true}}, repair: [stream: true, drop: [l]]}
  - {id: fans, when: {body: {stream: true, n: {gt: 1}}}, repair: [fan_out: {}]}
  - {id: refused, when: {body: {m: true}}, repair: [reject: "no"]}
"""
FIELDS = {
    "model": ["a", "b"],
    "stream": [True, False, None],
    "n": [1, 2],
    "return_meta_info": [True],
    "stream_options": [{"include_usage": True}, {}, None],
    **{name: [True, 2, {"i": 1}] for name in "abcdefghjklm"},
}
MESSAGES = [
    [{"role": "user", "content": "hi"}],
    [{"role": "user", "content": "xx"}],
    [{"role": "developer", "content": "hi"}, {"role": "user", "content": "ho"}],
    [{"role": "user", "content": "hi", "name": "a"}],
]
VALUES = [(name, value) for name, values in FIELDS.items() for value in values]
# Few at once, so that rules which look at nothing but the frame are alone often enough.
BODIES = st.lists(st.sampled_from(VALUES), max_size=4).map(dict)
PATHS = ["/v1/chat/completions", "/v1/x/chat/completions", "/v1/completions"]
HEADERS = [(), (("x-h", "1"),), (("Prefer", "handling=strict"),)]
AROUND = st.tuples(st.sampled_from(MESSAGES), st.sampled_from(PATHS), st.sampled_from(HEADERS))


@cache
def policy():
    """Return the policy that sees all requests of a run."""
    return load_policy("policy.yaml", environ={}, text=POLICY)


def told(request, trace):
    """Return what a plan says that somebody could tell."""
    try:
        plan = engine.plan(request, policy(), trace)
    except ClientFault as fault:
        return str(fault)
    answer = (plan.restore, plan.refusal and str(plan.refusal), plan.may_react, plan.is_strict, plan.asks_for_stream)
    return plan.backend.name, plan.bodies, plan.applied, plan.observed, answer, dict(plan.draft.body)


@example(fields={"f": True}, around=[(messages, PATHS[0], ()) for messages in (*MESSAGES[:1] * 4, MESSAGES[1])])
@example(fields={"d": 2}, around=[(MESSAGES[0], PATHS[0], said) for said in (*HEADERS[1:2] * 4, ())])
@given(fields=BODIES, around=st.lists(AROUND, min_size=8, max_size=8))
def test_what_was_met_before_changes_no_plan(fields, around):
    for messages, path, headers in around:
        request = Request("POST", path, "", headers, json.dumps({**fields, "messages": messages}).encode())
        assert told(request, None) == told(request, [])
