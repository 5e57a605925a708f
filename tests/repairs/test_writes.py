"""Many edits in one pass come to what the same edits one by one come to, and copy each container once."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.body import Body
from proxy.fields import ANY, Path, find
from proxy.repairs.writes import Editor, cut_all, put_all

NAMES = st.sampled_from(["a", "b", ""])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.just("x"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=10,
)
OBJECTS = st.dictionaries(NAMES, JSON, max_size=3)
PLACES = st.lists(NAMES | st.integers(-2, 2), min_size=1, max_size=4).map(tuple)
STEPS = st.lists(NAMES | st.integers(-2, 2) | st.just(ANY), min_size=1, max_size=4).map(lambda s: Path("", tuple(s)))


def parsed(value) -> Body:
    body = Body.parse(json.dumps(value, indent=1).encode())
    assert body is not None
    return body


@given(OBJECTS, st.lists(st.tuples(PLACES, JSON), max_size=5))
def test_an_editor_puts_as_a_body_does_refusals_included(value, edits):
    source = parsed(value)
    body, editor = source, Editor(source)
    for place, new in edits:
        before = json.dumps(dict(editor))
        try:
            body = body.put(place, new)
        except LookupError:
            with pytest.raises(LookupError):
                editor.put(place, new)
            assert json.dumps(dict(editor)) == before
        else:
            editor.put(place, new)
        assert json.dumps(dict(editor)) == json.dumps(dict(body))
        assert (len(editor), "a" in editor) == (len(body), "a" in body)
    assert editor.body().encode() == body.encode()
    assert (editor.body() is source) is not body.is_edited
    assert dict(source) == value


@given(OBJECTS, st.lists(STEPS, min_size=1, max_size=3))
def test_places_cut_together_leave_what_is_left_of_them_one_by_one_from_the_end(value, paths):
    source = parsed(value)
    found = {place for path in paths for place, _ in find(source, path)}
    body = source
    for place in sorted(found, key=lambda place: [(isinstance(step, str), step) for step in place], reverse=True):
        body = body.cut(place)
    assert cut_all(source, found).encode() == body.encode() or not found
    assert dict(source) == value


@given(OBJECTS, STEPS)
def test_values_put_together_stand_where_they_were_found(value, path):
    source = parsed(value)
    places = [place for place, _ in find(source, path)]
    body = source
    for place in places:
        body = body.put(place, "new")
    edited = put_all(source, dict.fromkeys(places, "new"))
    assert edited.encode() == body.encode()
    assert (edited is source) == (not places)


def test_each_container_is_copied_at_the_first_edit_inside_it_and_at_no_other():
    source = parsed({"a": [{"b": 1}, {"b": 2}], "c": {"d": [1]}})
    editor = Editor(source)
    editor.put(("a", 0, "b"), 3)
    outer, inner = editor["a"], editor["a"][0]
    assert outer is not source["a"]
    assert inner is not source["a"][0]
    editor.put(("a", 0, "e"), 4)
    editor.put(("a", 1, "b"), 5)
    editor.append(("a",), {})
    assert editor["a"] is outer
    assert editor["a"][0] is inner
    assert editor["c"] is source["c"]
    assert dict(source) == {"a": [{"b": 1}, {"b": 2}], "c": {"d": [1]}}
    assert dict(editor.body()) == {"a": [{"b": 3, "e": 4}, {"b": 5}, {}], "c": {"d": [1]}}


def test_a_value_that_is_put_is_not_changed_by_an_edit_inside_it():
    value = {"x": [1]}
    editor = Editor(parsed({"a": 1, "b": 2}))
    editor.put(("a",), value)
    editor.put(("b",), value)
    editor.put(("a", "x", 0), 2)
    assert dict(editor.body()) == {"a": {"x": [2]}, "b": {"x": [1]}}
    assert value == {"x": [1]}
