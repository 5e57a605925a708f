"""transformers serve and llama-cpp-python: what each refuses, ignores or fails of, alone and behind the proxy.

The model is a tiny one that has learnt thirteen dialogues, so greedy answers are known: "hello" is answered with
"Hello! I am a tiny test model.", "ping" with "pong", and "run forever" never ends.
"""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from openai import OpenAI

pytestmark = [pytest.mark.real, pytest.mark.timeout(700)]

HELLO = [{"role": "user", "content": "hello"}]
ENDLESS = [{"role": "user", "content": "run forever"}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
GREETING = "Hello! I am a tiny test model."
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
DUMPED = {"role": "assistant", "content": "x", "refusal": None, "tool_calls": None, "function_call": None}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
UNCALLED = {"messages": WEATHER, "max_tokens": 40, "tools": [TOOL], "tool_choice": "none"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
SAMPLING = json.dumps({"do_sample": True})  # the tiny model's own configuration is greedy


class Answer(NamedTuple):
    """What came, and in how many words the proxy told of it."""

    status: int
    told: str
    texts: list[str]
    finishes: list[str]
    data: bytes


class Row(NamedTuple):
    """A request that the server refuses, or misunderstands (`is_refused`: no)."""

    name: str
    fields: dict[str, Any]
    rules: str
    is_refused: bool = True
    path: str = "/v1/chat/completions"


def history(arguments: dict[str, Any], **message: Any) -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather"} | arguments}
    return [
        *WEATHER,
        {"role": "assistant", "tool_calls": [call]} | message,
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]


BY_TRANSFORMERS_SERVE = [
    Row("an unknown field", {"return_meta_info": True}, "unexpected-chat-fields"),
    Row("unknown fields on a stream", {"best_of": 2, "echo": True, "stream": True}, "unexpected-chat-fields"),
    Row("a null of an unknown field", {"return_meta_info": None}, "nulls"),
    Row("chat_template_kwargs null", {"chat_template_kwargs": None}, "nulls"),
    Row("stream as text", {"stream": "false"}, "lax-types", is_refused=False),
    Row("max_tokens abc", {"max_tokens": "abc"}, "words-for-numbers"),
    Row("messages empty", {"messages": []}, "messages-missing"),
    Row("no role", {"messages": [{"content": "hello"}]}, "role-missing"),
    Row("content as a number", {"messages": [{"role": "user", "content": 5}]}, "content-as-number"),
    Row("broken arguments", {"messages": history({"arguments": "{bad"})}, "tool-arguments"),
    Row("no arguments, and an unreadable call", {"messages": history({})}, "tool-arguments failed-without-reason"),
    Row("tool_choice none", UNCALLED, "tools-not-to-be-called", is_refused=False),
    Row("n 3", {"n": 3}, "n-ignored", is_refused=False),
    Row("n 3 on a stream", {"n": 3, "stream": True, "temperature": 1}, "n-ignored", is_refused=False),
    Row("temperature negative", {"temperature": -1, "generation_config": SAMPLING}, "ranges"),
    Row("top_p negative", {"top_p": -1, "temperature": 1, "generation_config": SAMPLING}, "ranges"),
    Row("seed of 65 bits", {"seed": 2**64}, "seed-beyond-64-bits"),
    Row("max_tokens negative", {"max_tokens": -1}, "max-tokens-negative"),
    Row("max_tokens 0", {"max_tokens": 0}, "max-tokens-zero"),
    Row("max_tokens 0 on a stream", {"max_tokens": 0, "stream": True}, "max-tokens-zero"),
    Row("frequency_penalty -1", {"frequency_penalty": -1}, "frequency-penalty-negative"),
    Row("frequency_penalty -2 on a stream", {"frequency_penalty": -2, "stream": True}, "frequency-penalty-negative"),
    Row("stop empty", {"stop": []}, "stops-empty"),
    Row("stop empty on a stream", {"stop": [], "stream": True}, "stops-empty"),
    Row("stop as empty text", {"stop": ""}, "stops-empty", is_refused=False),
    Row("stop as a number", {"stop": 5}, "stops-empty"),
    Row("logit_bias empty", {"logit_bias": {}}, "logit-bias-empty"),
    Row("logit_bias of a word", {"logit_bias": {"abc": 1}}, "logit-bias-no-token logit-bias-empty"),
    Row("logit_bias of integers", {"logit_bias": {"5": 1, "6": -100}}, "logit-bias-integers"),
    Row(
        "logit_bias beyond the vocabulary",
        {"logit_bias": {"999999": 1.0, "5": 1.0}},
        "failed-without-reason logit-bias-beyond-vocabulary",
    ),
    Row(
        "logit_bias beyond the vocabulary on a stream",
        {"logit_bias": {"999999": 1.0}, "stream": True},
        "logit-bias-beyond-vocabulary",
    ),
    Row("generation_config as an object", {"generation_config": {"top_k": 5}}, "generation-config-as-object"),
    Row("top_k, min_p, min_tokens", {"top_k": -1, "min_p": 0.1, "min_tokens": 2}, "sampling-fields"),
    Row("enable_thinking", {"enable_thinking": False}, "thinking-switch"),
    Row("another model", {"model": "gpt-4"}, "model-pinned"),
    Row("another model on a stream", {"model": "gpt-4", "stream": True}, "model-pinned"),
    Row("another model, n 3", {"model": "gpt-4", "n": 3, "temperature": 1}, "n-ignored model-pinned"),
    Row("no prompt", {}, "prompt-missing", path="/v1/completions"),
    Row("prompts", {"prompt": ["hello", "ping"]}, "prompts", path="/v1/completions"),
    Row("prompts on a stream", {"prompt": ["hello", "ping"], "stream": True}, "prompts", path="/v1/completions"),
    Row("a list of one prompt", {"prompt": ["hello"]}, "prompts", path="/v1/completions"),
    Row("prompt as tokens", {"prompt": [1, 2]}, "prompt-as-tokens", path="/v1/completions"),
    Row(
        "max_completion_tokens on completions",
        {"prompt": "hello", "max_completion_tokens": 3},
        "max-completion-tokens",
        path="/v1/completions",
    ),
    Row("unknown on completions", {"prompt": "hello", "x": 1}, "unexpected-completion-fields", path="/v1/completions"),
]

BY_LLAMA_CPP_PYTHON = [
    *(
        Row(f"{name} null", {name: None}, "nulls")
        for name in ("stream", "temperature", "top_p", "min_p", "top_k", "presence_penalty", "frequency_penalty")
    ),
    Row("a message as the SDK dumps it", {"messages": [*HELLO, DUMPED, *HELLO]}, "nulls"),
    Row("n 1.5", {"n": 1.5}, "fractions"),
    Row("max_tokens 5.7", {"max_tokens": 5.7}, "fractions"),
    Row("max_tokens abc", {"max_tokens": "abc"}, "validation-error"),
    Row("mirostat_mode 5", {"mirostat_mode": 5}, "validation-error"),
    Row("stop as a number", {"stop": 5}, "numbers-for-text"),
    Row("stop as empty text", {"stop": ""}, "stops-empty", is_refused=False),
    Row("content as a number", {"messages": [{"role": "user", "content": 5}]}, "numbers-for-text"),
    Row("logprobs as a number", {"logprobs": 5}, "logprobs-counted"),
    Row("max_completion_tokens", {"max_tokens": None, "max_completion_tokens": 3}, "max-completion-tokens", False),
    Row("repetition_penalty", {"messages": ENDLESS, "repetition_penalty": 5.0}, "repetition-penalty", is_refused=False),
    Row("messages empty", {"messages": []}, "messages-missing"),
    Row("messages empty on a stream", {"messages": [], "stream": True}, "messages-missing"),
    Row("developer", {"messages": [{"role": "developer", "content": "be brief"}, *HELLO]}, "developer-role"),
    Row("no role", {"messages": [{"content": "hello"}]}, "role-missing"),
    Row("content null beside calls", {"messages": history({"arguments": "{}"}, content=None)}, "content-null"),
    Row("content null of the system", {"messages": [{"role": "system", "content": None}, *HELLO]}, "content-null"),
    Row("content absent", {"messages": [{"role": "user"}]}, "content-null"),
    Row("parts", {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]}, "content-parts"),
    Row(
        "parts on a stream",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}], "stream": True},
        "content-parts",
    ),
    Row("an image", {"messages": [{"role": "user", "content": [IMAGE]}]}, "images-for-a-text-model"),
    Row(
        "an image on a stream",
        {"messages": [{"role": "user", "content": [IMAGE]}], "stream": True},
        "cut-stream images-for-a-text-model",
    ),
    Row("a file part", {"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "part-type-unknown"),
    Row("arguments as an object", {"messages": history({"arguments": {"city": "Paris"}})}, "tool-arguments"),
    Row("no arguments", {"messages": history({})}, "tool-arguments"),
    Row("a tool of another kind", {"tools": [{"type": "code_interpreter"}]}, "tools-not-functions"),
    Row(
        "a tool without parameters",
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        "tools-incomplete tool-calls-as-text",
    ),
    Row("tool_choice any", {"tools": [TOOL], "tool_choice": "any"}, "tool-choice-any tool-required-single"),
    Row("tool_choice required", {"tools": [TOOL], "tool_choice": "required"}, "tool-required-single", False),
    Row(
        "tool_choice in the flat form",
        {"tools": [TOOL], "tool_choice": {"type": "function", "name": "get_weather"}},
        "tool-choice-flat",
    ),
    Row("tool_choice none", UNCALLED, "tools-not-to-be-called", is_refused=False),
    Row(
        "a named tool on a stream",
        {"tools": [TOOL], "tool_choice": NAMED, "stream": True},
        "tool-named-streamed",
        is_refused=False,
    ),
    Row("response_format as text", {"response_format": "json_object"}, "format-as-text"),
    Row(
        "json_schema",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        "json-schema",
    ),
    Row(
        "json_schema without a schema",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "schema-missing",
    ),
    Row("top_p 2", {"top_p": 2}, "top-p-above-one"),
    Row("top_k -1", {"top_k": -1}, "top-k-off"),
    Row("presence_penalty 3", {"presence_penalty": 3}, "ranges"),
    Row("min_p 2", {"min_p": 2}, "ranges"),
    Row("logit_bias of a word", {"logit_bias": {"abc": 1}}, "logit-bias-no-token"),
    Row("logit_bias of a word on a stream", {"logit_bias": {"abc": 1}, "stream": True}, "logit-bias-no-token"),
    Row("n 3", {"n": 3}, "n-ignored", is_refused=False),
    Row("n 3 on a stream", {"n": 3, "stream": True, "temperature": 1}, "n-ignored", is_refused=False),
    Row("no prompt", {"prompt": ""}, "prompt-missing", path="/v1/completions"),
    Row("prompts", {"prompt": ["hello", "ping"]}, "prompts", path="/v1/completions"),
    Row("prompts on a stream", {"prompt": ["hello", "ping"], "stream": True}, "prompts", path="/v1/completions"),
    Row("prompt as tokens", {"prompt": [1, 2]}, "prompt-as-tokens", path="/v1/completions"),
]

REJECTING = {
    "words-for-numbers",
    "messages-missing",
    "prompt-missing",
    "prompt-as-tokens",
    "part-type-unknown",
}


@pytest.fixture(scope="session")
def pinned(transformers_serve: str) -> str:
    """Return the one name that transformers serve has for its model: a path of its own machine."""
    with urllib.request.urlopen(f"{transformers_serve}/v1/models", timeout=10) as answer:  # noqa: S310
        return str(json.load(answer)["data"][0]["id"])


@pytest.fixture
def ask(post: Callable[..., tuple[int, dict[str, str], bytes]]) -> Callable[..., Answer]:
    """Return what sends a row's request to an address, as JSON or as a stream."""

    def ask(base: str, row: Row, model: str) -> Answer:
        start: dict[str, Any] = {"model": model, "max_tokens": 12, "temperature": 0}
        if row.path.endswith("/chat/completions"):
            start["messages"] = HELLO
        body = start | row.fields
        if "max_completion_tokens" in body:
            del body["max_tokens"]
        status, headers, data = post(base, body, row.path)
        texts, finishes = gathered(data)
        return Answer(status, headers.get("mendproxy-repairs", ""), texts, finishes, data)

    return ask


def gathered(data: bytes) -> tuple[list[str], list[str]]:
    """Return the text and the finish_reason of each choice of an answer or a stream; nothing of a refusal."""
    texts: dict[int, str] = {}
    finishes: dict[int, str] = {}
    for choice in choices(data):
        said = choice.get("delta") or choice.get("message") or {}
        text = choice.get("text") or said.get("content") or "".join(map(json.dumps, said.get("tool_calls") or []))
        texts[choice["index"]] = texts.get(choice["index"], "") + text
        if choice.get("finish_reason"):
            finishes[choice["index"]] = choice["finish_reason"]
    return [texts[index] for index in sorted(texts)], [finishes[index] for index in sorted(finishes)]


def choices(data: bytes) -> Iterator[dict[str, Any]]:
    for text in data.splitlines() if data.startswith(b"data:") else [data]:
        bare = text.removeprefix(b"data:").strip()
        if bare.startswith(b"{") and b'"choices"' in bare:
            yield from json.loads(bare)["choices"]


def sdk(base: str) -> OpenAI:
    return OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)


