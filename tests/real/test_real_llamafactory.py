"""LlamaFactory: what it refuses, hangs on or ignores, alone and behind the proxy, row by row of its catalogue.

What would hang a thread of the server is not asked of it directly; recorded: a role chunk, then pings for ever.

The model is a tiny one that has learnt thirteen dialogues, so greedy answers are known: "hello" is answered with
"Hello! I am a tiny test model.", and "run forever" never ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from openai import OpenAI

pytestmark = [pytest.mark.real, pytest.mark.timeout(700)]

Body = dict[str, Any]

HELLO = [{"role": "user", "content": "hello"}]
GREETING = "Hello! I am a tiny test model."
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
FUNCTION = {
    "name": "get_weather",
    "description": "Get the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOL = {"type": "function", "function": FUNCTION}
PNG = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGA"
    "WjR9awAAAABJRU5ErkJggg=="
)
NAMED = {"type": "function", "function": {"name": "get_weather"}}


class Answer(NamedTuple):
    """What came: the text and finish_reason of each choice, and what the proxy told of it."""

    status: int
    told: str
    texts: list[str]
    finishes: list[str]
    data: bytes


class Row(NamedTuple):
    """A request that the server refuses, hangs on, or answers otherwise than asked (`direct`: refused, hangs, other).

    `rules` are those that tell of it; where the proxy refuses it, `is_refused`.
    """

    name: str
    fields: Body
    rules: str
    direct: str = "refused"
    is_refused: bool = False


def user(*parts: Any) -> Body:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}, *parts]}]}


def image(url: Any) -> Body:
    return {"type": "image_url", "image_url": url}


def called(*calls: Body, **message: Any) -> Body:
    whole = [{"id": f"c{index}", "type": "function"} | call for index, call in enumerate(calls)]
    return {"role": "assistant", "content": None, "tool_calls": whole} | message


def result(text: str, **fields: Any) -> Body:
    return {"role": "tool", "tool_call_id": "c0", "content": text} | fields


CALL = {"function": {"name": "get_weather", "arguments": "{}"}}
ASSISTANT = {"role": "assistant", "content": "Welcome!"}
SYSTEM = {"role": "system", "content": "be brief"}

ROWS = [
    Row("1 n 3 on a stream", {"n": 3, "stream": True, "temperature": 0.5}, "n-streamed"),
    Row("1 n 3 on a stream, greedy", {"n": 3, "stream": True}, "n-streamed"),
    Row("2 tools on a stream", {"messages": WEATHER, "tools": [TOOL], "stream": True}, "tools-streamed"),
    Row(
        "2 tools and n 3 on a stream",
        {"messages": WEATHER, "tools": [TOOL], "stream": True, "n": 3, "temperature": 0.5},
        "tools-streamed",
    ),
    Row(
        "2 tool_choice none on a stream",
        {"tools": [TOOL], "tool_choice": "none", "stream": True},
        "tools-not-to-be-called",
    ),
    Row("3 messages empty", {"messages": []}, "messages-empty", is_refused=True),
    Row("3 messages empty on a stream", {"messages": [], "stream": True}, "messages-empty", is_refused=True),
    Row("4 two users", {"messages": [*HELLO, *HELLO]}, "turns"),
    Row("4 two users on a stream", {"messages": [*HELLO, *HELLO], "stream": True}, "turns"),
    Row("4 an ending assistant", {"messages": [*HELLO, ASSISTANT]}, "turns"),
    Row("4 two systems", {"messages": [SYSTEM, SYSTEM, *HELLO]}, "turns"),
    Row("4 only a system", {"messages": [SYSTEM], "stream": True}, "turns"),
    Row(
        "4 parallel results",
        {"tools": [TOOL], "messages": [*WEATHER, called(CALL, CALL), result("sunny"), result("rain")]},
        "turns",
    ),
    Row("4 a user behind a result", {"messages": [*WEATHER, called(CALL), result("sunny"), *HELLO]}, "turns"),
    Row("5 three users", {"messages": [*HELLO, *HELLO, *HELLO]}, "turns"),
    Row("5 a leading assistant", {"messages": [ASSISTANT, *HELLO, ASSISTANT]}, "turns"),
    Row("5 a system in the middle", {"messages": [*HELLO, SYSTEM, *HELLO]}, "turns"),
    Row("6 a file part", user({"type": "file", "file": {"file_id": "f"}}), "part-type-unknown", is_refused=True),
    Row("8 a tool without a function", {"tools": [TOOL, {"type": "function"}]}, "tools-not-functions"),
    Row("8 the same on a stream", {"tools": [{"type": "function"}], "stream": True}, "tools-not-functions"),
    Row("12 content null", {"messages": [{"role": "user", "content": None}]}, "content-null"),
    Row("12 content absent on a stream", {"messages": [{"role": "user"}], "stream": True}, "content-null"),
    Row(
        "12 content null beside no calls",
        {"messages": [*HELLO, {"role": "assistant", "content": None, "tool_calls": []}, *HELLO]},
        "content-null",
    ),
    Row("13 a text part without text", user({"type": "text"}), "parts"),
    Row("16 webp as data", user(image({"url": "data:image/webp;base64,UklG"})), "media-type", is_refused=True),
    Row("16 ftp", user(image({"url": "ftp://example.com/a.png"})), "media-scheme", is_refused=True),
    Row("19 an undecodable image", user(image({"url": "data:image/png;base64,AAAA"})), "media-unreadable"),
    Row("20 an image for a text model", user(image({"url": PNG})), "media-unreadable"),
    Row(
        "20 an image on a stream",
        {**user(image({"url": PNG})), "stream": True},
        "cut-stream media-unreadable",
    ),
    Row("21 presence_penalty 0", {"presence_penalty": 0}, "presence-penalty-zero"),
    Row("21 presence_penalty 0 on a stream", {"presence_penalty": 0, "stream": True}, "presence-penalty-zero", "hangs"),
    Row("21 presence_penalty -1", {"presence_penalty": -1}, "presence-penalty"),
    Row("21 presence_penalty -1 on a stream", {"presence_penalty": -1, "stream": True}, "presence-penalty", "hangs"),
    Row("22 temperature -1", {"temperature": -1}, "ranges"),
    Row("22 temperature -1 on a stream", {"temperature": -1, "stream": True}, "ranges", "hangs"),
    Row("22 temperature as text", {"temperature": "-1", "stream": True}, "lax-types ranges", "hangs"),
    Row("22 temperature nan", {"temperature": "nan"}, "no-number", is_refused=True),
    Row("22 temperature nan on a stream", {"temperature": "nan", "stream": True}, "no-number", "hangs", True),
    Row("23 top_p -1", {"top_p": -1, "temperature": 0.5}, "ranges"),
    Row("23 top_p -1 on a stream", {"top_p": -1, "temperature": 0.5, "stream": True}, "ranges", "hangs"),
    Row("24 max_tokens -5", {"max_tokens": -5}, "max-tokens-negative"),
    Row("24 max_tokens -5 on a stream", {"max_tokens": -5, "stream": True}, "max-tokens-negative"),
    Row("model null", {"model": None}, "model-missing"),
    Row("model a number, on a stream", {"model": 4, "stream": True}, "model-missing"),
    Row("n null", {"n": None}, "nulls"),
    Row("stream null", {"stream": None}, "nulls"),
    Row("n 1.5", {"n": 1.5}, "fractions"),
    Row("max_tokens 16.5", {"max_tokens": 16.5}, "fractions"),
    Row("n as text on a stream", {"n": "2", "stream": "true"}, "lax-types n-streamed"),
    Row("stop as a number", {"stop": 5}, "stop-as-number stop"),
    Row("a number among the stops", {"stop": [5, "tiny"]}, "stop-as-number stop"),
    Row("a tool without description", {"tools": [{"function": {"name": "f", "parameters": {}}}]}, "tools-incomplete"),
    Row("a tool without parameters", {"tools": [{"function": {"name": "f", "description": "d"}}]}, "tools-incomplete"),
    Row(
        "a tool with nulls",
        {"tools": [{"function": {"name": "f", "description": None, "parameters": None}}]},
        "tools-incomplete",
    ),
    Row("a custom tool", {"tools": [TOOL, {"type": "custom", "custom": {"name": "c"}}]}, "tools-not-functions"),
    Row("a tool of type null", {"tools": [TOOL | {"type": None}]}, "tools-incomplete"),
    Row("developer", {"messages": [{"role": "developer", "content": "be brief"}, *HELLO]}, "developer-role"),
    Row("content as a number", {"messages": [{"role": "user", "content": 5}]}, "content-null"),
    Row(
        "content as a part", {"messages": [{"role": "user", "content": {"type": "text", "text": "x"}}]}, "content-null"
    ),
    Row("input_text", {"messages": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]}, "parts"),
    Row("a part without type", {"messages": [{"role": "user", "content": [{"text": "hello"}]}]}, "parts"),
    Row("text as a part", {"messages": [{"role": "user", "content": ["hello"]}]}, "parts"),
    Row(
        "refusal",
        {"messages": [*HELLO, ASSISTANT | {"content": [{"type": "refusal", "refusal": "no"}]}, *HELLO]},
        "parts",
    ),
    Row(
        "input_audio for a text model",
        user({"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}),
        "parts media-unreadable",
    ),
    Row("image_url as text", user(image(PNG)), "parts media-unreadable"),
    Row("an image's detail", user(image({"url": PNG, "detail": "original"})), "image-detail media-unreadable"),
    Row(
        "a call without id",
        {"messages": [*WEATHER, called(CALL | {"id": None}), result("sunny")]},
        "tool-calls",
    ),
    Row(
        "arguments as an object",
        {"messages": [*WEATHER, called({"function": {"name": "f", "arguments": {"a": 1}}}), result("sunny")]},
        "tool-calls",
    ),
    Row(
        "function_call and its result",
        {
            "messages": [
                *WEATHER,
                {"role": "assistant", "content": None, "function_call": CALL["function"]},
                {"role": "function", "name": "get_weather", "content": "sunny"},
            ]
        },
        "function-calls tool-calls",
    ),
    Row(
        "max_completion_tokens",
        {"max_tokens": None, "max_completion_tokens": 3},
        "max-completion-tokens",
        "other",
    ),
    Row("stop", {"stop": ["tiny"]}, "stop", "other"),
    Row("stop on a stream", {"stop": "tiny", "stream": True}, "stop", "other"),
    Row("stop and n 2 on a stream", {"stop": "a", "stream": True, "n": 2, "temperature": 0.5}, "n-streamed stop"),
    Row(
        "tool_choice none",
        {"messages": WEATHER, "tools": [TOOL], "tool_choice": "none"},
        "tools-not-to-be-called",
        "other",
    ),
]

TOLD = [
    Row("max_tokens 0", {"max_tokens": 0}, "max-tokens-zero"),
    Row("usage of a stream", {"stream": True, "stream_options": {"include_usage": True}}, "usage-streamed"),
    Row("logprobs", {"logprobs": True}, "logprobs"),
    Row("response_format", {"response_format": {"type": "json_object"}}, "response-format"),
    Row("a tool that is named", {"tools": [TOOL], "tool_choice": NAMED}, "tool-choice"),
    Row("seed", {"seed": 1}, "ignored"),
]

PASSED_ON = [
    Row("14 a file of the server", user(image({"url": "/etc/hostname"})), ""),
    Row("17 a private host", user(image({"url": "http://127.0.0.1:9/x.png"})), ""),
    Row("18 an unknown host", user(image({"url": "http://nowhere.invalid/x.png"})), ""),
    Row("temperature as a word", {"temperature": "hot"}, ""),
    Row("messages absent", {"messages": None}, ""),
    Row("a tool without a name", {"tools": [{"function": {"description": "", "parameters": {}}}]}, ""),
]

SERVED = [
    Row("empty turns", {"messages": [{"role": "user", "content": ""}, ASSISTANT | {"content": ""}, *HELLO]}, ""),
    Row("a null system", {"messages": [{"role": "system", "content": None}, *HELLO]}, ""),
    Row("a result first", {"messages": [result("sunny")]}, ""),
    Row(
        "arguments empty",
        {"messages": [*WEATHER, called({"function": {"name": "f", "arguments": ""}}), result("s")]},
        "",
    ),
    Row("top_p 2, nulls", {"top_p": 2, "presence_penalty": None, "stop": None, "tools": None}, ""),
    Row("code_interpreter with a function", {"tools": [TOOL | {"type": "code_interpreter"}]}, ""),
    Row("its own role of calls", {"messages": [*HELLO, {"role": "function", "content": "[]"}, result("s")]}, ""),
]

Ask = Callable[[str, Row], Answer]


@pytest.fixture
def ask(post: Callable[..., tuple[int, dict[str, str], bytes]]) -> Ask:
    """Return what sends a row's request to an address, as JSON or as a stream."""

    def ask(base: str, row: Row) -> Answer:
        body = {"model": "tiny-model", "messages": HELLO, "max_tokens": 16, "temperature": 0} | row.fields
        status, headers, data = post(base, body)
        texts, finishes = gathered(data)
        return Answer(status, headers.get("mendproxy-repairs", ""), texts, finishes, data)

    return ask


