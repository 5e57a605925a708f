"""Kept-alive connections that the backend closes just as they are used again: tried once more, and only then."""

import json

import pytest

POLICY = """
version: 1
backends: {main: {url: "${BACKEND}", timeouts: {first_content: 400ms}}}
rules:
  - {id: sharp, when: {body: {sharp: true}}, repair: [drop: [sharp]]}
"""
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
GET = b"GET /v1/models HTTP/1.1\r\nHost: p\r\n\r\n"
POST = b'POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: 15\r\n\r\n{"sharp": true}'
STREAMED = b"PUT /v1/blob HTTP/1.1\r\nHost: p\r\nContent-Length: 2\r\n\r\nhi"
LARGE = b"PUT /v1/blob HTTP/1.1\r\nHost: p\r\nContent-Length: 1048577\r\n\r\n" + b"x" * 1_048_577

REQUESTS = [
    pytest.param(GET, b"", id="a request without a body"),
    pytest.param(POST, b"{}", id="a request whose body is held"),
    pytest.param(STREAMED, b"hi", id="a request whose small body was streamed on"),
]


async def kept_alive(stage, raw):
    """Return a client whose next request will go out on a connection that was used before, and that request."""
    await stage.proxy(POLICY)
    client = await stage.ask(GET)
    (await stage.backend.call()).answer(OK)
    await client.answer()
    client.send(raw)
    call = await stage.backend.call()
    assert len(stage.backend.wires) == 1
    return client, call


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize(("raw", "body"), REQUESTS)
async def test_a_request_that_dies_with_an_old_connection_is_sent_again_on_a_fresh_one(stage, raw, body, end):
    client, call = await kept_alive(stage, raw)
    getattr(call, end)()
    again = await stage.backend.call()
    assert len(stage.backend.wires) == 2
    assert (again.head.first_line, await again.body()) == (call.head.first_line, body)
    assert [line for line in again.head.headers if line[0] != "Connection"] == list(call.head.headers)
    again.answer(OK)
    assert (await client.answer()).body == b"ok"


@pytest.mark.parametrize(("raw", "body"), REQUESTS)
async def test_it_is_sent_again_once_only(stage, raw, body):
    client, call = await kept_alive(stage, raw)
    call.close()
    again = await stage.backend.call()
    assert await again.body() == body
    again.close()
    answer = await client.answer()
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (502, "connection_terminated")
    assert stage.backend.calls.empty()
    assert len(stage.backend.wires) == 2


async def test_a_connection_that_closed_while_it_was_idle_is_not_used(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(GET)
    call = await stage.backend.call()
    call.answer(OK)
    await client.answer()
    call.close()
    await call.gone()
    client.send(STREAMED)
    (await stage.backend.call()).answer(OK)
    assert (await client.answer()).status == 200


async def test_an_answer_that_had_begun_is_not_asked_for_again(stage):
    client, call = await kept_alive(stage, POST)
    await call.body()
    call.send(OK.removesuffix(b"ok"))
    call.close()
    answer = await client.answer()
    assert (answer.status, answer.get("proxy-status")) == (502, "mendproxy;error=http_response_incomplete")
    assert stage.backend.calls.empty()


async def test_a_large_body_that_was_streamed_on_is_gone_and_can_t_be_sent_again(stage):
    client, call = await kept_alive(stage, LARGE)
    await call.body()
    call.close()
    assert (await client.answer()).status == 502
    assert stage.backend.calls.empty()


async def test_slowness_is_no_staleness(stage):
    client, _ = await kept_alive(stage, POST)
    answer = await client.answer()
    assert (answer.status, answer.get("proxy-status")) == (504, "mendproxy;error=http_response_timeout")
    assert stage.backend.calls.empty()