def fails(answer: Answer) -> bool:
    return answer.status >= 400 or not answer.finishes


def masked(data: bytes) -> bytes:
    """Return an answer without what differs between any two: ids and times."""
    data = re.sub(rb'("id": ?")[^"]*', rb"\1ID", data)
    return re.sub(rb'("created": ?)\d+', rb"\g<1>0", data)


def check(row: Row, preset: str, direct: Answer, through: Answer) -> None:
    """Compare a row's answers, and print them as a line of the table."""
    print(f"\n{row.name:46} {shown(direct):52} {shown(through):52} {through.told}")
    assert fails(direct) == row.is_refused, f"{preset} answers {direct.data!r}"
    told = [member.split(";")[0] for member in through.told.split(", ") if member.startswith(f"{preset}/")]
    assert told == [f"{preset}/{rule}" for rule in row.rules.split()]
    if REJECTING & set(row.rules.split()):
        assert through.status == 400
        assert json.loads(through.data)["error"]["code"] == "request_rejected"
        return
    assert through.status == 200, through.data
    wanted = row.fields.get("n", 1) if isinstance(row.fields.get("n"), int) else 1
    prompts = row.fields.get("prompt")
    assert len(through.finishes) == wanted * (len(prompts) if isinstance(prompts, list) else 1)
    assert said(through) != said(direct)


