"""sglang: what it refuses, alone and behind the proxy, with the OpenAI SDK in front."""

from __future__ import annotations

import re
from typing import Any

import pytest
from openai import OpenAI

pytestmark = [pytest.mark.real, pytest.mark.timeout(700)]

HI = [{"role": "user", "content": "hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


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


REFUSED_BY_SGLANG: list[tuple[str, dict[str, Any], bool]] = [
    ("meta_info on a stream", {"return_meta_info": True, "stream": True}, False),
    ("prompt token ids on a stream", {"return_prompt_token_ids": True, "stream": True}, False),
    ("token ids on a stream", {"return_token_ids": True, "stream": True}, False),
    ("all three on a stream", {"return_meta_info": True, "return_token_ids": True, "stream": True}, False),
    ("flat raw logprobs alone", {"return_flat_raw_output_top_logprobs": True}, False),
    ("sampling_logprobs_mode alone", {"sampling_logprobs_mode": "raw"}, False),
    ("n null", {"n": None}, False),
    ("stream null", {"stream": None}, False),
    ("logprobs null", {"logprobs": None}, False),
    ("frequency_penalty null", {"frequency_penalty": None}, False),
    ("presence_penalty null", {"presence_penalty": None}, False),
    ("parallel_tool_calls null", {"parallel_tool_calls": None}, False),
    ("n 0", {"n": 0}, True),
    ("n 0 on a stream with usage", {"n": 0, "stream": True, "stream_options": {"include_usage": True}}, True),
    ("n 1.5", {"n": 1.5}, True),
    ("top_k 0", {"top_k": 0}, False),
    ("top_p 0", {"top_p": 0}, False),
    ("top_p 1.5", {"top_p": 1.5}, False),
    ("temperature -1", {"temperature": -1}, True),
    ("min_p 2", {"min_p": 2}, True),
    ("frequency_penalty 3", {"frequency_penalty": 3}, True),
    ("presence_penalty -3", {"presence_penalty": -3}, True),
    ("repetition_penalty 0", {"repetition_penalty": 0}, True),
    ("repetition_penalty 3", {"repetition_penalty": 3}, True),
    ("min_tokens above max_tokens", {"min_tokens": 10}, True),
    ("seed beyond 63 bits", {"seed": 2**63}, True),
    ("40 stops", {"stop": [f"s{i}" for i in range(40)]}, True),
    ("stop as a number", {"stop": 5}, False),
    ("user as a number", {"user": 5}, False),
    ("logprobs as a number", {"logprobs": 5}, False),
    ("logit_bias beyond the vocabulary", {"logit_bias": {"999999": 1}}, True),
    ("logit_bias of a word", {"logit_bias": {"abc": 1}}, True),
    ("rid as a list", {"rid": ["a"]}, True),
    ("hidden states switched off", {"return_hidden_states": True}, True),
    ("max_tokens negative", {"max_tokens": -1}, True),
    ("max_completion_tokens beyond the context", {"max_completion_tokens": 100000}, False),
    ("reasoning_effort ultrahigh", {"reasoning_effort": "ultrahigh"}, True),
    ("reasoning_effort of no known word", {"reasoning_effort": "gigantic"}, True),
    ("reasoning_effort true", {"reasoning_effort": True}, True),
    ("reasoning_effort 2", {"reasoning_effort": 2}, True),
    ("reasoning.effort bad", {"reasoning": {"effort": "bad"}}, True),
    ("tool_choice required without tools", {"tool_choice": "required"}, True),
    ("tool named without tools", {"tool_choice": {"type": "function", "function": {"name": "f"}}}, True),
    (
        "tool_choice required with response_format",
        {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
        True,
    ),
    ("tool_choice any", {"tools": TOOLS, "tool_choice": "any"}, False),
    (
        "tool_choice in the flat form",
        {"tools": TOOLS, "tool_choice": {"type": "function", "name": "get_weather"}},
        False,
    ),
    ("response_format as text", {"response_format": "json_object"}, False),
    ("json_schema without a schema", {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, False),
    ("response_format and regex", {"response_format": {"type": "json_object"}, "regex": "a+"}, True),
]


@pytest.mark.parametrize(("name", "fields", "is_lossy"), REFUSED_BY_SGLANG, ids=[row[0] for row in REFUSED_BY_SGLANG])
def test_what_sglang_refuses_is_repaired(
    sglang: str, before_sglang: str, post: Any, name: str, fields: dict[str, Any], is_lossy: bool
) -> None:
    body = {"model": "tiny", "messages": HI, "max_tokens": 4} | fields
    status, _, data = post(sglang, body)
    assert status >= 400 or b'"error"' in data or b"<IncompleteRead>" in data, f"sglang takes {name}"
    status, headers, data = post(before_sglang, body)
    assert status == 200, data
    told = headers["mendproxy-repairs"]
    assert is_lossy == bool(re.search(r'loss="(?!none")', told)), told
    print(f"\n{name}: direct refused, through {told}")