def gathered(data: bytes) -> tuple[list[str], list[str]]:
    """Return the text and the finish_reason of each choice of an answer or a stream; nothing of a refusal."""
    texts: dict[int, str] = {}
    finishes: dict[int, str] = {}
    for choice in choices(data):
        said = choice.get("delta") or choice.get("message") or {}
        text = said.get("content") or "".join(map(json.dumps, said.get("tool_calls") or []))
        texts[choice["index"]] = texts.get(choice["index"], "") + text
        if choice.get("finish_reason"):
            finishes[choice["index"]] = choice["finish_reason"]
    return [texts[index] for index in sorted(texts)], [finishes[index] for index in sorted(finishes)]


def choices(data: bytes) -> Iterator[Body]:
    for text in data.splitlines() if data.startswith(b"data:") else [data]:
        bare = text.removeprefix(b"data:").strip()
        if bare.startswith(b"{") and b'"choices"' in bare:
            yield from json.loads(bare)["choices"]


def is_good(answer: Answer) -> bool:
    """Return whether an answer is one, to its end: of a stream the `[DONE]` too."""
    is_whole = not answer.data.startswith(b"data:") or answer.data.endswith(b"data: [DONE]\n\n")
    return answer.status == 200 and bool(answer.finishes) and is_whole


def rules(answer: Answer) -> list[str]:
    return re.findall(r"llamafactory/([a-z-]+)", answer.told)


