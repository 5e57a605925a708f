"""A body: read lazily, edited as a value, written with what nobody touched byte for byte."""

import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.body import Body, UnreadableBody

SOURCE = b'{ "model" : "m",\n"a":{"b" : [1, 2.50]} ,"n":1E1,"s":"\\u00e9", "big":9007199254740993 }'


def parsed(source: bytes) -> Body:
    body = Body.parse(source)
    assert body is not None
    return body


NO_OBJECT = [
    pytest.param(b"", id="nothing"),
    pytest.param(b"null", id="null"),
    pytest.param(b"[1]", id="a list"),
    pytest.param(b'"text"', id="a text"),
    pytest.param(b"{", id="an open object"),
    pytest.param(b'{"a":1,}', id="a comma too many"),
    pytest.param(b'{"a":1} x', id="something after it"),
    pytest.param(b'\xef\xbb\xbf{"a":1}', id="a byte order mark"),
    pytest.param(b'{"a":NaN}', id="not a number"),
    pytest.param(b'{"a":-Infinity}', id="infinity"),
    pytest.param(b'{"a":01}', id="a number with a leading zero"),
    pytest.param(b'{"a":"\\ud83d"}', id="half a character in a value"),
    pytest.param(b'{"\\ud83d":1}', id="half a character in a name"),
    pytest.param(b'{"\xff":1}', id="a name that is no UTF-8"),
    pytest.param(b"{'a':1}", id="single quotes"),
    pytest.param(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="too deep"),
]


@pytest.mark.parametrize("source", NO_OBJECT)
def test_is_no_body(source):
    assert Body.parse(source) is None


UNREADABLE = [
    pytest.param(b"1e400", id="a number beyond a float"),
    pytest.param(b'"\xff"', id="a text that is no UTF-8"),
    pytest.param(b'["\xff"]', id="a text deep down that is no UTF-8"),
    pytest.param(b"1" * 5000, id="a number of five thousand digits"),
]


@pytest.mark.parametrize("value", UNREADABLE)
def test_a_value_that_can_not_be_read_says_so_when_looked_at_and_goes_on_as_it_came(value):
    body = parsed(b'{"a":' + value + b',"b":1}')
    assert "a" in body
    with pytest.raises(UnreadableBody, match="'a'"):
        body["a"]
    assert body.put(("b",), 2).encode() == b'{"a":' + value + b',"b":2}'


def test_reads_like_a_mapping():
    body = parsed(SOURCE)
    assert dict(body) == json.loads(SOURCE)
    assert list(body) == ["model", "a", "n", "s", "big"]
    assert (len(body), "n" in body, "x" in body, body.get("x")) == (5, True, False, None)
    with pytest.raises(KeyError):
        body["x"]


def test_a_value_is_decoded_once_and_shared_by_copies():
    body = parsed(SOURCE)
    assert body["a"] is body["a"]
    assert body.put(("n",), 2)["a"] is body["a"]


def test_unedited_it_is_the_bytes_that_came():
    body = parsed(SOURCE)
    assert body.encode() == SOURCE
    assert (body["a"], body.is_edited, body.encode()) == ({"b": [1, 2.5]}, False, SOURCE)


EDITS = [
    pytest.param(
        lambda body: body.put(("n",), 2),
        b'{"model":"m","a":{"b" : [1, 2.50]},"n":2,"s":"\\u00e9","big":9007199254740993}',
        id="a field is written where it stood",
    ),
    pytest.param(
        lambda body: body.put(("x", "y"), "é"),
        b'{"model":"m","a":{"b" : [1, 2.50]},"n":1E1,"s":"\\u00e9","big":9007199254740993,"x":{"y":"\xc3\xa9"}}',
        id="a new field comes last",
    ),
    pytest.param(
        lambda body: body.put(("a", "b", 0), None),
        b'{"model":"m","a":{"b":[null,2.5]},"n":1E1,"s":"\\u00e9","big":9007199254740993}',
        id="only the top-level field of a deep edit is written anew",
    ),
    pytest.param(
        lambda body: body.cut(("a",)).cut(("model",)),
        b'{"n":1E1,"s":"\\u00e9","big":9007199254740993}',
        id="fields are cut",
    ),
    pytest.param(
        lambda body: body.cut(("a", "b", 1)),
        b'{"model":"m","a":{"b":[1]},"n":1E1,"s":"\\u00e9","big":9007199254740993}',
        id="an element is cut",
    ),
    pytest.param(
        lambda body: body.put(("n",), 2).put(("n",), 3).cut(("s",)),
        b'{"model":"m","a":{"b" : [1, 2.50]},"n":3,"big":9007199254740993}',
        id="an edit of an edit",
    ),
]


