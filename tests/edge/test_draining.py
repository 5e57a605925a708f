"""A drain on the wire: whoever was not told that the connection ends is served once more, and told then."""

import json

import pytest

from tests.edge.seen import read_on

POLICY = """
version: 1
backends: {main: {url: "${BACKEND}"}}
rules:
  - {id: sharp, when: {body: {sharp: true}}, repair: [drop: [sharp]]}
  - {id: whole, when: {body: {whole: true}}, repair: [drop: [whole], stream: false]}
"""
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
BEGUN = HEAD + b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
END = b"e\r\n%b\r\n0\r\n\r\n" % DONE
STREAM = BEGUN + END
CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
COMPLETION = json.dumps({"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [CHOICE]})
WHOLE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(COMPLETION)
    + COMPLETION.encode()
)


def post(**said):
    body = json.dumps({"model": "m", "messages": [], **said}).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


ANSWERS = [
    pytest.param(post(), OK, id="json"),
    pytest.param(post(sharp=True), OK, id="dropped"),
    pytest.param(post(stream=True), STREAM, id="stream"),
    pytest.param(post(stream=True, whole=True), WHOLE, id="stream made of json"),
    pytest.param(post(model="m", pad="x" * 100_000), OK, id="long"),
]


async def asked(stage, client, raw, answer):
    """Return what a client is answered to a request."""
    client.send(raw)
    call = await stage.backend.call()
    await call.body()
    call.answer(answer)
    return await client.answer()


async def idle(stage):
    """Wait until nothing is being done."""
    await stage.data_port.serves(0)
    await read_on()


@pytest.mark.parametrize(("raw", "answer"), ANSWERS)
@pytest.mark.parametrize("before", [0, 4], ids=["first", "known"])
async def test_an_answer_that_begins_in_the_grace_says_so_though_its_request_came_before(stage, before, raw, answer):
    await stage.proxy(POLICY)
    client = await stage.client()
    for _ in range(before):
        assert (await asked(stage, client, raw, answer)).get("connection") is None
        await idle(stage)
    client.send(raw)
    call = await stage.backend.call()
    await call.body()
    stage.data_port.leave()
    call.answer(answer)
    last = await client.answer()
    assert (last.status, last.is_whole, last.get("connection")) == (200, True, "close")
    await client.gone()


@pytest.mark.parametrize("how", ["first", "known"])
async def test_a_stream_that_had_begun_could_not_say_so_so_the_next_one_is_given_and_does(stage, how):
    await stage.proxy(POLICY)
    client = await stage.client()
    for _ in range(4 if how != "first" else 0):
        await asked(stage, client, post(stream=True), STREAM)
        await idle(stage)
    client.send(post(stream=True))
    call = await stage.backend.call()
    await call.body()
    call.send(BEGUN)
    await client.sees(EVENT)
    stage.data_port.leave()
    call.answer(END)
    answer = await client.answer()
    assert (answer.body, answer.get("connection")) == (EVENT + DONE, None)
    await idle(stage)
    stage.data_port.close()
    last = await asked(stage, client, post(stream=True), STREAM)
    assert (last.body, last.is_whole, last.get("connection")) == (EVENT + DONE, True, "close")
    await client.gone()


@pytest.mark.parametrize(("raw", "answer"), ANSWERS)
async def test_who_was_idle_is_served_in_the_grace_and_told(stage, raw, answer):
    await stage.proxy(POLICY)
    client = await stage.client()
    assert (await asked(stage, client, raw, answer)).get("connection") is None
    await idle(stage)
    stage.data_port.leave()
    last = await asked(stage, client, raw, answer)
    assert (last.status, last.is_whole, last.get("connection")) == (200, True, "close")
    await client.gone()


@pytest.mark.parametrize("leaves_first", [False, True])
async def test_a_connection_that_asked_nothing_yet_is_served(stage, leaves_first):
    await stage.proxy(POLICY)
    if leaves_first:
        stage.data_port.leave()
    client = await stage.client()
    await read_on()
    if not leaves_first:
        stage.data_port.leave()
    stage.data_port.close()
    last = await asked(stage, client, post(), OK)
    assert (last.status, last.get("connection")) == (200, "close")


@pytest.mark.parametrize("before", [1, 4], ids=["second", "known"])
@pytest.mark.parametrize("size", [40, len(post()) - 5], ids=["a part of the head", "a part of the body"])
async def test_a_request_of_which_a_part_had_come_is_served(stage, size, before):
    await stage.proxy(POLICY)
    client = await stage.client()
    for _ in range(before):
        await asked(stage, client, post(), OK)
        await idle(stage)
    client.send(post()[:size])
    await read_on()
    stage.data_port.leave()
    stage.data_port.close()
    last = await asked(stage, client, post()[size:], OK)
    assert (last.status, last.body) == (200, b"{}")