def shown(answer: Answer | None) -> str:
    if answer is None:
        return "hangs (recorded)"
    if is_good(answer):
        return f"{answer.status} {len(answer.texts)}x {answer.texts[0][:30]!r} {answer.finishes[0]}"
    reason = re.search(rb'"(?:message|detail|msg)": ?"([^"]{1,44})', answer.data)
    text = reason[1] if reason else answer.data[:44]
    return f"{answer.status} {text.decode(errors='replace').strip()}"


def compared(row: Row, direct: Answer | None, through: Answer) -> None:
    """Print a row's answers as a line of the table."""
    print(f"\n{row.name:36} {shown(direct):56} {shown(through):56} {through.told}")


def masked(data: bytes) -> bytes:
    """Return an answer without what differs between any two: ids and times."""
    data = re.sub(rb'("id": ?")[^"]*', rb"\1ID", data)
    return re.sub(rb'("created": ?)\d+', rb"\g<1>0", data)


def sdk(base: str) -> OpenAI:
    return OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_fails_alone_is_repaired(llamafactory: str, before_llamafactory: str, ask: Ask, row: Row) -> None:
    direct = None if row.direct == "hangs" else ask(llamafactory, row)
    through = ask(before_llamafactory, row)
    compared(row, direct, through)
    assert direct is None or is_good(direct) == (row.direct == "other"), direct.data
    assert rules(through) == row.rules.split()
    if row.is_refused:
        assert through.status == 400
        assert json.loads(through.data)["error"]["code"] == "request_rejected"
        return
    assert is_good(through), through.data
    assert len(through.finishes) == int(row.fields.get("n") or 1)
    assert through.data.startswith(b"data:") == (row.fields.get("stream") in (True, "true"))
    assert direct is None or (through.texts, through.finishes) != (direct.texts, direct.finishes)


