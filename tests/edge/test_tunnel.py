"""Tunnels: what aiohttp's own WebSockets say through the proxy, and raw bytes of any other protocol."""

import asyncio
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import WSCloseCode, WSMsgType, web

from proxy.tunnel import _Source

POLICY = """
version: 1
backends: {main: {url: "${BACKEND}", api_key: "${KEY:-}", timeouts: {first_content: 10s}}}
rules:
  - {id: no-plans, when: {path: /v1/plans, method: GET}, repair: [reject: no plans here]}
"""
UPGRADE = (
    b"GET /v1/talk?voice=a%20b HTTP/1.1\r\nHost: proxy.example\r\nConnection: keep-alive, Upgrade\r\n"
    b"Upgrade: chatter/2\r\nSec-WebSocket-Key: abc\r\nX-Mine: yes\r\n\r\n"
)
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: chatter/2\r\nX-Theirs: yes\r\n\r\n"
FLOOD = b"x" * (1 << 20)


@asynccontextmanager
async def web_socket_backend(stage, talk, **options):
    """Put aiohttp's WebSocket server behind the proxy."""

    async def handle(request):
        socket = web.WebSocketResponse(**options)
        await socket.prepare(request)
        await talk(socket)
        return socket

    runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    stage.backend.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    await stage.proxy(POLICY)
    try:
        yield f"http://127.0.0.1:{stage.port}/v1/realtime"
    finally:
        await runner.cleanup()


async def echo(socket):
    async for message in socket:
        if message.type is WSMsgType.TEXT:
            await socket.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await socket.send_bytes(message.data)


@asynccontextmanager
async def talking_to(url, **options):
    async with aiohttp.ClientSession() as session, session.ws_connect(url, **options) as socket:
        yield socket


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("héllo", id="text"),
        pytest.param("", id="an empty text"),
        pytest.param(b"\x00\xff\r\n", id="binary"),
        pytest.param(bytes(range(256)) * 20_000, id="five megabytes"),
    ],
)
@pytest.mark.parametrize("compress", [pytest.param(0, id="plain"), pytest.param(15, id="deflated")])
async def test_messages_come_back_as_they_were_sent(stage, data, compress):
    async with (
        web_socket_backend(stage, echo, max_msg_size=0) as url,
        talking_to(url, compress=compress, max_msg_size=0) as socket,
    ):
        await (socket.send_str(data) if isinstance(data, str) else socket.send_bytes(data))
        message = await socket.receive(timeout=10)
        assert message.data == data
        assert socket.compress == compress


async def test_a_subprotocol_is_agreed_on_end_to_end(stage):
    async with (
        web_socket_backend(stage, echo, protocols=("realtime", "other")) as url,
        talking_to(url, protocols=("new", "realtime")) as socket,
    ):
        assert socket.protocol == "realtime"


async def test_pings_are_answered_by_the_backend(stage):
    async def talk(socket):
        assert (await socket.receive()).data == b"are you there"
        await socket.pong(b"the backend is")
        await socket.receive()

    async with (
        web_socket_backend(stage, talk, autoping=False) as url,
        talking_to(url, autoping=False) as socket,
    ):
        await socket.ping(b"are you there")
        message = await socket.receive(timeout=10)
        assert (message.type, message.data) == (WSMsgType.PONG, b"the backend is")


@pytest.mark.parametrize("code", [WSCloseCode.OK, WSCloseCode.TRY_AGAIN_LATER, 4321])
async def test_the_backend_s_close_code_reaches_the_client(stage, code):
    async def talk(socket):
        await socket.close(code=code, message=b"that is all")

    async with web_socket_backend(stage, talk) as url, talking_to(url) as socket:
        message = await socket.receive(timeout=10)
        assert (message.type, message.data, message.extra) == (WSMsgType.CLOSE, code, "that is all")


async def test_the_client_s_close_code_reaches_the_backend(stage):
    heard = asyncio.get_running_loop().create_future()

    async def talk(socket):
        heard.set_result(await socket.receive())

    async with web_socket_backend(stage, talk) as url, talking_to(url) as socket:
        await socket.close(code=4001, message=b"enough")
        async with asyncio.timeout(10):
            message = await heard
        assert (message.type, message.data, message.extra) == (WSMsgType.CLOSE, 4001, "enough")


