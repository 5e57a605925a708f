"""JSON answers that are made streams without a task: whatever comes of one, the client is told to the byte what the
other data path tells, and as much is counted.
"""

import asyncio
import gzip
import json
import re
import socket

import pytest

from proxy.pool import Pool
from tests.edge.seen import Seen, answered, read, read_on

POLICY = """
version: 1
backends: {main: {url: "${BACKEND}", timeouts: {first_content: %s, idle: %s}}}
keep_alive: %s
limits: {response: 200KiB}
rules:
  - {id: whole, when: {body: {whole: true}}, repair: [drop: [whole], stream: false]}
  - {id: renamed, when: {body: {model: old}}, repair: [rename_model: {to: new}]}
  - {id: choices, when: {body: {n: {gt: 1}}}, repair: [fan_out: {}]}
  - {id: reacts, on_error: {status: 400, message: "unknown field '(?P<field>[a-z]+)'"}, repair: [drop: ["{field}"]]}
"""
SHORT = ("400ms", "200ms", "10s")


def ask(*headers, version="1.1", path="/v1/chat/completions", **fields):
    """Return a request for a stream, for which the backend is asked for JSON."""
    body = json.dumps({"model": "m", "messages": [], "stream": True, "whole": True} | fields)
    lines = [f"POST {path} HTTP/{version}", "Host: p", *headers, f"Content-Length: {len(body)}", "", body]
    return "\r\n".join(lines).encode()


