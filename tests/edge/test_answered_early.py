"""A backend that answers before it has the whole body: what is left of the body is never taken for another request."""

import pytest

POLICY = """
version: 1
backends: {main: {url: "${BACKEND}", timeouts: {connect: 5s, first_content: 5s, idle: 5s}}}
limits: {body: 64MiB}
rules:
  - {id: dropped, when: {body: {sharp: true}}, repair: [drop: [sharp]]}
"""
LARGE = b'{"model": "m", "messages": [{"role": "user", "content": "' + b"x" * 16_000_000 + b'"}]%b}'
ASKED = [
    pytest.param(b"/v1/chat/completions", b"Content-Length: %d", LARGE % b"", id="a body that is read"),
    pytest.param(
        b"/v1/chat/completions", b"Content-Length: %d", LARGE % b', "sharp": true', id="a body that is edited"
    ),
    pytest.param(b"/v1/files", b"Content-Length: %d", LARGE % b"", id="a body that is streamed"),
]
ANSWER = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"


@pytest.mark.parametrize(("path", "length", "body"), ASKED)
async def test_the_connection_is_not_used_again(stage, path, length, body):
    await stage.proxy(POLICY)
    client = await stage.client()
    client.send(b"POST %b HTTP/1.1\r\nHost: p\r\n%b\r\n\r\n%b" % (path, length % len(body), body))
    call = await stage.backend.call()
    call.wire.transport.pause_reading()
    call.send(ANSWER)
    assert (await client.answer()).status == 413
    await stage.data_port.serves(0)
    other = await stage.ask(b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: 2\r\n\r\n{}")
    again = await stage.backend.call()
    assert again.wire is not call.wire
    again.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    assert (await other.answer()).body == b"{}"
