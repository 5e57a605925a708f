"""Traffic that no rule touches: what the client sent reaches the backend byte for byte, and the answer the client."""

import asyncio
import gzip

import pytest

POLICY = """
version: 1
backends: {main: {url: "${BACKEND}"}}
rules:
  - {id: sharp, when: {body: {sharp: true}}, repair: [drop: [sharp]]}
"""
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def request(method="GET", target="/v1/models", *headers, body=b"", version="HTTP/1.1"):
    """Return a request's bytes."""
    lines = [f"{method} {target} {version}", "Host: proxy.example:8080", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def exchanged(stage, raw, answer=OK, policy=POLICY):
    """Return what the backend saw of a request, its body, and the client's connection."""
    await stage.proxy(policy)
    client = await stage.ask(raw)
    call = await stage.backend.call()
    body = await call.body()
    call.answer(answer)
    return call, body, client


METHODS = ["GET", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "POST", "PROPFIND"]


@pytest.mark.parametrize("method", METHODS)
async def test_every_method_goes_on_without_a_body_that_nobody_sent(stage, method):
    body_of_answer = b"" if method == "HEAD" else b"ok"
    call, body, client = await exchanged(stage, request(method), OK.removesuffix(b"ok") + body_of_answer)
    assert (call.method, call.target, body) == (method, "/v1/models", b"")
    assert call.head.names() & {"transfer-encoding", "content-type"} == set()
    # A length of 0 says the same as none, and aiohttp says it for the methods that may have a body.
    assert call.get("content-length") in ({None} if method in {"GET", "HEAD", "OPTIONS"} else {None, "0"})
    answer = await client.answer(method)
    assert (answer.status, answer.body) == (200, body_of_answer)


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "POST"])
async def test_a_body_goes_on_with_its_length(stage, method):
    raw = request(method, "/v1/files/x", "Content-Length: 5", "Content-Type: application/x-mine", body=b"he\r\no")
    call, body, _ = await exchanged(stage, raw)
    assert (call.method, body) == (method, b"he\r\no")
    assert call.head.all("content-length") == ["5"]
    assert call.head.all("content-type") == ["application/x-mine"]
    assert call.get("transfer-encoding") is None


TARGETS = [
    pytest.param("/v1/models/org%2Fname%20x+y?q=%2F&z=1%2B1&e=", None, id="escapes stay as they were written"),
    pytest.param("/v1//models/", None, id="empty segments stay"),
    pytest.param("/v1/models?", "/v1/models", id="an empty query is no query"),
    pytest.param("/v1/models?a=b?c=d&&=", None, id="an odd query stays"),
    pytest.param("/v1/models?q=%zz%", None, id="broken escapes stay"),
    pytest.param("/v1/models/%E4%B8%AD?q=a;b|c{d}\"'", None, id="characters that need no escape in practice stay"),
    pytest.param("/v1/./models/../models/x", None, id="dots within the root stay"),
    pytest.param("http://other.example/v1/models?x=%41", "/v1/models?x=%41", id="an absolute form loses its authority"),
    pytest.param("http://other.example", "/", id="an absolute form without a path"),
    pytest.param("/v1/models/a:b@c,d=e!f$g", None, id="reserved characters stay"),
    pytest.param("//v1/models", None, id="two slashes at the start are a path"),
    pytest.param("//evil.example:1/v1", None, id="two slashes at the start name no host"),
    pytest.param("/v1/models?q=a%23b", None, id="an escaped fragment stays"),
    pytest.param("/v1/models?" + "q" * 60_000, None, id="a target of sixty thousand bytes"),
]


@pytest.mark.parametrize(("target", "expected"), TARGETS)
async def test_a_target_goes_on_as_it_was_written(stage, target, expected):
    call, _, _ = await exchanged(stage, request("GET", target))
    assert call.target == (expected or target)


async def test_a_target_goes_below_the_backend_s_base_path(stage):
    policy = POLICY.replace("${BACKEND}", "${BACKEND}/my%20base/")
    call, _, _ = await exchanged(stage, request("GET", "/v1/models/a%2Fb?x=1"), policy=policy)
    assert call.target == "/my%20base/v1/models/a%2Fb?x=1"


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("/../etc", id="dots at once"),
        pytest.param("/v1/../../etc", id="dots that climb later"),
        pytest.param("/v1/%2e%2E/.%2e/etc", id="escaped dots"),
        pytest.param("/..", id="dots at the end"),
        pytest.param("*", id="a star, which is no path"),
    ],
)
async def test_a_target_that_leaves_the_root_is_refused(stage, target):
    await stage.proxy(POLICY)
    client = await stage.ask(request("OPTIONS" if target == "*" else "GET", target))
    answer = await client.answer()
    assert (answer.status, answer.get("content-type")) == (400, "application/json")
    assert stage.backend.calls.empty()