@pytest.mark.parametrize(("edit", "result"), EDITS)
def test_edited(edit, result):
    body = parsed(SOURCE)
    edited = edit(body)
    assert (edited.encode(), edited.is_edited, edited.source) == (result, True, SOURCE)
    assert dict(edited) == json.loads(result)
    assert (body.encode(), body.is_edited, dict(body)) == (SOURCE, False, json.loads(SOURCE))


def test_a_place_that_can_not_be_reached_is_refused():
    body = parsed(SOURCE)
    for place in [(0,), ("model", "x"), ("a", "b", 2)]:
        with pytest.raises(LookupError):
            body.put(place, 1)


def test_a_body_of_a_decoded_object():
    body = Body.of({"a": [1, None], "b": True})
    assert (body["a"], body.is_edited, body.encode()) == ([1, None], True, b'{"a":[1,null],"b":true}')
    assert body.put(("b",), 1)["b"] == 1
    assert body.repeated_name() is None


KINDS = [
    pytest.param(b'"a"', "string", id="a text"),
    pytest.param(b'"\xff"', "string", id="a text that can't be read"),
    pytest.param(b"-0.5", "number", id="a negative number"),
    pytest.param(b"1e999", "number", id="a number that can't be read"),
    pytest.param(b"true", "boolean", id="true"),
    pytest.param(b"false", "boolean", id="false"),
    pytest.param(b"[1e999]", "array", id="a list"),
    pytest.param(b"{}", "object", id="an object"),
    pytest.param(b"null", "null", id="null"),
]


@pytest.mark.parametrize(("value", "kind"), KINDS)
def test_tells_the_kind_of_a_value_without_reading_it(value, kind):
    assert parsed(b'{"a":\n\t ' + value + b' ,"b":1}').kind("a") == kind
    with pytest.raises(KeyError):
        parsed(b"{}").kind("a")


TRUE = [
    pytest.param(b"true", True, id="true"),
    pytest.param(b"false", False, id="false"),
    pytest.param(b"1", False, id="a number"),
    pytest.param(b'"true"', False, id="a text"),
    pytest.param(b'"\xff"', False, id="what can't be read"),
]


@pytest.mark.parametrize(("value", "answer"), TRUE)
def test_tells_whether_a_field_is_true(value, answer):
    body = parsed(b'{"a": ' + value + b' ,"b":1}')
    assert (body.is_true("a"), body.is_true("x")) == (answer, False)
    assert [body.put(("a",), new).is_true("a") for new in (True, False, 1)] == [True, False, False]


def test_a_value_of_an_edited_field_has_a_kind_too():
    values = {"s": "", "n": 0, "f": 1.5, "b": False, "l": [], "o": {}, "z": None}
    kinds = ["string", "number", "number", "boolean", "array", "object", "null"]
    assert [Body.of(values).kind(name) for name in values] == kinds


def test_fields_are_put_and_cut_together():
    body = parsed(SOURCE)
    edited = body.put_all({"x": 1, "a": None}, without=["n", "s", "no such field"])
    assert edited.encode() == b'{"model":"m","a":null,"big":9007199254740993,"x":1}'
    assert (edited.is_edited, edited.source, body.encode(), body.is_edited) == (True, SOURCE, SOURCE, False)


HELD = [
    pytest.param([], True, id="no field"),
    pytest.param(["a", "model"], True, id="fields that are there"),
    pytest.param(["a", "x"], False, id="one that is not"),
]


@pytest.mark.parametrize(("names", "answer"), HELD)
def test_has_all(names, answer):
    assert parsed(SOURCE).has_all(frozenset(names)) is answer


NAMES = st.text(max_size=3) | st.sampled_from(["a", "b", 'q"', "\\", "é", "{", ",", ":"])
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
BLANKS = st.sampled_from(["", " ", "\n\t", "\r "])


@st.composite
def sources(draw, names):
    """Return the text of an object as any client may write it: names repeated, escaped, blanks anywhere."""

    def blank() -> str:
        return draw(BLANKS)

    def text(value, *, escaped) -> str:
        return json.dumps(value, ensure_ascii=escaped, indent=draw(st.sampled_from([None, 1])))

    members = []
    for name in draw(st.lists(names, max_size=6)):
        key = (
            "".join(f"\\u{ord(c):04x}" for c in name)
            if draw(st.booleans()) and name.isascii()
            else text(name, escaped=True)[1:-1]
        )
        value = text(draw(VALUES), escaped=draw(st.booleans()))
        members.append(f'{blank()}"{key}"{blank()}:{blank()}{value}{blank()}')
    inside = ",".join(members) or blank()
    return f"{blank()}{{{inside}}}{blank()}".encode()


