"""Which rules an index names for a request: all that could do something, and few that do nothing."""

import json

import pytest

from proxy.body import Body
from proxy.frames import Frames
from proxy.matching import Facts
from proxy.policy import load_policy
from proxy.policy.index import RuleIndex
from proxy.policy.memory import Memory
from proxy.policy.rules import compile_rule
from proxy.repairs import REPAIRS

CHAT = "/v1/chat/completions"
PLAIN = {
    "model": "meta/llama",
    "messages": [
        {"role": "system", "content": "Be brief.\n"},
        {"role": "user", "content": "What is the weather in Berlin, and what will it be there tomorrow?"},
    ],
    "temperature": 0.7,
    "max_tokens": 512,
    "top_p": 0.9,
    "n": 2,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def index(*rules):
    made = ({"id": str(at), "repair": [{"warn": "seen"}], **rule} for at, rule in enumerate(rules))
    return RuleIndex([compile_rule(rule, None, "p.yaml:1:1", REPAIRS) for rule in made])


def facts(body, path=CHAT, *, model="m", method="POST"):
    source = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    return Facts(method, path, {}, {}, model, "main", None if source is None else Body.parse(source))


def named(given, *asked, **more):
    of = facts(*asked, **more)
    return list(given.possible(of.body, given.selection(of), {}))


WHEN = [
    pytest.param({"body": {"n": {"gt": 1}}}, {"n": 2}, {"n": 1}, id="a number"),
    pytest.param({"body": {"n": None}}, {"n": None}, {"n": 0}, id="null"),
    pytest.param({"body": {"stream": True}}, {"stream": True}, {"stream": 1}, id="true is not 1"),
    pytest.param({"body": {"a": {"exists": False}}}, {}, {"a": None}, id="an absent field"),
    pytest.param({"body": {"a": {"not": {"eq": 1}}}}, {}, {"a": 1}, id="not a value"),
    pytest.param({"body": {"a": 1, "b": 2}}, {"a": 1, "b": 2}, {"a": 1, "b": 1}, id="all of several fields"),
    pytest.param({"any": [{"body": {"a": 1}}, {"body": {"b": 1}}]}, {"b": 1}, {"a": 2, "b": 2}, id="any of several"),
    pytest.param({"body": {"a.b": 1}}, {"a": {"b": 1}}, {"a": {"c": 1}}, id="a field inside one"),
    pytest.param({"path": "/v1/x*"}, None, {}, id="another path"),
]


@pytest.mark.parametrize(("when", "hit", "miss"), WHEN)
def test_a_rule_is_named_where_its_matcher_could_hold(when, hit, miss):
    given = index({"when": when})
    assert named(given, hit, "/v1/xyz" if hit is None else CHAT) == [0]
    assert named(given, miss) == []


LONG = "long text, longer than what is remembered by its bytes, which is sixty-four of them"
MESSAGES = [
    pytest.param({"messages[*].role": "developer"}, [{"role": "developer", "content": LONG}], id="a word"),
    pytest.param({"messages[*].role": {"in": ["a", "b"]}}, [{"role": "b", "content": LONG}], id="one of two words"),
    pytest.param({"messages[*].tools": {"type": "array"}}, [{"tools": [], "content": LONG}], id="a name"),
    pytest.param({"messages[*].content": None}, [{"content": None, "x": LONG}], id="a null"),
    pytest.param({"messages[*].content": {"lt": 3}}, [{"content": 2.5, "x": LONG}], id="a number"),
    pytest.param({"messages[*].content[*].type": "x"}, [{"content": [{"type": "x"}], "x": LONG}], id="a part's type"),
    pytest.param({"messages[*].role": {"matches": "^b"}}, [{"role": "bot", "content": LONG}], id="a pattern"),
    pytest.param({"messages[*].name": {"exists": False}}, [{"role": "user", "content": LONG}], id="a name missing"),
]


@pytest.mark.parametrize(("test", "messages"), MESSAGES)
@pytest.mark.parametrize("ascii_only", [True, False], ids=["escaped", "as it is"])
def test_a_rule_for_messages_is_named_by_the_words_in_them(test, messages, ascii_only):
    given = index({"when": {"body": test}})
    usual = [{"role": "user", "name": "é", "content": LONG}, {"role": "user", "name": "é", "content": "two"}]
    for more, expected in ([], []), (messages, [0]):
        body = json.dumps({"messages": usual + more}, ensure_ascii=ascii_only).encode()
        assert named(given, body) == expected
        assert named(given, body.replace(b'"role"', b'"r\\u006fle"')) == expected


TURNS = [
    pytest.param({"messages[*].role": "tool"}, ["user", "x"], ["tool", "x"], id="a role"),
    pytest.param(
        {"messages[*].role": {"not": {"eq": "user"}}}, ["user", "x"], ["bot", "x"], id="a role that is not one"
    ),
    pytest.param({"messages[*].role": {"matches": "^b"}}, ["user", "b"], ["bot", "b"], id="a role that looks like one"),
    pytest.param({"messages[*].content": "tool"}, ["user", "x"], ["user", "tool"], id="a content"),
    pytest.param({"messages[*].content": {"matches": "^b"}}, ["user", "a"], ["user", "b"], id="a content like one"),
    pytest.param({"messages[*].content": "\U0001f600" * 9}, ["user", "x"], ["user", "\U0001f600" * 9], id="characters"),
    pytest.param({"messages[*].content": {"type": "object"}}, ["user", LONG], ["user", {}], id="a content of a kind"),
    pytest.param({"messages": {"every": {"eq": 1}}}, ["user", LONG], None, id="all of them"),
    pytest.param({"messages": {"exists": False}}, ["user", LONG], None, id="their absence"),
    pytest.param({"messages[*].name": {"exists": False}}, None, ["user", LONG], id="a name missing"),
]


@pytest.mark.parametrize(("test", "miss", "hit"), TURNS)
@pytest.mark.parametrize("ascii_only", [True, False], ids=["escaped", "as it is"])
@pytest.mark.parametrize("parse", [Body.parse, Frames().parse], ids=["whole", "framed"])
def test_a_rule_for_turns_is_named_by_what_is_in_them_whatever_came_before(test, miss, hit, ascii_only, parse):
    given = index({"when": {"body": test}})
    for _ in range(3):
        for turn, expected in (miss, []), (hit, [0]):
            if turn is None:
                continue
            messages = [{"role": "user", "content": "short"}, {"role": turn[0], "content": turn[1]}]
            body = parse(json.dumps({"messages": messages, "n": 1}, ensure_ascii=ascii_only).encode())
            assert list(given.possible(body, given.selection(facts({})), {})) == expected


UNTOLD = [
    pytest.param({"body": {"n": {"gt": {"field": "m"}}}}, {"n": 1, "m": 2}, id="a number against another"),
    pytest.param({"body": {"n": 1}, "not": {"body": {"m": 2}}}, {"n": 1, "m": 2}, id="the opposite of a test"),
    pytest.param({"body": {"n": 1}, "header": {"x": "y"}}, {"n": 1}, id="a header"),
    pytest.param({"body": {"a.b": 1, "a": {"type": "object"}}}, {"a": {"b": LONG, "c": 1}}, id="a field inside one"),
]


@pytest.mark.parametrize(("when", "body"), UNTOLD)
def test_what_an_index_can_not_tell_of_a_rule_that_it_names_is_tested_then(when, body):
    given, asked = index({"when": when}), facts(body)
    named_now = given.possible(asked.body, given.selection(asked), {})
    assert [given.holds(at, asked, named_now) for at in named_now] in ([False], [])
    assert given.rules[0].matcher.holds(asked) is False


REPAIRED = [
    pytest.param({"clamp": {"n": {"max": 4}}}, {"n": 5}, {"n": 4}, id="clamp"),
    pytest.param({"clamp": {"n": {"max": {"field": "m"}}}}, {"n": 5, "m": 4}, {"m": 5}, id="clamp to a field"),
    pytest.param({"coerce": {"n": "integer"}}, {"n": "5"}, {"n": 5}, id="coerce"),
    pytest.param({"drop": [{"n": {"lt": 1}}]}, {"n": 0}, {"n": 1}, id="drop"),
    pytest.param({"drop": [{"n": {"where": {"m": 1}}}]}, {"n": 0, "m": 1}, {"m": 1}, id="drop beside a field"),
    pytest.param({"coerce": {"a[*]": "string"}}, {"a": ["x", 1]}, {"a": ["x"]}, id="coerce elements"),
    pytest.param({"drop": [{"a.b": {"lt": 1}}]}, {"a": {"b": 0}}, {"a": {"b": 1}}, id="drop further down"),
    pytest.param({"map": {"a": {"x": "y"}}}, {"a": "x"}, {"a": "z"}, id="map"),
    pytest.param({"map": {"a": {"*": "y"}}}, {"a": "x"}, {"b": "x"}, id="map of all"),
    pytest.param(
        {"set": {"a[*].b": {"value": 1, "where": {"c": "x"}}}}, {"a": [{"c": "x"}]}, {"a": [{"c": "y"}]}, id="set"
    ),
    pytest.param({"set": {"a": 1}}, {}, None, id="set where nothing has to be"),
    pytest.param({"default": {"a": 1}}, {}, None, id="default"),
]


@pytest.mark.parametrize(("repair", "hit", "miss"), REPAIRED)
def test_a_rule_is_named_where_its_repairs_could_do_something(repair, hit, miss):
    given = index({"repair": [repair]})
    assert named(given, hit) == [0]
    if miss is not None:
        assert named(given, miss) == []


def test_rules_are_named_in_their_order_and_reactive_ones_are_not():
    given = index(
        {"when": {"body": {"b": 1}}},
        {},
        {"when": {"body": {"a": 1}}},
        {"when": {"body": {"a": 1}}, "on_error": {"status": 400}},
    )
    assert named(given, {"a": 1, "b": 1}) == [0, 1, 2]


@pytest.mark.parametrize("body", [b'{"a":1e999,"b":1}', b'{"a":"\xff","b":1}'], ids=["a number", "a text"])
def test_where_a_field_that_a_rule_reads_is_unreadable_every_rule_is_named(body):
    given = index({"when": {"body": {"b": 2}}}, {"when": {"path": "/x", "body": {"a": 1}}})
    assert named(given, body) == [0, 1]
    assert named(index({"when": {"body": {"b": 2}}}), body) == []


def test_ten_thousand_rules_name_few_for_a_plain_request():
    fields = [{"when": {"body": {f"field_{at}": {"exists": True}}}} for at in range(2500)]
    models = [{"when": {"model": f"vendor-{at}/*", "body": {"temperature": {"gt": 0}}}} for at in range(2500)]
    paths = [{"when": {"path": f"/v1/{at}", "body": {"stream": True}}} for at in range(2500)]
    roles = [{"when": {"body": {"messages[*].role": f"role-{at}"}}} for at in range(2500)]
    given = index(*fields, *models, *paths, *roles)
    assert named(given, PLAIN) == []
    assert named(given, PLAIN, model="vendor-7/x") == [2507]
    assert named(given, PLAIN, "/v1/9") == [5009]
    assert named(given, PLAIN | {"field_3": 0, "messages": [{"role": "role-5", "content": LONG}]}) == [3, 7505]


@pytest.mark.parametrize("preset", ["sglang", "openai-errors"])
def test_no_rule_of_a_preset_is_tried_on_a_plain_request(preset):
    text = f"version: 1\nbackends:\n  main: {{url: http://b, presets: [{preset}]}}\n"
    given = load_policy("p.yaml", environ={}, text=text).backends[0].index
    assert named(given, PLAIN) == []


def test_a_value_is_told_anew_each_time_that_it_is_another():
    given = index({"when": {"body": {"seed": {"gt": 500}}}})
    for number in range(1000):
        assert named(given, {"seed": number}) == ([0] if number > 500 else [])


def test_what_is_remembered_is_bounded():
    memory = Memory(most_entries=3)
    one, two = memory.new(), memory.new()
    for number in range(3):
        assert memory.keep(one, number, number) == number
    assert (len(one), len(two)) == (3, 0)
    memory.keep(two, 9, 9)
    assert (one, two) == ({}, {9: 9})