def said(answer: Answer) -> tuple[list[str], list[str], bool]:
    """Return what two answers are compared by: texts, finish_reasons, whether it is a stream."""
    return answer.texts, answer.finishes, answer.data.startswith(b"data:")


def shown(answer: Answer) -> str:
    if not fails(answer):
        return f"{answer.status} {len(answer.texts)}x {answer.texts[0][:30]!r} {answer.finishes[0]}"
    reason = re.search(rb'"(?:message|detail|error)": ?"([^"]{1,44})', answer.data)
    text = reason[1] if reason else answer.data[:44]
    return f"{answer.status} {text.decode(errors='replace') or '(empty)'}"


@pytest.mark.parametrize("row", BY_TRANSFORMERS_SERVE, ids=lambda row: row.name)
def test_transformers_serve_and_the_proxy(
    transformers_serve: str, before_transformers_serve: str, pinned: str, ask: Callable[..., Answer], row: Row
) -> None:
    direct, through = ask(transformers_serve, row, pinned), ask(before_transformers_serve, row, pinned)
    check(row, "transformers-serve", direct, through)


@pytest.mark.parametrize("row", BY_LLAMA_CPP_PYTHON, ids=lambda row: row.name)
def test_llama_cpp_python_and_the_proxy(
    llama_cpp_python: str, before_llama_cpp_python: str, ask: Callable[..., Answer], row: Row
) -> None:
    direct, through = ask(llama_cpp_python, row, "tiny-model"), ask(before_llama_cpp_python, row, "tiny-model")
    check(row, "llama-cpp-python", direct, through)