async def switched(stage, *more):
    """Return both ends of a tunnel."""
    await stage.proxy(POLICY)
    client = await stage.ask(UPGRADE)
    call = await stage.backend.call()
    call.send(SWITCHED, *more)
    head = await client.until(b"\r\n\r\n")
    return client, call, head


async def test_the_handshake_is_passed_on_both_ways(stage):
    _, call, head = await switched(stage)
    assert call.target == "/v1/talk?voice=a%20b"
    assert call.head.all("connection") == ["Upgrade"]
    assert call.head.all("upgrade") == ["chatter/2"]
    assert (call.get("sec-websocket-key"), call.get("x-mine")) == ("abc", "yes")
    assert call.get("via") == "1.1 mendproxy"
    assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    lines = head.split(b"\r\n")
    assert {b"Connection: Upgrade", b"Upgrade: chatter/2", b"X-Theirs: yes"} <= set(lines)
    assert [line for line in lines if line.lower().startswith((b"server", b"content", b"transfer"))] == []


async def test_bytes_that_come_with_the_101_are_passed_on(stage):
    client, _, _ = await switched(stage, b"\x00first\r\n\r\nwords")
    assert await client.until(b"words") == b"\x00first\r\n\r\nwords"


async def test_bytes_are_passed_on_both_ways_as_they_come(stage):
    client, call, _ = await switched(stage)
    client.send(b"GET / HTTP/1.1\r\n\r\nping\x00")
    assert await call.wire.until(b"ping\x00") == b"GET / HTTP/1.1\r\n\r\nping\x00"
    call.send(b"5\r\npong\n")
    assert await client.until(b"pong\n") == b"5\r\npong\n"


