"""Answers that are passed on as they come: event streams, and what a client sees when the backend stops short."""

import asyncio
import gzip
import json

import pytest

POLICY = """
version: 1
backends: {main: {url: "${BACKEND}", timeouts: {first_content: 10s, idle: 10s}}}
keep_alive: 10s
"""
HASTY = POLICY.replace("10s}", "300ms}").replace("10s, idle", "300ms, idle")
BODY = b'{"model": "m", "stream": true}'
ASK = b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
ROLE = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n'
HELLO = b'data: {"choices": [{"index": 0, "delta": {"content": "hello"}}]}\n\n'
PING = b": ping\n\n"
END = b"0\r\n\r\n"


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


async def asked(stage, policy=POLICY, raw=ASK):
    """Return a client that has asked, and the request as the backend sees it."""
    await stage.proxy(policy)
    client = await stage.ask(raw)
    call = await stage.backend.call()
    await call.body()
    return client, call


def error_of(event):
    """Return the error that the last event of a body tells of."""
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    return json.loads(event.removeprefix(b"data: "))["error"]


STREAMS = [
    pytest.param([HELLO, b"data: [DONE]\n\n"], id="events as most servers send them"),
    pytest.param([b":ping\r\n\r\n", HELLO.replace(b"\n", b"\r\n"), b"data:[DONE]\r\n\r\n"], id="CRLF and comments"),
    pytest.param([b"\xef\xbb\xbfevent: x\rid:1\rretry: 5\r", b"data:  {}\r\r"], id="a mark, fields and CR alone"),
    pytest.param([HELLO[:20], HELLO[20:21], HELLO[21:]], id="events that are cut anywhere"),
    pytest.param([b"\n\n\n", b"data: \xff\xfe not JSON\n\n"], id="what is no chunk at all"),
    pytest.param([HELLO * 3000], id="more than a buffer"),
]


@pytest.mark.parametrize("parts", STREAMS)
async def test_a_stream_is_passed_on_byte_for_byte_as_it_comes(stage, parts):
    client, call = await asked(stage)
    call.send(STREAM, chunk(parts[0]))
    await client.until(b"\r\n\r\n")
    for part in parts:
        if part is not parts[0]:
            call.send(chunk(part))
        seen = b""
        while len(seen) < len(part):
            seen += await client.part()
        assert seen == part
    call.answer(END)
    assert await client.part() == b""


async def test_the_head_of_a_stream_says_what_the_backend_s_said(stage):
    client, call = await asked(stage)
    call.answer(STREAM, chunk(HELLO), END)
    answer = await client.answer()
    assert (answer.get("content-type"), answer.body, answer.is_whole) == (
        "text/event-stream; charset=utf-8",
        HELLO,
        True,
    )


EMPTY = [
    pytest.param(STREAM, "close", id="a stream that is cut at once"),
    pytest.param(STREAM + END, None, id="a stream that ends at once"),
    pytest.param(
        STREAM.replace(b"Transfer-Encoding: chunked", b"Connection: close"), "close", id="a stream without framing"
    ),
    pytest.param(STREAM, "reset", id="a stream that is reset"),
    pytest.param(WHOLE, "close", id="an answer that is cut at once"),
    pytest.param(WHOLE.replace(b"Transfer-Encoding: chunked", b"Content-Length: 9"), "close", id="a promised length"),
]


@pytest.mark.parametrize(("raw", "end"), EMPTY)
async def test_an_answer_without_a_byte_becomes_an_error(stage, raw, end):
    client, call = await asked(stage)
    call.send(raw)
    if end:
        getattr(call, end)()
    answer = await client.answer()
    assert (answer.status, answer.get("content-type")) == (502, "application/json")
    assert answer.get("proxy-status") == "mendproxy;error=http_response_incomplete"
    assert json.loads(answer.body)["error"]["code"] == "http_response_incomplete"


async def test_the_client_s_connection_serves_on_after_an_error(stage):
    client, call = await asked(stage)
    call.send(STREAM)
    call.close()
    assert (await client.answer()).status == 502
    client.send(ASK)
    (await stage.backend.call()).send(STREAM, chunk(HELLO), END)
    assert (await client.answer()).body == HELLO


CUTS = [
    pytest.param(HELLO, HELLO, id="between two events"),
    pytest.param(HELLO + HELLO[:-1], HELLO + HELLO[:-1] + b"\n\n", id="before the blank line"),
    pytest.param(HELLO + HELLO[:9], HELLO + HELLO[:9] + b"\n\n", id="in the middle of an event"),
    pytest.param(HELLO.replace(b"\n", b"\r\n"), HELLO.replace(b"\n", b"\r\n"), id="between two events with CRLF"),
]


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize(("sent", "expected"), CUTS)
async def test_a_stream_that_is_cut_ends_with_an_error_and_unclean(stage, sent, expected, end):
    client, call = await asked(stage)
    call.send(STREAM, chunk(sent))
    await client.sees(sent)
    getattr(call, end)()
    answer = await client.answer()
    assert not answer.is_whole
    assert answer.body.startswith(expected)
    assert error_of(answer.body.removeprefix(expected))["code"] == "http_response_incomplete"


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(WHOLE, id="JSON in chunks"),
        pytest.param(WHOLE.replace(b"Transfer-Encoding: chunked", b"Content-Length: 999"), id="JSON with its length"),
        pytest.param(
            STREAM.replace(b"Transfer-Encoding: chunked", b"Content-Length: 999"), id="events with their length"
        ),
        pytest.param(STREAM.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"), id="gzipped events"),
    ],
)
async def test_an_answer_that_can_t_tell_an_error_is_broken_off(stage, head):
    client, call = await asked(stage)
    part = HELLO if b"chunked" not in head else chunk(HELLO)
    call.send(head, part)
    await client.until(HELLO)
    call.close()
    rest = await client.rest()
    assert rest.strip() == b""
    assert END not in rest


