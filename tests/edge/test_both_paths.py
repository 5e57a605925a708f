"""The two data paths do the same: what a backend is asked and what a client is answered is compared byte for byte.

Only what can't be the same is masked: ids and times that the proxy makes, the order of headers of different names, and
where a chunk ends. Known to differ: aiohttp's session adds `Content-Length: 0` to a DELETE without a body.
"""

import re

import pytest

POLICY = """
version: 1
backends: {main: {url: "${BACKEND}/base", timeouts: {connect: 5s, first_content: 2s, idle: 2s}}}
limits: {body: 2MiB}
rules:
  - {id: dropped, when: {body: {sharp: true}}, repair: [drop: [sharp]]}
  - {id: exploded, when: {body: {whole: true}}, repair: [stream: false, drop: [whole]]}
  - {id: refused, when: {body: {never: true}}, repair: [reject: "no"]}
  - {id: reacts, on_error: {status: 400, message: "unknown field '(?P<field>[a-z]+)'"}, repair: [drop: ["{field}"]]}
"""


def post(body, *headers, path="/v1/chat/completions"):
    lines = [f"POST {path} HTTP/1.1", "Host: p:81", *headers, f"Content-Length: {len(body)}", "", body]
    return "\r\n".join(lines).encode()


def said(status, *headers, body=b"", length=True):
    lines = [f"HTTP/1.1 {status}", *headers, *([f"Content-Length: {len(body)}"] if length else []), "", ""]
    return "\r\n".join(lines).encode() + body


CHAT = '{"model": "m",  "messages": [{"role": "user", "content": "h\\u00e9"}]%s}'
EVENTS = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\ndata: [DONE]\n\n'
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
    % (
        len(EVENTS),
        EVENTS,
    )
)
WHOLE = (
    b'{"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": '
    b'[{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}'
)
TALKS = [
    pytest.param(post(CHAT % ""), [said("200 Fine", "X-One: 1", "x-two:  2", body=b'{"a":1}')], id="JSON"),
    pytest.param(post(CHAT % "", "Connection: close"), [said("200 OK", body=b"{}")], id="a connection that closes"),
    pytest.param(post(CHAT % ', "stream": true'), [CHUNKED], id="an event stream"),
    pytest.param(post(CHAT % ', "sharp": true'), [said("200 OK", body=b"{}")], id="a field dropped"),
    pytest.param(
        post(CHAT % ', "stream": true, "whole": true'),
        [said("200 OK", "Content-Type: application/json", body=WHOLE)],
        id="an answer made anew",
    ),
    pytest.param(post(CHAT % ', "never": true'), [], id="refused by a rule"),
    pytest.param(
        post(CHAT % ', "odd": 1'),
        [said("400 Bad Request", body=b'{"error": {"message": "unknown field \'odd\'"}}'), said("200 OK", body=b"{}")],
        id="repaired after a refusal",
    ),
    pytest.param(post(CHAT % ""), [said("418 I'm a teapot", "Retry-After: 5", body=b"short")], id="an error passed on"),
    pytest.param(
        b"GET /v1/models?a=b&a=%2F HTTP/1.1\r\nhost: p\r\nX-Twice: 1\r\nX-Twice: 2\r\nVia: 1.0 a\r\n\r\n",
        [said("200 OK", "Set-Cookie: a=1", "Set-Cookie: b=2", "Connection: x-hop", "X-Hop: 1", body=b"[]")],
        id="headers that stand twice, and hop by hop",
    ),
    pytest.param(
        b"HEAD /v1/models HTTP/1.1\r\nHost: p\r\n\r\n",
        [said("200 OK", "Content-Length: 77", length=False)],
        id="a HEAD",
    ),
    pytest.param(
        b"POST /v1/files/1 HTTP/1.1\r\nHost: p\r\nContent-Length: 0\r\n\r\n",
        [said("204 No Content", length=False)],
        id="no content",
    ),
    pytest.param(
        b"GET /v1/x HTTP/1.1\r\nHost: p\r\nIf-None-Match: a\r\n\r\n",
        [said("304 Not Modified", "ETag: a", "Content-Length: 5", length=False)],
        id="not modified",
    ),
    pytest.param(b"GET /v1/x HTTP/1.0\r\nHost: p\r\n\r\n", [said("200 OK", body=b"old")], id="a client of HTTP/1.0"),
    pytest.param(
        b"GET /v1/x HTTP/1.0\r\nHost: p\r\nConnection: keep-alive\r\n\r\n",
        [said("200 OK", body=b"old")],
        id="a client of HTTP/1.0 that keeps its connection",
    ),
    pytest.param(
        b"POST /v1/files HTTP/1.1\r\nHost: p\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        b"Content-Length: 8\r\n\r\n--x--\r\n\r",
        [said("200 OK", body=b"{}")],
        id="an upload",
    ),
    pytest.param(
        b"PUT /v1/blob HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        [said("200 OK", body=b"{}")],
        id="a body in chunks",
    ),
    pytest.param(
        b"GET /v1/x HTTP/1.1\r\nHost: p\r\nX-Raw: \xe4\xff\r\n\r\n",
        [said("200 OK", body=b"{}").replace(b"200 OK", b"200 \xd6K\r\nX-Raw: \xe4\xff")],
        id="bytes that are no UTF-8",
    ),
    pytest.param(
        post(CHAT % ""),
        [b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + said("200 OK", body=b"{}")],
        id="interim answers",
    ),
    pytest.param(
        post(CHAT % ""),
        [said("307 Moved", "Location: ${BACKEND}/base/else", body=b"")],
        id="a redirect to its own address",
    ),
    pytest.param(post("{" + "x" * 2_200_000, "Content-Type: application/json"), [], id="a body that is too large"),
    pytest.param(b"GET / HTTP/2.0\r\nHost: p\r\n\r\n", [], id="a version that is not spoken"),
    pytest.param(b"GET /v1/x HTTP/1.1\r\nHost p\r\n\r\n", [], id="no HTTP"),
    pytest.param(b"TRACE /v1/x HTTP/1.1\r\nHost: p\r\n\r\n", [], id="a method that is not served"),
]


async def talk(stage, raw, answers):
    """Return all that a backend was asked and all that the client was answered until its connection was idle again."""
    await stage.proxy(POLICY)
    client = await stage.ask(raw)
    asked = []
    for answer in answers:
        call = await stage.backend.call()
        asked.append((call.head.first_line, sorted(call.head.headers), await call.body()))
        call.answer(answer.replace(b"${BACKEND}", stage.backend.url.encode()))
    method = raw.split(b" ", 1)[0].decode()
    answer = await client.answer(method)
    await stage.data_port.serves(0)
    return (
        [plain(stage, part) for part in asked],
        plain(stage, (answer.first_line, sorted(answer.headers), answer.body, answer.is_whole)),
    )


def plain(stage, told):
    """Return it with what differs from run to run replaced by a word."""
    text = repr(told).replace(stage.backend.url.removeprefix("http://"), "BACKEND")
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "ID", text)
    return re.sub(r"\('Date', '[^']*'\)", "('Date', 'NOW')", text)


@pytest.mark.parametrize(("raw", "answers"), TALKS)
async def test_both_ask_and_answer_the_same(stage, raw, answers):
    told = []
    for path in ("direct", "session"):
        stage.data_path = path
        told.append(await talk(stage, raw, answers))
    assert told[0] == told[1]
