"""Matchers on requests: what holds, what is needed, what was met, and what is refused and where."""

from __future__ import annotations

import json

import pytest

from proxy.body import Body
from proxy.fields import ABSENT
from proxy.matching import KEY, BadTest, Facts, compile_matcher


def facts(body=None, **given):
    known = {"method": "POST", "path": "/v1/chat/completions", "query": {}, "headers": {}, "model": "m", "backend": "b"}
    return Facts(**(known | given), body=None if body is None else Body.parse(json.dumps(body).encode()))


CHAT = facts({"stream": True, "n": 2, "model": "m", "messages": [{"role": "user"}, {"role": "tool", "name": "x"}]})
MATCHERS = [
    (None, CHAT, True, "no matcher is for the completion endpoints"),
    ({}, facts(path="/v1/embeddings"), False, "and for no other path"),
    ({"path": "/v1/*"}, facts(path="/v1/a/b"), True, "a star crosses slashes"),
    ({"path": ["/x", "/V1/*"]}, CHAT, False, "a path's case counts"),
    ({"method": "post"}, CHAT, True, "a method's case doesn't"),
    ({"model": "M"}, CHAT, False, "a model's case counts"),
    ({"model": "*"}, facts(model=None), False, "no model matches no glob"),
    ({"backend": ["a", "b*"]}, CHAT, True, "one of several globs"),
    ({"header": {"X-Tier": "gold"}}, facts(headers={"x-tier": "gold"}), True, "a header's name in any case"),
    ({"header": {"x-tier": {"exists": False}}}, CHAT, True, "a header that is not there"),
    (
        {"header": {"x-model": {"field": "model"}}},
        facts({"model": "q"}, headers={"x-model": "q"}),
        True,
        "as in the body",
    ),
    ({"query": {"v": "2"}}, facts(query={"v": ("1", "2")}), True, "any value of a repeated parameter"),
    ({"query": {"v": {"exists": False}}}, facts(query={"v": ()}), True, "a parameter that is not there"),
    ({"body": {"stream": True, "n": {"gt": 1}}}, CHAT, True, "all fields hold"),
    ({"body": {"stream": True, "n": 1}}, CHAT, False, "one field doesn't"),
    ({"body": {"messages[*].role": "tool"}}, CHAT, True, "any element"),
    ({"body": {"messages[*].name": {"exists": False}}}, CHAT, True, "an element without the field"),
    ({"body": {"messages[*].name": {"exists": True}}}, CHAT, True, "and one with it"),
    ({"body": {"tools[*].name": {"exists": False}}}, CHAT, True, "no elements at all count as absent"),
    ({"body": {"messages": {"every": {"type": "object"}}}}, CHAT, True, "all elements"),
    ({"body": {"*": 2}}, CHAT, True, "any top-level field"),
    ({"body": {"messages[-1].role": "tool"}}, CHAT, True, "the last element"),
    ({"body": {"n": {"not": 3}}}, facts(), False, "a body that is no object matches no body test"),
    ({"not": {"body": {"n": 3}}}, facts(), True, "but not, around a matcher, holds"),
    ({"any": [{"body": {"n": 1}}, {"model": "m"}]}, CHAT, True, "any matcher"),
    ({"any": [{"body": {"n": 1}}, {"model": "x"}]}, CHAT, False, "none of them"),
    ({"path": "/x", "not": {"method": "GET"}}, facts(path="/x"), True, "a nested matcher has no path of its own"),
]


@pytest.mark.parametrize(
    ("raw", "given", "expected"), [case[:3] for case in MATCHERS], ids=[case[3] for case in MATCHERS]
)
def test_a_matcher_holds_for_what_it_says(raw, given, expected):
    matcher = compile_matcher(raw)
    assert matcher.holds(given) is expected
    assert (matcher.first_miss(given) is None) is expected


NEEDS = [
    ({"stream": True, "n": {"gt": 1}}, {"stream", "n"}, "fields that must be there"),
    ({"stream": {"exists": False}, "n": {"not": 1}}, set(), "fields that may be absent"),
    ({"messages[*].role": "tool", "a.b": 1}, {"messages", "a"}, "the top of a path"),
    ({"*": 1}, set(), "no certain field"),
]


@pytest.mark.parametrize(("body", "needs"), [case[:2] for case in NEEDS], ids=[case[2] for case in NEEDS])
def test_a_matcher_knows_the_fields_that_it_needs(body, needs):
    assert compile_matcher({"body": body}).needs == needs


def test_of_alternatives_only_what_all_need_is_needed():
    either = [{"body": {"a": 1, "b": 1}}, {"body": {"b": 2, "c": 1}}]
    assert compile_matcher({"any": either, "not": {"body": {"d": 1}}}).needs == {"b"}


def test_the_first_miss_says_what_was_met():
    assert compile_matcher({"body": {"n": {"gt": 5}}}).first_miss(CHAT) == ("body.n: {gt: 5}", 2)
    assert compile_matcher({"body": {"x": True}}).first_miss(CHAT) == ("body.x: true", ABSENT)
    assert compile_matcher({"path": ["/a", "/b"]}).first_miss(CHAT) == ("path: /a or /b", "/v1/chat/completions")
    assert compile_matcher({"not": {"model": "m"}}).first_miss(CHAT) == ('not: {model: "m"}', {"model: m": "m"})


def test_a_header_s_value_is_never_met():
    met = compile_matcher({"header": {"authorization": "x"}}).first_miss(facts(headers={"authorization": "secret"}))
    assert met == ('header.authorization: "x"', "present")


def test_a_bad_matcher_tells_every_place():
    raw = {
        "pth": 1,
        "path": [],
        "model": ["a", 1],
        "header": {"a": 1},
        "body": {"a..b": 1, 2: 1, "n": {"x": 1}},
        "any": [],
    }
    with pytest.raises(BadTest) as caught:
        compile_matcher(raw)
    assert [place for place, _ in caught.value.problems] == [
        ("pth", KEY), ("path",), ("model", 1), ("header", "a"),
        ("body", "a..b", KEY), ("body", 2, KEY), ("body", "n", "x", KEY), ("any",),
    ]  # fmt: skip
