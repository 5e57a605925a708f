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

CHAT = "/v1/chat/completions"
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
    """What is remembered of a request's like, from the second on, leads to the same as well."""
    expected = planned(request, policy, [])
    for _ in range(3):
        assert planned(request, policy) == expected


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


# Roles and contents as bytes: words that some rule asks for, in any spelling, and what can't be read.
TEXTS = st.sampled_from(
    [
        *(json.dumps(word).encode() for word in ["user", "system", "assistant", "tool", "developer", "root", "", "é"]),
        *(json.dumps(word).encode() for word in ["tool_calls", "content", "input_text", "x" * 65, "word " * 300]),
        *(json.dumps(text, ensure_ascii=False).encode() for text in ["é", "\U0001f600" * 16, "日本語" * 200]),
        b'"d\\u0065veloper"',
        b'"\\u0064\\u0065\\u0076\\u0065\\u006c\\u006f\\u0070\\u0065\\u0072"',
        b'"\\ud83d\\ude00"',
        b'"\\ud83d"',
        b'"\\"role\\": \\"developer\\""',
        b'"\xff"',
        b"null",
        b"1e999",
        b"[]",
        b'[{"type": "input_text", "text": "a"}]',
        b"{}",
    ]
)
NAMES = st.sampled_from([b'"role"', b'"content"'] * 4 + [b'"r\\u006fle"', b'"name"', b'"tool_calls"', b'"type"'])
BLANKS = st.sampled_from([b"", b"", b" ", b"\n"])


@st.composite
def turns(draw):
    """Return the text of messages that are nearly all a role and a content, names twice among them."""
    usual = st.just([b'"role"', b'"content"']) | st.just([b'"content"', b'"role"'])
    objects = []
    for names in draw(st.lists(usual | usual | usual | st.lists(NAMES, max_size=4), min_size=1, max_size=4)):
        blank = draw(BLANKS)
        objects.append(b"{" + b",".join(name + b":" + blank + draw(TEXTS) + blank for name in names) + b"}")
    return b"[" + b", ".join(objects) + b"]"


WORDS = ["developer", "tool", "user", "", "é", "\U0001f600" * 16, "x" * 65, "content", "tool_calls", "name"]
ASKED = st.one_of(
    st.sampled_from([{"exists": True}, {"exists": False}, {"type": "string"}, {"type": "object"}, {"length": 2}, None]),
    st.sampled_from(WORDS),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=2).map(lambda some: {"in": some}),
    st.sampled_from(WORDS).map(lambda word: {"not": {"eq": word}}),
    st.sampled_from(["^dev", "^$", "é"]).map(lambda regex: {"matches": regex}),
)
LOOKED_AT = [
    "messages",
    "messages[*]",
    "messages[*].role",
    "messages[*].content",
    "messages[*].name",
    "messages[-1].role",
]
ASKING = st.dictionaries(
    st.sampled_from([*LOOKED_AT, "messages[*].content[*].type", "n"]), ASKED, min_size=1, max_size=3
)


@given(data=st.data())
def test_rules_that_look_into_messages_do_the_same_to_any_turns(data):
    asked = data.draw(st.lists(ASKING, min_size=1, max_size=4))
    whens = [{"not": {"body": one}} if data.draw(st.sampled_from([0, 0, 1])) else {"body": one} for one in asked]
    repairs = [
        {"warn": "seen"},
        {"drop": ["n"]},
        {"drop": ["messages[*].name"]},
        {"map": {"messages[*].role": {"tool": "user"}}},
    ]
    rules = [
        {"id": f"r{at}", "when": when, "repair": [data.draw(st.sampled_from(repairs))]} for at, when in enumerate(whens)
    ]
    policy = load_policy(
        "p.yaml", environ={}, text=f"{BACKEND.format('')}rules: {json.dumps(rules, ensure_ascii=False)}\n"
    )
    for _ in range(3):
        fields = [
            b'"messages": ' + data.draw(turns()),
            *data.draw(st.sampled_from([[], [b'"n":1'], [b'"n": 1', b'"m":2']])),
        ]
        assert_same(Request("POST", CHAT, "", [], b"{" + b", ".join(data.draw(st.permutations(fields))) + b"}"), policy)


@given(data=st.data())
def test_presets_do_the_same_to_any_turns(data):
    policy = POLICIES[data.draw(st.sampled_from(sorted(POLICIES)))]
    body = b'{"model": "m", "messages": ' + data.draw(turns()) + data.draw(st.sampled_from([b"}", b', "n": null}']))
    assert_same(Request("POST", CHAT, "", [], body), policy)


@pytest.mark.parametrize("name", sorted(REPAIRS))
@settings(max_examples=15)
@given(data=st.data())
def test_any_policy_does_the_same_to_any_body(name, policies, raw_requests, data):
    text, _ = data.draw(policies(name))
    policy = load_policy("p.yaml", environ={}, text=text)
    for _ in range(4):
        path, query, headers, body = data.draw(raw_requests)
        assert_same(Request("POST", path, query, headers, body), policy)
