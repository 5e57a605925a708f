"""Options that mean nothing: each is a fault at its place, found while the policy is loaded."""

import pytest
from pydantic import ValidationError

from proxy.matching import Expanded
from proxy.repairs import REPAIRS
from proxy.repairs.options import references

KEY = "[key]"

BAD = [
    ("drop of nothing", "drop", [], (), "at least 1"),
    ("drop of a mapping", "drop", {"a": None}, (), "valid list"),
    ("drop of a number", "drop", [5], (0,), "valid dictionary"),
    ("drop of an empty mapping", "drop", [{}], (0,), "at least 1"),
    ("drop by a bad path", "drop", ["a", "b..c"], (1, "b..c", KEY), "at character 3"),
    ("drop by an empty path", "drop", [""], (0, "", KEY), "is empty"),
    ("drop of the whole body", "drop", ["."], (0, ".", KEY), "whole body"),
    ("drop of one element", "drop", ["a[0]"], (0, "a[0]", KEY), "each run would remove another"),
    ("drop by a misspelt operator", "drop", [{"a": {"gtt": 1}}], (0, "a", "gtt"), "did you mean"),
    (
        "drop by two bad operators",
        "drop",
        [{"a": {"gt": "x", "matches": "("}}],
        (0, "a", "matches"),
        "regular expression",
    ),
    (
        "drop by a bad test in a where",
        "drop",
        [{"a": {"where": {"b": {"any": [1, {"x": 1}]}}}}],
        (0, "a", "where", "b"),
        '"x"',
    ),
    ("drop by a where of nothing", "drop", [{"a": {"where": {}}}], (0, "a", "where"), "at least 1"),
    ("drop that asks for what it removes later", "drop", [{"a": {"where": {"b": 1}}}, "b"], (0, "a"), "reads 'b'"),
    (
        "drop that compares with what it removes",
        "drop",
        [{"a[*]": {"eq": {"field": "a[0]"}}}],
        (0, "a[*]"),
        "reads 'a[0]'",
    ),
    ("set of nothing", "set", {}, (), "at least 1"),
    ("set of a list", "set", ["a"], (), "valid dictionary"),
    ("set of a number's name", "set", {5: 1}, (5, KEY), "valid string"),
    ("set by a bad path", "set", {"a b": 1}, ("a b", KEY), "at character 2"),
    ("set of the whole body", "set", {".": {}}, (".", KEY), "whole body"),
    ("set from a bad path", "set", {"a": {"field": "b["}}, ("a", "field"), "at character 2"),
    ("set from many fields", "set", {"a": {"field": "b[*]"}}, ("a", "field"), "many fields"),
    (
        "set from a bad path, in the long form",
        "set",
        {"a": {"value": {"field": ""}}},
        ("a", "value", "field"),
        "is empty",
    ),
    ("set to infinity", "set", {"a": {"b": float("inf")}}, ("a",), "can't be written as JSON"),
    ("set to a date", "set", {"a": [object()]}, ("a",), "can't be written as JSON"),
    ("set to half a character", "set", {"a": "\ud83d"}, ("a",), "surrogate"),
    ("set to an object with a number's name", "set", {"a": {1: 2}}, ("a",), "put it in quotes"),
    ("set where a bad test holds", "set", {"a": {"value": 1, "where": {"b": {"y": 1}}}}, ("a", "where", "b"), '"y"'),
    ("set where nothing is tested", "set", {"a": {"value": 1, "where": {}}}, ("a", "where"), "at least 1"),
    ("set from itself", "set", {"a.b": {"field": "a"}}, ("a.b",), "reads 'a'"),
    ("set from what is set later", "set", {"a": {"field": "b"}, "b": 1}, ("a",), "reads 'b'"),
    ("set of one place twice", "set", {"a": {}, "a.b": 1}, ("a.b",), "changed there too"),
    ("set of an element and of all", "set", {"a[*].b": 1, "a[-1].b": 2}, ("a[-1].b",), "changed there too"),
    ("default from what is filled in later", "default", {"a": {"field": "b"}, "b": 1}, ("a",), "reads 'b'"),
    ("default by a bad path", "default", {"[0": 1}, ("[0", KEY), "at character 1"),
    ("move of nothing", "move", {}, (), "at least 1"),
    ("move to a number", "move", {"a": 5}, ("a",), "valid dictionary"),
    ("move to a bad path", "move", {"a": "b."}, ("a", "to"), "ends with a dot"),
    ("move to nowhere", "move", {"a": {"over": True}}, ("a", "to"), "required"),
    ("move with a word for a boolean", "move", {"a": {"to": "b", "over": "yes"}}, ("a", "over"), "valid boolean"),
    ("move with an unknown option", "move", {"a": {"to": "b", "force": True}}, ("a", "force"), "not permitted"),
    ("move to where it is", "move", {"a": "a"}, ("a",), "where it is"),
    ("move of many to one", "move", {"a[*].b": "c"}, ("a[*].b",), "same number of wildcards"),
    ("move of one element", "move", {"a[0]": "b"}, ("a[0]",), "each run would take another"),
    ("move over itself", "move", {"a": {"to": "a.b", "over": True}}, ("a",), "never over a value"),
    ("move out of what holds it", "move", {"a.b": "a"}, ("a.b",), "say over: true"),
    (
        "move of elements over others",
        "move",
        {"a[*]": {"to": "b[*].c", "over": True}},
        ("a[*]",),
        "can't be moved over",
    ),
    ("move to what the old path names again", "move", {"*": "extra.*"}, ("*",), "names again"),
    ("move in a chain", "move", {"a": "b", "b": "c"}, ("a",), "moved on by 'b'"),
    ("map of nothing", "map", {"a": {}}, ("a",), "at least 1"),
    ("map by a list", "map", {"a": ["b"]}, ("a",), "valid dictionary"),
    ("map to infinity", "map", {"a": {"b": float("nan")}}, ("a", "b"), "can't be written as JSON"),
    ("map in a chain", "map", {"a": {"b": "c", "c": "d"}}, ("a", "b"), "a second run would change it again"),
    ("map back and forth", "map", {"a": {True: False, False: True}}, ("a", True), "a second run would change it again"),
    ("map any other to a key", "map", {"a": {"b": "c", "*": "b"}}, ("a", "*"), "a second run would change it again"),
    ("map of one place twice", "map", {"a[*]": {"b": 1}, "a[0]": {"c": 2}}, ("a[0]",), "changed there too"),
    ("clamp without a limit", "clamp", {"a": {}}, ("a",), "no limit is given"),
    ("clamp to a number alone", "clamp", {"a": 5}, ("a",), "valid dictionary"),
    ("clamp with min above max", "clamp", {"a": {"min": 3, "max": 2}}, ("a", "min"), "min 3 is above max 2"),
    ("clamp with a numeral above max", "clamp", {"a": {"min": "3", "max": 2}}, ("a", "min"), "above max"),
    ("clamp to a boolean", "clamp", {"a": {"max": True}}, ("a", "max"), "a limit is a number"),
    ("clamp to null", "clamp", {"a": {"max": None}}, ("a", "max"), "a limit is a number"),
    ("clamp to a word", "clamp", {"a": {"max": "many"}}, ("a", "max"), "a limit is a number"),
    ("clamp to infinity", "clamp", {"a": {"max": float("inf")}}, ("a", "max"), "a limit is a number"),
    ("clamp to a bad path", "clamp", {"a": {"max": {"field": "b."}}}, ("a", "max", "field"), "ends with a dot"),
    ("clamp to many fields", "clamp", {"a": {"max": {"field": "b.*"}}}, ("a", "max", "field"), "many fields"),
    ("clamp to itself", "clamp", {"a": {"max": {"field": "a"}}}, ("a",), "reads 'a'"),
    ("clamp to what is clamped later", "clamp", {"a": {"max": {"field": "b"}}, "b": {"max": 1}}, ("a",), "reads 'b'"),
    (
        "clamp to a negative length",
        "clamp",
        {"a": {"max_length": -1}},
        ("a", "max_length"),
        "greater than or equal to 0",
    ),
    ("clamp to a length that is a boolean", "clamp", {"a": {"max_length": True}}, ("a", "max_length"), "valid integer"),
    ("clamp with a misspelt option", "clamp", {"a": {"maximum": 1}}, ("a", "maximum"), "not permitted"),
    ("coerce to an unknown type", "coerce", {"a": "int"}, ("a", "to"), "'string'"),
    ("coerce to null", "coerce", {"a": None}, ("a",), "valid dictionary"),
    (
        "coerce that rounds a text",
        "coerce",
        {"a": {"to": "string", "round": "floor"}},
        ("a", "round"),
        "goes with integer",
    ),
    ("coerce with an unknown rounding", "coerce", {"a": {"to": "integer", "round": "up"}}, ("a", "round"), "'floor'"),
    (
        "coerce with a fill that is not allowed",
        "coerce",
        {"a": {"to": "string", "allowed": "a-z"}},
        ("a", "fill"),
        "not made of",
    ),
    (
        "coerce with a backward range",
        "coerce",
        {"a": {"to": "string", "allowed": "z-a"}},
        ("a", "allowed"),
        "no set of characters",
    ),
    (
        "coerce with key and otherwise",
        "coerce",
        {"a": {"to": "json", "key": "b", "otherwise": "empty"}},
        ("a", "otherwise"),
        "say one",
    ),
    ("coerce of what holds a coerced field", "coerce", {"a[*]": "string", "a": "array"}, ("a",), "changed there too"),
    ("coerce of a field of a text", "coerce", {"a": "string", "a.b": "string"}, ("a.b",), "changed there too"),
    ("coerce of one place twice", "coerce", {"a[*]": "string", "a[0]": "integer"}, ("a[0]",), "changed there too"),
    ("keep of nothing said", "keep", {"a": {}}, ("a",), "say one of"),
    ("keep of two things said", "keep", {"a": {"names": ["b"], "keys": "b"}}, ("a",), "say one of"),
    ("keep of names that are numbers", "keep", {"a": [1]}, ("a", "names", 0), "valid string"),
    ("keep by a bad relative path", "keep", {"a": {"where": {"b..": 1}}}, ("a", "where", "b..", KEY), "at character 3"),
    (
        "keep by a bad test",
        "keep",
        {"a": {"where": {".": {"type": "text"}}}},
        ("a", "where", ".", "type"),
        "unknown type",
    ),
    ("keep by what is not kept", "keep", {"a": {"where": {"b": 1}}, "a[*]": ["c"]}, ("a",), "reads 'b'"),
    ("stream of a word", "stream", "off", (), "valid boolean"),
    ("stream of a number", "stream", 0, (), "valid boolean"),
    ("fan_out of null", "fan_out", None, (), "valid dictionary"),
    ("fan_out of none", "fan_out", {"max": 0}, ("max",), "greater than or equal to 1"),
    ("fan_out with a word for a number", "fan_out", {"max": "8"}, ("max",), "valid integer"),
    (
        "fan_out with negative concurrency",
        "fan_out",
        {"concurrency": -1},
        ("concurrency",),
        "greater than or equal to 0",
    ),
    ("fan_out with a boolean for a number", "fan_out", {"concurrency": True}, ("concurrency",), "valid integer"),
    ("fan_out with an unknown seed", "fan_out", {"seed": "random"}, ("seed",), "'increment'"),
    ("fan_out with an unknown usage", "fan_out", {"usage": "all"}, ("usage",), "'once'"),
    ("fan_out with an unknown greedy", "fan_out", {"greedy": True}, ("greedy",), "'replicate'"),
    ("fan_out with a misspelt option", "fan_out", {"maximum": 3}, ("maximum",), "not permitted"),
    ("warn of nothing", "warn", "", (), "at least 1"),
    ("warn of a number", "warn", 5, (), "valid string"),
    ("reject without a reason", "reject", {"code": "x"}, ("message",), "required"),
    ("reject with an empty reason", "reject", "", ("message",), "at least 1"),
    ("reject with a number for a code", "reject", {"message": "m", "code": 400}, ("code",), "valid string"),
    ("reject with a status", "reject", {"message": "m", "status": 500}, ("status",), "not permitted"),
]


