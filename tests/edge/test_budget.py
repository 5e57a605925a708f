"""Memory is bounded, whatever a backend or a client does: by the policy's limits, and by what a socket holds back.

Bytes are counted where they are written, and what is held is measured by tracemalloc. The other ends live in the same
process, so they send in small parts, each when the one before has been taken, and keep nothing of what comes.
"""

import asyncio
import gzip
import json
import tracemalloc
from contextlib import contextmanager

import pytest

from proxy import bodies, client, server

MiB = 1 << 20
# The reactive rule has a relayed stream held until it proves life.
POLICY = """
version: 1
backends: {main: {url: "${BACKEND}", timeouts: {connect: 10s, first_content: 20s, idle: 20s}}}
limits: {body: 64MiB, response: 256KiB, event: 64KiB}
rules:
  - {id: collected, when: {model: collected}, repair: [stream: true]}
  - {id: exploded, when: {model: exploded}, repair: [stream: false]}
  - {id: spread, when: {model: spread}, repair: [fan_out: {max: 8}]}
  - {id: held, when: {model: held}, on_error: {stream: empty}, repair: [drop: [x]]}
"""
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
GZIP = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
# What sockets and aiohttp hold of a connection beside the limits: read buffers, write buffers, parsed pieces.
SLACK = 5 * MiB
# What the kernel may take on loopback before a writer is held back.
SOCKETS = 24 * MiB


def ask(model, path="/v1/chat/completions", **more):
    """Return a request for a completion."""
    body = json.dumps({"model": model, "messages": [], **more}).encode()
    return b"POST %b HTTP/1.1\r\nHost: p\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body)


def event(delta, index=0, **more):
    chunk = {"id": "x", "choices": [{"index": index, "delta": delta}], **more}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


