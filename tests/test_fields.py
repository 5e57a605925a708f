"""Paths: what parses to which steps, what they find, and that put and cut leave their input alone."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.fields import ABSENT, ANY, Path, cut, find, first, parse_path, put

GOOD = [
    pytest.param("a", ("a",), id="a name"),
    pytest.param("a.b.c", ("a", "b", "c"), id="names"),
    pytest.param(".", (), id="the value itself"),
    pytest.param("*", (ANY,), id="any key"),
    pytest.param("a.*", ("a", ANY), id="any key below"),
    pytest.param("*.b", (ANY, "b"), id="below any key"),
    pytest.param("a[0]", ("a", 0), id="an element"),
    pytest.param("a[-1].b", ("a", -1, "b"), id="the last element"),
    pytest.param("a[*].b[*]", ("a", ANY, "b", ANY), id="all elements"),
    pytest.param("[0][1]", (0, 1), id="elements of a list at the top"),
    pytest.param("[*].a", (ANY, "a"), id="all elements of a list at the top"),
    pytest.param('["a.b"].c', ("a.b", "c"), id="a name with a dot"),
    pytest.param('a["b c"]["*"][""]', ("a", "b c", "*", ""), id="quoted names, with a star and empty"),
    pytest.param('["a\\"b\\\\c"]', ('a"b\\c',), id="quotes and backslashes in a name"),
    pytest.param("0.1", ("0", "1"), id="digits are names"),
    pytest.param("a-b_c$/é.{x}", ("a-b_c$/é", "{x}"), id="names of other characters"),
]


@pytest.mark.parametrize(("text", "steps"), GOOD)
def test_parses(text, steps):
    path = parse_path(text)
    assert path.steps == steps
    assert (str(path), path.text) == (text, text)


BAD = [
    pytest.param("", "is empty", id="nothing"),
    pytest.param("a.", "ends with a dot", id="a dot at the end"),
    pytest.param(".a", "at character 1", id="a dot at the start"),
    pytest.param("a..b", "at character 3", id="two dots"),
    pytest.param("a.[0]", "at character 3", id="a dot before a bracket"),
    pytest.param("a[0]b", "'b' at character 5", id="a name right after a bracket"),
    pytest.param("a b", "' ' at character 2", id="a blank"),
    pytest.param("a[", "at character 2", id="an open bracket"),
    pytest.param("a[x]", "at character 2", id="a bare name in brackets"),
    pytest.param("a[1.5]", "at character 2", id="a fraction in brackets"),
    pytest.param("a[]", "at character 2", id="empty brackets"),
    pytest.param('a["b]', "at character 2", id="an open quote"),
    pytest.param("a]", "at character 2", id="a closing bracket alone"),
    pytest.param("..", "at character 1", id="dots alone"),
]


@pytest.mark.parametrize(("text", "why"), BAD)
def test_is_no_path(text, why):
    with pytest.raises(ValueError, match=why):
        parse_path(text)


@given(st.text(alphabet='ab.[]*"\\0-1 ', max_size=12))
def test_any_text_is_a_path_or_says_why_not(text):
    try:
        path = parse_path(text)
    except ValueError:
        with pytest.raises(ValueError, match="is not a field path"):
            parse_path(text)
        return
    assert path.text == text
    assert path.is_plural == any(step is ANY for step in path.steps)


TOPS = [
    pytest.param("a.b", "a", False, id="starts at a field"),
    pytest.param("a[*]", "a", True, id="many below a field"),
    pytest.param("*.a", None, True, id="may start at any field"),
    pytest.param(".", None, False, id="the value itself starts nowhere"),
    pytest.param("[0]", None, False, id="an element is no field"),
]


@pytest.mark.parametrize(("text", "top", "is_plural"), TOPS)
def test_top_and_plural(text, top, is_plural):
    path = parse_path(text)
    assert (path.top, path.is_plural) == (top, is_plural)


TREE = {"a": {"b": [{"c": 1}, {"c": None}, {}, 5], "": 0}, "n": None, "a.b": False}
FOUND = [
    pytest.param(".", [((), TREE)], id="the value itself"),
    pytest.param("n", [(("n",), None)], id="null is found"),
    pytest.param('["a.b"]', [(("a.b",), False)], id="a name with a dot"),
    pytest.param("a.b[*].c", [(("a", "b", 0, "c"), 1), (("a", "b", 1, "c"), None)], id="in the elements that have it"),
    pytest.param("a.b[-1]", [(("a", "b", 3), 5)], id="the last element at its own index"),
    pytest.param("a.b[-4].c", [(("a", "b", 0, "c"), 1)], id="the first element from the end"),
    pytest.param("*.b[0]", [(("a", "b", 0), TREE["a"]["b"][0])], id="below any key"),
    pytest.param("a.b.*", [(("a", "b", i), v) for i, v in enumerate(TREE["a"]["b"])], id="any key of a list"),
    pytest.param('a[""]', [(("a", ""), 0)], id="an empty name"),
    pytest.param("x", [], id="nothing of that name"),
    pytest.param("a.b[4]", [], id="beyond the end"),
    pytest.param("a.b[-5]", [], id="before the start"),
    pytest.param("a[0]", [], id="no element of an object"),
    pytest.param("a.b.c", [], id="no name in a list"),
    pytest.param("n.x", [], id="nothing in null"),
    pytest.param("n[*]", [], id="no elements in null"),
]


@pytest.mark.parametrize(("text", "found"), FOUND)
def test_finds(text, found):
    assert list(find(TREE, parse_path(text))) == found
    assert first(TREE, parse_path(text)) is (found[0][1] if found else ABSENT)


def test_absent_is_not_null_and_false_as_a_condition():
    assert ABSENT is not None
    assert not ABSENT
    assert (repr(ABSENT), repr(ANY)) == ("absent", "*")


PUT = [
    pytest.param({"a": 1}, ("b",), {"a": 1, "b": "x"}, id="a new field comes last"),
    pytest.param({"a": 1, "b": 2}, ("a",), {"a": "x", "b": 2}, id="a field keeps its position"),
    pytest.param({}, ("a", "b"), {"a": {"b": "x"}}, id="objects on the way are made"),
    pytest.param({"a": [1, {"b": 2}]}, ("a", 1, "b"), {"a": [1, {"b": "x"}]}, id="in an element"),
    pytest.param([1, 2], (-1,), [1, "x"], id="the last element"),
    pytest.param({"a": 1}, (), "x", id="the value itself"),
]


@pytest.mark.parametrize(("root", "place", "result"), PUT)
def test_puts(root, place, result):
    before = copy.deepcopy(root)
    assert json.dumps(put(root, place, "x")) == json.dumps(result)
    assert root == before


UNREACHABLE = [
    pytest.param({"a": 1}, ("a", "b"), id="through a number"),
    pytest.param({"a": None}, ("a", "b"), id="through null"),
    pytest.param({"a": [1]}, ("a", 1), id="one beyond the end"),
    pytest.param({"a": [1]}, ("a", -2), id="one before the start"),
    pytest.param({"a": [1]}, ("a", "b"), id="a name in a list"),
    pytest.param({"a": {}}, ("a", 0), id="an element of an object"),
    pytest.param({}, ("a", 0), id="an element of a list that is not there"),
]


@pytest.mark.parametrize(("root", "place"), UNREACHABLE)
def test_can_not_be_put(root, place):
    with pytest.raises(LookupError):
        put(root, place, "x")


CUT = [
    pytest.param({"a": 1, "b": 2}, ("a",), {"b": 2}, id="a field"),
    pytest.param({"a": {"b": 1, "c": 2}}, ("a", "b"), {"a": {"c": 2}}, id="a field below"),
    pytest.param({"a": [1, 2, 3]}, ("a", 1), {"a": [1, 3]}, id="an element"),
    pytest.param({"a": [1, 2, 3]}, ("a", -1), {"a": [1, 2]}, id="the last element"),
    pytest.param({"a": [{"b": 1}]}, ("a", -1, "b"), {"a": [{}]}, id="a field of the last element"),
]


@pytest.mark.parametrize(("root", "place", "result"), CUT)
def test_cuts(root, place, result):
    before = copy.deepcopy(root)
    assert json.dumps(cut(root, place)) == json.dumps(result)
    assert root == before


NAMES = st.sampled_from(["a", "b", "c.d", ""])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=10,
)
STEPS = st.lists(NAMES | st.integers(-2, 2) | st.just(ANY), max_size=4).map(lambda steps: Path("", tuple(steps)))


@given(JSON, STEPS)
def test_what_is_found_can_be_put_and_cut_and_nothing_else_changes(root, path):
    before = copy.deepcopy(root)
    for place, value in list(find(root, path)):
        concrete = Path("", place)
        assert first(root, concrete) is value
        assert first(put(root, place, "new"), concrete) == "new"
        assert put(root, place, value) == root
        if place:
            without = cut(root, place)
            assert isinstance(place[-1], int) or first(without, concrete) is ABSENT
            assert len(first(without, Path("", place[:-1]))) == len(first(root, Path("", place[:-1]))) - 1
    assert json.dumps(root) == json.dumps(before)


@given(JSON, st.lists(NAMES, min_size=1, max_size=3))
def test_names_can_be_put_where_no_list_or_scalar_stands(root, names):
    place = tuple(names)
    try:
        new = put(root, place, "new")
    except LookupError:
        held = [first(root, Path("", place[:depth])) for depth in range(len(place))]
        assert any(value is not ABSENT and not isinstance(value, dict) for value in held)
    else:
        assert first(new, Path("", place)) == "new"