BODIES = [
    pytest.param(b' {\r\n "model" :"m" ,\t"n": 1e0, "\\u0061": "\\/"}\n', id="odd whitespace, numbers and escapes"),
    pytest.param(b'{"model": "m", "model": "m"}', id="a name that stands twice"),
    pytest.param(b'{"temperature": NaN}', id="NaN"),
    pytest.param(b'{"x": "\\ud800"}', id="a lone surrogate"),
    pytest.param(b'{"sharp": tru', id="half a body"),
    pytest.param(b"\xff\xfe{}", id="no UTF-8"),
    pytest.param(b"[" * 100_000, id="nested without end"),
    pytest.param(b'[{"sharp": true}]', id="a list"),
]


@pytest.mark.parametrize("body", BODIES)
async def test_a_body_that_no_rule_edits_is_not_touched(stage, body):
    said = request("POST", "/v1/chat/completions", f"Content-Length: {len(body)}", "Content-Type: application/json")
    call, seen, client = await exchanged(stage, said + body)
    assert seen == body
    assert call.head.all("content-length") == [str(len(body))]
    assert (await client.answer()).status == 200


async def test_a_gzipped_body_that_no_rule_edits_stays_gzipped(stage):
    body = gzip.compress(b'{"model": "m"}')
    said = request("POST", "/v1/chat/completions", f"Content-Length: {len(body)}", "Content-Encoding: gzip")
    call, seen, _ = await exchanged(stage, said + body)
    assert (seen, call.get("content-encoding")) == (body, "gzip")


