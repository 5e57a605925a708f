"""Tests on values: what holds, what is refused and where, and that no JSON value makes a test raise."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.fields import ABSENT
from proxy.matching import KEY, OPERATORS, BadTest, compile_test

ROOT = {"n": 2, "max": 8, "list": [1, "a", True], "messages": [{"role": "user", "name": "x"}, {"role": "system"}]}
DEEP = json.loads("[" * 500 + "]" * 500)

HOLDS = [
    (True, [True], [1, 1.0, "true", False, None], "true is only true"),
    (1, [1, 1.0], [True, "1", [1]], "one is a number of any spelling"),
    (None, [None], [False, 0, "", [], {}], "null is only null"),
    ("a", ["a"], ["A", "aa", ["a"]], "a string is the same string"),
    ([1, True], [[1.0, True]], [[True, 1], [1, 1], [1], 1], "a list is equal element by element"),
    ({"eq": {"a": 1}}, [{"a": 1.0}], [{"a": True}, {"a": 1, "b": 1}, {}], "an object is equal field by field"),
    ({"eq": {}}, [{}], [[], "", None, {"a": 1}], "an empty object is an empty object"),
    ({"ne": 1}, [2, True, "1", None], [1, 1.0], "ne holds for any other value"),
    ({"gt": 1}, [2, 1.5, 10**400], [1, 0, True, "2", None, [2]], "gt takes numbers only"),
    ({"ge": 1}, [1, 1.0, 2], [0, True], "ge takes the bound"),
    ({"lt": 1}, [0, -1.5], [1, False, "0"], "lt takes numbers only"),
    ({"le": 1}, [1, 0], [2, True], "le takes the bound"),
    ({"gt": 1, "lt": 4}, [2, 3.9], [1, 4], "all operators must hold"),
    ({"in": [1, "a", None]}, [1.0, "a", None], [True, "1", [1]], "in is type-strict"),
    ({"not_in": [1, "a"]}, [True, "b", None], [1.0, "a"], "not_in is type-strict"),
    ({"in": {"field": "list"}}, [1, "a", True], ["b", False], "in may look through another field"),
    ({"in": {"field": "messages[*].role"}}, ["user", "system"], ["tool"], "in may look through many fields"),
    ({"in": [{"field": "n"}, 7]}, [2, 7], [8], "an element of in may be another field"),
    ({"not_in": {"field": "n"}}, [2, 3], [], "a field that is no list holds nothing"),
    ({"exists": True}, [None, 0, ""], [], "exists holds for null too"),
    ({"exists": False}, [], [None, 0], "exists: false is for absent fields"),
    ({"type": "integer"}, [1, 1.0, 10**400], [1.5, True, "1"], "an integer has no fraction"),
    ({"type": "number"}, [1, 1.5], [True, "1"], "a boolean is no number"),
    ({"type": "boolean"}, [True, False], [0, 1, "true"], "a number is no boolean"),
    ({"type": ["string", "array"]}, ["", []], [{}, None], "type takes a list"),
    ({"type": "object"}, [{}], [[], "x"], "an object is an object"),
    ({"type": "null"}, [None], [0, ""], "null is a type"),
    ({"empty": True}, ["", [], {}], [None, 0, False, "x", [0]], "empty is for what can hold something"),
    ({"empty": False}, [None, 0, "x", [0]], ["", [], {}], "empty: false is all else that is there"),
    ({"length": 2}, ["ab", [1, 2], {"a": 1, "b": 2}], ["a", 2, None], "length is of strings, arrays, objects"),
    ({"length": {"gt": 4}}, ["abcde"], ["abcd", 5], "length takes a test"),
    ({"matches": "^a.c"}, ["abc", "abcd"], ["xabc", 5, None, ["abc"]], "matches is for strings"),
    ({"matches": "b"}, ["abc", "\ud800b"], ["a"], "matches searches"),
    ({"not": {"gt": 1}}, [1, "x", None, ABSENT], [2], "not holds for absent fields"),
    ({"not": True}, [1, False, ABSENT], [True], "not takes a value"),
    ({"any": [{"lt": 1}, "x"]}, [0, "x"], [1, "y", ABSENT], "any"),
    ({"any": [{"exists": False}, 1]}, [ABSENT, 1], [2], "any of absent or one"),
    ({"all": [{"gt": 1}, {"type": "integer"}]}, [2, 2.0], [2.5, 1], "all"),
    ({"every": {"type": "string"}}, [["a"], ["a", "b"]], [[], ["a", 1], "a", {}], "every asks all, of one at least"),
    ({"field": "n"}, [2, 2.0], ["2", True, 3], "another field's value"),
    ({"gt": {"field": "max"}}, [9], [8, True], "more than another field"),
    ({"gt": {"field": "none"}}, [], [9, None], "no comparison with an absent field"),
    ({"ne": {"field": "none"}}, [], [9, None], "nor is anything unequal to one"),
    ({"lt": {"field": "list"}}, [], [1, 0], "no order with a list"),
]


@pytest.mark.parametrize(("raw", "yes", "no"), [case[:3] for case in HOLDS], ids=[case[3] for case in HOLDS])
def test_a_test_holds_for_what_it_says(raw, yes, no):
    test = compile_test(raw)
    assert [value for value in yes if not test(value, ROOT)] == []
    assert [value for value in no if test(value, ROOT)] == []


@pytest.mark.parametrize("name", sorted(set(OPERATORS) - {"not", "exists"}))
def test_an_absent_field_fails_every_operator(name):
    arguments = {"in": [1], "not_in": [1], "type": "null", "empty": False, "matches": "", "any": [1], "all": [1]}
    assert compile_test({name: arguments.get(name, 1)})(ABSENT, ROOT) is False


BAD = [
    ({}, [()], "an empty mapping"),
    ({"gte": 1}, [("gte", KEY)], "an unknown operator"),
    ({1: 1}, [(1, KEY)], "a key that is no string"),
    ({"gt": 1, "lte": 2, "lt": "x"}, [("lte", KEY), ("lt",)], "several at once"),
    ({"gt": True}, [("gt",)], "a bound that is a boolean"),
    ({"in": "abc"}, [("in",)], "in of a string"),
    ({"in": [1, {"field": "a..b"}]}, [("in", 1, "field")], "a bad path in a list"),
    ({"field": 3}, [("field",)], "a field that is a number"),
    ({"eq": {"field": "a[*]"}}, [("eq", "field")], "a field of many"),
    ({"type": "int"}, [("type",)], "an unknown type"),
    ({"type": ["string", "int"]}, [("type", 1)], "an unknown type in a list"),
    ({"type": []}, [("type",)], "no type"),
    ({"empty": 1}, [("empty",)], "empty of a number"),
    ({"matches": "["}, [("matches",)], "a bad regex"),
    ({"matches": "a{99999999999}"}, [("matches",)], "a regex out of bounds"),
    ({"matches": 1}, [("matches",)], "a regex that is a number"),
    ({"any": []}, [("any",)], "any of nothing"),
    ({"all": [{"x": 1}, 1, {"not": {"y": 1}}]}, [("all", 0, "x", KEY), ("all", 2, "not", "y", KEY)], "deep ones"),
    ({"every": {"length": {"z": 1}}}, [("every", "length", "z", KEY)], "deeper ones"),
]


@pytest.mark.parametrize(("raw", "places"), [case[:2] for case in BAD], ids=[case[2] for case in BAD])
def test_a_bad_test_tells_every_place(raw, places):
    with pytest.raises(BadTest) as caught:
        compile_test(raw)
    assert [place for place, _ in caught.value.problems] == places


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec=None))
    | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(value=JSON | st.just(DEEP) | st.just(ABSENT), other=JSON | st.just(DEEP))
def test_no_value_makes_a_test_raise(value, other):
    root = {"other": other, "list": [other]}
    numbers = {name: {name: {"field": "other"}} for name in ("eq", "ne", "gt", "ge", "lt", "le", "in", "not_in")}
    for raw, *_ in [*HOLDS, *((raw,) for raw in numbers.values())]:
        assert compile_test(raw)(value, root) in (True, False)
    assert compile_test({"field": "other"})(other, root) is True