def twice_in(source: bytes) -> set[str | None]:
    seen: list[list[str]] = []
    json.loads(source, object_pairs_hook=lambda pairs: seen.append([name for name, _ in pairs]))
    names = seen[-1]  # the outermost object ends last
    return {name for name in names if names.count(name) > 1} or {None}


TWICE = [
    pytest.param(b"{}", None, id="nothing"),
    pytest.param(b'{"a":1,"b":1}', None, id="the same value of two names"),
    pytest.param(b'{"n":1,"n":8}', "n", id="two values of a name"),
    pytest.param(b'{"n":1,"n":1}', "n", id="one value twice"),
    pytest.param(b'{"n":1,"n":12}', "n", id="a value that begins as the other does"),
    pytest.param(b'{"n":12,"n":1}', "n", id="a value that the other begins with"),
    pytest.param(b'{"n":1,"m":2,"n":1}', "n", id="another name between"),
    pytest.param(b'{"m":2,"n":1,"n":1 }', "n", id="at the end"),
    pytest.param(b'{"n":1,"\\u006e":1}', "n", id="written in another way"),
    pytest.param(b'{"a":{"n":1,"n":2}}', None, id="further down"),
    pytest.param(b'{"a":"\\",\\"a\\":1","b":1}', None, id="inside a text"),
    pytest.param(b'{"":1,"":1}', "", id="an empty name"),
    pytest.param(b'{"a":1,"b":1,"b":1,"c":2}', "b", id="among others"),
    pytest.param(b' {"a" : [ 1 ] , "b":{} }\n', None, id="with blanks"),
]


@pytest.mark.parametrize(("source", "answer"), TWICE)
def test_a_name_stands_twice(source, answer):
    assert parsed(source).repeated_name() == answer
    assert twice_in(source) == {answer}


@given(sources(st.sampled_from(["a", "b", "ab", ""])) | sources(NAMES))
@example(b'{"a":"a\\"","a":"a\\""}')
def test_a_repeated_name_agrees_with_a_parser_that_keeps_pairs(source):
    body = Body.parse(source)
    if body is not None:
        assert body.repeated_name() in twice_in(source)
        assert body.put(("x",), 1).repeated_name() in twice_in(source)


def deepest():
    """Return the deepest body that can be parsed here."""
    levels = (b'{"y":' + b"[" * depth + b"]" * depth + b',"x":1,"x":2}' for depth in range(1000, 0, -1))
    return next(filter(None, map(Body.parse, levels)))


def higher(frames, act):
    return act() if not frames else higher(frames - 1, act)


def test_a_body_that_could_just_be_parsed_is_told_of_higher_up_the_stack():
    body = deepest()
    assert higher(20, body.cut(("y",)).repeated_name) == "x"
    assert higher(20, body.cut(("x",)).encode).startswith(b'{"y":[[')


def test_a_body_that_is_edited_too_deeply_to_be_written_says_so():
    nest = 1
    for _ in range(100_000):
        nest = [nest]
    with pytest.raises(UnreadableBody, match="too deeply"):
        parsed(b"{}").put(("x",), nest).encode()


@given(st.dictionaries(NAMES, VALUES, max_size=5), st.data())
def test_an_edit_leaves_every_other_field_byte_for_byte(value, data):
    source = json.dumps(value, indent=1).encode()
    body = Body.parse(source)
    if body is None or not value:
        return
    name = data.draw(st.sampled_from(sorted(value)))
    raw = msgspec.json.Decoder(dict[str, msgspec.Raw])
    before = {key: bytes(slice_) for key, slice_ in raw.decode(source).items()}
    after = {key: bytes(slice_) for key, slice_ in raw.decode(body.put((name,), "new").encode()).items()}
    assert after == before | {name: b'"new"'}
    assert list(after) == list(before)
    cut = {key: bytes(slice_) for key, slice_ in raw.decode(body.cut((name,)).encode()).items()}
    assert cut == {key: slice_ for key, slice_ in before.items() if key != name}


@given(st.binary(max_size=30) | sources(NAMES))
def test_any_bytes_are_a_body_or_none(source):
    body = Body.parse(source)
    assert body is None or body.encode() == source
