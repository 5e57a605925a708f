"""Tokens: whatever the text and the stop strings, pieces are the text again, and no stop string comes through."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.standin import text
from proxy.standin.generation import Task, write

WORDS = st.text(alphabet="ab c.", max_size=30)
STOPS = st.lists(st.text(alphabet="ab c.", min_size=1, max_size=5), max_size=3)


@given(st.text())
def test_pieces_are_the_text_again(whole: str) -> None:
    assert "".join(text.pieces(whole)) == whole


@given(WORDS, STOPS, st.one_of(st.none(), st.integers(0, 40)))
def test_a_text_ends_before_its_first_stop_string(prompt: str, stops: list[str], max_tokens: int | None) -> None:
    unstopped = "".join(token.text for token in write(Task(prompt, max_tokens=max_tokens)))
    tokens = list(write(Task(prompt, max_tokens=max_tokens, stops=tuple(stops))))
    said = "".join(token.text for token in tokens)
    assert unstopped.startswith(said)
    assert not any(stop in said for stop in stops)
    assert tokens[-1].finish is not None
    if tokens[-1].finish.matched in stops:
        assert unstopped.startswith(said + str(tokens[-1].finish.matched))
    else:
        assert said == unstopped


@given(WORDS, st.integers(0, 40))
def test_no_more_tokens_than_were_asked_for(prompt: str, max_tokens: int) -> None:
    tokens = list(write(Task(prompt, max_tokens=max_tokens)))
    assert sum(token.cost for token in tokens) <= max_tokens
    assert [bool(token.finish) for token in tokens] == [False] * (len(tokens) - 1) + [True]


@given(st.recursive(st.none() | st.booleans() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=2)))
def test_any_schema_gives_some_value(odd: object) -> None:
    for schema in ({"properties": {"a": odd}}, {"type": odd}, {"$ref": "#/a/b"}, {"anyOf": [odd]}, {"items": odd}):
        text.instance(schema, "word")