@pytest.mark.parametrize("stream", [False, True], ids=["JSON", "stream"])
@pytest.mark.parametrize("name", ["transformers_serve", "llama_cpp_python"])
def test_plain_calls_are_byte_identical(request: pytest.FixtureRequest, post: Any, name: str, stream: bool) -> None:
    direct_to, through = request.getfixturevalue(name), request.getfixturevalue(f"before_{name}")
    model = request.getfixturevalue("pinned") if name == "transformers_serve" else "tiny-model"
    body = {"model": model, "messages": HELLO, "max_tokens": 16, "temperature": 0, "stream": stream}
    one, two = post(direct_to, body), post(through, body)
    assert masked(two[2]) == masked(one[2])
    assert GREETING[:5].encode() in two[2]
    assert (two[0], two[1].get("mendproxy-repairs")) == (one[0], None)
    assert set(two[1]) - set(one[1]) <= {"via"}
    assert set(one[1]) <= set(two[1])


@pytest.mark.parametrize("name", ["transformers_serve", "llama_cpp_python"])
def test_three_choices_are_whole_on_a_stream(request: pytest.FixtureRequest, name: str) -> None:
    model = request.getfixturevalue("pinned") if name == "transformers_serve" else "tiny-model"
    with (
        sdk(request.getfixturevalue(f"before_{name}")) as client,
        client.chat.completions.stream(
            model=model, messages=HELLO, n=3, max_tokens=16, temperature=0.5, stream_options={"include_usage": True}
        ) as stream,
    ):
        for _ in stream:
            continue
        completion = stream.get_final_completion()
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert [choice.finish_reason for choice in completion.choices] == ["stop"] * 3
    assert all((choice.message.content or "").startswith("Hello!") for choice in completion.choices)