@pytest.mark.parametrize("row", TOLD, ids=lambda row: row.name)
def test_what_is_ignored_is_told(llamafactory: str, before_llamafactory: str, ask: Ask, row: Row) -> None:
    direct, through = ask(llamafactory, row), ask(before_llamafactory, row)
    compared(row, direct, through)
    assert rules(through) == [row.rules]
    assert 'warning="' in through.told
    assert masked(through.data) == masked(direct.data)


@pytest.mark.parametrize("row", PASSED_ON, ids=lambda row: row.name)
def test_the_reason_of_a_refusal_is_passed_on(llamafactory: str, before_llamafactory: str, ask: Ask, row: Row) -> None:
    direct, through = ask(llamafactory, row), ask(before_llamafactory, row)
    compared(row, direct, through)
    assert (through.status, through.data, through.told) == (direct.status, direct.data, "")
    assert direct.status in (400, 422)


@pytest.mark.parametrize("row", SERVED, ids=lambda row: row.name)
def test_what_is_served_is_left_alone(llamafactory: str, before_llamafactory: str, ask: Ask, row: Row) -> None:
    direct, through = ask(llamafactory, row), ask(before_llamafactory, row)
    compared(row, direct, through)
    assert is_good(direct), direct.data
    assert masked(through.data) == masked(direct.data)
    assert through.told == ""