async def test_a_cut_towards_http_1_0_is_a_reset(stage):
    client, call = await asked(stage, raw=ASK.replace(b"HTTP/1.1", b"HTTP/1.0"))
    call.send(WHOLE, chunk(HELLO))
    await client.until(HELLO)
    call.close()
    await client.wait(lambda: client.was_reset)


async def test_a_gzipped_stream_is_passed_on_as_it_is(stage):
    data = gzip.compress(HELLO)
    client, call = await asked(stage)
    call.answer(STREAM.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"), chunk(data), END)
    answer = await client.answer()
    assert (answer.get("content-encoding"), answer.body) == ("gzip", data)


@pytest.mark.parametrize("head", [pytest.param(STREAM, id="a stream"), pytest.param(WHOLE, id="an answer")])
async def test_silence_before_the_first_byte_is_a_timeout(stage, head):
    client, call = await asked(stage, HASTY)
    call.send(head)
    answer = await client.answer()
    assert (answer.status, answer.get("proxy-status")) == (504, "mendproxy;error=connection_read_timeout")
    await call.gone()


async def test_silence_in_the_middle_of_a_stream_is_told_in_it(stage):
    client, call = await asked(stage, HASTY)
    call.send(STREAM, chunk(HELLO))
    answer = await client.answer()
    assert answer.body.startswith(HELLO)
    assert error_of(answer.body.removeprefix(HELLO))["code"] == "connection_read_timeout"
    assert not answer.is_whole
    await call.gone()


async def test_silence_in_the_middle_of_another_answer_breaks_it_off(stage):
    client, call = await asked(stage, HASTY)
    call.send(WHOLE, chunk(b"{"))
    answer = await client.answer()
    assert (answer.body, answer.is_whole) == (b"{", False)


@pytest.mark.parametrize(
    "first", [pytest.param(ROLE, id="after a role"), pytest.param(PING, id="after nothing but comments")]
)
async def test_pings_are_no_content(stage, first):
    client, call = await asked(stage, HASTY)
    call.send(STREAM, chunk(first))
    await client.until(first)
    async with asyncio.timeout(10):
        while b"error" not in client.received:
            # The next ping goes out when the last one has come, so that the backend is never silent.
            call.send(chunk(PING))
            await client.wait(lambda: PING in client.received or client.has_ended)
            seen, _, _ = bytes(client.received).partition(b"data: ")
            client.cut(len(seen))
    rest = await client.rest()
    assert b"connection_read_timeout" in rest
    assert END not in rest
    await call.gone()


async def test_content_after_a_long_silence_of_the_client_s_is_waited_for(stage):
    client, call = await asked(stage, POLICY.replace("keep_alive: 10s", "keep_alive: 100ms"))
    call.send(STREAM)
    head = await client.until(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    call.answer(chunk(HELLO), END)
    assert await client.until(END) == chunk(HELLO) + END


async def test_a_stream_that_dies_after_its_head_went_out_alone_is_told_in_it(stage):
    client, call = await asked(stage, POLICY.replace("keep_alive: 10s", "keep_alive: 100ms"))
    call.send(STREAM)
    await client.sees(b"\r\n\r\n")
    call.close()
    answer = await client.answer()
    assert answer.status == 200
    assert error_of(answer.body)["code"] == "http_response_incomplete"


async def test_a_slow_client_holds_the_backend_back(stage):
    client, call = await asked(stage)
    client.transport.pause_reading()
    call.send(STREAM)
    part = chunk(HELLO * 5000)
    sent = 0
    while await call.wire.drained(0.2):
        call.send(part)
        sent += 1
        assert sent * len(part) < 64 << 20, "nobody holds the backend back"
    client.transport.resume_reading()
    call.send(END)
    answer = await client.answer()
    assert (answer.is_whole, answer.body) == (True, HELLO * 5000 * sent)


async def test_a_head_with_a_body_is_passed_on_whatever_rules_would_do_to_a_post(stage):
    await stage.proxy("""
version: 1
backends: {main: {url: "${BACKEND}"}}
rules:
  - {id: whole, when: {body: {stream: true}}, repair: [stream: false]}
""")
    body = b'{"model": "m", "stream": true}'
    client = await stage.ask(
        b"HEAD /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    call = await stage.backend.call()
    assert await call.body() == body
    call.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n")
    answer = await client.answer("HEAD")
    assert (answer.status, answer.get("content-length"), answer.get("mendproxy-repairs")) == (200, "7", None)