async def test_a_backend_that_says_its_last_word_with_the_101_is_heard(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(UPGRADE)
    call = await stage.backend.call()
    call.send(SWITCHED, b"goodbye")
    call.close()
    assert (await client.rest()).endswith(b"\r\n\r\ngoodbye")


@pytest.mark.parametrize("way", ["close", "half_close", "reset"])
async def test_a_client_that_leaves_takes_the_backend_s_connection_along(stage, way):
    client, call, _ = await switched(stage)
    getattr(client, way)()
    await call.gone()


@pytest.mark.parametrize("way", ["close", "half_close", "reset"])
async def test_a_backend_that_leaves_takes_the_client_s_connection_along(stage, way):
    client, call, _ = await switched(stage)
    getattr(call.wire, way)()
    await client.gone()


async def test_what_the_client_said_before_it_left_reaches_the_backend(stage):
    client, call, _ = await switched(stage)
    client.send(b"last words")
    client.close()
    assert await call.wire.rest() == b"last words"


async def test_all_that_the_client_said_before_it_left_reaches_a_slow_backend(stage):
    client, call, _ = await switched(stage)
    call.wire.transport.pause_reading()
    sent = 0
    while await client.drained(0.2):
        client.send(FLOOD)
        sent += len(FLOOD)
    client.close()
    call.wire.transport.resume_reading()
    assert len(await call.wire.rest()) == sent


async def test_a_connection_that_has_ended_by_the_time_of_the_switch_is_at_its_end():
    source = _Source(None)
    source.feed_data(b"the last")
    async with asyncio.timeout(1):
        assert [await source.read(), await source.read(), source.is_eof()] == [b"the last", b"", True]


async def test_all_that_the_backend_said_before_it_left_reaches_the_client(stage):
    client, call, _ = await switched(stage)
    call.send(FLOOD)
    call.close()
    assert await client.rest() == FLOOD


async def test_a_slow_client_holds_the_backend_back(stage):
    client, call, _ = await switched(stage)
    await held_back(client, call.wire)


async def test_a_slow_backend_holds_the_client_back(stage):
    client, call, _ = await switched(stage)
    await held_back(call.wire, client)


async def held_back(reader, writer):
    """Write until the reader, who does not read, blocks the writer; then let it read all of that."""
    reader.transport.pause_reading()
    sent = 0
    while await writer.drained(0.2):
        writer.send(FLOOD)
        sent += len(FLOOD)
        assert sent <= 64 * len(FLOOD), "nobody holds the writer back"
    reader.transport.resume_reading()
    assert len(await reader.exactly(sent)) == sent


PLAIN_ANSWERS = [
    pytest.param(
        b"HTTP/1.1 403 Not You\r\nContent-Type: text/plain\r\nContent-Length: 9\r\n\r\nnot you \n",
        (403, b"not you \n"),
        id="a refusal with its length",
    ),
    pytest.param(
        b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\nnot you, that is",
        (403, b"not you, that is"),
        id="a refusal that ends with the connection",
    ),
    pytest.param(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nyes\r\n0\r\n\r\n",
        (200, b"yes"),
        id="a plain answer",
    ),
    pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", (204, b""), id="an answer without a body"),
]


@pytest.mark.parametrize(("raw", "expected"), PLAIN_ANSWERS)
async def test_a_backend_that_does_not_switch_gives_a_plain_answer(stage, raw, expected):
    await stage.proxy(POLICY)
    client = await stage.ask(UPGRADE)
    call = await stage.backend.call()
    call.send(raw)
    if b"close" in raw:
        call.close()
    answer = await client.answer("GET")
    assert (answer.status, answer.body, answer.is_whole) == (*expected, True)
    assert answer.names() & {"upgrade", "proxy-status"} == set()


async def test_a_connection_whose_upgrade_was_refused_serves_on(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(UPGRADE)
    for target in ("/v1/talk?voice=a%20b", "/next"):
        call = await stage.backend.call()
        assert call.target == target
        call.answer(b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno")
        assert (await client.answer()).status == 426
        client.send(b"GET /next HTTP/1.1\r\nHost: p\r\n\r\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(b"chatter/2", b"h2c", id="HTTP/2, whose requests no rule would see"),
        pytest.param(b"chatter/2", b"TLS/1.3, HTTP/2.0", id="TLS"),
        pytest.param(b"keep-alive, Upgrade", b"keep-alive", id="an Upgrade that Connection does not name"),
        pytest.param(b"HTTP/1.1", b"HTTP/1.0", id="HTTP/1.0, which has no Upgrade"),
    ],
)
async def test_what_may_not_switch_goes_on_as_a_plain_request(stage, before, after):
    await stage.proxy(POLICY)
    await stage.ask(UPGRADE.replace(before, after, 1))
    call = await stage.backend.call()
    assert call.head.names() & {"upgrade", "http2-settings"} == set()


async def test_a_switch_that_nobody_asked_for_is_a_fault(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(UPGRADE.replace(b"chatter/2", b"h2c"))
    (await stage.backend.call()).send(SWITCHED)
    answer = await client.answer()
    assert (answer.status, answer.get("proxy-status")) == (
        502,
        "mendproxy;error=http_protocol_error",
    )


async def test_a_backend_that_dies_before_its_answer_is_told_of(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(UPGRADE)
    (await stage.backend.call()).close()
    answer = await client.answer()
    assert (answer.status, answer.get("proxy-status")) == (502, "mendproxy;error=connection_terminated")


async def test_a_client_that_leaves_before_the_answer_is_not_waited_for(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(UPGRADE)
    call = await stage.backend.call()
    client.close()
    await call.gone()


async def test_a_rule_may_refuse_a_tunnel(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(UPGRADE.replace(b"/v1/talk?voice=a%20b", b"/v1/plans"))
    assert (await client.answer()).status == 400
    assert stage.backend.calls.empty()


async def test_the_body_of_a_request_for_another_protocol_goes_on(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(UPGRADE.replace(b"X-Mine: yes", b"Content-Length: 5") + b"hello")
    call = await stage.backend.call()
    assert await call.body() == b"hello"
    call.send(SWITCHED, b"hi")
    assert (await client.until(b"\r\n\r\nhi")).startswith(b"HTTP/1.1 101 ")


async def test_tunnels_leave_nothing_behind(stage):
    client, call, _ = await switched(stage)
    client.close()
    await call.gone()
    async with asyncio.timeout(10):
        await stage.data_port.wait_idle()
