"""Chunks and answers: what they say, and that neither form loses anything to the other."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.answers import Collector, explode
from proxy.chunks import decode_answer, decode_chunk, encode_json, failure_of, is_life
from proxy.errors import BackendFault
from proxy.life import LifeSign
from proxy.spread import Spread, merge_answers
from proxy.sse import Parser, encode
from proxy.usage import join_usage

STREAMS = Path(__file__).parent / "data" / "streams"
ANSWERS = sorted((STREAMS / "answers").glob("*.json"))
MINUS_INFINITY = float("-inf")


def strict(data):
    """Return the value of JSON that RFC 8259 allows, and nothing else."""

    def refuse(word):
        raise AssertionError(word)

    return json.loads(data.decode(), parse_constant=refuse)


def chunks_of(name):
    parser = Parser(1 << 20)
    events = parser.feed((STREAMS / f"{name}.sse").read_bytes()) + parser.close()
    return [decode_chunk(event.data) for event in events if not event.is_done]


def collect(chunks, kind=None):
    collector = Collector(kind)
    for chunk in chunks:
        collector.feed(chunk)
    return collector.result()


def chat(*deltas, finish="stop", **fields):
    """Return the chunks of one choice."""
    return [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas] + [
        {"choices": [{"index": 0, "delta": {}, "finish_reason": finish, **fields}]}
    ]


READ = [
    pytest.param(b'{"a":[1,2.5,"x",null]}', {"a": [1, 2.5, "x", None]}, id="plain JSON"),
    pytest.param(b'{"a":NaN,"b":[-Infinity,Infinity,1e999]}', {"a": None, "b": [None] * 3}, id="non-finite is null"),
    pytest.param(b'{"a\\udc00":"cut \\ud83d here"}', {"a\ufffd": "cut \ufffd here"}, id="lone surrogates"),
    pytest.param(b'{"a":"\\ud83d\\ude00","b":"\\ud83d"}', {"a": "\U0001f600", "b": "\ufffd"}, id="a pair is kept"),
    pytest.param(b'{"a":"\xff"}', {"a": "\ufffd"}, id="bytes that are no UTF-8"),
    pytest.param(b'\xef\xbb\xbf{"a":1}', {"a": 1}, id="a byte order mark"),
    pytest.param(b'{"a":"x\ty"}', {"a": "x\ty"}, id="a raw tab in a string"),
    pytest.param(b'{"a":123456789012345678901234567890}', {"a": 123456789012345678901234567890}, id="a long number"),
    pytest.param(b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", {"a": json.loads("[" * 200 + "]" * 200)}, id="200 levels"),
]


@pytest.mark.parametrize(("data", "value"), READ)
def test_a_chunk_is_read_and_written_as_valid_json(data, value):
    assert decode_chunk(data) == decode_answer(data) == value
    assert strict(encode_json(decode_chunk(data))) == value


UNREADABLE = [
    pytest.param(b"", id="nothing"),
    pytest.param(b"[1]", id="a list"),
    pytest.param(b'"x"', id="a string"),
    pytest.param(b"<html>", id="HTML"),
    pytest.param(b'{"a":1', id="cut"),
    pytest.param(b'{"a":' + b"[" * 20000 + b"]" * 20000 + b"}", id="nested too deeply"),
    pytest.param(b'{"a":' + b"9" * 5000 + b"}", id="a number of 5000 digits"),
    pytest.param(b'{"a":NaN,"b":' + b"[" * 20000 + b"]" * 20000 + b"}", id="nested too deeply beside NaN"),
]


@pytest.mark.parametrize("data", UNREADABLE)
def test_what_is_no_chunk_is_the_backends_fault(data):
    with pytest.raises(BackendFault) as caught:
        decode_chunk(data)
    assert (caught.value.status, caught.value.code) == (502, "invalid_answer")


def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(deep(20000), id="nested too deeply"),
        pytest.param(["\ud83d", deep(20000)], id="nested too deeply beside a lone surrogate"),
        pytest.param(10**5000, id="a number of 5000 digits"),
    ],
)
def test_what_cannot_be_written_is_a_named_fault(value):
    with pytest.raises(BackendFault) as caught:
        encode_json(value)
    assert caught.value.code == "invalid_answer"


UNICODE = st.characters(codec=None, exclude_categories=())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(UNICODE, max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(UNICODE, max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(JSON)
def test_whatever_is_written_is_valid(value):
    written = encode_json(value)
    assert encode_json(strict(written)) == written


def test_lone_surrogates_are_written_as_what_utf_8_can_say():
    assert strict(encode_json({"a": "\ud83d", "b": ["\ud83d\ude00"]})) == {"a": "\ufffd", "b": ["\U0001f600"]}


@given(JSON)
def test_what_pythons_json_writes_is_read(value):
    assert strict(encode_json(decode_chunk(json.dumps({"a": value}).encode()))) == strict(encode_json({"a": value}))


def read(data):
    try:
        return decode_chunk(data)
    except BackendFault as fault:
        return fault


@given(st.binary(max_size=40) | st.binary(max_size=20).map(lambda data: b'{"error"' + data))
def test_garbage_is_a_chunk_or_a_fault(data):
    assert isinstance(read(data), dict | BackendFault)


NESTED = {"error": {"message": "boom", "type": "x", "param": "n", "code": 400}}
FAILURES = [
    pytest.param(NESTED, "", ("boom", 400, "x", "n", 400), id="nested"),
    pytest.param({"error": "boom"}, "", ("boom", 502, "backend_error", None, None), id="a text"),
    pytest.param(
        {"object": "error", "message": "boom", "type": "BadRequest", "code": 400},
        "",
        ("boom", 400, "BadRequest", None, 400),
        id="flat",
    ),
    pytest.param({"message": "boom"}, "error", ("boom", 502, "backend_error", None, None), id="an event named error"),
    pytest.param({"detail": "boom"}, "error", ("boom", 502, "backend_error", None, None), id="a detail"),
    pytest.param(
        {"error": {"message": "m", "code": "rate_limit"}},
        "",
        ("m", 502, "backend_error", None, "rate_limit"),
        id="a word",
    ),
    pytest.param({"error": {"message": "m", "code": "429"}}, "", ("m", 429, "backend_error", None, "429"), id="digits"),
    pytest.param({"error": {"message": "m", "code": 200}}, "", ("m", 502, "backend_error", None, 200), id="no status"),
    pytest.param({"error": {"why": 1}}, "", ('{"why":1}', 502, "backend_error", None, None), id="an unknown shape"),
    pytest.param({"error": [1]}, "", ("[1]", 502, "backend_error", None, None), id="a list"),
    pytest.param(
        {"choices": [{"delta": {}, "finish_reason": "error"}], "error": {"message": "m", "code": 503}},
        "",
        ("m", 503, "backend_error", None, 503),
        id="beside choices",
    ),
    pytest.param({"choices": [], "error": None}, "", None, id="a null is none"),
    pytest.param({"vendor": {"error": "x"}}, "", None, id="a vendor's extra is none"),
    pytest.param({"choices": [], "usage": {}}, "message", None, id="another name is none"),
]


@pytest.mark.parametrize(("chunk", "event", "expected"), FAILURES)
def test_failures_are_told_in_many_shapes(chunk, event, expected):
    fault = failure_of(chunk, event)
    assert (fault and (fault.message, fault.status, fault.type, fault.param, fault.code)) == expected


def test_a_failure_that_was_not_escaped_is_read_as_one():
    with pytest.raises(BackendFault) as caught:
        decode_chunk(b'{"error": "got "abc" for \\n"}')
    assert (caught.value.message, caught.value.code) == ('got "abc" for \\n', None)


def test_a_failure_that_the_backend_told_is_not_an_empty_answer():
    assert failure_of(NESTED).token == "http_protocol_error"


LIFE = [
    pytest.param({"delta": {"role": "assistant", "content": ""}}, False, id="a role"),
    pytest.param({"delta": {"role": "assistant", "content": None, "tool_calls": None}}, False, id="a role and nulls"),
    pytest.param({"delta": {}}, False, id="an empty delta"),
    pytest.param({"text": ""}, False, id="an empty text"),
    pytest.param({"delta": None}, False, id="no delta"),
    pytest.param({"delta": {"content": "a"}}, True, id="content"),
    pytest.param({"delta": {"content": " "}}, True, id="a space"),
    pytest.param({"text": "a"}, True, id="text"),
    pytest.param({"delta": {"reasoning_content": "a"}}, True, id="reasoning_content"),
    pytest.param({"delta": {"reasoning": "a"}}, True, id="reasoning"),
    pytest.param({"delta": {"refusal": "a"}}, True, id="a refusal"),
    pytest.param({"delta": {"tool_calls": [{"index": 0}]}}, True, id="a tool call"),
    pytest.param({"delta": {"function_call": {"name": "f"}}}, True, id="a function call"),
    pytest.param({"delta": {"hidden_states": [0.5]}}, True, id="a vendor's field"),
    pytest.param({"delta": {}, "finish_reason": "stop"}, True, id="a finish_reason"),
    pytest.param({"delta": {}, "finish_reason": ""}, False, id="an empty finish_reason"),
]


@pytest.mark.parametrize(("choice", "expected"), LIFE)
def test_life(choice, expected):
    assert is_life({"choices": [{"index": 0, **choice}]}) is expected
    assert is_life({"choices": [{"delta": {"role": "assistant"}}, choice]}) is expected


@pytest.mark.parametrize(
    "chunk", [{"choices": [], "usage": {"prompt_tokens": 1}}, {"choices": []}, {}, {"choices": None}]
)
def test_a_chunk_without_choices_proves_no_life(chunk):
    assert not is_life(chunk)


def told(sign):
    return sign.is_alive, sign.events, sign.comments, sign.error


ROLE = b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n'
WORD = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
SIGNS = [
    pytest.param(ROLE + WORD, (True, 2, 0, None), id="content"),
    pytest.param(ROLE, (False, 1, 0, None), id="a role only"),
    pytest.param(b": ping\n\n: ping\n\n", (False, 0, 2, None), id="comments only"),
    pytest.param(b"data: [DONE]\n\n", (False, 0, 0, None), id="the sentinel only"),
    pytest.param(
        ROLE + encode(json.dumps(NESTED).encode()), (False, 2, 0, NESTED["error"]), id="an error after a role"
    ),
    pytest.param(b'data: {"error": "boom"}\n\n' + WORD, (False, 1, 0, "boom"), id="nothing after an error counts"),
    pytest.param(b'data: {"error": "a "b" c"}\n\n', (False, 1, 0, 'a "b" c'), id="an error that was not escaped"),
    pytest.param(
        b'event: error\ndata: {"message":"m"}\n\n', (False, 1, 0, {"message": "m"}), id="an event named error"
    ),
    pytest.param(WORD + b'data: {"error": "boom"}\n\n', (True, 1, 0, None), id="an error after content"),
    pytest.param(b"data: hello\n\n", (True, 1, 0, None), id="text that can't be judged"),
    pytest.param(b'data: {"type":"response.created"}\n\n', (True, 1, 0, None), id="another API's event"),
    pytest.param(b'data: {"usage":{},"choices":[]}\n\n', (False, 1, 0, None), id="usage"),
    pytest.param(WORD.rstrip(), (True, 1, 0, None), id="a last event without its end"),
    pytest.param(b"data: " + b"x" * 600, (True, 0, 0, None), id="an event beyond the limit"),
]


@pytest.mark.parametrize(("data", "expected"), SIGNS)
def test_signs_of_life_in_a_relayed_stream(data, expected):
    whole, single = LifeSign(500), LifeSign(500)
    whole.feed(data)
    for place in range(len(data)):
        single.feed(data[place : place + 1])
    assert whole.close() == single.close() == expected[0]
    assert told(whole) == told(single) == expected
    assert (whole.fault is None) == (expected[3] is None)


def test_a_chat_answer_is_exploded():
    calls = [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
        {"id": "b", "type": "custom", "custom": {"name": "g", "input": "x"}, "index": 7},
    ]
    message = {
        "content": "answer",
        "reasoning_content": "think",
        "tool_calls": calls,
        "refusal": None,
        "audio": {"id": "x"},
    }
    answer = {
        "id": "i",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "system_fingerprint": "fp",
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": {"content": [1]},
                "finish_reason": "stop",
                "meta_info": {"id": 1},
            }
        ],
        "usage": {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}},
        "service_tier": "default",
    }
    before = copy.deepcopy(answer)
    chunks = explode(answer, include_usage=True)
    head = {"id": "i", "object": "chat.completion.chunk", "created": 1, "model": "m", "system_fingerprint": "fp"}
    emitted = [
        {
            "delta": {"role": "assistant", "content": "", "refusal": None},
            "logprobs": None,
        },
        {"delta": {"reasoning_content": "think"}, "logprobs": {"content": [1]}},
        {"delta": {"content": "answer"}, "logprobs": None},
        {"delta": {"audio": {"id": "x"}}, "logprobs": None},
        {
            "delta": {
                "tool_calls": [
                    {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
                    {"index": 1, "id": "b", "type": "custom", "custom": {"name": "g", "input": "x"}},
                ]
            },
            "logprobs": None,
        },
    ]
    finish = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "meta_info": {"id": 1}}
    assert chunks == [
        *({**head, "choices": [{"index": 0, **choice, "finish_reason": None}]} for choice in emitted),
        {**head, "choices": [finish]},
        {**head, "choices": [], "usage": before["usage"], "service_tier": "default"},
    ]
    assert answer == before
    assert explode(answer, include_usage=False) == [*chunks[:-2], chunks[-2] | {"service_tier": "default"}]


def test_choices_are_introduced_in_order_before_any_content():
    answer = {
        "choices": [
            {"index": index, "message": {"content": str(index)}, "finish_reason": "stop"} for index in (2, 0, 1)
        ]
    }
    seen = [
        (chunk["choices"][0]["index"], *chunk["choices"][0]["delta"]) for chunk in explode(answer, include_usage=True)
    ]
    roles = [(index, "role", "content") for index in range(3)]
    assert seen == [*roles, (0, "content"), (0,), (1, "content"), (1,), (2, "content"), (2,)]


def test_a_choice_without_an_index_has_its_position_and_one_without_a_message_its_role():
    chunks = explode({"choices": [{}, {"finish_reason": "stop"}]}, include_usage=True)
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}],
        [{"index": 1, "delta": {"role": "assistant"}, "finish_reason": None}],
        [{"index": 0, "delta": {}, "finish_reason": None}],
        [{"index": 1, "delta": {}, "finish_reason": "stop"}],
    ]


def test_a_text_answer_is_exploded():
    choice = {"text": "ab", "index": 0, "logprobs": {"tokens": ["ab"]}, "finish_reason": "length", "matched_stop": 1}
    answer = {"object": "text_completion", "choices": [choice], "usage": {"prompt_tokens": 1}}
    assert explode(answer, include_usage=False) == [
        {
            "object": "text_completion",
            "choices": [{"index": 0, "text": "ab", "logprobs": {"tokens": ["ab"]}, "finish_reason": None}],
        },
        {
            "object": "text_completion",
            "choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length", "matched_stop": 1}],
        },
    ]


def test_logprobs_without_any_delta_ride_on_the_finish():
    answer = {"choices": [{"message": {"content": ""}, "logprobs": {"content": [1]}, "finish_reason": "stop"}]}
    assert explode(answer, include_usage=True)[-1]["choices"][0]["logprobs"] == {"content": [1]}


def test_no_usage_is_made_up():
    chunks = explode({"choices": [{"message": {}, "finish_reason": "stop"}]}, include_usage=True)
    assert not any("usage" in chunk for chunk in chunks)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        pytest.param(NESTED, 400, id="a failure"),
        pytest.param({"choices": {}}, "invalid_answer", id="choices that are no list"),
        pytest.param({"choices": ["x"]}, "invalid_answer", id="a choice that is no object"),
        pytest.param({"choices": [{"message": "x"}]}, "invalid_answer", id="a message that is no object"),
        pytest.param({"choices": [{"message": {"tool_calls": {"a": 1}}}]}, "invalid_answer", id="tool_calls no list"),
        pytest.param(
            {"choices": [{"message": {"tool_calls": [1]}}]}, "invalid_answer", id="a tool call that is no object"
        ),
    ],
)
def test_what_is_no_answer_cannot_be_exploded(answer, code):
    with pytest.raises(BackendFault) as caught:
        explode(answer, include_usage=True)
    assert caught.value.code == code


def call(index=None, ident=None, name=None, arguments=None, **fields):
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    named = {"index": index, "id": ident, "function": function or None, **fields}
    return {key: value for key, value in named.items() if value is not None}


def untold(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def tool(ident, name, arguments):
    return {"id": ident, **untold(name, arguments)}


CALLS = [
    pytest.param(
        [
            [call(0, "a", "f", "")],
            [call(1, "b", "g", "")],
            [call(2, "c", "h", "")],
            [call(0, arguments='{"x"')],
            [call(1, arguments="{ }")],
            [call(0, arguments=":1 }"), call(2, arguments="[")],
            [call(2, arguments="]")],
        ],
        [tool("a", "f", '{"x":1 }'), tool("b", "g", "{ }"), tool("c", "h", "[]")],
        id="fragments of three calls, interleaved",
    ),
    pytest.param(
        [[call(0, "a", "f", '{"x"', type="function")], [call(0, "a", "f", ":1}", type="function")]],
        [tool("a", "f", '{"x":1}')],
        id="id, type and name repeated",
    ),
    pytest.param(
        [[call(0, "a")], [call(0, name="f")], [call(0, "zz", "", "{")], [call(0, "yy", "", "}")]],
        [tool("a", "f", "{}")],
        id="the first id and name that are not empty",
    ),
    pytest.param(
        [[call(None, "a", "f", "{}"), call(None, "b", "g", "{}")], [call(None, "a", None, " ")], [call(arguments=" ")]],
        [tool("a", "f", "{}  "), tool("b", "g", "{}")],
        id="without an index a fragment goes by its id, else to the last call",
    ),
    pytest.param(
        [[call(name="f", arguments="1"), call(name="g", arguments="2")], [call(arguments="3")]],
        [untold("f", "1"), untold("g", "23")],
        id="without index and id the position counts",
    ),
    pytest.param(
        [[call(name="f", arguments="{}")], [call(name="g", arguments="{}")]],
        [untold("f", "{}"), untold("g", "{}")],
        id="without index and id another name begins another call",
    ),
    pytest.param([[call(0, "a", "f", {"x": 1})]], [tool("a", "f", '{"x":1}')], id="an object becomes text"),
    pytest.param(
        [[{"index": 0, "id": None, "vendor": 1}], [{"index": 0, "id": "a", "vendor": None}]],
        [{"id": "a", "vendor": 1}],
        id="a null is no value",
    ),
    pytest.param(
        [
            [{"index": 0, "type": "custom", "custom": {"name": "c", "input": "a"}}],
            [{"index": 0, "custom": {"input": "b"}}],
        ],
        [{"type": "custom", "custom": {"name": "c", "input": "ab"}}],
        id="a custom tool",
    ),
    pytest.param(
        [[call(1, "b", "g", "")], [call(0, "a", "f", "")]], [tool("a", "f", ""), tool("b", "g", "")], id="any order"
    ),
]


@pytest.mark.parametrize(("deltas", "expected"), CALLS)
def test_tool_calls_are_put_together(deltas, expected):
    answer = collect(chat(*({"tool_calls": delta} for delta in deltas), finish="tool_calls"))
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": None, "tool_calls": expected}
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


COLLECTED = [
    pytest.param([{"role": "assistant"}], {"role": "assistant", "content": None}, id="no content is null"),
    pytest.param([{"role": "", "content": ""}], {"role": "assistant", "content": ""}, id="empty content is empty"),
    pytest.param(
        [{"content": "he"}, {"content": None}, {"content": "llo"}],
        {"role": "assistant", "content": "hello"},
        id="null between",
    ),
    pytest.param(
        [{"reasoning_content": "r1"}, {"content": "a"}, {"reasoning_content": "r2", "content": "b"}, {"thought": "t"}],
        {"role": "assistant", "reasoning_content": "r1r2", "content": "ab", "thought": "t"},
        id="every text has its own",
    ),
    pytest.param(
        [
            {"function_call": {"name": "f", "arguments": "{"}},
            {"function_call": {"name": "f", "arguments": "}"}},
            {"function_call": None},
        ],
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        id="a legacy function call",
    ),
    pytest.param(
        [{"annotations": [1]}, {"annotations": [2], "audio": {"id": 1}}, {"audio": {"id": 2}}],
        {"role": "assistant", "content": None, "annotations": [1, 2], "audio": {"id": 2}},
        id="lists grow and objects are replaced",
    ),
    pytest.param(
        [{"tool_calls": None}, {"tool_calls": []}],
        {"role": "assistant", "content": None, "tool_calls": []},
        id="no calls",
    ),
]


@pytest.mark.parametrize(("deltas", "message"), COLLECTED)
def test_messages_are_put_together(deltas, message):
    assert collect(chat(*deltas))["choices"] == [{"index": 0, "message": message, "finish_reason": "stop"}]


def test_a_stream_is_collected_with_all_that_it_holds():
    choices = [
        [{"index": 1, "delta": {"content": "x"}, "logprobs": {"content": [1], "refusal": None}, "finish_reason": ""}],
        [{"index": 0, "delta": {"content": "a"}, "logprobs": None, "token_ids": [1], "matched_stop": None}],
        [{"index": 0, "delta": {"content": "b"}, "logprobs": {"content": [2]}, "token_ids": [2]}],
        [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "matched_stop": 7, "token_ids": None}],
        [{"index": 1, "delta": {}, "logprobs": {"content": [3, 4]}, "finish_reason": "length"}],
        [{"index": 1, "delta": {}, "logprobs": None, "finish_reason": None, "meta": {"a": 1}}],
    ]
    usages = [None, {"completion_tokens": 1}, {"completion_tokens": 2}, None, None, None]
    chunks = [
        {"id": "", "object": "chat.completion.chunk", "choices": choice, "usage": usage}
        for choice, usage in zip(choices, usages, strict=True)
    ]
    chunks += [{"id": "i", "model": "m", "choices": [], "sglext": {"a": 1}}, {"choices": [], "sglext": None}]
    before = copy.deepcopy(chunks)
    answer = collect(chunks)
    assert chunks == before
    assert answer == {
        "id": "i",
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "ab"},
                "logprobs": {"content": [2]},
                "token_ids": [1, 2],
                "matched_stop": 7,
                "finish_reason": "stop",
            },
            {
                "index": 1,
                "message": {"role": "assistant", "content": "x"},
                "logprobs": {"content": [1, 3, 4], "refusal": None},
                "finish_reason": "length",
                "meta": {"a": 1},
            },
        ],
        "usage": {"completion_tokens": 2},
        "sglext": {"a": 1},
    }


def test_a_text_stream_is_collected():
    answer = collect(chunks_of("sglang-completion-logprobs"))
    tokens = [" True", " S"]
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == "".join(tokens)
    assert answer["choices"][0]["logprobs"]["tokens"] == tokens
    assert {len(values) for values in answer["choices"][0]["logprobs"].values()} == {2}
    assert answer["choices"][0]["finish_reason"] == "length"


TEXTS = [
    pytest.param("sglang-n1", "thingel groupSO", None, id="sglang"),
    pytest.param(
        "llamafactory-n1", "Hello! I am a tiny test model.", None, id="LlamaFactory, without object and created"
    ),
    pytest.param("transformers-n1", "Hello! I am a tiny test model.", 23, id="transformers, usage beside the finish"),
    pytest.param("llama-cpp-n1", "Hello! I am a tiny test model.", None, id="llama.cpp"),
]


@pytest.mark.parametrize(("name", "text", "total"), TEXTS)
def test_recorded_streams_are_collected(name, text, total):
    answer = collect(chunks_of(name), "chat")
    assert answer["object"] == "chat.completion"
    assert [choice["message"]["content"] for choice in answer["choices"]] == [text]
    assert (answer.get("usage") or {}).get("total_tokens") == total


@pytest.mark.parametrize("name", ["transformers-tools", "llama-cpp-function-call"])
def test_recorded_tool_calls_are_collected(name):
    choice = collect(chunks_of(name))["choices"][0]
    function = choice["message"]["tool_calls"][0]["function"]
    assert function["name"] == "get_weather"
    assert "city" in json.loads(function["arguments"])
    assert choice["message"].get("function_call", function) == function
    assert "index" not in choice["message"]["tool_calls"][0]


INCOMPLETE = [
    pytest.param([], "no choice came", id="nothing"),
    pytest.param([{"choices": []}], "no choice came", id="no choice"),
    pytest.param(chat({"content": "half"}, finish=None), "choice 0 has no finish_reason", id="no finish_reason"),
    pytest.param(chat({"content": "half"}, finish=""), "choice 0 has no finish_reason", id="an empty one"),
    pytest.param(chat({"content": "half"}, finish="abort"), "choice 0 ended with abort", id="an aborted one"),
    pytest.param(chat({"content": "half"}, finish="error"), "choice 0 ended with error", id="one that broke"),
    pytest.param(chat({"content": "half"}, finish={"type": "x"})[:1], "choice 0 has no finish_reason", id="a cut"),
]


@pytest.mark.parametrize(("chunks", "reason"), INCOMPLETE)
def test_half_an_answer_is_none(chunks, reason):
    with pytest.raises(BackendFault, match=reason) as caught:
        collect(chunks)
    assert (caught.value.status, caught.value.code) == (502, "answer_incomplete")
    assert caught.value.token == "http_response_incomplete"
    assert "half" not in caught.value.message


def test_a_tool_call_that_is_no_object_is_no_answer():
    with pytest.raises(BackendFault) as caught:
        collect(chat({"tool_calls": ["x"]}))
    assert caught.value.code == "invalid_answer"


def test_an_error_event_ends_the_collection_with_its_status():
    with pytest.raises(BackendFault) as caught:
        collect([*chat({"content": "half"})[:1], {"error": {"message": "overloaded", "type": "x", "code": 503}}])
    assert (caught.value.status, caught.value.message, caught.value.type) == (503, "overloaded", "x")


def without_tool_index(answer):
    answer = copy.deepcopy(answer)
    for choice in answer["choices"]:
        for tool_call in choice.get("message", {}).get("tool_calls") or []:
            tool_call.pop("index", None)
    return answer


@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: path.stem)
def test_recorded_answers_survive_being_exploded(path):
    answer = decode_answer(path.read_bytes())
    assert collect(explode(answer, include_usage=True)) == without_tool_index(answer)


NAMES = st.sampled_from(["x_a", "x_b", "meta_info", "matched_stop"])
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)
EXTRAS = st.dictionaries(NAMES, PLAIN, max_size=2)
TOOLS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.uuids().map(str),
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": st.sampled_from("fg"), "arguments": st.text(max_size=4)}),
        },
        optional={"x_a": PLAIN},
    ),
    max_size=3,
)
TEXT = st.none() | st.text(max_size=5)
MESSAGES = st.builds(
    lambda extras, message: extras | message,
    EXTRAS,
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": TEXT},
        optional={
            "reasoning_content": TEXT,
            "refusal": TEXT,
            "tool_calls": st.none() | TOOLS,
            "function_call": st.none()
            | st.fixed_dictionaries({"name": st.just("f"), "arguments": st.text(max_size=4)}),
        },
    ),
)
FINISHES = st.sampled_from(["stop", "length", "tool_calls", "content_filter"])
TOKENS = st.none() | st.lists(st.integers(), max_size=3)
CHAT_CHOICES = st.builds(
    lambda extras, choice: extras | choice,
    EXTRAS,
    st.fixed_dictionaries(
        {"message": MESSAGES, "finish_reason": FINISHES},
        optional={"logprobs": st.none() | st.fixed_dictionaries({"content": TOKENS}, optional={"refusal": TOKENS})},
    ),
)
TEXT_CHOICES = st.builds(
    lambda extras, choice: extras | choice,
    EXTRAS,
    st.fixed_dictionaries(
        {"text": st.text(max_size=5), "finish_reason": FINISHES},
        optional={"logprobs": st.none() | st.fixed_dictionaries({"tokens": TOKENS, "text_offset": TOKENS})},
    ),
)
USAGE = st.none() | st.fixed_dictionaries(
    {"prompt_tokens": st.integers(0, 99), "completion_tokens": st.integers(0, 99), "total_tokens": st.integers(0, 99)},
    optional={"prompt_tokens_details": st.none() | st.fixed_dictionaries({"cached_tokens": st.integers(0, 99)})},
)


def answers(choices, kind):
    head = st.fixed_dictionaries(
        {
            "id": st.text(min_size=1, max_size=3),
            "object": st.just(kind),
            "created": st.integers(1, 9),
            "model": st.just("m"),
        },
        optional={"system_fingerprint": st.none() | st.just("fp")},
    )
    numbered = st.lists(choices, min_size=1, max_size=3).map(
        lambda found: [choice | {"index": index} for index, choice in enumerate(found)]
    )
    rest = st.fixed_dictionaries({}, optional={"usage": USAGE})
    return st.builds(lambda extras, a, b, c: extras | a | {"choices": b} | c, EXTRAS, head, numbered, rest)


@given(answers(CHAT_CHOICES, "chat.completion") | answers(TEXT_CHOICES, "text_completion"))
def test_any_answer_survives_being_exploded(answer):
    before = copy.deepcopy(answer)
    chunks = explode(answer, include_usage=True)
    sent = copy.deepcopy(chunks)
    assert collect(chunks) == before
    assert (answer, chunks) == (before, sent)


USAGES = [
    pytest.param([], "once", None, id="no branch"),
    pytest.param([None, None], "once", None, id="none reported"),
    pytest.param(
        [None, {"prompt_tokens": 3, "total_tokens": 9}], "once", {"prompt_tokens": 3, "total_tokens": 9}, id="only one"
    ),
    pytest.param(
        [
            {
                "prompt_tokens": 10,
                "completion_tokens": completion,
                "total_tokens": 10 + completion,
                "prompt_tokens_details": {"cached_tokens": cached},
                "completion_tokens_details": {"reasoning_tokens": 1, "audio_tokens": None},
            }
            for completion, cached in ((2, 0), (3, 8), (5, 8))
        ],
        "once",
        {
            "prompt_tokens": 10,
            "completion_tokens": 10,
            "total_tokens": 20,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 3, "audio_tokens": None},
        },
        id="the prompt once, the completions summed",
    ),
    pytest.param(
        [{"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}]
        * 2,
        "sum",
        {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6, "prompt_tokens_details": {"cached_tokens": 2}},
        id="all summed",
    ),
    pytest.param(
        [
            {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
            None,
            {"completion_tokens": 4, "total_tokens": 5},
        ],
        "once",
        {"prompt_tokens": 1, "completion_tokens": 6, "total_tokens": 7},
        id="one without usage is skipped",
    ),
    pytest.param(
        [{"cached_tokens": 5, "input_x": 1, "reasoning_tokens": 1, "queue_s": 0.5, "tier": "a", "flag": True}] * 2,
        "once",
        {"cached_tokens": 5, "input_x": 1, "reasoning_tokens": 2, "queue_s": 1.0, "tier": "a", "flag": True},
        id="fields that nobody knows",
    ),
    pytest.param(
        [{"completion_tokens_details": None}, {"completion_tokens_details": {"reasoning_tokens": 2}}],
        "once",
        {"completion_tokens_details": {"reasoning_tokens": 2}},
        id="a null adds nothing",
    ),
]


@pytest.mark.parametrize(("usages", "mode", "expected"), USAGES)
def test_usage_is_joined(usages, mode, expected):
    before = copy.deepcopy(usages)
    joined = join_usage(usages, mode)
    assert joined == expected
    assert usages == before
    assert list(joined or ()) == list(expected or ())


def answer_of(text, completion=1, **fields):
    usage = {"prompt_tokens": 10, "completion_tokens": completion, "total_tokens": 10 + completion}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"id": f"id-{text}", "object": "chat.completion", "choices": [choice], "usage": usage, **fields}


def test_the_answers_of_branches_are_one():
    branches = [answer_of("a"), answer_of("b", 2, sglext={"b": 1}), answer_of("c", 3, sglext={"c": 1})]
    before = copy.deepcopy(branches)
    merged = merge_answers(branches, [Spread(3, 0), Spread(3, 1), Spread(3, 2)], "once")
    assert [(choice["index"], choice["message"]["content"]) for choice in merged["choices"]] == [
        (0, "a"),
        (1, "b"),
        (2, "c"),
    ]
    assert merged["usage"] == {"prompt_tokens": 10, "completion_tokens": 6, "total_tokens": 16}
    assert (merged["id"], merged["object"], merged["sglext"]) == ("id-a", "chat.completion", {"b": 1})
    assert branches == before


def test_a_greedy_answer_is_replicated_and_billed_once():
    merged = merge_answers([answer_of("a")], [Spread(3, copies=3)], "once")
    assert [(choice["index"], choice["message"]["content"]) for choice in merged["choices"]] == [
        (i, "a") for i in range(3)
    ]
    assert merged["usage"] == answer_of("a")["usage"]


def test_prompts_that_were_split_are_numbered_by_prompt_and_choice():
    branches = [{"choices": [{"text": f"{p}{i}", "finish_reason": "stop"} for i in range(2)]} for p in "ab"]
    merged = merge_answers(branches, [Spread(1, 0), Spread(1, 2)], "sum")
    assert [choice["text"] for choice in merged["choices"]] == ["a0", "a1", "b0", "b1"]
    assert "usage" not in merged


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        pytest.param(NESTED, 400, id="a failure"),
        pytest.param({"choices": []}, "answer_incomplete", id="no choice"),
        pytest.param({"choices": [{"message": {}, "finish_reason": None}]}, "answer_incomplete", id="no finish_reason"),
        pytest.param(
            {"choices": [{"message": {}, "finish_reason": "abort"}]}, "answer_incomplete", id="an aborted choice"
        ),
    ],
)
def test_one_failed_branch_fails_the_whole(answer, code):
    with pytest.raises(BackendFault) as caught:
        merge_answers([answer_of("a"), answer], [Spread(2, 0), Spread(2, 1)], "once")
    assert caught.value.code == code
