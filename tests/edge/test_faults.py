"""What a client is told when the backend can't be reached, or when its own request can't be served."""

import asyncio
import gzip
import json
import socket
from contextlib import closing

import pytest

from tests.edge.seen import read_on

POLICY = """
version: 1
backends:
  main: {url: "${BACKEND}", models: [mine], timeouts: {connect: 10s, first_content: 10s, idle: 10s}}
limits: {body: 64}
rules:
  - {id: sharp, when: {body: {sharp: true}}, repair: [drop: [sharp]]}
"""
HASTY = POLICY.replace("10s", "700ms")
SHY = POLICY.replace("connect: 10s", "connect: 200ms")
GET = b"GET /v1/models HTTP/1.1\r\nHost: p\r\nX-Request-Id: mine\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def post(body, path="/v1/chat/completions", *headers):
    """Return a request with a body."""
    return "\r\n".join(
        [f"POST {path} HTTP/1.1", "Host: p", *headers, f"Content-Length: {len(body)}", "", body]
    ).encode()


def chunked(path, *chunks):
    """Return a request with a chunked body, without the body's end."""
    head = f"POST {path} HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(data), data) for data in chunks)


def told(answer):
    """Return an error's status, code and RFC 9209 token, having checked its form."""
    assert answer.is_whole
    assert answer.get("content-type") == "application/json"
    assert answer.get("x-request-id")
    error = json.loads(answer.body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    token = answer.get("proxy-status").removeprefix("mendproxy;error=")
    return answer.status, error["code"], token


async def answer_from(stage, url, policy=POLICY):
    stage.backend.url = url
    await stage.proxy(policy)
    return told(await (await stage.ask(GET)).answer())


async def test_a_backend_that_does_not_listen(stage):
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        assert await answer_from(stage, url) == (502, "connection_refused", "connection_refused")


async def test_a_backend_whose_name_can_t_be_resolved(stage, monkeypatch):
    async def getaddrinfo(*_args, **_options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    loop = asyncio.get_running_loop()
    known = loop.getaddrinfo
    monkeypatch.setattr(
        loop, "getaddrinfo", lambda host, *a, **o: (known if host == "127.0.0.1" else getaddrinfo)(host, *a, **o)
    )
    assert await answer_from(stage, "http://backend.invalid:1") == (502, "dns_error", "dns_error")


async def test_a_backend_that_does_not_accept_in_time(stage):
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            # A full queue of connections that nobody accepts makes the kernel drop the next ones.
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            assert await answer_from(stage, url, SHY) == (504, "connection_timeout", "connection_timeout")
        finally:
            for filler in fillers:
                filler.close()


BEFORE_HEADERS = [
    pytest.param(b"", "close", (502, "connection_terminated"), id="closes at once"),
    pytest.param(b"", "reset", (502, "connection_terminated"), id="resets at once"),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-", "close", (502, "connection_terminated"), id="closes within its head"),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-", None, (504, "http_response_timeout"), id="stalls within its head"),
    pytest.param(b"", None, (504, "http_response_timeout"), id="says nothing"),
    pytest.param(b"220 mail.example ESMTP\r\n\r\n", None, (502, "http_protocol_error"), id="speaks another protocol"),
    pytest.param(
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        None,
        (502, "http_protocol_error"),
        id="frames its body twice",
    ),
]


@pytest.mark.parametrize(("raw", "end", "expected"), BEFORE_HEADERS)
@pytest.mark.parametrize("request_bytes", [GET, post('{"model": "mine"}')], ids=["GET", "POST"])
async def test_a_fresh_connection_that_brings_no_answer_is_not_tried_again(stage, raw, end, expected, request_bytes):
    await stage.proxy(HASTY if expected[0] == 504 else POLICY)
    client = await stage.ask(request_bytes)
    call = await stage.backend.call()
    await call.body()
    call.send(raw)
    if end:
        getattr(call, end)()
    status, code, token = told(await client.answer())
    assert (status, token, code) == (*expected, expected[1])
    if end is None:
        await call.gone()
    assert len(stage.backend.wires) == 1


async def test_an_interim_answer_is_no_answer(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(GET)
    call = await stage.backend.call()
    call.answer(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + OK)
    answer = await client.answer()
    assert (answer.status, answer.body) == (200, b"ok")


LONG = "x" * 65
TOO_LARGE = [
    pytest.param(post(LONG)[:-40], id="by its length, before it has come"),
    pytest.param(post(LONG, "/v1/files"), id="by its length where it is streamed"),
    pytest.param(chunked("/v1/chat/completions", b"x" * 40, b"x" * 40), id="by counting"),
    pytest.param(chunked("/v1/files", b"x" * 40, b"x" * 40), id="by counting where it is streamed"),
]


@pytest.mark.parametrize("raw", TOO_LARGE)
async def test_a_body_that_is_too_large(stage, raw):
    await stage.proxy(POLICY)
    client = await stage.ask(raw)
    assert told(await client.answer()) == (413, "body_too_large", "http_request_error")


async def test_a_body_that_expects_100_and_is_too_large_is_refused_at_once(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(post(LONG, "/v1/files", "Expect: 100-continue").removesuffix(LONG.encode()))
    assert (await client.answer()).status == 413


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files"])
async def test_a_body_of_just_the_limit_is_served(stage, path):
    await stage.proxy(POLICY)
    client = await stage.ask(chunked(path, b"x" * 40, b"x" * 24, b""))
    call = await stage.backend.call()
    assert await call.body() == b"x" * 64
    call.answer(OK)
    assert (await client.answer()).status == 200


async def test_a_compressed_body_that_grows_beyond_the_limit(stage):
    body = gzip.compress(b"x" * 1000)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    await stage.proxy(POLICY)
    client = await stage.ask(head % len(body) + body)
    assert (await client.answer()).status == 413


BAD_FRAMES = [
    pytest.param(chunked("/v1/chat/completions") + b"zz\r\n", id="a chunk without a size"),
    pytest.param(chunked("/v1/files") + b"zz\r\n", id="a chunk without a size where it is streamed"),
    pytest.param(
        b"POST /v1/files HTTP/1.1\r\nHost: p\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        id="two framings",
    ),
    pytest.param(b"GET /v1/models HTTP/1.1\r\nHost: p\r\nX : y\r\n\r\n", id="a space before a colon"),
    pytest.param(b"GET /v1/models HTTP/1.1\r\n\r\n", id="no Host"),
    pytest.param(b"GET /v1/mod\xc3\xa4ls HTTP/1.1\r\nHost: p\r\n\r\n", id="a target that is not ASCII"),
]


@pytest.mark.parametrize("raw", BAD_FRAMES)
async def test_a_request_that_is_not_http_is_refused(stage, raw):
    await stage.proxy(POLICY)
    client = await stage.ask(raw)
    assert (await client.answer()).status == 400
    assert stage.backend.calls.empty()


async def test_a_request_that_is_not_http_is_told_as_any_other_error(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(b"GET /v1/models HTTP/1.1\r\nHost: p\r\nX : secret\r\n\r\n")
    answer = await client.answer()
    assert told(answer) == (400, "invalid_request", "http_request_error")
    assert b"secret" not in answer.body


FOREIGN_VERSIONS = [
    pytest.param(b"GET /v1/models HTTP/2.0\r\nHost: p\r\n\r\n", id="a version to come"),
    pytest.param(b"GET /v1/models HTTP/0.9\r\n\r\n", id="a version of the past"),
    pytest.param(b"GET /v1/models\r\n\r\n", id="no version"),
    pytest.param(b"POST /v1/files\nContent-Length: 0\r\n\r\n", id="a request line that a bare LF cuts"),
]


@pytest.mark.parametrize("raw", FOREIGN_VERSIONS)
async def test_a_version_that_is_not_spoken_is_refused_in_one_that_every_client_reads(stage, raw):
    await stage.proxy(POLICY)
    client = await stage.ask(raw)
    answer = await client.answer()
    assert told(answer) == (505, "http_version", "http_request_error")
    assert answer.first_line.startswith("HTTP/1.0 505 ")
    await client.gone()
    assert stage.backend.wires == []


KEYED = POLICY + 'auth: {keys: [open, "sesame"]}\n'


@pytest.mark.parametrize(
    "header",
    [
        pytest.param("X: y", id="no key"),
        pytest.param("Authorization: Bearer wrong", id="a wrong key"),
        pytest.param("Authorization: Bearer", id="an empty key"),
        pytest.param("Authorization: Basic open", id="another scheme"),
        pytest.param("Authorization: Bearer \xe4", id="a key that is not ASCII"),
    ],
)
async def test_a_client_without_a_key(stage, header):
    await stage.proxy(KEYED)
    client = await stage.ask(GET.replace(b"X-Request-Id: mine", header.encode("latin-1")))
    answer = await client.answer()
    assert told(answer) == (401, "invalid_api_key", "http_request_error")
    assert answer.get("www-authenticate") == "Bearer"
    assert stage.backend.calls.empty()


@pytest.mark.parametrize(
    "raw", [GET.replace(b"X-R", b"Authorization: bearer  sesame\r\nX-R"), GET.replace(b"GET", b"OPTIONS")]
)
async def test_a_key_or_a_preflight_opens(stage, raw):
    await stage.proxy(KEYED)
    client = await stage.ask(raw)
    (await stage.backend.call()).answer(OK)
    assert (await client.answer()).status == 200


async def test_a_model_that_no_backend_has(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(post('{"model": "theirs"}'))
    answer = await client.answer()
    assert told(answer) == (404, "model_not_found", "http_request_error")
    assert json.loads(answer.body)["error"]["param"] == "model"


async def test_a_proxy_that_drains_and_a_connection_that_was_idle_for_all_the_grace(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(GET)
    (await stage.backend.call()).answer(OK)
    assert (await client.answer()).status == 200
    await stage.data_port.serves(0)
    await read_on()
    stage.data_port.leave()
    stage.data_port.close()
    client.send(GET)
    answer = await client.answer()
    assert told(answer) == (503, "draining", "proxy_internal_response")
    assert answer.get("connection") == "close"
    await client.gone()


async def test_the_client_s_id_is_told_in_an_error(stage):
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        stage.backend.url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        await stage.proxy(POLICY)
        assert (await (await stage.ask(GET)).answer()).get("x-request-id") == "mine"
