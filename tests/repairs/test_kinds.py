"""A repair looks at no more of a body than it must: fields that it can pass over by their kind are not decoded."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.body import Body, UnreadableBody, kind_of
from proxy.matching import compile_test
from proxy.repairs import REPAIRS
from proxy.repairs.card import Draft
from proxy.repairs.kinds import Kinds

DARK = b'"x":1e999,"y":["\xff"]'
"""Fields that can't be decoded."""

UNREAD: list[Any] = [
    pytest.param("drop", [{"*": None}], b'"n":null', b"", id="nulls are dropped"),
    pytest.param("drop", [{"*": {"eq": None}}], b'"n":null', b"", id="nulls are dropped by the long test"),
    pytest.param("drop", [{"*": {"type": ["null", "boolean"]}}], b'"n":true', b"", id="by type"),
    pytest.param("drop", [{"*": False}], b'"n":false', b"", id="false is dropped"),
    pytest.param("drop", [{"*": "a"}], b'"n":"a"', b"", id="a text is dropped"),
    pytest.param("drop", [{"*": {"matches": "a"}}], b'"n":"a"', b"", id="a text that matches is dropped"),
    pytest.param(
        "drop", [{"x": "a"}, {"y": {"gt": 0}}, "n"], b'"n":1', b"", id="fields of another kind are passed over"
    ),
    pytest.param("drop", ["n"], b'"n":1e999', b"", id="a name is dropped whatever it holds"),
    pytest.param("drop", [{"n": {"where": {"m": 1}}}], b'"n":1e999,"m":1', b'"m":1', id="a name is dropped where"),
    pytest.param("keep", {".": ["m", "x", "y"]}, b'"n":1e999,"m":1', b'"m":1', id="names are kept"),
    pytest.param("keep", {".": {"keys": {"ne": "n"}}}, b'"n":1e999,"m":1', b'"m":1', id="names are kept by a test"),
    pytest.param("map", {"n": {"a": "b"}}, b'"n":"a"', b'"n":"b"', id="map"),
    pytest.param("clamp", {"n": {"max": 1}}, b'"n":2', b'"n":1', id="clamp"),
    pytest.param("coerce", {"n": "integer"}, b'"n":"2"', b'"n":2', id="coerce"),
    pytest.param("set", {"n": 1}, b'"n":2', b'"n":1', id="set"),
    pytest.param("default", {"n": 1}, b'"m":2', b'"m":2,"n":1', id="default"),
    pytest.param("move", {"n": "m"}, b'"n":2', b'"m":2', id="move"),
]


def run(repair: str, options: Any, source: bytes) -> bytes:
    card = REPAIRS[repair]
    body = Body.parse(source)
    assert body is not None
    change = card.build(card.options.model_validate(options))(Draft(body))
    return source if change is None else change.draft.body.encode()


def fields(source: bytes) -> set[bytes]:
    return set(source[1:-1].split(b",")) - {b""}


@pytest.mark.parametrize(("repair", "options", "before", "after"), UNREAD)
def test_fields_that_can_not_be_read_stay_byte_for_byte(repair, options, before, after):
    result = run(repair, options, b"{" + before + b"," + DARK + b"}")
    assert fields(result) == fields(b"{" + after + b"," + DARK + b"}")


@pytest.mark.parametrize("options", [[{"*": 1}], [{"x": {"gt": 1}}], [{"x": {"type": "integer"}}]])
def test_a_field_whose_value_decides_is_looked_at(options):
    with pytest.raises(UnreadableBody, match="'x'"):
        run("drop", options, b'{"x":1e999}')


SCALARS = st.sampled_from([None, True, False, 0, 1, 1.5, -2, "", "a", "null"])
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.sampled_from(["a", "b"]), SCALARS, max_size=2)
TYPES = st.sampled_from(["string", "number", "integer", "boolean", "array", "object", "null"])
FIELD = st.just({"field": "a"})
OPERATORS: dict[str, st.SearchStrategy[Any]] = {
    "eq": VALUES | FIELD,
    "ne": VALUES,
    "gt": st.just(0) | FIELD,
    "le": st.just(1),
    "in": st.lists(SCALARS, max_size=3),
    "not_in": st.lists(SCALARS, max_size=3),
    "exists": st.booleans(),
    "type": TYPES | st.lists(TYPES, min_size=1, max_size=3),
    "empty": st.booleans(),
    "length": st.sampled_from([0, {"gt": 0}]),
    "matches": st.sampled_from(["a", "^$"]),
    "not": SCALARS,
    "any": st.lists(SCALARS, min_size=1, max_size=2),
    "all": st.lists(SCALARS, min_size=1, max_size=2),
    "every": SCALARS,
}
PLAIN = SCALARS | st.lists(SCALARS, max_size=2) | FIELD
TESTS = PLAIN | st.lists(st.sampled_from(sorted(OPERATORS)), min_size=1, max_size=2, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: OPERATORS[name] for name in names})
)


@given(TESTS, VALUES, VALUES)
def test_what_the_kind_says_of_a_test_is_so(test, value, other):
    kinds, holds = Kinds.of(test), compile_test(test)(value, {"a": other})
    assert kinds.sure <= kinds.possible
    assert holds or kind_of(value) not in kinds.sure
    assert not holds or kind_of(value) in kinds.possible