@pytest.mark.parametrize(("repair", "options", "place", "why"), [pytest.param(*row[1:], id=row[0]) for row in BAD])
def test_a_fault_stands_at_its_place(repair, options, place, why):
    with pytest.raises(ValidationError) as caught:
        REPAIRS[repair].options.model_validate(options)
    faults = {fault["loc"]: fault["msg"] for fault in caught.value.errors()}
    near = [message for loc, message in faults.items() if loc[: len(place)] == place]
    assert any(why in message for message in near), faults


def test_all_faults_of_one_repair_are_told_at_once():
    options = {"a..b": 1, "c": {"field": "d."}, "e": {"value": 1, "where": {"f": {"gtt": 1, "ltt": 2}}}}
    with pytest.raises(ValidationError) as caught:
        REPAIRS["set"].options.model_validate(options)
    assert len(caught.value.errors()) == 4


GOOD = [
    ("a field that was set earlier may be read", "set", {"b": 1, "a": {"field": "b"}}),
    ("what is clamped to clamped limits", "clamp", {"b": {"max": 5}, "a": {"max": {"field": "b"}}}),
    ("null that are dropped and an element's other field", "drop", [{"a[*].b": {"where": {"c": 1}}}, {"*": None}]),
    ("an element asked for the field itself", "set", {"a": {"value": 1, "where": {"a": {"exists": False}}}}),
    ("paths that never meet", "set", {"a[0].b": 1, "a[1].b": 2, "a[-1].c": 3}),
    ("renaming to a neighbour's old place is no chain when nothing moves on", "move", {"a": "x.a", "b": "x.b"}),
    ("a value that maps to itself", "map", {"a": {"b": "b", "*": "b"}}),
    ("a list and its elements", "coerce", {"a": "array", "a[*]": "string"}),
    ("captures in paths, limits and values", "clamp", {"{field}": {"max": "{limit}"}}),
]


@pytest.mark.parametrize(("repair", "options"), [pytest.param(*row[1:], id=row[0]) for row in GOOD])
def test_is_no_fault(repair, options):
    assert REPAIRS[repair].options.model_validate(options)


@pytest.mark.parametrize("repair", ["set", "default"])
def test_a_text_that_a_variable_was_expanded_in_becomes_a_plain_one(repair):
    options = REPAIRS[repair].options.model_validate({"a": {"b": [Expanded("secret", "${X}")]}})
    assert type(options.root["a"]["b"][0]) is str


def test_references_are_found_however_deep_they_stand():
    raw = {
        "any": [{"eq": {"field": "a"}}, {"not": {"in": [1, {"field": "b.c"}]}}],
        "eq": {"field": 5},
        "x": {"field": "d", "y": 1},
    }
    assert list(references(raw)) == ["a", "b.c"]