async def test_a_chunked_body_of_a_path_without_rules_is_streamed_on(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(request("PUT", "/v1/blob", "Transfer-Encoding: chunked", body=b"5\r\nfirst\r\n"))
    call = await stage.backend.call()
    assert call.head.all("transfer-encoding") == ["chunked"]
    assert call.get("content-length") is None
    assert await call.wire.until(b"first\r\n") == b"5\r\nfirst\r\n"
    client.send(b"4\r\nlast\r\n0\r\n\r\n")
    assert await call.body() == b"last"


async def test_a_chunked_body_that_a_rule_looks_into_goes_on_with_one_framing(stage):
    said = request(
        "POST", "/v1/chat/completions", "Transfer-Encoding: chunked", body=b'8\r\n{ "a": 1\r\n1\r\n}\r\n0\r\n\r\n'
    )
    call, body, _ = await exchanged(stage, said)
    assert body == b'{ "a": 1}'
    assert len(call.head.all("content-length") + call.head.all("transfer-encoding")) == 1


async def test_multipart_is_streamed_on_before_its_end(stage):
    await stage.proxy(POLICY)
    said = ("Content-Type: multipart/form-data; boundary=b", "Content-Length: 40")
    client = await stage.ask(request("POST", "/v1/chat/completions", *said, body=b"--b\r\nfirst part"))
    call = await stage.backend.call()
    assert await call.wire.until(b"part") == b"--b\r\nfirst part"
    assert call.head.all("content-length") == ["40"]
    assert call.get("transfer-encoding") is None
    client.send(b"\r\n--b\r\nthe last\r\n--b--")
    assert await call.wire.until(b"--b--") == b"\r\n--b\r\nthe last\r\n--b--"


async def test_headers_go_on_and_hop_by_hop_ones_do_not(stage):
    hop = (
        "Connection: keep-alive, X-Private , te",
        "X-Private: 1",
        "Keep-Alive: 5",
        "TE: trailers",
        "Proxy-Authorization: Basic eA==",
        "Proxy-Connection: close",
        "Trailer: X",
    )
    kept = (
        "X-UPPER: A",
        "x-lower: b",
        "X-Twice: 1",
        "X-Twice: 2",
        "Cookie: a=b; c=d",
        "Authorization: Bearer mine",
        "Accept: */*",
        "Accept-Encoding: br;q=1, x",
        "User-Agent: me/1",
        "X-Empty: ",
        "X-Spaces: a  b",
        "X-Title: \xc3\xa4",
    )
    call, _, _ = await exchanged(stage, request("GET", "/v1/models", *hop, *kept))
    seen = [f"{name}: {value}" for name, value in call.head.headers]
    assert [line for line in seen if line in kept] == list(kept)
    assert (
        call.head.names() & {"x-private", "keep-alive", "te", "proxy-authorization", "proxy-connection", "trailer"}
        == set()
    )


async def test_the_proxy_adds_only_what_a_proxy_adds(stage):
    call, _, _ = await exchanged(stage, request("GET", "/v1/models"))
    assert call.head.names() <= {
        "host", "via", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-request-id", "connection"
    }  # fmt: skip
    assert call.get("host") == stage.backend.url.removeprefix("http://")
    assert call.get("via") == "1.1 mendproxy"
    assert call.get("x-forwarded-for") == "127.0.0.1"
    assert call.get("x-forwarded-proto") == "http"
    assert call.get("x-forwarded-host") == "proxy.example:8080"
    assert len(call.get("x-request-id")) == 36


async def test_what_proxies_before_said_is_kept(stage):
    before = (
        "Via: 1.0 far, 1.1 near",
        "X-Forwarded-For: 192.0.2.1",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: api.example",
        "X-Request-Id: mine-1",
    )
    call, _, client = await exchanged(stage, request("GET", "/v1/models", *before))
    assert call.head.all("via") == ["1.0 far, 1.1 near, 1.1 mendproxy"]
    assert call.head.all("x-forwarded-for") == ["192.0.2.1, 127.0.0.1"]
    assert call.head.all("x-forwarded-proto") == ["https"]
    assert call.head.all("x-forwarded-host") == ["api.example"]
    assert call.head.all("x-request-id") == ["mine-1"]
    assert (await client.answer()).get("x-request-id") == "mine-1"


async def test_the_backend_s_key_replaces_the_client_s(stage):
    policy = POLICY.replace('"${BACKEND}"', '"${BACKEND}", api_key: theirs')
    call, _, _ = await exchanged(stage, request("GET", "/v1/models", "Authorization: Bearer mine"), policy=policy)
    assert call.head.all("authorization") == ["Bearer theirs"]


async def test_a_key_of_the_proxy_does_not_reach_the_backend(stage):
    policy = POLICY + "auth: {keys: [open]}\n"
    call, _, _ = await exchanged(stage, request("GET", "/v1/models", "Authorization: bearer open"), policy=policy)
    assert call.get("authorization") is None


ANSWERS = [
    pytest.param(
        "GET", b"HTTP/1.1 200 Fine, thanks\r\nContent-Length: 3\r\n\r\n\x00\r\n", b"\x00\r\n", id="its reason"
    ),
    pytest.param("GET", b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 1\r\n\r\nx", b"x", id="a redirect"),
    pytest.param("GET", b"HTTP/1.1 204 No Content\r\n\r\n", b"", id="no content"),
    pytest.param("GET", b'HTTP/1.1 304 Not Modified\r\nETag: "x"\r\n\r\n', b"", id="not modified"),
    pytest.param("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n", b"", id="HEAD"),
    pytest.param("HEAD", b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n", b"", id="HEAD of nothing"),
    pytest.param("GET", b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\nno", b"no", id="the backend's own error"),
    pytest.param("GET", b"HTTP/1.1 299 \r\nContent-Length: 1\r\n\r\nx", b"x", id="an odd status without a reason"),
    pytest.param(
        "GET", b"HTTP/1.1 200 OK\r\nX: %b\r\nContent-Length: 1\r\n\r\nx" % (b"y" * 60_000), b"x", id="a long header"
    ),
    pytest.param("POST", b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n", b"", id="an empty body"),
    pytest.param(
        "GET",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 25\r\n\r\n" + gzip.compress(b"hello", mtime=0),
        gzip.compress(b"hello", mtime=0),
        id="gzip",
    ),
    pytest.param(
        "GET",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2;x=y\r\nbc\r\n0\r\n\r\n",
        b"abc",
        id="chunks",
    ),
]


@pytest.mark.parametrize(("method", "raw", "body"), ANSWERS)
async def test_an_answer_is_passed_on_and_the_connection_serves_on(stage, method, raw, body):
    _, _, client = await exchanged(stage, request(method), raw)
    answer = await client.answer(method)
    head, _, _ = raw.partition(b"\r\n\r\n")
    first_line, *said = head.decode().split("\r\n")
    assert (answer.first_line, answer.body, answer.is_whole) == (first_line, body, True)
    assert [f"{n}: {v}" for n, v in answer.headers if n.lower() not in {"date", "x-request-id"}] == said
    client.send(request("GET", "/again"))
    call = await stage.backend.call()
    call.answer(OK)
    assert (call.target, (await client.answer()).body) == ("/again", b"ok")


async def test_headers_of_an_answer_come_back_and_hop_by_hop_ones_do_not(stage):
    said = (
        b"Set-Cookie: a=1; Path=/\r\nset-cookie: b=2\r\nX-One: 1\r\nX-One: 2\r\nDate: Mon, 01 Jan 2024 00:00:00 GMT\r\n"
        b"X-Private: 1\r\nConnection: x-private\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\n"
    )
    _, _, client = await exchanged(stage, request(), OK.replace(b"\r\n\r\n", b"\r\n" + said + b"\r\n"))
    answer = await client.answer()
    assert answer.all("set-cookie") == ["a=1; Path=/", "b=2"]
    assert answer.all("x-one") == ["1", "2"]
    assert answer.all("date") == ["Mon, 01 Jan 2024 00:00:00 GMT"]
    assert answer.names() == {"content-length", "set-cookie", "x-one", "date", "x-request-id"}


async def test_cookies_of_one_answer_are_not_sent_with_the_next_request(stage):
    _, _, client = await exchanged(stage, request(), OK.replace(b"\r\n\r\n", b"\r\nSet-Cookie: a=1\r\n\r\n"))
    await client.answer()
    client.send(request())
    assert (await stage.backend.call()).get("cookie") is None


async def test_an_answer_that_ends_with_its_connection_comes_whole(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(request())
    call = await stage.backend.call()
    call.send(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil the end")
    call.close()
    answer = await client.answer()
    assert (answer.body, answer.is_whole, answer.all("content-length")) == (b"until the end", True, [])


async def test_an_answer_to_http_1_0_is_not_chunked(stage):
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    _, _, client = await exchanged(stage, request(version="HTTP/1.0"), chunked)
    answer = await client.answer()
    assert (answer.body, answer.get("transfer-encoding")) == (b"ok", None)


async def test_two_requests_in_one_packet_are_answered_in_order(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(request("GET", "/first") + request("GET", "/second"))
    for target in ("/first", "/second"):
        call = await stage.backend.call()
        assert call.target == target
        call.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n" + target.encode().ljust(7))
    assert [(await client.answer()).body.strip() for _ in range(2)] == [b"/first", b"/second"]


async def test_a_client_that_expects_100_is_told_to_go_on(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(request("POST", "/v1/chat/completions", "Expect: 100-continue", "Content-Length: 2"))
    assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"{}")
    call = await stage.backend.call()
    assert (await call.body(), call.get("expect")) == (b"{}", None)
    call.answer(OK)
    assert (await client.answer()).body == b"ok"


async def test_an_answer_that_comes_before_the_body_is_passed_on(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(request("PUT", "/v1/blob", "Content-Length: 1000000", body=b"x" * 100))
    call = await stage.backend.call()
    call.send(b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno")
    answer = await client.answer()
    assert (answer.status, answer.body) == (413, b"no")


async def test_connections_to_the_backend_are_used_again(stage):
    _, _, client = await exchanged(stage, request())
    await client.answer()
    async with asyncio.TaskGroup():
        client.send(request())
        (await stage.backend.call()).answer(OK)
        await client.answer()
    assert len(stage.backend.wires) == 1


async def test_a_header_of_sixty_thousand_bytes_goes_on(stage):
    call, _, _ = await exchanged(stage, request("GET", "/v1/models", "X-Long: " + "y" * 60_000))
    assert call.get("x-long") == "y" * 60_000


async def test_a_client_that_closes_after_its_answer_leaves_the_backend_s_connection_open(stage):
    call, _, client = await exchanged(stage, request("GET", "/v1/models", "Connection: close"))
    assert call.get("connection") in (None, "keep-alive")
    answer = await client.answer()
    assert (answer.get("connection"), answer.body) == ("close", b"ok")
    await client.gone()
    await stage.ask(request())
    await stage.backend.call()
    assert len(stage.backend.wires) == 1


async def test_an_empty_body_keeps_its_length_of_zero(stage):
    call, body, _ = await exchanged(stage, request("POST", "/v1/chat/completions", "Content-Length: 0"))
    assert (body, call.head.all("content-length"), call.get("transfer-encoding")) == (b"", ["0"], None)


async def test_a_backend_that_does_not_read_holds_the_client_s_upload_back(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(request("PUT", "/v1/blob", "Content-Length: 30000000", body=b"x"))
    call = await stage.backend.call()
    call.wire.transport.pause_reading()
    sent, part = 1, b"x" * 1_000_000
    while await client.drained(0.2):
        client.send(part)
        sent += len(part)
        assert sent < 30_000_000, "nobody holds the client back"
    call.wire.transport.resume_reading()
    client.send(b"x" * (30_000_000 - sent))
    assert len(await call.body()) == 30_000_000
    call.answer(OK)
    assert (await client.answer()).body == b"ok"


async def test_a_redirect_to_the_backend_itself_leads_through_the_proxy(stage):
    head = f"HTTP/1.1 307 Moved\r\nLocation: {stage.backend.url}/v1/models\r\nContent-Length: 0\r\n\r\n".encode()
    await stage.proxy(POLICY)
    client = await stage.ask(request("GET", "/v1/models/"))
    (await stage.backend.call()).answer(head)
    assert (await client.answer()).get("location") == "/v1/models"