@pytest.mark.parametrize("name", ["transformers_serve", "llama_cpp_python"])
def test_three_choices_are_whole_as_json(request: pytest.FixtureRequest, name: str) -> None:
    model = request.getfixturevalue("pinned") if name == "transformers_serve" else "tiny-model"
    with sdk(request.getfixturevalue(f"before_{name}")) as client:
        completion = client.chat.completions.create(model=model, messages=HELLO, n=3, max_tokens=16, temperature=0.5)
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert [choice.finish_reason for choice in completion.choices] == ["stop"] * 3
    assert completion.usage is not None
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens


def test_a_relayed_stream_without_done_is_whole_to_the_sdk(before_transformers_serve: str, pinned: str) -> None:
    with (
        sdk(before_transformers_serve) as client,
        client.chat.completions.stream(
            model=pinned, messages=HELLO, max_tokens=16, temperature=0, stream_options={"include_usage": True}
        ) as stream,
    ):
        for _ in stream:
            continue
        completion = stream.get_final_completion()
    assert completion.choices[0].message.content == GREETING
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.completion_tokens > 0


def test_a_pinned_model_answers_under_the_clients_name(before_transformers_serve: str, post: Any) -> None:
    for stream in (False, True):
        body = {"model": "gpt-4", "messages": HELLO, "max_tokens": 16, "temperature": 0, "stream": stream}
        _, _, data = post(before_transformers_serve, body)
        assert set(re.findall(rb'"model": ?"([^"]*)"', data)) == {b"gpt-4"}


def test_a_repetition_penalty_reaches_transformers(before_transformers_serve: str, pinned: str, post: Any) -> None:
    endless = {"model": pinned, "messages": ENDLESS, "temperature": 0}
    plain = gathered(post(before_transformers_serve, endless | {"max_tokens": 12})[2])
    held = gathered(post(before_transformers_serve, endless | {"max_tokens": 12, "repetition_penalty": 5.0})[2])
    assert set(plain[0][0].split()) == {"tick"}
    assert set(held[0][0].split()) != {"tick"}


def test_sampling_fields_leave_the_servers_own_budget(before_transformers_serve: str, pinned: str, post: Any) -> None:
    body = {"model": pinned, "messages": [{"role": "user", "content": "count to 100"}], "temperature": 0, "top_k": 5}
    texts, finishes = gathered(post(before_transformers_serve, body)[2])
    assert texts[0].endswith("99 100")
    assert finishes == ["stop"]


def test_responses_are_whole_unless_a_stream_is_asked_for(
    transformers_serve: str, before_transformers_serve: str, pinned: str, post: Any
) -> None:
    body = {"model": pinned, "input": "hello", "max_output_tokens": 12, "unknown": 1}
    assert post(transformers_serve, body, "/v1/responses")[0] == 422
    status, headers, data = post(before_transformers_serve, body, "/v1/responses")
    assert (status, headers["content-type"], json.loads(data)["object"]) == (200, "application/json", "response")


def test_a_prompt_beyond_the_context_is_told_on_a_stream(
    llama_cpp_python: str, before_llama_cpp_python: str, post: Any
) -> None:
    long = [{"role": "user", "content": "hello " * 2500}]
    body = {"model": "tiny-model", "messages": long, "max_tokens": 4, "stream": True}
    assert post(llama_cpp_python, body)[2] == b""
    status, headers, data = post(before_llama_cpp_python, body)
    assert (status, json.loads(data)["error"]["code"]) == (400, "context_length_exceeded")
    assert headers["mendproxy-repairs"] == 'llama-cpp-python/cut-stream;loss="none"'


def test_a_required_tool_is_called(before_llama_cpp_python: str) -> None:
    with (
        sdk(before_llama_cpp_python) as client,
        client.chat.completions.stream(
            model="tiny-model", messages=WEATHER, tools=[TOOL], tool_choice="required", max_tokens=64, temperature=0
        ) as stream,
    ):
        for _ in stream:
            continue
        completion = stream.get_final_completion()
    calls = completion.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.name == "get_weather"
    assert "city" in json.loads(calls[0].function.arguments)


def test_a_schema_holds_the_answer(before_llama_cpp_python: str, post: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
    body = {"model": "tiny-model", "messages": HELLO, "max_tokens": 32, "temperature": 0, "response_format": form}
    texts, _ = gathered(post(before_llama_cpp_python, body)[2])
    assert isinstance(json.loads(texts[0])["a"], int)
