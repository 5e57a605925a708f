"""What waits for the end of a pass goes out before whatever else is said on its connection."""

import pytest

POLICY = 'version: 1\nbackends: {main: {url: "${BACKEND}", timeouts: {connect: 5s, first_content: 5s, idle: 5s}}}\n'
BODY = b'{"model": "m", "stream": true, "messages": []}'
ASKED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDS = [
    pytest.param(lambda connection: connection.data_received(b"0\r\n\r\n"), id="the end"),
    pytest.param(lambda connection: connection.data_received(b"zz\r\n"), id="no HTTP, told by an event"),
    pytest.param(lambda connection: connection.transport.abort(), id="a connection that is gone"),
]


def event(number):
    return b'data: {"choices":[{"index":0,"delta":{"content":"%d"}}]}\n\n' % number


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.mark.parametrize("end", ENDS)
async def test_chunks_come_before_what_is_said_after_them(stage, end):
    stage.data_path = "direct"
    await stage.proxy(POLICY)
    client = await stage.ask(ASKED)
    call = await stage.backend.call()
    await call.body()
    call.send(HEAD + chunk(event(0)))
    await client.sees(event(0))
    connection = next(iter(stage.data_port.upstream.pool._busy))
    for number in range(1, 9):
        connection.data_received(chunk(event(number)))
    assert stage.listener.outbox._waiting
    end(connection)
    body = (await client.answer()).body
    assert body.startswith(b"".join(map(event, range(9))))
