"""Clients that leave: the backend is told within a second by the end of its connection, at whatever point it is."""

import asyncio
import json

import pytest

POLICY = """
version: 1
backends: {main: {url: "${BACKEND}"}}
keep_alive: 50ms
rules:
  - {id: whole, when: {body: {whole: true}}, repair: [drop: [whole], stream: false]}
  - {id: live, when: {body: {live: true}}, repair: [drop: [live], stream: true]}
  - {id: single-file, when: {body: {single_file: true, n: {gt: 1}}}, repair: [fan_out: {concurrency: 1}]}
  - {id: choices, when: {body: {n: {gt: 1}}}, repair: [fan_out: {}]}
"""
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
SOON_S = 1.0


def ask(**fields):
    body = json.dumps({"model": "m", "messages": []} | fields).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def event(**delta):
    data = b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


HELLO = event(content="hello")

# What the client asks, how many branches that makes, what each answers before the client leaves, what it has seen then.
POINTS = [
    pytest.param(ask(), 1, b"", None, id="before the head"),
    pytest.param(ask(stream=True), 1, STREAM, None, id="before the first event"),
    pytest.param(ask(stream=True), 1, STREAM + HELLO, b"hello", id="within a stream"),
    pytest.param(ask(), 1, JSON + b"1\r\n{\r\n", b"{", id="within another answer"),
    pytest.param(ask(stream=True, whole=True), 1, b"", b": waiting", id="while a stream waits for JSON"),
    pytest.param(ask(stream=True, whole=True), 1, JSON + b"1\r\n{\r\n", b": waiting", id="within the JSON of a stream"),
    pytest.param(ask(live=True), 1, STREAM + HELLO, None, id="while JSON is collected from a stream"),
    pytest.param(ask(n=3), 3, b"", None, id="before any branch has answered"),
    pytest.param(ask(n=3, stream=True), 3, STREAM, b": waiting", id="before any branch's first token"),
    pytest.param(ask(n=3, stream=True), 3, STREAM + HELLO, b"hello", id="within the streams of three branches"),
]


@pytest.mark.parametrize("way", ["close", "reset"])
@pytest.mark.parametrize(("raw", "branches", "answered", "seen"), POINTS)
async def test_every_branch_ends_when_the_client_leaves(stage, raw, branches, answered, seen, way):
    await stage.proxy(POLICY)
    client = await stage.ask(raw)
    calls = [await stage.backend.call() for _ in range(branches)]
    for call in calls:
        await call.body()
        call.send(answered)
    if seen:
        await client.sees(seen)
    getattr(client, way)()
    async with asyncio.timeout(SOON_S):
        for call in calls:
            await call.gone()
        await stage.data_port.wait_idle()
    assert stage.backend.calls.empty()


async def test_branches_that_were_not_sent_yet_are_never_sent(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(ask(n=3, stream=True, single_file=True))
    call = await stage.backend.call()
    await call.body()
    call.send(STREAM, HELLO)
    await client.sees(b"hello")
    client.close()
    async with asyncio.timeout(SOON_S):
        await call.gone()
        await stage.data_port.wait_idle()
    assert stage.backend.calls.empty()
    assert len(stage.backend.wires) == 1


async def test_a_request_that_waits_for_its_turn_at_the_backend_is_never_sent(stage):
    await stage.proxy(POLICY.replace('"${BACKEND}"', '"${BACKEND}", max_concurrency: 1'))
    first = await stage.ask(ask())
    call = await stage.backend.call()
    second = await stage.ask(ask())
    await stage.data_port.serves(2)
    second.close()
    await stage.data_port.serves(1)
    call.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    assert (await first.answer()).body == b"ok"
    assert stage.backend.calls.empty()


async def test_a_client_that_leaves_within_its_body_is_never_heard_of(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(ask()[:-1])
    await stage.data_port.serves(1)
    client.close()
    await stage.data_port.serves(0)
    assert stage.backend.wires == []


async def test_a_client_that_leaves_within_a_streamed_body_takes_the_upload_along(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(b"PUT /v1/blob HTTP/1.1\r\nHost: p\r\nContent-Length: 10\r\n\r\nhalf")
    call = await stage.backend.call()
    assert await call.wire.until(b"half") == b"half"
    client.close()
    async with asyncio.timeout(SOON_S):
        await call.gone()
        await stage.data_port.wait_idle()


async def test_a_client_that_has_its_answer_leaves_the_backend_s_connection_open(stage):
    await stage.proxy(POLICY)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    for _ in range(3):
        client = await stage.ask(ask())
        call = await stage.backend.call()
        await call.body()
        call.answer(answer)
        assert (await client.answer()).body == b"ok"
        client.close()
    assert len(stage.backend.wires) == 1