def answer(text="hello", **fields):
    """Return the body of a whole answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    told = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    return json.dumps(told | fields).encode()


def said(body, *headers, status="200 OK", length=None):
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", "X-Theirs: 1", *headers]
    lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode() + body


CALLS = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]
CALLING = {"index": 0, "message": {"role": "assistant", "content": None, "tool_calls": CALLS}, "finish_reason": "stop"}
TEXT = {"object": "text_completion", "choices": [{"index": 0, "text": "hello", "finish_reason": "stop"}]}
ODD = {"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}], "id": ""}
CHUNK = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'

# What the client asks, and what the backend sends, one read after the other; it is answered without a task.
AT_ONCE = [
    pytest.param(ask(), [said(answer())], id="all in one read"),
    pytest.param(ask(stream_options={"include_usage": True}), [said(answer())], id="with its usage"),
    pytest.param(ask(), [said(answer())[:60], said(answer())[60:]], id="its head in two reads"),
    pytest.param(ask(), [said(b"", length=len(answer())), answer()], id="its body after its head"),
    pytest.param(
        ask(), [said(b"", length=len(answer())), answer()[:1], answer()[1:90], answer()[90:]], id="its body in pieces"
    ),
    pytest.param(
        ask(),
        [
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"%x\r\n%b\r\n" % (len(answer()), answer()),
            b"0\r\n\r\n",
        ],
        id="in chunks",
    ),
    pytest.param(ask(), [said(answer("é\n\\\u2028" * 99))], id="text of all kinds"),
    pytest.param(ask(), [said(answer(choices=[CALLING], meta={"a": [1.50]}))], id="calls of tools"),
    pytest.param(ask(path="/v1/completions"), [said(answer(**TEXT))], id="a completion"),
    pytest.param(ask(model="old"), [said(answer(model="new"))], id="an answer that is undone"),
    pytest.param(ask(model="old", stream=False), [said(answer(model="new"))], id="JSON that is undone"),
    pytest.param(
        ask(model="old", stream=False, path="/v1/completions"),
        [said(answer(**TEXT, model="new", id=None), "ETag: y")],
        id="the JSON of a completion, without an id",
    ),
    pytest.param(ask("Connection: close"), [said(answer())], id="to a client that closes"),
    pytest.param(ask(version="1.0"), [said(answer())], id="to a client of HTTP/1.0"),
    pytest.param(ask(), [said(answer(), "Connection: close")], id="from a backend that closes"),
    pytest.param(
        ask(),
        [said(answer(), "Set-Cookie: a=1", "Set-Cookie: b=2", "Cache-Control: x", "ETag: y", "Connection: x-theirs")],
        id="with headers of all kinds",
    ),
    pytest.param(ask(), [b"HTTP/1.1 103 Early Hints\r\n\r\n" + said(answer())], id="after an interim answer"),
]
# As above, but a task goes on with it. An answer that ends with None is cut there.
HANDED_OVER = [
    pytest.param(ask(), [said(b"no", status="418 Teapot")], id="an error"),
    pytest.param(ask(), [said(answer(), status="418 Teapot")], id="an answer with an error's status"),
    pytest.param(ask(), [said(b"no", status="418 Teapot", length=9), b"!", None], id="an error that is cut"),
    pytest.param(ask(), [said(b"", status="204 No Content")], id="no content"),
    pytest.param(ask(), [said(b"{garbage")], id="garbage"),
    pytest.param(ask(), [said(b"<html>")], id="a page"),
    pytest.param(ask(), [said(b"")], id="nothing"),
    pytest.param(ask(), [said(b'{"error": {"message": "boom", "code": 503}}')], id="a failure"),
    pytest.param(ask(), [said(answer(choices=[]))], id="no choice"),
    pytest.param(ask(), [said(answer().replace(b"stop", b"abort"))], id="an answer that was aborted"),
    pytest.param(ask(), [said(answer(**ODD))], id="an answer without an id"),
    pytest.param(ask(), [said(b" \n" + answer())], id="blanks first"),
    pytest.param(ask(), [said(b"", length=len(answer())), answer()[:50], None], id="a cut answer"),
    pytest.param(ask(), [said(b"", length=9), None], id="an answer that is cut after its head"),
    pytest.param(ask(), [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", b"zz\r\n"], id="no HTTP"),
    pytest.param(ask(), [b"HTTP/9 x\r\n\r\n"], id="no HTTP at all"),
    pytest.param(ask(), [said(CHUNK)], id="events, labelled as JSON"),
    pytest.param(ask(), [said(b"", length=len(CHUNK)), CHUNK[:60], CHUNK[60:]], id="events in pieces"),
    pytest.param(ask(), [said(gzip.compress(answer(), mtime=0), "Content-Encoding: gzip")], id="a compressed answer"),
    pytest.param(ask(), [said(answer(), "Content-Encoding: br")], id="an answer that says it is compressed"),
    pytest.param(ask(), [said(answer("long " * 20_000))], id="a long answer"),
    pytest.param(ask(), [said(answer("long " * 50_000))], id="an answer that is too long"),
    pytest.param(ask(model="old", stream=False), [said(answer(choices=[]))], id="JSON without a choice"),
    pytest.param(ask(model="old", stream=False), [said(CHUNK)], id="events for JSON"),
    pytest.param(ask(n=3, temperature=0), [said(answer())], id="an answer that is copied"),
]


HOW = pytest.mark.parametrize("how", ["used", "fresh", "known"])
KNOWN = pytest.mark.parametrize("how", ["used", "known"])


@HOW
@pytest.mark.parametrize(("raw", "parts"), AT_ONCE)
async def test_what_is_told_at_once_is_what_the_other_path_tells(stage, monkeypatch, raw, parts, how):
    seen, told = Seen(stage, monkeypatch, POLICY, [(ask(), [said(answer())])]), []
    for path in ("session", "direct"):
        client = await seen.begin(path, how=how)
        client.send(raw)
        call = await stage.backend.call()
        asked = json.loads(await call.body())
        await answered(call, parts)
        told.append(await seen.end(asked, await read(client)))
    assert told[1] == told[0]
    assert " 200 OK" in told[1]
    assert seen.tasks == 0


@HOW
@pytest.mark.parametrize(("raw", "parts"), HANDED_OVER)
async def test_what_a_task_goes_on_with_is_told_as_on_the_other_path(stage, monkeypatch, raw, parts, how):
    seen, told = Seen(stage, monkeypatch, POLICY, [(ask(), [said(answer())])]), []
    for path in ("session", "direct"):
        client = await seen.begin(path, how=how)
        client.send(raw)
        call = await stage.backend.call()
        await call.body()
        await answered(call, parts)
        told.append(await seen.end(await read(client)))
    assert told[1] == told[0]
    assert seen.tasks == 1


REFUSED = b'{"error": {"message": "unknown field \'odd\'"}}'


@KNOWN
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(said(REFUSED, status="400 Bad Request"), id="a refusal that a rule knows"),
        pytest.param(None, id="a connection that had been closed"),
    ],
)
async def test_another_round_may_follow(stage, monkeypatch, first, how):
    seen, told = Seen(stage, monkeypatch, POLICY, [(ask(), [said(answer())])]), []
    for path in ("session", "direct"):
        client = await seen.begin(path, how=how)
        client.send(ask(odd=1))
        call = await stage.backend.call()
        bodies = [json.loads(await call.body())]
        await answered(call, [first])
        again = await stage.backend.call()
        bodies.append(json.loads(await again.body()))
        await answered(again, [said(answer())])
        told.append(await seen.end(bodies, await read(client)))
    assert told[1] == told[0]
    assert "data: [DONE]" in told[1]


SILENT = [
    pytest.param([], SHORT, id="before its head"),
    pytest.param([said(b"", length=9)], SHORT, id="after its head"),
    pytest.param([said(b"", length=9), b"{"], SHORT, id="within its body"),
    pytest.param([said(b"", length=9), b"{"], ("200ms", "10s", "10s"), id="within its body, for the first content"),
    pytest.param([said(b"", length=9), b"{"], ("10s", "300ms", "200ms"), id="within its body, after comments"),
]


@KNOWN
@pytest.mark.parametrize(("parts", "timeouts"), SILENT)
async def test_a_backend_that_falls_silent_is_told_of(stage, monkeypatch, parts, timeouts, how):
    seen, told = Seen(stage, monkeypatch, POLICY, [(ask(), [said(answer())])]), []
    for path in ("session", "direct"):
        client = await seen.begin(path, timeouts, how=how)
        client.send(ask())
        call = await stage.backend.call()
        await call.body()
        for part in parts:
            call.send(part)
            await read_on()
        told.append(await seen.end(await read(client)))
        await call.gone()
    assert told[1] == told[0]


@KNOWN
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([], id="before its head"),
        pytest.param([said(b"", length=len(answer()))], id="after its head"),
        pytest.param([said(b"", length=len(answer())), answer()[:9]], id="within its body"),
    ],
)
async def test_comments_go_to_a_client_while_the_backend_thinks(stage, monkeypatch, parts, how):
    seen, told = Seen(stage, monkeypatch, POLICY, [(ask(), [said(answer())])]), []
    for path in ("session", "direct"):
        client = await seen.begin(path, ("10s", "10s", "100ms"), how=how)
        client.send(ask())
        call = await stage.backend.call()
        await call.body()
        for part in parts:
            call.send(part)
            await read_on()
        await client.wait(lambda: client.received.count(b": waiting\n\n") >= 2)  # noqa: B023 it is waited for here
        call.send(said(answer())[len(b"".join(parts)) :])
        first_line, headers, body, is_whole = await read(client)
        comments, events = re.fullmatch(rb"((?:: waiting\n\n)+)(.*)", body, re.DOTALL).groups()
        told.append(await seen.end(first_line, headers, events, is_whole))
        assert len(comments) >= 2 * len(b": waiting\n\n")
    assert told[1] == told[0]


async def test_a_backend_that_takes_no_connection_is_told_of(stage, monkeypatch):
    seen, told = Seen(stage, monkeypatch, POLICY, [(ask(), [said(answer())])]), []
    for path in ("session", "direct"):
        client = await seen.begin(path, how="fresh", BACKEND="http://127.0.0.1:1")
        client.send(ask())
        told.append(await seen.end(await read(client)))
    assert told[1] == told[0]
    assert "connection_refused" in told[1]


class Connecting:
    """A pool whose connections take their time."""

    def __init__(self, monkeypatch):
        self.has_begun, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.was_cancelled = False
        connect = Pool.connect

        async def slow(*arguments):
            self.has_begun.set()
            try:
                await self.may_go_on.wait()
            except asyncio.CancelledError:
                self.was_cancelled = True
                raise
            return await connect(*arguments)

        monkeypatch.setattr(Pool, "connect", slow)


async def test_comments_go_to_a_client_while_the_backend_takes_no_connection_yet(stage, monkeypatch):
    seen, connecting = Seen(stage, monkeypatch, POLICY, [(ask(), [said(answer())])]), Connecting(monkeypatch)
    client = await seen.begin("direct", ("10s", "10s", "100ms"), how="fresh")
    client.send(ask())
    await client.wait(lambda: client.received.count(b": waiting\n\n") >= 2)
    connecting.may_go_on.set()
    await answered(await stage.backend.call(), [said(answer())])
    _, _, body, is_whole = await read(client)
    assert (is_whole, body.endswith(b"\n\ndata: [DONE]\n\n")) == (True, True)
    await stage.data_port.serves(0)
    assert (seen.tasks, stage.data_port.upstream.busy) == (1, 0)


@pytest.mark.parametrize("keep_alive", ["10s", "50ms"], ids=["before a comment", "after a comment"])
async def test_no_connection_is_made_for_a_client_that_has_left(stage, monkeypatch, keep_alive):
    seen, connecting = Seen(stage, monkeypatch, POLICY, [(ask(), [said(answer())])]), Connecting(monkeypatch)
    client = await seen.begin("direct", ("10s", "10s", keep_alive), how="fresh")
    client.send(ask())
    await connecting.has_begun.wait()
    if keep_alive != "10s":
        await client.sees(b": waiting\n\n")
    client.close()
    await stage.data_port.serves(0)
    assert (connecting.was_cancelled, stage.data_port.upstream.busy) == (True, 0)


async def test_the_connections_serve_again_afterwards(stage, monkeypatch):
    seen = Seen(stage, monkeypatch, POLICY, [(ask(), [said(answer())])])
    client = await seen.begin("direct")
    for number in range(3):
        client.send(ask())
        call = await stage.backend.call()
        await answered(call, [said(answer(f"text {number}"))])
        assert f"text {number}".encode() in (await client.answer()).body
    assert (seen.tasks, len(stage.backend.wires)) == (0, 1)


async def test_a_client_of_http_1_0_that_would_keep_its_connection_is_told_the_end_by_its_closing(stage, monkeypatch):
    seen = Seen(stage, monkeypatch, POLICY, [(ask(), [said(answer())])])
    client = await seen.begin("direct")
    client.send(ask("Connection: keep-alive", version="1.0"))
    await answered(await stage.backend.call(), [said(answer())])
    first_line, headers, body, _ = await read(client)
    assert (first_line, dict(headers).get("Connection")) == ("HTTP/1.0 200 OK", None)
    assert body.endswith(b"\n\ndata: [DONE]\n\n")


LEAVING = [
    pytest.param([], id="before its head"),
    pytest.param([said(b"", length=9)], id="after its head"),
    pytest.param([said(b"", length=9), b"{"], id="within its body"),
]


@pytest.mark.parametrize("way", ["close", "reset"])
@pytest.mark.parametrize("parts", LEAVING)
async def test_the_backend_is_let_go_when_the_client_leaves(stage, monkeypatch, parts, way):
    seen, told = Seen(stage, monkeypatch, POLICY, [(ask(), [said(answer())])]), []
    for path in ("session", "direct"):
        client = await seen.begin(path)
        client.send(ask())
        call = await stage.backend.call()
        await call.body()
        for part in parts:
            call.send(part)
            await read_on()
        getattr(client, way)()
        await call.gone()
        told.append(await seen.end())
    assert told[1] == told[0]
    assert seen.tasks == 0


async def test_the_backend_is_let_go_when_the_client_leaves_before_a_task_goes_on(stage, monkeypatch):
    seen = Seen(stage, monkeypatch, POLICY, [(ask(), [said(answer())])])
    client = await seen.begin("direct")
    client.send(ask())
    call = await stage.backend.call()
    await call.body()
    # Both come in one turn of the event loop: the client's end, and what a task would go on with.
    client.transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
    call.send(said(b"", length=9), b"<")
    await call.gone()
    await stage.data_port.serves(0)
    assert (seen.tasks, stage.data_port.upstream.busy) == (0, 0)


async def test_a_slow_client_is_waited_for(stage, monkeypatch):
    seen = Seen(stage, monkeypatch, POLICY, [(ask(), [said(answer())])])
    client = await seen.begin("direct")
    client.transport.pause_reading()
    count = 0
    while await is_served(stage, count):
        count += 1
        assert count < 1000, "nobody waits for the client"
        client.send(ask())
        await answered(await stage.backend.call(), [said(answer("x" * 40_000))])
    assert stage.data_port.in_flight == 1
    client.transport.resume_reading()
    for _ in range(count):
        got = await client.answer()
        assert (got.is_whole, len(got.body) > 40_000) == (True, True)
    await stage.data_port.serves(0)


async def is_served(stage, count):
    """Return whether nothing is left to be served."""
    try:
        async with asyncio.timeout(0.5 if count else None):
            await stage.data_port.serves(0)
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    ("body", "room_bytes", "status"),
    [
        pytest.param(None, 10, 503, id="for the request"),
        pytest.param(answer(), 200, 503, id="for its answer"),
        pytest.param(answer(), 50 + len(answer()), 200, id="just enough"),
        pytest.param(answer(**ODD), 50 + len(answer(**ODD)), 200, id="just enough for a task"),
    ],
)
async def test_memory_is_taken_as_on_the_other_path(stage, monkeypatch, body, room_bytes, status):
    seen, told = Seen(stage, monkeypatch, POLICY, [(ask(), [said(answer())])]), []
    for path in ("session", "direct"):
        client = await seen.begin(path)
        reserve = stage.data_port.reserve
        reserve.held_bytes = reserve.limit_bytes - len(ask().partition(b"\r\n\r\n")[2]) - room_bytes
        client.send(ask())
        if body is not None:
            call = await stage.backend.call()
            assert 30 < len(await call.body()) < 45
            await answered(call, [said(body)])
        told.append(await seen.end(await read(client)))
    assert told[1] == told[0]
    assert f"HTTP/1.1 {status} " in told[0]