def test_a_refused_stream_says_its_reason(llamafactory: str, before_llamafactory: str, ask: Ask) -> None:
    row = Row("17 a private host on a stream", user(image({"url": "http://127.0.0.1:9/x.png"})) | {"stream": True}, "")
    direct, through = ask(llamafactory, row), ask(before_llamafactory, row)
    compared(row, direct, through)
    assert (direct.status, direct.texts) == (200, [])
    assert through.status == 400
    assert "Access to private" in json.loads(through.data)["detail"]
    assert rules(through) == ["cut-stream"]


@pytest.mark.parametrize("stream", [False, True], ids=["JSON", "stream"])
def test_plain_calls_are_byte_identical(llamafactory: str, before_llamafactory: str, post: Any, stream: bool) -> None:
    body = {"model": "tiny-model", "messages": HELLO, "max_tokens": 16, "temperature": 0, "stream": stream}
    direct, through = post(llamafactory, body), post(before_llamafactory, body)
    assert masked(through[2]) == masked(direct[2])
    assert set(through[1]) - set(direct[1]) == {"x-request-id"}


def test_stop_cuts_where_it_stands(before_llamafactory: str, ask: Ask) -> None:
    cut = GREETING[: GREETING.index("tiny")]
    whole = ask(before_llamafactory, Row("stop", {"stop": ["tiny"]}, ""))
    streamed = ask(before_llamafactory, Row("stop on a stream", {"stop": "tiny", "stream": True}, ""))
    assert (whole.texts, whole.finishes) == (streamed.texts, streamed.finishes) == ([cut], ["stop"])


def test_greedy_choices_are_alike(before_llamafactory: str, ask: Ask) -> None:
    """With n the engine would sample."""
    for stream, rule in ((False, "n-greedy"), (True, "n-streamed")):
        answer = ask(before_llamafactory, Row("n 3", {"n": 3, "stream": stream}, ""))
        assert answer.texts == [GREETING] * 3
        assert rules(answer) == [rule]


def test_the_sdk_streams_three_choices(before_llamafactory: str) -> None:
    with sdk(before_llamafactory).chat.completions.stream(
        model="tiny-model", messages=HELLO, n=3, max_tokens=16, temperature=0.5
    ) as stream:
        for _ in stream:
            continue
        completion = stream.get_final_completion()
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert [choice.finish_reason for choice in completion.choices] == ["stop"] * 3
    assert all(choice.message.content for choice in completion.choices)


def test_the_sdk_streams_a_tool_call(before_llamafactory: str) -> None:
    with sdk(before_llamafactory).chat.completions.stream(
        model="tiny-model", messages=WEATHER, tools=[TOOL], temperature=0, stream_options={"include_usage": True}
    ) as stream:
        for _ in stream:
            continue
        completion = stream.get_final_completion()
    choice = completion.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].function.name == "get_weather"
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Paris"}
    assert completion.usage is not None
    assert completion.usage.completion_tokens > 0


COMPLETE_CHUNKS = """
version: 1
backends: {{main: {{url: {url}, presets: [llamafactory]}}}}
rules:
  - id: chunks-complete
    when: {{path: /v1/chat/completions, body: {{stream: true}}}}
    repair: [{{response: {{chunk: [{{default: {{object: chat.completion.chunk, created: 0}}}}]}}}}]
    loses: nothing
"""


def test_the_sdk_takes_chunks_without_object_and_created(before_llamafactory: str) -> None:
    """So plain streams need not be decoded for it."""
    stream = sdk(before_llamafactory).chat.completions.create(
        model="tiny-model", messages=HELLO, max_tokens=16, temperature=0, stream=True
    )
    chunks = list(stream)
    assert {(chunk.object, chunk.created) for chunk in chunks} == {(None, None)}
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == GREETING


def test_a_rule_completes_the_chunks_for_the_stream_helper(llamafactory: str, serving: Any, tmp_path: Path) -> None:
    """The SDK's helper passes over a chunk without `object`, and so over all of a plain stream's."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(COMPLETE_CHUNKS.format(url=llamafactory))
    with (
        serving(policy) as proxy,
        sdk(proxy.url).chat.completions.stream(
            model="tiny-model", messages=HELLO, max_tokens=16, temperature=0
        ) as stream,
    ):
        for _ in stream:
            continue
        assert stream.get_final_completion().choices[0].message.content == GREETING
