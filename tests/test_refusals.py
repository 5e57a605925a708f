"""What a refusal says, from the bytes that servers send, and from bytes that no server should."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import BackendFault
from proxy.refusals import READ_BYTES, Failure, failure_from, read_refusal, refusal_of

DATA = Path(__file__).parent / "data"
INT_NULL = {"type": "int_type", "loc": ["body", "n"], "msg": "Input should be a valid integer", "input": None}
NULL_LINE = "int_type at body.n: Input should be a valid integer (got null)"
REPR = "{'type': 'int_type', 'loc': ('body', 'n'), 'msg': 'Input should be a valid integer', 'input': None}"


def read(body: Any, status: int = 400) -> Failure:
    return read_refusal(status, body if isinstance(body, bytes) else json.dumps(body).encode())


SHAPES: list[tuple[str, Any, str]] = [
    ("nested", {"error": {"message": "told", "type": "x", "param": None, "code": None}}, "told"),
    ("flat", {"object": "error", "message": "told", "type": "BadRequest", "param": None, "code": 400}, "told"),
    ("a string as error", {"error": "told"}, "told"),
    ("a string as detail", {"detail": "told"}, "told"),
    ("a list as detail", {"detail": [INT_NULL]}, NULL_LINE),
    ("a list in a message", {"object": "error", "message": {"detail": [INT_NULL]}}, NULL_LINE),
    ("a list around the error", [{"error": {"code": 400, "message": "told"}}], "told"),
    ("a list of errors", {"errors": [{"message": "one"}, {"message": "two"}]}, "one\ntwo"),
    ("a kind of error beside the message", {"error": "Bad Request", "message": "told"}, "Bad Request\ntold"),
    ("problem details", {"title": "Bad Request", "detail": "told"}, "Bad Request\ntold"),
    ("a code and a message", {"code": 20015, "message": "told", "data": None}, "told"),
    (
        "a quoted backend",
        {"error": {"message": "failed", "metadata": {"raw": '{"error": {"message": "told"}}'}}},
        "told",
    ),
    ("JSON as the message", {"error": {"message": '{"detail": "told"}'}}, "told"),
    ("a string alone", "told", "told"),
    ("plain text", b"told\n", "told"),
    ("an event", b'event: error\ndata: {"error": {"message": "told"}}\n\n', "told"),
    ("an event of two lines", b'data: {"error":\ndata: "told"}\n\n', "told"),
    ("an event that is no JSON", b"data: it broke\n\n", "data: it broke"),
    ("a text pasted into JSON", b'{"error": "the "x" is bad"}', 'the "x" is bad'),
    ("JSON that is cut short", b'{"error":{"message":"a \\"b\\" c\\nd', 'a "b" c\nd'),
    ("a page", b"<html><head><title>400 Bad</title></head><body><h1>No\n good</h1></body></html>", "400 Bad\nNo good"),
    ("a page with entities", b"<!DOCTYPE html><h1>a &lt;b&gt; &amp; c</h1>", "a <b> & c"),
    ("a page with a script", b"<html><script>var a = '<b>x'</script><p>told</p>", "told"),
    ("a repr in a message", {"message": f"1 validation error:\n  {REPR}\n\n  File"}, NULL_LINE),
    ("a repr in a list of reprs", {"error": {"message": f"[{REPR}, {REPR}]"}}, NULL_LINE),
    ("a repr that is cut short", b'{"message":"1 validation error:\\n  ' + REPR.encode() + b"\\n  {'ty", NULL_LINE),
    (
        "pydantic's prose",
        {"error": "1 validation error for B\nmessages.0.name\n  Bad [type=str, input_value=None, input_type=NoneType]"},
        "str at messages[0].name: Bad (got null)",
    ),
]


@pytest.mark.parametrize(("body", "told"), [case[1:] for case in SHAPES], ids=[case[0] for case in SHAPES])
def test_the_text_is_found_wherever_it_sits(body: Any, told: str) -> None:
    assert told in read(body).text


OWN_FIRST = [
    case for case in SHAPES if isinstance(case[1], bytes) and case[0].startswith(("a page", "plain", "a text"))
]


@pytest.mark.parametrize("body", [case[1] for case in OWN_FIRST], ids=[case[0] for case in OWN_FIRST])
def test_the_servers_own_words_come_first(body: bytes) -> None:
    assert read(body).text.startswith(body.decode().strip())


LINES = [
    ("an integer that is null", INT_NULL, NULL_LINE),
    ("a number", INT_NULL | {"input": 5.7}, "int_type at body.n: Input should be a valid integer (got 5.7)"),
    ("a boolean", INT_NULL | {"input": True}, "int_type at body.n: Input should be a valid integer (got true)"),
    ("what a user wrote", INT_NULL | {"input": "secret"}, "int_type at body.n: Input should be a valid integer"),
    ("an object", INT_NULL | {"input": {"a": None}}, "int_type at body.n: Input should be a valid integer"),
    ("no input", {"type": "missing", "loc": ["body"], "msg": "Field required"}, "missing at body: Field required"),
    ("no type", {"loc": ["header", "x-a"], "msg": "no"}, "header.x-a: no"),
    ("no place", {"type": "t", "loc": [], "msg": "no"}, "no"),
    (
        "an element",
        {"type": "t", "loc": ["body", "tools", 0, "function"], "msg": "no"},
        "t at body.tools[0].function: no",
    ),
    ("an arm that is a type", {"type": "t", "loc": ["body", "stop", "str"], "msg": "no"}, "t at body.stop: no"),
    ("an arm of a list", {"type": "t", "loc": ["body", "stop", "list[str]", 0], "msg": "no"}, "t at body.stop[0]: no"),
    (
        "an arm that is a model",
        {"type": "t", "loc": ["body", "messages", 1, "UserMessage", "content"], "msg": "no"},
        "t at body.messages[1].content: no",
    ),
    (
        "an arm that is a wrapper",
        {"type": "t", "loc": ["body", "function-wrap[log()]", "n"], "msg": "no"},
        't at body["function-wrap[log()]"].n: no',
    ),
    ("a field that is named as an arm", {"type": "t", "loc": ["body", "str"], "msg": "no"}, "t at body.str: no"),
    ("a field with a dot", {"type": "t", "loc": ["body", "a.b"], "msg": "no"}, 't at body["a.b"]: no'),
]


@pytest.mark.parametrize(("complaint", "line"), [case[1:] for case in LINES], ids=[case[0] for case in LINES])
def test_a_complaint_is_a_line_as_policies_spell_paths(complaint: dict[str, Any], line: str) -> None:
    assert read({"detail": [complaint]}).text == line


WITH_TYPE = [case for case in LINES if case[1]["loc"] and "type" in case[1]]


@pytest.mark.parametrize(("complaint", "line"), [case[1:] for case in WITH_TYPE], ids=[case[0] for case in WITH_TYPE])
def test_its_repr_is_the_same_line(complaint: dict[str, Any], line: str) -> None:
    shown = repr(complaint | {"loc": tuple(complaint["loc"])})
    assert read({"error": {"message": f"1 validation error:\n  {shown}"}}).text.splitlines()[-1] == line


def test_quotes_and_breaks_of_a_repr_are_undone() -> None:
    shown = repr({"type": "t", "loc": ("body", "a"), "msg": 'it\'s "so"\nhere \\ there', "input": {"x": "'}"}})
    assert read({"message": shown}).text.endswith('t at body.a: it\'s "so"\nhere \\ there')


CODES = [
    ("nested", {"error": {"message": "m", "code": "c", "param": "p"}}, ("c", "p")),
    ("numbers", {"error": {"message": "m", "code": 400}}, ("400", None)),
    ("flat", {"object": "error", "message": "m", "code": 400, "param": "n"}, ("400", "n")),
    ("outside", {"code": "c", "error": "m"}, ("c", None)),
    (
        "inner before outer",
        {"code": 1, "param": "o", "error": {"message": "m", "code": "i", "param": None}},
        ("i", "o"),
    ),
    ("below detail", {"detail": {"message": "m", "code": "c", "param": "p"}}, ("c", "p")),
    ("in a list", [{"error": {"message": "m", "code": 400}}], ("400", None)),
    ("a boolean is none", {"error": {"message": "m", "code": True, "param": ["x"]}}, (None, None)),
]


@pytest.mark.parametrize(("body", "found"), [case[1:] for case in CODES], ids=[case[0] for case in CODES])
def test_code_and_param_are_found_wherever_they_sit(body: Any, found: tuple[str | None, str | None]) -> None:
    failure = read(body)
    assert (failure.code, failure.param) == found


SILENT = [
    b"",
    b"{}",
    b"[]",
    b"5",
    b'{"error": {}}',
    b'{"error": {"message": ""}}',
    b'{"data": {"message": "x"}}',
]


@pytest.mark.parametrize("body", SILENT)
def test_a_body_that_says_nothing_has_no_text(body: bytes) -> None:
    assert read(body).text == ""


def test_an_event_says_its_reprs_too() -> None:
    fault = BackendFault(f"1 validation error:\n  {REPR}", status=400, code=400)
    failure = failure_from(fault, "error")
    assert (failure.status, failure.code, failure.stream) == (400, "400", "error")
    assert failure.text.splitlines()[-1] == NULL_LINE


RECORDED = sorted((DATA / "refusals").glob("*/*.txt"))
ANSWER = re.compile(r"HTTP/1\.1 (?P<status>[45]\d\d).*?\n\n(?P<body>.*?)\n### curl exit", re.DOTALL)
REFUSED = [(file, found) for file in RECORDED if (found := ANSWER.search(file.read_text("utf-8")))]


@pytest.mark.parametrize(("file", "found"), REFUSED, ids=[f"{file.parent.name}: {file.stem}" for file, _ in REFUSED])
def test_recorded_refusals_say_something(file: Path, found: re.Match[str]) -> None:
    failure = read(found["body"].encode(), int(found["status"]))
    assert failure.text or file.stem == "10c_completions_list2"  # a bare assert of the server's: its message is empty
    assert "validation error" not in failure.text or re.search(r"^\w+ at body", failure.text, re.MULTILINE)


PIECES = [
    b"'type': 'x', 'loc': ('",
    b"'type': 'x', 'loc': (\"",
    b"'loc': (1, 1, 1, ",
    b"'loc': ('a'), 'msg': '",
    b"'loc': ('\\",
    b"a\n  b [type=x, input_value=",
    b'{"error": "',
    b'{"error":        ',
    b'{"error":[',
    b"[",
    b"<",
    b"<script>",
    b"&#99999999",
    b"data: ",
    b"\\\\",
    b"\xff",
]


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("start", [b"", b'{"message": "', b"<html>", b"<html>&#"])
def test_hostile_bodies_take_no_time_and_little_room(start: bytes, piece: bytes) -> None:
    body = (start + piece * READ_BYTES)[: 4 * READ_BYTES]
    began = time.process_time()
    failure = read(body)
    assert time.process_time() - began < 2
    assert len(failure.text) <= 2 * READ_BYTES


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["error", "message", "detail", "loc", "msg", "type", "input", "code", "param", "errors"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_any_json_gives_a_failure(value: Any) -> None:
    failure = refusal_of(400, value)
    assert failure.code is None or isinstance(failure.code, str)


@given(st.binary(max_size=400))
def test_any_bytes_give_a_failure(body: bytes) -> None:
    assert read_refusal(None, body).status is None


@given(st.text(max_size=100))
def test_a_message_is_said_as_it_is(text: str) -> None:
    assert refusal_of(400, {"error": {"message": text}}).text.startswith(text)
