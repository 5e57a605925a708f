"""Memory is bounded over all requests and connections: by the policy's `limits.total` and `limits.connections`."""

import asyncio
import gzip
import json
import tracemalloc

import pytest

MiB = 1 << 20
POLICY = """
version: 1
backends: {main: {url: "${BACKEND}", timeouts: {connect: 10s, first_content: 20s, idle: 20s}}}
limits: {body: 64MiB, response: 64MiB, total: 4MiB, connections: 40}
rules:
  - {id: collected, when: {model: collected}, repair: [stream: true]}
  - {id: spread, when: {model: spread}, repair: [fan_out: {max: 8}]}
  - {id: held, when: {model: held}, on_error: {stream: empty}, repair: [drop: [x]]}
  - {id: edited, when: {model: edited}, repair: [drop: [x]]}
"""
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
GET = b"GET /v1/models HTTP/1.1\r\nHost: p\r\n\r\n"


def head(size, path="/v1/chat/completions"):
    return b"POST %b HTTP/1.1\r\nHost: p\r\nContent-Length: %d\r\n\r\n" % (path.encode(), size)


def ask(model, **more):
    body = json.dumps({"model": model, "messages": [], **more}).encode()
    return head(len(body)) + body


def is_overloaded(answer):
    assert (answer.status, answer.get("retry-after"), json.loads(answer.body)["error"]["code"]) == (
        503,
        "1",
        "overloaded",
    )


async def test_bodies_of_all_requests_share_the_limit_and_give_it_back(stage):
    await stage.proxy(POLICY)
    waiting = [await stage.ask(head(2 * MiB) + b"x" * MiB) for _ in range(3)]
    await until(lambda: stage.data_port.reserve.held_bytes == 3 * MiB)
    late = await stage.ask(head(2 * MiB) + b"x" * (MiB + 100_000))
    is_overloaded(await late.answer())
    for client in waiting:
        client.drop()
    await stage.data_port.serves(0)
    assert stage.data_port.reserve.held_bytes == 0
    client = await stage.ask(ask("any"))
    (await stage.backend.call()).answer(OK)
    assert (await client.answer()).status == 200


async def test_a_body_that_is_not_read_but_streamed_on_is_not_counted(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(head(6 * MiB, "/v1/files") + b"x" * (6 * MiB))
    call = await stage.backend.call()
    assert len(await call.body()) == 6 * MiB
    call.answer(OK)
    assert (await client.answer()).status == 200


async def test_the_copies_of_a_fan_out_are_counted(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(ask("spread", n=8, padding="x" * 600_000))
    is_overloaded(await client.answer())
    assert stage.backend.calls.empty()


HOLDING = [
    pytest.param("collected", {}, id="an answer that is collected"),
    pytest.param("held", {"stream": True}, id="a stream that proves no life"),
]


@pytest.mark.parametrize(("model", "more"), HOLDING)
async def test_what_is_held_of_answers_is_counted(stage, model, more):
    await stage.proxy(POLICY)
    client = await stage.ask(ask(model, **more))
    call = await stage.backend.call()
    call.send(STREAM)
    role = b'data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
    text = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b"y" * 40_000)
    event = text if model == "collected" else b": %b\n\n%b" % (b"z" * 40_000, role)
    while not (client.received or call.wire.has_ended):
        call.send(event)
        await call.wire.drained(5)
        await asyncio.sleep(0)
    is_overloaded(await client.answer())
    await stage.data_port.serves(0)
    assert stage.data_port.reserve.held_bytes == 0


async def test_a_refusal_that_is_read_for_the_rules_is_counted(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(ask("held", stream=True))
    call = await stage.backend.call()
    call.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 6000000\r\n\r\n" + b"x" * 6_000_000)
    is_overloaded(await client.answer())


async def test_a_gzipped_body_counts_with_what_it_becomes(stage):
    await stage.proxy(POLICY)
    body = gzip.compress(json.dumps({"model": "edited", "x": "y" * (5 * MiB)}).encode())
    raw = head(len(body)).replace(b"Host: p\r\n", b"Host: p\r\nContent-Encoding: gzip\r\n") + body
    is_overloaded(await (await stage.ask(raw)).answer())


async def test_connections_beyond_the_limit_are_turned_away_until_there_is_room(stage):
    await stage.proxy(POLICY.replace("connections: 40", "connections: 2"))
    first, second = [await stage.ask(GET) for _ in range(2)]
    calls = [await stage.backend.call() for _ in range(2)]
    third = await stage.client()
    answer = await third.answer()
    is_overloaded(answer)
    assert (answer.get("connection"), answer.get("proxy-status")) == (
        "close",
        "mendproxy;error=connection_limit_reached",
    )
    await third.gone()
    for call, client in zip(calls, (first, second), strict=True):
        call.answer(OK)
        assert (await client.answer()).status == 200
    first.drop()
    await until(lambda: stage.listener.open_connections == 1)
    fourth = await stage.ask(GET)
    (await stage.backend.call()).answer(OK)
    assert (await fourth.answer()).status == 200


async def test_a_head_that_never_ends_is_not_taken_in(stage):
    await stage.proxy(POLICY)
    clients = [await stage.ask(b"GET / HTTP/1.1\r\nHost: p\r\n") for _ in range(20)]
    tracemalloc.start()
    try:
        answers = [await endless(client) for client in clients]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert {(one.status, json.loads(one.body)["error"]["code"]) for one in answers} == {(431, "headers_too_large")}
    # Both ends are in this process; a head's bytes are held about three times while they come.
    assert peak < 20 * 4 * 192 * 1024


async def endless(client):
    for number in range(100):
        if client.received or client.has_ended:
            break
        client.send(b"X-%d: %b\r\n" % (number, b"a" * 8000))
        await client.drained(5)
        await asyncio.sleep(0.001)
    return await client.answer()


async def until(holds):
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 nobody tells when a byte is counted
            await asyncio.sleep(0.001)


async def test_a_stream_that_is_under_way_holds_nothing_of_its_request(stage):
    stage.data_path = "direct"  # the other one's task keeps it
    await stage.proxy(POLICY)
    body = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "hi"}]}'
    client = await stage.ask(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    call = await stage.backend.call()
    await call.body()
    assert stage.data_port.reserve.held_bytes == len(body)
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
    call.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    call.send(b"%x\r\n%b\r\n" % (len(event), event))
    await client.sees(event)
    assert stage.data_port.reserve.held_bytes == 0
    call.answer(b"0\r\n\r\n")
    assert (await client.answer()).body == event
    await stage.data_port.serves(0)
    assert stage.data_port.reserve.held_bytes == 0


@pytest.mark.parametrize("times", [1, 4], ids=["the first time", "with a head that is known"])
async def test_a_body_that_was_edited_is_held_beside_the_clients_own(stage, times):
    await stage.proxy(POLICY)
    client, bodies = await stage.client(), [b'{"model": "edited", "x": 1}', b'{"model":"edited"}']
    for _ in range(times):
        client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: %d\r\n\r\n%b"
            % (len(bodies[0]), bodies[0])
        )
        call = await stage.backend.call()
        assert await call.body() == bodies[1]
        assert stage.data_port.reserve.held_bytes == sum(map(len, bodies))
        call.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await client.answer()
        await stage.data_port.serves(0)
        assert stage.data_port.reserve.held_bytes == 0
