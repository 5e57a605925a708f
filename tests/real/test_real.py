"""sglang: what it refuses, alone and behind the proxy, row by row, with the OpenAI SDK in front.

What would end the server is asked of it through the proxy only. The server is started with `--context-length 512`,
without parsers, with a model of 2048 tokens that answers at random.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from openai import OpenAI

pytestmark = [pytest.mark.real, pytest.mark.timeout(700)]

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Get the weather", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
BROKEN = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
USAGE = {"include_usage": True}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def sdk(base: str) -> OpenAI:
    return OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)


def masked(data: bytes) -> bytes:
    """Return an answer without what differs between any two: ids and times."""
    data = re.sub(rb'("id": ?")[^"]*', rb"\1ID", data)
    return re.sub(rb'("created": ?)\d+', rb"\g<1>0", data)


def test_sglang_streams_deltas_and_the_meta_info(before_sglang: str) -> None:
    stream = sdk(before_sglang).chat.completions.create(
        model="tiny", messages=HI, max_tokens=4, stream=True, extra_body={"return_meta_info": True}
    )
    chunks = list(stream)
    assert any(chunk.choices[0].delta.content for chunk in chunks)
    last = chunks[-1].choices[0]
    assert last.finish_reason == "length"
    assert last.model_extra is not None
    assert last.model_extra["meta_info"]["completion_tokens"] == 4


def test_sglang_keeps_token_ids_on_a_stream(before_sglang: str, post: Any) -> None:
    body = {"model": "tiny", "messages": HI, "max_tokens": 4, "stream": True, "return_token_ids": True}
    status, headers, data = post(before_sglang, body)
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert b'"response_token_ids":[' in data
    assert data.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True], ids=["JSON", "stream"])
def test_sglang_plain_calls_are_byte_identical(sglang: str, before_sglang: str, post: Any, stream: bool) -> None:
    body = {"model": "tiny", "messages": HI, "max_tokens": 4, "temperature": 0, "stream": stream}
    post(sglang, body)  # the first fills the server's cache of prompts
    direct, through = post(sglang, body), post(before_sglang, body)
    assert masked(through[2]) == masked(direct[2])
    assert through[0] == direct[0]
    added = {"x-request-id"}
    assert set(through[1]) - set(direct[1]) == added
    assert set(direct[1]) - set(through[1]) == set()


class Row(NamedTuple):
    """A request that sglang refuses. `is_lossy`: whether the proxy says that its repair loses something."""

    name: str
    fields: dict[str, Any]
    is_lossy: bool = False
    path: str = CHAT

    @property
    def body(self) -> dict[str, Any]:
        """The request."""
        said = {"messages": HI} if self.path == CHAT else {"prompt": "hi"}
        return {"model": "tiny", "max_tokens": 4} | said | self.fields


def said_with(arguments: object) -> dict[str, Any]:
    """Return a history with a call of these arguments."""
    call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "a", "content": "sunny"}
    return {"messages": [*HI, {"role": "assistant", "content": None, "tool_calls": [call]}, result]}


def asked(content: object, role: str = "user") -> dict[str, Any]:
    """Return a request of one message."""
    return {"messages": [{"role": role, "content": content}]}


def schema(**details: object) -> dict[str, Any]:
    """Return a request for this json_schema."""
    return {"response_format": {"type": "json_schema", "json_schema": details}}


def part(kind: str, **fields: object) -> dict[str, Any]:
    """Return a request of one part."""
    return asked([{"type": kind, **fields}])


STREAMED = [
    Row("meta_info", {"return_meta_info": True, "stream": True}),
    Row("meta_info of three choices", {"return_meta_info": True, "stream": True, "n": 3}),
    Row("prompt token ids", {"return_prompt_token_ids": True, "stream": True}),
    Row("token ids", {"return_token_ids": True, "stream": True}),
    Row("all three", {"return_meta_info": True, "return_token_ids": True, "stream": True, "stream_options": USAGE}),
    Row("raw logprobs", {"return_meta_info": True, "return_flat_raw_output_top_logprobs": True, "stream": True}),
    Row("a sampling mask", {"return_sampling_mask": True, "top_k": 5, "stream": True}),
    Row("a schema that doesn't compile", BROKEN_ON_STREAM := {"response_format": BROKEN, "stream": True}, True),
    Row("such a schema, with usage", BROKEN_ON_STREAM | {"stream_options": USAGE}, True),
    Row("a regex that doesn't compile", {"regex": "((", "stream": True}, True),
    Row("such a regex, three times", {"regex": "((", "stream": True, "n": 3}, True),
    Row("a grammar that doesn't compile", {"ebnf": "root ::= (", "stream": True}, True),
    Row("a completion's regex that doesn't compile", {"regex": "((", "stream": True}, True, COMPLETIONS),
    Row("n 0 with usage", {"n": 0, "stream": True, "stream_options": USAGE}, True),
    Row("a completion's n 0 with usage", {"n": 0, "stream": True, "stream_options": USAGE}, True, COMPLETIONS),
    Row("temperature -1", {"temperature": -1, "stream": True}, True),
    Row("top_p 0, three times", {"top_p": 0, "stream": True, "n": 3}),
    Row("a budget that the input leaves no room for", {"max_tokens": 505, "stream": True, "n": 3}),
    Row("hidden states switched off", {"return_hidden_states": True, "stream": True}, True),
    Row("a list of request ids", {"rid": ["a"], "stream": True}, True),
]
NULLS = [
    Row(name, {name: None})
    for name in (
        "n",
        "stream",
        "logprobs",
        "frequency_penalty",
        "presence_penalty",
        "parallel_tool_calls",
        "model",
        "min_tokens",
        "ignore_eos",
        "skip_special_tokens",
        "no_stop_trim",
        "separate_reasoning",
        "return_meta_info",
        "return_hidden_states",
        "use_audio_in_video",
    )
] + [
    Row(f"a completion's {name}", {name: None}, path=COMPLETIONS)
    for name in (
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "echo",
        "n",
        "stream",
    )
]
VALUES = [
    Row("raw logprobs without meta_info", {"return_flat_raw_output_top_logprobs": True}),
    Row("a sampling mask without meta_info", {"return_sampling_mask": True, "top_k": 5}),
    Row("a sampling mask without top_k", {"return_sampling_mask": True, "return_meta_info": True}, True),
    Row("sampling_logprobs_mode alone", {"sampling_logprobs_mode": "raw"}),
    Row("n 0", {"n": 0}, True),
    Row("n 1.5", {"n": 1.5}, True),
    Row("max_tokens 4.5", {"max_tokens": 4.5}, True),
    Row("seed 1.5", {"seed": 1.5}, True),
    Row("a list of logit processors", {"n": 2, "custom_logit_processor": ["p"]}, True),
    Row("top_k 0", {"top_k": 0}),
    Row("top_k -5", {"top_k": -5}),
    Row("top_p 0", {"top_p": 0}),
    Row("top_p 1.5", {"top_p": 1.5}),
    Row("temperature -1", {"temperature": -1}, True),
    Row("temperature hot", {"temperature": "hot"}, True),
    Row("min_p 2", {"min_p": 2}, True),
    Row("frequency_penalty 3", {"frequency_penalty": 3}, True),
    Row("presence_penalty -3", {"presence_penalty": -3}, True),
    Row("repetition_penalty 0", {"repetition_penalty": 0}, True),
    Row("repetition_penalty 3", {"repetition_penalty": 3}, True),
    Row("min_tokens above max_tokens", {"min_tokens": 10}, True),
    Row("min_tokens -1", {"min_tokens": -1}),
    Row("seed beyond 63 bits", {"seed": 2**63}, True),
    Row("seed beyond 64 bits", {"seed": 2**64}, True),
    Row("40 stops", {"stop": [f"s{i}" for i in range(40)]}),
    Row("stop 5", {"stop": 5}),
    Row("a number and a null among the stops", {"stop": ["a", 5, None]}),
    Row("user 5", {"user": 5}),
    Row("a stop_regex that doesn't compile", {"stop_regex": "(("}, True),
    Row("a stop_regex that is too long", {"stop_regex": "a" * 300}, True),
    Row("logprobs 5 on chat", {"logprobs": 5}),
    Row("logit_bias beyond the vocabulary", {"logit_bias": {"999999": 1}}, True),
    Row("logit_bias of a word", {"logit_bias": {"abc": 1}}, True),
    Row("logit_bias as a list", {"logit_bias": [1]}, True),
    Row("a bias that is no number", {"logit_bias": {"5": "x"}}, True),
    Row("max_tokens -1", {"max_tokens": -1}, True),
    Row("max_completion_tokens beyond the context", {"max_completion_tokens": 100000}),
    Row("a budget that the input leaves no room for", {"max_tokens": 505}),
    Row("a completion's budget beyond the context", {"max_tokens": 100000}, path=COMPLETIONS),
    Row("a completion's max_tokens 0", {"max_tokens": 0, "echo": True}, True, COMPLETIONS),
    Row("a completion's temperature -1", {"temperature": -1}, True, COMPLETIONS),
    Row("a completion's temperature -1 on a stream", {"temperature": -1, "stream": True}, True, COMPLETIONS),
]
TOOLED = [
    Row("required without tools", {"tool_choice": "required"}, True),
    Row("required with an empty list", {"tool_choice": "required", "tools": []}, True),
    Row("named without tools", {"tool_choice": NAMED}, True),
    Row("another one named", {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}, True),
    Row("a schema that is none", {"tools": [{"type": "function", "function": FUNCTION | {"parameters": "x"}}]}, True),
    Row(
        "required and a format",
        {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
        True,
    ),
    Row("named and a regex", {"tools": TOOLS, "tool_choice": NAMED, "regex": "a"}, True),
    Row("any", {"tools": TOOLS, "tool_choice": "any"}),
    Row("any as Anthropic says it", {"tools": TOOLS, "tool_choice": {"type": "any"}}),
    Row("named beside the type", {"tools": TOOLS, "tool_choice": {"type": "function", "name": "get_weather"}}),
    Row(
        "allowed_tools",
        {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}},
    ),
    Row("a custom tool", {"tools": [*TOOLS, {"type": "custom", "custom": {"name": "c"}}]}, True),
    Row("flat tools", {"tools": [{"type": "function"} | FUNCTION]}),
    Row("arguments of nothing", said_with("")),
    Row("half arguments", said_with('{"city": ')),
    Row("arguments of a list", said_with("[1]")),
    Row("arguments that are a list", said_with([1])),
    Row(
        "a call of a custom tool",
        {
            "messages": [
                *HI,
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "c", "input": "x"}}],
                },
                {"role": "tool", "tool_call_id": "a", "content": "y"},
            ]
        },
    ),
]
FORMATS = [
    Row("no schema", schema(name="x")),
    Row("json_schema null", {"response_format": {"type": "json_schema", "json_schema": None}}),
    Row("a schema beside json_schema", {"response_format": schema(name="x")["response_format"] | {"schema": SCHEMA}}),
    Row("a schema of true", schema(name="x", schema=True), True),
    Row("no name", schema(schema=SCHEMA)),
    Row("a name of null", schema(name=None, schema=SCHEMA)),
    Row("strict as a word", schema(name="x", schema=SCHEMA, strict="yes")),
    Row("a schema that doesn't compile", {"response_format": BROKEN}, True),
    Row("a regex that doesn't compile", {"regex": "(("}, True),
    Row("a grammar that doesn't compile", {"ebnf": "root ::= ("}, True),
    Row("a format and a regex", {"response_format": {"type": "json_object"}, "regex": "a+"}, True),
    Row("a format and a broken regex", {"response_format": {"type": "json_object"}, "regex": "(("}, True),
    Row("a regex and a grammar", {"regex": "a+", "ebnf": 'root ::= "a"'}, True),
    Row("a completion's schema and regex", {"json_schema": "{}", "regex": "a+"}, True, COMPLETIONS),
    Row("as text", {"response_format": "json_object"}),
    Row("as a list", {"response_format": ["json"]}, True),
    Row("of no type", {"response_format": {}}, True),
    Row("of another type", {"response_format": {"type": "xml"}}, True),
    Row("a completion's json_schema without a schema", schema(name="x"), path=COMPLETIONS),
]
MESSAGES = [
    Row("a picture", part("image_url", image_url={"url": "data:image/png;base64,AA=="}), True),
    Row("a picture's bare url", part("image_url", image_url="data:image/png;base64,AA=="), True),
    Row("sound", part("input_audio", input_audio={"data": "AA==", "format": "wav"}), True),
    Row("sound of another format", part("input_audio", input_audio={"data": "AA==", "format": "flac"}), True),
    Row("input_text", part("input_text", text="hi")),
    Row("input_image", part("input_image", image_url="data:image/png;base64,AA=="), True),
    Row(
        "a refusal",
        {"messages": [*HI, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, *HI]},
        True,
    ),
    Row("a file", part("file", file={"file_id": "f"}), True),
    Row("a bare text", asked(["hi"])),
    Row("content null", asked(None)),
    Row("no content", {"messages": [{"role": "user"}]}),
    Row("content 5", asked(5)),
    Row("one part", asked({"type": "text", "text": "hi"})),
    Row("a role that there is not", asked("hi", "bot"), True),
    Row("a user written large", asked("hi", "User"), True),
    Row("a user's thinking", part("thinking", thinking="hm"), True),
    Row("a template in the request", {"chat_template_kwargs": {"chat_template": "x"}}, True),
]
OTHERS = [
    Row("reasoning_effort ultrahigh", {"reasoning_effort": "ultrahigh"}, True),
    Row("reasoning_effort HIGH", {"reasoning_effort": "HIGH"}),
    Row("reasoning_effort of no known word", {"reasoning_effort": "gigantic"}, True),
    Row("reasoning_effort true", {"reasoning_effort": True}, True),
    Row("reasoning_effort 2", {"reasoning_effort": 2}, True),
    Row("reasoning.effort bad", {"reasoning": {"effort": "bad"}}, True),
    Row("hidden states switched off", {"return_hidden_states": True}, True),
    Row("a mode of hidden states that there is not", {"return_hidden_states": "first"}, True),
    Row("rid as a list", {"rid": ["a"]}, True),
    Row("a completion's list of ids for one prompt", {"rid": ["a", "b"]}, True, COMPLETIONS),
    Row("extra_key as a list", {"extra_key": ["k"]}),
    Row("cache_salt as a list", {"cache_salt": ["k"]}),
    Row("a model's name with a colon", {"model": "tiny:8b"}, True),
    Row("a completion's model with a colon", {"model": "tiny:8b"}, True, COMPLETIONS),
    Row("lora_path", {"lora_path": "a"}, True),
    Row("a rank that there is not", {"routed_dp_rank": 5}, True),
    Row("a custom logit processor", {"custom_logit_processor": "p"}, True),
    Row("a watermark", {"watermark": {"enabled": True}}, True),
    Row("no input_ids", {"input_ids": []}),
    Row("a task", {"task": "x"}, True),
]
REFUSED_BY_SGLANG = {
    f"{group}: {row.name}": row
    for group, rows in {
        "stream": STREAMED,
        "null": NULLS,
        "value": VALUES,
        "tools": TOOLED,
        "format": FORMATS,
        "message": MESSAGES,
        "other": OTHERS,
    }.items()
    for row in rows
}


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[list[tuple[str, str, str]]]:
    rows: list[tuple[str, str, str]] = []
    yield rows
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\n\n| what | sglang alone | through the proxy |\n|---|---|---|")
        print("\n".join(f"| {' | '.join(row)} |" for row in sorted(rows)))


def refusal(status: int, data: bytes) -> str | None:
    """Return how a server refuses, or ends a stream too early; None where it answers."""
    found = re.search(rb'"message": ?"((?:[^"\\\\]|\\\\.){0,60})', data)
    told = f"{status} {found[1].decode() if found else data[:60].decode()}".replace("|", "/")
    if status >= 400 or re.search(rb'^(?:data: )?\{"error"', data, re.MULTILINE):
        return told
    return f"{status}, cut" if data.rstrip().endswith(b">") else None


@pytest.mark.parametrize("name", REFUSED_BY_SGLANG)
def test_what_sglang_refuses_is_repaired(
    sglang: str, before_sglang: str, post: Any, table: list[tuple[str, str, str]], name: str
) -> None:
    row = REFUSED_BY_SGLANG[name]
    status, _, data = post(sglang, row.body, row.path)
    alone = refusal(status, data)
    assert alone, f"sglang takes {name}"
    status, headers, data = post(before_sglang, row.body, row.path)
    assert (status, refusal(status, data)) == (200, None)
    assert data.endswith(b"data: [DONE]\n\n") == (row.fields.get("stream") is True)
    told = headers["mendproxy-repairs"]
    table.append((name, alone, told))
    assert row.is_lossy == bool(re.search(r'loss="(?!none")', told)), told


KILLERS = {
    "5000 top_logprobs": (Row("", {"logprobs": True, "top_logprobs": 5000}), 200),
    "5000 logprobs of a completion": (Row("", {"logprobs": 5000}, path=COMPLETIONS), 200),
    "an empty prompt among others": (Row("", {"prompt": ["a b", ""]}, path=COMPLETIONS), 200),
    "an empty list of ids among others": (Row("", {"prompt": [[1, 2], []]}, path=COMPLETIONS), 400),
    "a token that no vocabulary has": (Row("", {"prompt": [1, 99999999]}, path=COMPLETIONS), 400),
    "a negative token": (Row("", {"prompt": [[1], [-1]]}, path=COMPLETIONS), 400),
}


@pytest.mark.parametrize("name", KILLERS)
def test_what_would_end_sglang_does_not_reach_it(sglang: str, before_sglang: str, post: Any, name: str) -> None:
    row, expected = KILLERS[name]
    status, headers, data = post(before_sglang, row.body, row.path)
    assert status == expected, data
    assert headers["mendproxy-repairs"]
    assert post(sglang, Row("", {}).body)[0] == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_three_streamed_choices_are_untouched(sglang: str, before_sglang: str, post: Any, path: str) -> None:
    row = Row("", {"n": 3, "stream": True, "temperature": 0, "stream_options": USAGE}, path=path)
    direct, through = post(sglang, row.body, path), post(before_sglang, row.body, path)
    assert "mendproxy-repairs" not in through[1]
    assert sorted(masked(through[2]).splitlines()) == sorted(masked(direct[2]).splitlines())


def shape(value: Any) -> Any:
    """Return a JSON value's keys and types. Shape: {"a": [1, 2]} → {"a": ["int"]}."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def three(base: str, *, is_stream: bool) -> list[dict[str, Any]]:
    """Return the answer, or the chunks, that the SDK reads of a request for three choices."""
    wanted: dict[str, Any] = {
        "model": "tiny",
        "messages": HI,
        "max_tokens": 4,
        "n": 3,
        "extra_body": {"ignore_eos": True},
    }
    if not is_stream:
        return [sdk(base).chat.completions.create(**wanted).model_dump(warnings=False)]
    stream = sdk(base).chat.completions.create(**wanted, stream=True, stream_options=USAGE)
    return [chunk.model_dump(warnings=False) for chunk in stream]


def shapes_by_index(answers: list[dict[str, Any]]) -> dict[int, set[str]]:
    """Return which shapes the choices of each index have."""
    shapes: dict[int, set[str]] = {}
    for choice in (choice for answer in answers for choice in answer["choices"]):
        shapes.setdefault(choice["index"], set()).add(json.dumps(shape(choice)))
    return shapes


@pytest.mark.parametrize("is_stream", [False, True], ids=["JSON", "stream"])
def test_three_requests_look_like_three_choices(sglang: str, fanned_out_before_sglang: str, is_stream: bool) -> None:
    three(sglang, is_stream=is_stream)  # the first fills the server's cache of prompts
    native, fanned = three(sglang, is_stream=is_stream), three(fanned_out_before_sglang, is_stream=is_stream)
    assert shapes_by_index(fanned) == shapes_by_index(native)
    assert set(shapes_by_index(fanned)) == {0, 1, 2}
    assert fanned[-1]["usage"] == native[-1]["usage"]
    assert len({answer["id"] for answer in fanned}) == 1
    ends = [choice["index"] for answer in fanned for choice in answer["choices"] if choice["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]
