"""A body told by its frame and its messages is the body that parsing it as a whole tells."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.body import Body, UnreadableBody
from proxy.frames import Framed, Frames, model_of
from proxy.turns import read_turns

TURNS = '[{"role": "user", "content": "Hi"}]'
LONG = json.dumps([{"role": "user", "content": "A long text. " * 1000}])


def met(source, times=3):
    """Return what frames that have met the body before tell of it."""
    frames = Frames()
    return [frames.parse(source) for _ in range(times)][-1]


def value_of(body, name):
    try:
        return body[name]
    except UnreadableBody:
        return UnreadableBody


def told(body):
    """Return all that a body tells."""
    if body is None:
        return None
    names = list(body)
    return (
        [(name, body.kind(name), body.raw(name), value_of(body, name)) for name in names],
        body.repeated_name(),
        body.encode(),
        body.is_edited,
        body.source,
        model_of(body),
    )


def edited(body):
    """Yield the body after edits of each kind."""
    yield body.put(("x",), 1)
    for value in (True, False, None):
        yield body.put(("x",), value)
        yield body.put_all({"n": value, "x": value}, without=["model", "x"])
    yield body.put_all({"x": [2]}, without=["n"])
    yield body.cut(("messages",))
    for name in body:
        cut = body.cut((name,))
        yield cut
        yield cut.put(("y",), 3)
        yield from (cut.cut((other,)) for other in cut)


FRAMED = [
    pytest.param(f'{{"messages":{TURNS}}}', id="nothing besides"),
    pytest.param(f'{{"messages": {TURNS}, "model": "m"}}', id="the messages first"),
    pytest.param(f'{{"model":"m","n":1E1,"messages":{TURNS}}}', id="the messages last"),
    pytest.param(f'{{"stop":["a"],"messages":{TURNS},"n":[1],"m":{{"a":"b"}}}}', id="lists before and after"),
    pytest.param(f' {{ "model" : "\\u00e9" , "messages": {TURNS} , "n":{{"a" : 1}}\n}} ', id="blanks and escapes"),
    pytest.param(f'{{"model": "m", "messages": {LONG}, "seed": 1e999}}', id="a number that can't be read"),
    pytest.param(f'{{"messages": {TURNS}, "user": "\\"messages\\": [0"}}', id="a text that looks like it"),
]


@pytest.mark.parametrize("source", FRAMED)
def test_a_body_of_turns_is_framed_and_tells_what_it_would_as_a_whole(source):
    framed, whole = met(source.encode()), Body.parse(source.encode())
    assert isinstance(framed, Framed)
    assert told(framed) == told(whole)
    assert framed.frame.model == model_of(whole)
    assert [told(one) for one in edited(framed)] == [told(one) for one in edited(whole)]


def test_a_frame_is_made_once_and_a_cut_of_it_too():
    frames = Frames()
    first, second, other = (
        frames.parse(f'{{"messages":[{{"role":"user","content":"{text}"}}],"n":1,"m":2}}'.encode()) for text in "abc"
    )
    assert not isinstance(first, Framed)
    assert second.frame is other.frame
    assert second.cut(("n",)).frame is other.cut(("n",)).frame
    assert second.cut(("n",)).frame is not other.cut(("m",)).frame


def test_a_long_body_is_framed_at_once():
    assert isinstance(met(f'{{"messages": {LONG}}}'.encode(), times=1), Framed)


# Of each the part between the first list and the last one could be taken for the messages.
WHOLE = [
    pytest.param(f'{{"a": {{"messages": {TURNS}}}, "messages": 0}}', id="messages further down"),
    pytest.param(f'{{"messages": {TURNS}, "messages": 0}}', id="a name twice, a 0 last"),
    pytest.param(f'{{"messages": 0, "messages": {TURNS}}}', id="a name twice, a 0 first"),
    pytest.param(f'{{"messages": {TURNS}, "\\u006dessages": 0}}', id="a name twice, spelled in another way"),
    pytest.param(f'{{"messages": {TURNS}, "n": 1, "n": 2}}', id="another name twice"),
    pytest.param(f'{{"messages": {TURNS}, "a": [{{"role": "user", "content": "x"}}]}}', id="two lists"),
    pytest.param(f'{{"messages": 1{TURNS}}}', id="a number before the list"),
    pytest.param(f'{{"messages": {TURNS}1}}', id="a number after the list"),
    pytest.param(f'{{"messages": {TURNS}, "a": }}', id="a value that is not there"),
    pytest.param(f'{{"messages": {TURNS}', id="an object that is not closed"),
    pytest.param(f'"messages": {TURNS}', id="no object"),
    pytest.param('{"a": "\\"messages\\": [", "messages": "\\"}]"}', id="in texts"),
    pytest.param('{"messages": [{"role": "user"}, {"content": "x"}]}', id="turns that lack something"),
    pytest.param('{"messages": [{"role": "user", "content": "x", "name": "y"}]}', id="turns that have more"),
    pytest.param('{"messages": [{"role": "user", "content": "\\ud83d"}]}', id="half a character"),
    pytest.param('{"messages": [{"role": "user", "content": "x"},]}', id="a comma too many"),
    pytest.param(f'{{"messages": {TURNS}, "a": "{"long " * 200}"}}', id="much besides"),
]


@pytest.mark.parametrize("source", WHOLE)
def test_any_other_body_is_parsed_as_a_whole(source):
    parsed = met(source.encode())
    assert not isinstance(parsed, Framed)
    assert told(parsed) == told(Body.parse(source.encode()))


def test_a_content_that_is_no_utf_8_can_t_be_read():
    framed = met(b'{"messages": [{"role": "user", "content": "\xff"}], "n": 1}')
    assert isinstance(framed, Framed)
    with pytest.raises(UnreadableBody, match="'messages'"):
        framed["messages"]


def test_what_is_remembered_is_bounded():
    frames = Frames()
    for number in range(600):
        frames.parse(f'{{"messages":{TURNS},"n":{number}}}'.encode())
    assert not isinstance(frames.parse(f'{{"messages":{TURNS},"n":1}}'.encode()), Framed)
    frame = met(f'{{"messages":{TURNS},"n":1}}'.encode()).frame
    some = [frame.edited({}, [str(number)]) for number in [*range(9), 0, 8]]
    assert some[0] is not some[-2]
    assert some[8] is some[-1]


PIECES = st.sampled_from(
    [
        *'{}[],:"0a ',
        '"messages"',
        '"messages":',
        '"messages": [',
        '"}]',
        '"role"',
        '"content"',
        "\\",
        '\\"',
        "\\u006d",
        TURNS,
        f'"messages": {TURNS}',
        f'"n": 1, "messages":{TURNS}',
        '{"messages": ',
        ', "a": "b"',
        ', "messages": 0',
        "}",
    ]
)


@given(
    st.lists(PIECES, max_size=8).map("".join) | st.lists(PIECES, max_size=6).map(lambda some: f"{{{''.join(some)}}}")
)
@example(f'{{"a": {{"messages": {TURNS}}}, "messages": 0}}')
def test_any_text_is_told_as_it_would_be_as_a_whole(text):
    source = text.encode()
    whole = Body.parse(source)
    assert told(met(source)) == told(whole)
    if whole is not None and "messages" in whole:
        assert [told(one) for one in edited(met(source))] == [told(one) for one in edited(whole)]


READ = [
    pytest.param(b'[{"role":"user","content":"x"}]', [("user", b'"x"')], id="a turn"),
    pytest.param(b' [ { "content" : [ 1 ] , "role" : "a" } ]', [("a", b"[ 1 ]")], id="blanks, and a content of parts"),
    pytest.param(b'[{"role":"a","role":"b","content":1,"content":null}]', [("b", b"null")], id="the last of a name"),
    pytest.param(b"[]", [], id="none"),
    pytest.param(b'[{"role":1,"content":"x"}]', None, id="a role that is no text"),
    pytest.param(b'{"role":"user","content":"x"}', None, id="no list"),
    pytest.param(b"[1]", None, id="no objects"),
    pytest.param(b'[{"role":"user","content":' + b"[" * 100_000, None, id="nested too deeply"),
]


@pytest.mark.parametrize(("raw", "expected"), READ)
def test_turns_are_read(raw, expected):
    turns = read_turns(memoryview(raw))
    assert (turns and [(turn.role, bytes(turn.content)) for turn in turns]) == expected
