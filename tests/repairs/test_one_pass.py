"""A repair that edits thousands of places takes time in proportion to them: counted in calls and in bodies made."""

import sys
from typing import Any

import pytest

from proxy.body import Body
from proxy.repairs import REPAIRS
from proxy.repairs.card import Act, Draft

OTHER: dict[str, Any] = {"role": "user", "content": "a"}

# repair: options, the message of which there are as many as of OTHER
EDITS = [
    pytest.param("clamp", {"messages[*].n": {"max": 1}}, {"n": 2}, id="clamp"),
    pytest.param("coerce", {"messages[*].n": "integer"}, {"n": "2"}, id="coerce"),
    pytest.param("default", {"messages[*].id": "x"}, {}, id="default: a field made"),
    pytest.param("default", {"messages[*].a.id": "x"}, {"a": None}, id="default: an object made of null"),
    pytest.param("drop", ["messages[*].n"], {"n": 1}, id="drop: fields"),
    pytest.param("drop", [{"messages[*]": {"eq": {"n": 1}}}], {"n": 1}, id="drop: elements"),
    pytest.param("flatten_content", {}, {"content": [{"type": "text", "text": "a"}]}, id="flatten_content"),
    pytest.param("keep", {"messages[*]": ["role", "content"]}, {"n": 1}, id="keep: names"),
    pytest.param("keep", {"messages": {"where": {"role": "user"}}}, {"n": 1}, id="keep: elements"),
    pytest.param("map", {"messages[*].role": {"developer": "system"}}, {"role": "developer"}, id="map"),
    pytest.param("move", {"messages[*].n": "messages[*].m"}, {"n": 1}, id="move: a rename"),
    pytest.param("move", {"messages[*].n": "messages[*].n.m"}, {"n": 1}, id="move: into itself"),
    pytest.param(
        "move", {"messages[*].n.m": {"to": "messages[*].n", "over": True}}, {"n": {"m": 1}}, id="move: out of itself"
    ),
    pytest.param("move", {"messages[*]": "tools[*].function"}, {"n": 1}, id="move: to a list that grows"),
    pytest.param("set", {"messages[*].n": 1}, {}, id="set"),
]


def built(repair: str, options: Any) -> Act:
    card = REPAIRS[repair]
    return card.build(card.options.model_validate(options))


def chat(edited: dict[str, Any], count: int) -> Body:
    pairs = [(edited, OTHER) for _ in range(count // 2)]
    return Body.of({"messages": [dict(message) for pair in pairs for message in pair]})


def top_level(edited: Any, count: int) -> Body:
    return Body.of({f"{index}": edited if index % 2 else True for index in range(count)})


def work(act: Act, body: Body, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Return how many calls, of Python's and C's functions, the act makes, and how many bodies."""
    calls, bodies, make = 0, 0, Body.__init__

    def count_call(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    def count_body(self: Body, *args: Any, **options: Any) -> None:
        nonlocal bodies
        bodies += 1
        make(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Body, "__init__", count_body)
        profiler = sys.getprofile()
        sys.setprofile(count_call)
        try:
            change = act(Draft(body))
        finally:
            sys.setprofile(profiler)
    assert change is not None
    return calls, bodies


def check_is_linear(act: Act, small: Body, large: Body, monkeypatch: pytest.MonkeyPatch) -> None:
    few, bodies = work(act, small, monkeypatch)
    many, as_many = work(act, large, monkeypatch)
    assert as_many == bodies <= 2, "a body is made for each edit"
    assert many / few <= 3


@pytest.mark.parametrize(("repair", "options", "edited"), EDITS)
def test_half_of_ten_thousand_messages_are_edited_in_one_pass(repair, options, edited, monkeypatch):
    act = built(repair, options)
    check_is_linear(act, chat(edited, 5_000), chat(edited, 10_000), monkeypatch)


AT_THE_TOP = [
    pytest.param("drop", [{"*": None}], None, id="drop"),
    pytest.param("keep", {".": {"keys": {"matches": "[02468]$"}}}, 1, id="keep"),
    pytest.param("map", {"*": {"a": "b"}}, "a", id="map"),
    pytest.param("coerce", {"*": "boolean"}, "yes", id="coerce"),
]


@pytest.mark.parametrize(("repair", "options", "edited"), AT_THE_TOP)
def test_half_of_ten_thousand_top_level_fields_are_edited_in_one_pass(repair, options, edited, monkeypatch):
    act = built(repair, options)
    check_is_linear(act, top_level(edited, 5_000), top_level(edited, 10_000), monkeypatch)


def test_the_measure_finds_an_edit_that_copies_for_each_place(monkeypatch):
    def one_by_one(draft: Draft) -> Any:
        body = draft.body
        for index in range(0, len(body["messages"]), 2):
            body = body.put(("messages", index, "n"), 1)
        return body

    with pytest.raises(AssertionError, match="for each edit"):
        check_is_linear(one_by_one, chat({}, 100), chat({}, 200), monkeypatch)
