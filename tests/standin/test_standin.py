"""What the stand-ins do beyond one recorded exchange: pace, order, choices, and clients that leave."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from proxy import standin

CHAT = "/v1/chat/completions"
SOON_S = 5.0
LF_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "d",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def chat(content: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **more}


@pytest.fixture(params=standin.KINDS)
async def backend(request: pytest.FixtureRequest):
    async with standin.serve(request.param) as running:
        yield running


@pytest.fixture
async def sglang():
    async with standin.serve("sglang") as running:
        yield running


@pytest.fixture
async def llamafactory():
    async with standin.serve("llamafactory") as running:
        yield running


@pytest.fixture
async def client():
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SOON_S)) as session:
        yield session


async def texts(client: aiohttp.ClientSession, backend: standin.Standin, body: dict[str, Any]) -> list[str]:
    async with client.post(backend.url + CHAT, json=body) as response:
        answer = await response.json()
    assert response.status == 200, answer
    return [choice["message"]["content"] for choice in answer["choices"]]


async def events(response: aiohttp.ClientResponse) -> list[Any]:
    data = [line[6:] async for line in response.content if line.startswith(b"data: ")]
    return [json.loads(line) if line.startswith(b"{") else line.strip().decode() for line in data]


async def test_an_unknown_kind_is_told_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no stand-in 'vllm'; known are llamafactory, sglang"):
        async with standin.serve("vllm"):
            pass


async def test_a_taken_port_is_an_error(backend: standin.Standin) -> None:
    with pytest.raises(OSError, match="address already in use"):
        async with standin.serve(backend.kind, port=int(backend.url.rpartition(":")[2])):
            pass


ANSWERS = [
    pytest.param("hello", {}, "Hello! I am a tiny test model.", id="hello is greeted"),
    pytest.param("ping", {}, "pong", id="ping is ponged"),
    pytest.param("Ping!", {}, "pong", id="case and stops at the end don't matter"),
    pytest.param("count to 100", {}, " ".join(map(str, range(1, 101))), id="counting ends where it was told to"),
    pytest.param("count to 100", {"max_tokens": 3}, "1 2 3", id="max_tokens ends an answer"),
    pytest.param("run forever", {"max_tokens": 3}, "tick tick tick", id="what runs for ever is ended by max_tokens"),
    pytest.param("weather?", {}, "I have no tools, so I do not know.", id="the weather takes a tool"),
    pytest.param("xyzzy", {}, "I am a stand-in without a model, I can only say that you wrote: xyzzy", id="echo"),
]


@pytest.mark.parametrize(("prompt", "more", "expected"), ANSWERS)
async def test_says(
    client: aiohttp.ClientSession, backend: standin.Standin, prompt: str, more: dict[str, Any], expected: str
) -> None:
    assert await texts(client, backend, chat(prompt, **more)) == [expected]
    async with client.post(backend.url + CHAT, json=chat(prompt, stream=True, **more)) as response:
        *chunks, done = await events(response)
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == expected


async def test_choices_differ_and_stay_the_same_from_call_to_call(
    client: aiohttp.ClientSession, backend: standin.Standin
) -> None:
    first = await texts(client, backend, chat("hello", n=30))
    assert len(set(first)) == 30
    assert await texts(client, backend, chat("hello", n=30)) == first
    assert await texts(client, backend, chat("hello", n=2, temperature=0)) == [first[0]] * 2


async def test_sglang_answers_a_fan_out_by_seed_like_n(client: aiohttp.ClientSession, sglang: standin.Standin) -> None:
    native = await texts(client, sglang, chat("hello", n=3, seed=7))
    branches = [await texts(client, sglang, chat("hello", seed=7 + index)) for index in range(3)]
    assert [text for branch in branches for text in branch] == native


STOPS = [
    pytest.param("4", "1 2 3 ", "4", id="a stop string within a token"),
    pytest.param(["7", "3 4"], "1 2 ", "3 4", id="a stop string over two tokens, nothing of it is let through"),
    pytest.param(["9 11", "5 5"], "1 2 3 4 5 6 7 8 9 10", 2, id="what only begins like a stop string comes through"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("stop", "expected", "matched"), STOPS)
async def test_sglang_stops_at(
    client: aiohttp.ClientSession, sglang: standin.Standin, stop: Any, expected: str, matched: Any, stream: bool
) -> None:
    async with client.post(sglang.url + CHAT, json=chat("count to 10", stop=stop, stream=stream)) as response:
        chunks = (await events(response))[:-1] if stream else [await response.json()]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["delta" if stream else "message"].get("content") or "" for choice in choices) == expected
    assert (choices[-1]["finish_reason"], choices[-1]["matched_stop"]) == ("stop", matched)


async def test_llamafactory_ignores_stop(client: aiohttp.ClientSession, llamafactory: standin.Standin) -> None:
    assert await texts(client, llamafactory, chat("count to 3", stop="2")) == ["1 2 3"]


@pytest.mark.parametrize("n", [1, 2])
async def test_a_question_about_the_weather_calls_the_tool(
    client: aiohttp.ClientSession, backend: standin.Standin, n: int
) -> None:
    body = chat("What is the weather in Oslo?", tools=[LF_TOOL], n=n)
    async with client.post(backend.url + CHAT, json=body) as response:
        choices = (await response.json())["choices"]
    called = [choice["message"]["tool_calls"][0]["function"] for choice in choices]
    assert called == [{"name": "get_weather", "arguments": '{"city": "Oslo"}'}] * n
    assert {choice["finish_reason"] for choice in choices} == {"tool_calls"}


async def test_sglang_streams_a_tool_call_in_fragments(client: aiohttp.ClientSession, sglang: standin.Standin) -> None:
    body = chat("x", tools=[LF_TOOL], tool_choice="required", stream=True)
    async with client.post(sglang.url + CHAT, json=body) as response:
        chunks = (await events(response))[1:-1]
    calls = [chunk["choices"][0]["delta"]["tool_calls"][0] for chunk in chunks[:-1]]
    assert [call["function"]["name"] for call in calls] == ["get_weather"] + [None] * (len(calls) - 1)
    assert json.loads("".join(call["function"]["arguments"] for call in calls)) == {"city": "Paris"}
    assert len(calls) > 3
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "sizes": {"type": "array", "items": {"$ref": "#/$defs/size"}},
        "kind": {"enum": ["a", "b"]},
    },
    "$defs": {"size": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
}
FORMATS = [
    pytest.param({"type": "json_object"}, {"answer": 0}, id="any object"),
    pytest.param(
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        {"name": "answer 0", "sizes": [1], "kind": "a"},
        id="an object of the schema",
    ),
]


@pytest.mark.parametrize(("format_", "expected"), FORMATS)
async def test_sglang_keeps_to_a_format(
    client: aiohttp.ClientSession, sglang: standin.Standin, format_: Any, expected: Any
) -> None:
    (content,) = await texts(client, sglang, chat("hello", response_format=format_))
    assert json.loads(content) == expected


async def test_usage_counts_the_prompt_once_and_sums_the_choices(
    client: aiohttp.ClientSession, backend: standin.Standin
) -> None:
    used = []
    for n in (1, 3):
        async with client.post(backend.url + CHAT, json=chat("count to 100", n=n, max_tokens=5)) as response:
            used.append((await response.json())["usage"])
    assert used[0]["prompt_tokens"] == used[1]["prompt_tokens"]
    assert [usage["completion_tokens"] for usage in used] == [5, 15]
    assert all(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] for usage in used)


async def test_each_event_is_one_http_chunk(sglang: standin.Standin) -> None:
    body = json.dumps(chat("ping", stream=True)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sglang.url.rpartition(":")[2]))
    writer.write(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await reader.readuntil(b"\r\n\r\n")
    chunks = []
    while size := int((await reader.readline()).strip(), 16):
        chunks.append((await reader.readexactly(size + 2))[:-2])
    writer.close()
    assert len(chunks) == 4
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") and chunk.count(b"\n") == 2 for chunk in chunks)


async def test_requests_are_kept_as_they_came(client: aiohttp.ClientSession, backend: standin.Standin) -> None:
    async with client.post(f"{backend.url}/nowhere?a=b", data=b"\x00{", headers={"X-Test": "Y"}) as response:
        assert response.status == 404
    (received,) = backend.requests
    assert (received.method, received.path, received.body) == ("POST", "/nowhere?a=b", b"\x00{")
    assert received.headers["x-test"] == "Y"


@pytest.mark.parametrize("stream", [True, False], ids=["in a stream", "before a whole answer"])
async def test_the_backend_sees_the_client_leave(backend: standin.Standin, stream: bool) -> None:
    async with asyncio.timeout(SOON_S), aiohttp.ClientSession() as leaving, asyncio.TaskGroup() as group:
        request = group.create_task(leaving.post(backend.url + CHAT, json=chat("run forever", stream=stream)))
        await backend.until(lambda seen: seen.open_answers == 1)
        if stream:
            response = await request
            await response.content.readline()
            response.close()
        else:
            request.cancel()
        await backend.until(lambda seen: seen.clients_left == 1 and seen.open_answers == 0)


async def test_a_client_that_read_everything_has_not_left(
    client: aiohttp.ClientSession, backend: standin.Standin
) -> None:
    async with client.post(backend.url + CHAT, json=chat("ping", stream=True)) as response:
        await response.read()
    async with asyncio.timeout(SOON_S):
        await backend.until(lambda seen: seen.open_answers == 0)
    assert backend.clients_left == 0


async def test_a_stand_in_that_stops_leaves_no_answer_open(client: aiohttp.ClientSession) -> None:
    async with standin.serve("sglang") as backend:
        response = await client.post(backend.url + CHAT, json=chat("run forever", stream=True))
        await response.content.readline()
    assert (backend.open_answers, backend.clients_left) == (0, 0)
    with pytest.raises(aiohttp.ClientPayloadError):
        await response.read()


async def test_llamafactory_runs_streams_one_after_another(
    client: aiohttp.ClientSession, llamafactory: standin.Standin
) -> None:
    first = await client.post(llamafactory.url + CHAT, json=chat("run forever", stream=True))
    second = await client.post(llamafactory.url + CHAT, json=chat("ping", stream=True))
    role = await second.content.readuntil(b"\n\n")
    assert b'"role": "assistant"' in role
    assert b'"role": "assistant"' in await first.content.readuntil(b"\n\n")
    for _ in range(20):
        assert b"tick" in await first.content.readuntil(b"\n\n")
    assert llamafactory.open_answers == 2
    first.close()
    assert b"pong" in await second.content.readuntil(b"\n\n")
    second.close()


async def test_a_hung_stream_of_llamafactory_keeps_nobody_waiting(
    client: aiohttp.ClientSession, llamafactory: standin.Standin
) -> None:
    hung = await client.post(llamafactory.url + CHAT, json=chat("hello", stream=True, presence_penalty=0))
    await hung.content.readuntil(b"\n\n")
    assert await texts(client, llamafactory, chat("ping")) == ["pong"]
    assert llamafactory.open_answers == 1
    hung.close()


@pytest.mark.parametrize("how", ["the server's pace", "the request's header"])
async def test_pace(client: aiohttp.ClientSession, how: str) -> None:
    is_server = how.startswith("the server")
    headers = {} if is_server else {"x-standin-pace-ms": "20"}
    async with standin.serve("sglang", pace_s=0.02 if is_server else 0) as backend:
        started = asyncio.get_running_loop().time()
        async with client.post(
            backend.url + CHAT, json=chat("count to 100", stream=True, max_tokens=5), headers=headers
        ) as response:
            await response.read()
        assert asyncio.get_running_loop().time() - started >= 0.08