@contextmanager
def held_below(limit_bytes):
    """Fail where more memory than this is held at any time."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < limit_bytes, f"{(peak - before) / MiB:.1f} MiB were held"


async def pour(wire, parts, most_bytes):
    """Send parts, each when the other end took the one before. Return how many bytes, and why it ended.

    `held`: the other end takes no more; `closed`: it closed; `poured`: all was taken.
    """
    sent_bytes = 0
    for part in parts:
        if wire.has_ended:
            return sent_bytes, "closed"
        if sent_bytes >= most_bytes:
            return sent_bytes, "poured"
        wire.send(part)
        sent_bytes += len(part)
        if not await wire.drained(0.3):
            return sent_bytes, "closed" if wire.has_ended else "held"
        await asyncio.sleep(0)
    return sent_bytes, "poured"


async def both(one, other):
    """Return what two things that go on at once come to."""
    async with asyncio.TaskGroup() as group:
        first, second = group.create_task(one), group.create_task(other)
    return first.result(), second.result()


async def pour_and_close(wire, parts, most_bytes):
    """Send parts, and then close."""
    await pour(wire, parts, most_bytes)
    wire.close()


async def refused_while(pouring, asking):
    """Return the answer that a request gets while it is still being sent."""

    async def refused():
        answer = await asking.answer()
        asking.drop()
        return answer

    return (await both(pouring, refused()))[1]


async def swallow(backend, size):
    """Take a request and its body, and keep nothing of it."""
    call = await backend.call()
    while call.wire.total_bytes < size:
        await call.wire.wait(lambda: call.wire.received)
        call.wire.received.clear()
    return call


async def is_gone(wire, within_s):
    """Return whether the other end closes in this time."""
    try:
        async with asyncio.timeout(within_s):
            await wire.gone()
    except TimeoutError:
        return False
    return True


def again(part, size=64 * 1024):
    """Yield a part for ever, in packets of about `size` bytes."""
    packet = part * max(1, size // len(part))
    while True:
        yield packet


def numbered(make, per_packet=100):
    """Yield packets of parts that are never the same."""
    number = 0
    while True:
        yield b"".join(make(number + offset) for offset in range(per_packet))
        number += per_packet


LARGE = [
    pytest.param("collected", {}, STREAM + b"data: ", again(b"x"), "event_too_large", id="a line without end"),
    pytest.param("collected", {}, STREAM + b": ", again(b"x"), "event_too_large", id="a comment without end"),
    pytest.param("collected", {}, STREAM, again(b"data: x\n"), "event_too_large", id="an event without end"),
    pytest.param("collected", {}, STREAM, again(b"event: x\n"), "event_too_large", id="an event's names without end"),
    pytest.param(
        "collected", {}, STREAM, again(event({"content": "some text"})), "response_too_large", id="text without end"
    ),
    pytest.param(
        "collected",
        {},
        STREAM,
        numbered(lambda n: event({"tool_calls": [{"index": n, "id": str(n)}]})),
        "response_too_large",
        id="tool calls without end",
    ),
    pytest.param(
        "collected",
        {},
        STREAM,
        numbered(lambda n: event({}, **{f"extra{n}": "x" * 100})),
        "response_too_large",
        id="unknown fields without end",
    ),
    pytest.param(
        "spread", {"n": 2, "stream": True}, STREAM, again(event({"role": "assistant"})), "response_too_large",
        id="roles without end",
    ),
    pytest.param("exploded", {"stream": True}, JSON + b'{"x": "', again(b"x"), "response_too_large", id="a JSON body"),
    pytest.param("spread", {"n": 2}, JSON + b'{"x": "', again(b"x"), "response_too_large", id="a branch's JSON body"),
    pytest.param(
        "exploded", {"stream": True}, GZIP, [gzip.compress(b" {" + b"x" * 50 * MiB)], "response_too_large", id="a bomb"
    ),
]  # fmt: skip


@pytest.mark.parametrize(("model", "more", "head", "parts", "code"), LARGE)
async def test_an_answer_without_end_is_cut_at_the_policy_s_limit(stage, model, more, head, parts, code):
    await stage.proxy(POLICY)
    asking = await stage.ask(ask(model, **more))
    call = await stage.backend.call()
    with held_below(SLACK):
        call.send(head)
        sent_bytes, _ = await pour(call.wire, parts, SOCKETS)
        answer = await asking.answer()
        await call.gone()
    assert sent_bytes < SOCKETS
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (502, code)


async def test_choices_without_end_are_cut_in_a_stream_that_has_begun(stage):
    await stage.proxy(POLICY)
    asking = await stage.ask(ask("spread", n=2, stream=True))
    first, second = await stage.backend.call(), await stage.backend.call()
    second.send(STREAM)
    with held_below(SLACK):
        first.send(STREAM)
        (sent_bytes, _), tail = await both(
            pour(first.wire, numbered(lambda n: event({"content": "x"}, index=n)), SOCKETS), drink(asking)
        )
    assert sent_bytes < SOCKETS
    assert b'"error"' in tail
    assert b"[DONE]" not in tail


async def drink(wire):
    """Take what comes until the other end closes or says the last chunk, and return the end of it."""
    tail = b""
    while not (wire.has_ended or tail.endswith(b"\r\n0\r\n\r\n")):
        await wire.wait(lambda: wire.received or wire.has_ended)
        tail = (tail + wire.cut(len(wire.received)))[-2000:]
    return tail


QUIET = [
    pytest.param(
        "spread", {"n": 2, "stream": True}, STREAM, b": hello" * 100 + b"\n\n", id="comments to a merged stream"
    ),
    pytest.param("collected", {}, STREAM, b": hello" * 100 + b"\n", id="comments to a collected one"),
    pytest.param("collected", {}, JSON, b" \r\n", id="blanks where JSON should begin"),
    pytest.param("collected", {}, STREAM, b"\n", id="empty lines"),
]


@pytest.mark.parametrize(("model", "more", "head", "part"), QUIET)
async def test_what_says_nothing_is_not_kept(stage, model, more, head, part):
    await stage.proxy(POLICY)
    await stage.ask(ask(model, **more))
    call = await stage.backend.call()
    with held_below(SLACK):
        call.send(head)
        assert await pour(call.wire, again(part), 8 * MiB) == (pytest.approx(8 * MiB, rel=0.05), "poured")


async def test_a_relayed_stream_is_held_to_an_event_s_size_and_then_let_go(stage):
    await stage.proxy(POLICY)
    asking = await stage.ask(ask("held", stream=True))
    call = await stage.backend.call()
    with held_below(SLACK):
        call.send(STREAM)
        _, tail = await both(pour_and_close(call.wire, again(event({"role": "assistant"})), 2 * MiB), drink(asking))
    assert b'"role"' in tail


async def test_an_error_s_body_without_end_is_read_to_the_limit(stage):
    await stage.proxy(POLICY)
    asking = await stage.ask(ask("held", stream=True))
    call = await stage.backend.call()
    with held_below(SLACK):
        call.send(b"HTTP/1.1 400 No\r\nContent-Length: 100000000\r\n\r\n")
        sent_bytes, ended = await pour(call.wire, again(b"x"), SOCKETS)
        answer = await asking.answer()
    assert (ended, sent_bytes < SOCKETS, answer.is_whole) == ("closed", True, True)


async def test_the_answers_of_all_branches_share_the_limit(stage):
    await stage.proxy(POLICY)
    large = json.dumps({"choices": [{"index": 0, "message": {"content": "x" * 150_000}, "finish_reason": "stop"}]})
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(large), large.encode())
    asking = await stage.ask(ask("spread", n=2))
    for _ in range(2):
        (await stage.backend.call()).answer(answer)
    refused = await asking.answer()
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (502, "response_too_large")
    asking = await stage.ask(ask("exploded", stream=True))
    (await stage.backend.call()).answer(answer)
    assert (await asking.answer()).status == 200


HEADS = [
    pytest.param(b"HTTP/1.1 200 OK\r\nX: ", again(b"x"), id="a header without end"),
    pytest.param(b"HTTP/1.1 200 OK\r\n", again(b"X: y\r\n"), id="headers without end"),
    pytest.param(b"HTTP/1.1 200 O", again(b"K"), id="a reason without end"),
    pytest.param(b"", again(b"\0"), id="bytes that are no HTTP"),
]


@pytest.mark.parametrize(("start", "parts"), HEADS)
async def test_an_answer_s_head_without_end_is_refused(stage, start, parts):
    await stage.proxy(POLICY)
    asking = await stage.ask(ask("plain"))
    call = await stage.backend.call()
    with held_below(SLACK):
        call.send(start)
        sent_bytes, ended = await pour(call.wire, parts, SOCKETS)
    assert (ended, sent_bytes < SOCKETS) == ("closed", True)
    assert (await asking.answer()).status == 502


async def test_interim_answers_without_end_are_not_kept(stage):
    await stage.proxy(POLICY)
    await stage.ask(ask("plain"))
    call = await stage.backend.call()
    with held_below(SLACK):
        await pour(call.wire, again(b"HTTP/1.1 100 Continue\r\n\r\n", 8 * 1024), 256 * 1024)


NEVER_READ = [
    pytest.param("plain", {}, b"HTTP/1.1 200 OK\r\n\r\n", again(b"x"), 1, id="a relayed answer"),
    pytest.param("plain", {"stream": True}, STREAM, again(event({"content": "x"})), 1, id="a relayed stream"),
    pytest.param(
        "spread", {"n": 2, "stream": True}, STREAM, again(event({"content": "x" * 1000})), 2, id="a merged stream"
    ),
]


@pytest.mark.parametrize(("model", "more", "head", "parts", "branches"), NEVER_READ)
async def test_a_client_that_never_reads_holds_the_backend_back(stage, model, more, head, parts, branches):
    await stage.proxy(POLICY)
    asking = await stage.client()
    asking.transport.pause_reading()
    asking.send(ask(model, **more))
    asked = [await stage.backend.call() for _ in range(branches)]
    with held_below(SLACK):
        for call in asked:
            call.send(head)
        sent_bytes, ended = await pour(asked[0].wire, parts, 4 * SOCKETS)
    assert (ended, sent_bytes < 2 * SOCKETS) == ("held", True)


async def test_a_client_that_takes_nothing_for_too_long_is_left(stage, monkeypatch):
    monkeypatch.setattr(client, "SEND_TIMEOUT_S", 0.1)
    await stage.proxy(POLICY)
    asking = await stage.client()
    asking.transport.pause_reading()
    asking.send(ask("plain"))
    call = await stage.backend.call()
    call.send(b"HTTP/1.1 200 OK\r\n\r\n")
    await pour(call.wire, again(b"x"), 2 * SOCKETS)
    await call.gone()
    await stage.data_port.serves(0)


async def test_a_client_that_takes_a_little_at_a_time_is_not_left(stage, monkeypatch):
    monkeypatch.setattr(client, "SEND_TIMEOUT_S", 0.1)
    await stage.proxy(POLICY)
    asking = await stage.ask(ask("plain"))
    call = await stage.backend.call()
    call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n")
    for _ in range(8):
        # A client waits for the backend here, for longer than it may itself be waited for.
        assert not await is_gone(call.wire, 0.05)
        call.send(b"x")
    assert (await asking.answer()).body == b"x" * 8


SLOW = [
    pytest.param(b"/v1/chat/completions", b"Content-Length: 100", b'{"model"', id="a body that rules read"),
    pytest.param(b"/v1/files", b"Content-Length: 100", b"part", id="a body that is streamed on"),
    pytest.param(b"/v1/files", b"Transfer-Encoding: chunked", b"4\r\npart\r\n", id="chunks"),
    pytest.param(b"/v1/chat/completions", b"Transfer-Encoding: chunked", b"", id="no chunk at all"),
]


@pytest.mark.parametrize(("path", "framing", "part"), SLOW)
async def test_a_body_that_stops_is_given_up(stage, monkeypatch, path, framing, part):
    monkeypatch.setattr(bodies, "BODY_TIMEOUT_S", 0.2)
    await stage.proxy(POLICY)
    asking = await stage.ask(b"POST %b HTTP/1.1\r\nHost: p\r\n%b\r\n\r\n%b" % (path, framing, part))
    answer = await asking.answer()
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (408, "request_timeout")
    assert answer.get("connection") == "close"


async def test_a_chunk_s_extension_without_end_is_no_body(stage, monkeypatch):
    monkeypatch.setattr(bodies, "BODY_TIMEOUT_S", 0.3)
    await stage.proxy(POLICY)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n3;"
    asking = await stage.ask(head)
    with held_below(SLACK):
        answer = await refused_while(pour(asking, again(b"x"), 10_000 * MiB), asking)
    assert answer.status == 408


@pytest.mark.parametrize("start", [b"", b"GET /x HTTP/1.1\r\nHost: p\r\nX: "], ids=["nothing", "half a head"])
async def test_a_head_that_does_not_come_is_given_up(stage, monkeypatch, start):
    monkeypatch.setattr(server, "IDLE_CONNECTION_S", 0.3)
    await stage.proxy(POLICY)
    asking = await stage.ask(start)
    while not asking.has_ended:
        # One byte at a time makes no difference.
        asking.send(b"y" if start else b"")
        await is_gone(asking, 0.05)
    assert await asking.rest() == b""
    assert stage.backend.calls.empty()


ENDLESS_REQUESTS = [
    pytest.param(b"GET /", again(b"x"), id="a target without end"),
    pytest.param(b"GET /x HTTP/1.1\r\nHost: p\r\nX: ", again(b"x"), id="a header without end"),
    pytest.param(b"GET /x HTTP/1.1\r\nHost: p\r\n", again(b"X: y\r\n"), id="headers without end"),
    pytest.param(
        b"POST /v1/files HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        again(b"X: y\r\n"),
        id="trailers",
    ),
    pytest.param(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n",
        again(b"10000\r\n" + b"x" * 65536 + b"\r\n"),
        id="a body beyond the limit",
    ),
]


@pytest.mark.parametrize(("start", "parts"), ENDLESS_REQUESTS)
async def test_a_request_without_end_is_refused(stage, start, parts):
    await stage.proxy(POLICY.replace("body: 64MiB", "body: 256KiB"))
    asking = await stage.ask(start)
    with held_below(SLACK):
        answer = await refused_while(pour(asking, parts, 10_000 * MiB), asking)
    assert answer.status in (400, 413)


async def test_requests_that_wait_for_the_first_are_held_back(stage):
    await stage.proxy(POLICY)
    asking = await stage.client()
    with held_below(SLACK):
        sent_bytes, ended = await pour(asking, again(b"GET /x HTTP/1.1\r\nHost: p\r\n\r\n"), 2 * SOCKETS)
    assert (ended, sent_bytes < SOCKETS) == ("held", True)
    assert stage.backend.calls.qsize() == 1


async def test_a_body_that_comes_byte_by_byte_is_held_once(stage):
    await stage.proxy(POLICY)
    asking = await stage.ask(b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n")
    with held_below(SLACK):
        size = 50_000
        await pour(asking, [b"1\r\nx\r\n" * 1000] * (size // 1000), SOCKETS)
        asking.send(b"0\r\n\r\n")
        call = await stage.backend.call()
        assert len(await call.body()) == size
    call.answer(OK)
    assert (await asking.answer()).body == b"ok"


@pytest.mark.parametrize(("megabytes", "path"), [(20, "/v1/chat/completions"), (60, "/v1/files")])
async def test_g01_a_large_body_is_not_held_many_times(stage, megabytes, path):
    await stage.proxy(POLICY)
    size = megabytes * MiB
    asking = await stage.ask(b"POST %b HTTP/1.1\r\nHost: p\r\nContent-Length: %d\r\n\r\n" % (path.encode(), size))
    allowed = 3 * size if path.startswith("/v1/chat") else SLACK
    with held_below(allowed):
        _, call = await both(pour(asking, again(b"x", MiB), size), swallow(stage.backend, size))
    call.answer(OK)
    assert (await asking.answer()).body == b"ok"
