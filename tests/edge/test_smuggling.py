"""What could be read in two ways: nothing of one client reaches another, and what is not understood is refused."""

import asyncio
import json

import pytest

POLICY = """
version: 1
backends: {main: {url: "${BACKEND}", api_key: "${KEY:-}"}}
rules:
  - {id: sharp, when: {body: {sharp: true}}, repair: [drop: [sharp]]}
"""
KEYED = POLICY.replace("${KEY:-}", "theirs")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"
EVIL = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
NEXT = b"GET /next HTTP/1.1\r\nHost: p\r\n\r\n"
CHUNKED = b"3\r\nabc\r\n0\r\n\r\n"


def get(*headers, target=b"/x", method=b"GET", host=b"Host: p"):
    """Return a request's bytes."""
    return b"\r\n".join([b"%b %b HTTP/1.1" % (method, target), *filter(None, [host]), *headers, b"", b""])


def post(*headers, body=b"abc"):
    """Return a request with a body, whose framing the headers have to tell."""
    return get(*headers, method=b"POST", target=b"/v1/files") + body


def told(answer):
    """Return an error's status and code, having checked its form."""
    assert answer.is_whole
    assert answer.get("content-type").startswith("application/json")
    assert answer.get("proxy-status").startswith("mendproxy;error=")
    error = json.loads(answer.body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return answer.status, error["code"]


INVALID = (400, "invalid_request")
HEADER = (400, "invalid_header")
HOST = (400, "invalid_host")
TARGET = (400, "invalid_target")
CODING = (501, "unsupported_transfer_encoding")

REFUSED = [
    pytest.param(post(b"Content-Length: 3", b"Content-Length: 3"), INVALID, id="two lengths that agree"),
    pytest.param(post(b"Content-Length: 3", b"Content-Length: 4"), INVALID, id="two lengths that do not agree"),
    pytest.param(post(b"Content-Length: 3, 3"), INVALID, id="a list of lengths"),
    pytest.param(post(b"Content-Length: +3"), INVALID, id="a length with a sign"),
    pytest.param(post(b"Content-Length: 0x3"), INVALID, id="a length in hexadecimal"),
    pytest.param(post(b"Content-Length: 1_0"), INVALID, id="a length with an underscore"),
    pytest.param(post(b"Content-Length: "), INVALID, id="an empty length"),
    pytest.param(post(b"Content-Length: 18446744073709551619"), INVALID, id="a length beyond 64 bits"),
    pytest.param(post(b"Content-Length: " + b"0" * 5000 + b"3"), HEADER, id="a length of five thousand digits"),
    pytest.param(
        post(b"Content-Length: 3", b"Transfer-Encoding: chunked", body=CHUNKED), INVALID, id="a length and chunks"
    ),
    pytest.param(
        post(b"Transfer-Encoding: chunked", b"Content-Length: 3", body=CHUNKED), INVALID, id="chunks and a length"
    ),
    pytest.param(post(b"Transfer-Encoding: gzip, chunked", body=CHUNKED), CODING, id="a coding before chunked"),
    pytest.param(post(b"Transfer-Encoding: ", body=b""), CODING, id="an empty coding"),
    pytest.param(post(b"Transfer-Encoding: chunked, identity", body=CHUNKED), INVALID, id="a coding after chunked"),
    pytest.param(post(b"Transfer-Encoding: chunked, chunked", body=CHUNKED), INVALID, id="chunked twice"),
    pytest.param(post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: x", body=CHUNKED), INVALID, id="two codings"),
    pytest.param(post(b"Transfer-Encoding: xchunked", body=CHUNKED), INVALID, id="a coding that looks like chunked"),
    pytest.param(post(b"Transfer-Encoding: \x0bchunked", body=CHUNKED), INVALID, id="a control character in a coding"),
    pytest.param(
        post(b"Transfer-Encoding: chunked", body=CHUNKED).replace(b"HTTP/1.1", b"HTTP/1.0"), HEADER, id="chunks in 1.0"
    ),
    pytest.param(
        post(b"Transfer_Encoding: chunked", b"Content-Length: 3"), HEADER, id="an underscore for a dash in a coding"
    ),
    pytest.param(post(b"Content-Length: 3", b"content_length: 1"), HEADER, id="an underscore for a dash in a length"),
    pytest.param(get(b"X: a", b" b"), INVALID, id="a folded line"),
    pytest.param(post(b"Transfer-Encoding:", b" chunked", body=CHUNKED), INVALID, id="a folded coding"),
    pytest.param(get(b"X: a\nY: b"), INVALID, id="a bare line feed"),
    pytest.param(get(b"X: a\rY: b"), INVALID, id="a bare carriage return"),
    pytest.param(get(b"X: a\0b"), INVALID, id="a NUL in a value"),
    pytest.param(get(b"X\0: b"), INVALID, id="a NUL in a name"),
    pytest.param(get(b"X: a\x01b"), INVALID, id="a control character in a value"),
    pytest.param(get(b"X : b"), INVALID, id="a space before the colon"),
    pytest.param(get(b"X Y: b"), INVALID, id="a space in a name"),
    pytest.param(get(b"X(Y): b"), INVALID, id="a name that is no token"),
    pytest.param(get(b": b"), INVALID, id="an empty name"),
    pytest.param(get(b"no colon"), INVALID, id="a line without a colon"),
    pytest.param(get(*(b"X%d: y" % n for n in range(200))), INVALID, id="two hundred headers"),
    pytest.param(get(b"X: " + b"y" * 70_000), INVALID, id="a header of seventy thousand bytes"),
    pytest.param(
        get(*(b"X%d: " % n + b"y" * 60_000 for n in range(4))),
        (431, "headers_too_large"),
        id="headers too large in all",
    ),
    pytest.param(get(b"Host: q"), INVALID, id="two hosts"),
    pytest.param(get(host=None), INVALID, id="no host"),
    pytest.param(get(host=b"Host: a@b"), HOST, id="a user in the host"),
    pytest.param(get(host=b"Host: a:b"), HOST, id="a port that is no number"),
    pytest.param(get(host=b"Host: a, b"), HOST, id="a list of hosts"),
    pytest.param(get(host=b"Host: a/b"), HOST, id="a path in the host"),
    pytest.param(get(host=b"Host: a\xe4"), HOST, id="a host that is not ASCII"),
    pytest.param(get(target=b"http://u:p@evil/x"), HOST, id="a user in an absolute target"),
    pytest.param(get(target=b"http:///x"), INVALID, id="an absolute target without a host"),
    pytest.param(get(target=b"ftp://evil/x"), TARGET, id="a scheme that is not HTTP's"),
    pytest.param(get(target=b"@evil/x"), INVALID, id="a target that begins with a user's mark"),
    pytest.param(get(target=b"/a#b"), TARGET, id="a fragment"),
    pytest.param(get(target=b"/a b"), INVALID, id="a space in the target"),
    pytest.param(get(target=b"/..\\..\\etc"), TARGET, id="backslashes that climb"),
    pytest.param(get(target=b"/a/..%5c..%5Cetc"), TARGET, id="escaped backslashes that climb"),
    pytest.param(get(target=b"/a/..%2f..%2Fetc"), TARGET, id="escaped slashes that climb"),
    pytest.param(get(target=b"/a%2fb/../../etc"), TARGET, id="an escaped slash that hides a step up"),
    pytest.param(get(target=b"/..;x=y/etc"), TARGET, id="dots with a parameter"),
    pytest.param(get(method=b"TRACE"), (405, "method_not_allowed"), id="TRACE"),
    pytest.param(get(method=b"CONNECT", target=b"evil:80"), (405, "method_not_allowed"), id="CONNECT"),
    pytest.param(get(method=b"CONNECT", target=b"/x"), (405, "method_not_allowed"), id="CONNECT to a path"),
    pytest.param(get(method=b"get"), INVALID, id="a method in lower case"),
    pytest.param(get().replace(b"HTTP/1.1", b"http/1.1"), INVALID, id="a version in lower case"),
    pytest.param(get().replace(b"HTTP/1.1", b"HTTP/1.2"), INVALID, id="a version that does not exist"),
    pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", INVALID, id="the preface of HTTP/2"),
    pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", INVALID, id="TLS"),
    pytest.param(post(b"Content-Length: 3", b"Expect: 200-ok"), (417, "unmet_expectation"), id="another expectation"),
    pytest.param(
        post(b"Content-Length: 3", b"Expect: 100-continue, x"), (417, "unmet_expectation"), id="two expectations"
    ),
]


@pytest.mark.parametrize(("raw", "expected"), REFUSED)
async def test_a_request_that_could_be_read_in_two_ways_is_refused(stage, raw, expected):
    await stage.proxy(POLICY)
    client = await stage.ask(raw)
    assert told(await client.answer()) == expected
    assert stage.backend.calls.empty()


BAD_CHUNKS = [
    pytest.param(b"0x3\r\nabc\r\n0\r\n\r\n", id="a size with a prefix"),
    pytest.param(b"+3\r\nabc\r\n0\r\n\r\n", id="a size with a sign"),
    pytest.param(b"3 \r\nabc\r\n0\r\n\r\n", id="a size with a space"),
    pytest.param(b"3\nabc\n0\n\n", id="line feeds alone"),
    pytest.param(b"10000000000000003\r\nabc\r\n0\r\n\r\n", id="a size beyond 64 bits"),
    pytest.param(b"3\r\nabcX\r\n0\r\n\r\n", id="more than was said"),
    pytest.param(b"3;a\nb\r\nabc\r\n0\r\n\r\n", id="a line feed in an extension"),
    pytest.param(b"3;a\rb\r\nabc\r\n0\r\n\r\n", id="a carriage return in an extension"),
    pytest.param(b"3\r\nabc\r\n0\r\nContent-Length: 9\r\n\r\n", id="a trailer that frames"),
]


@pytest.mark.parametrize("body", BAD_CHUNKS)
async def test_chunks_that_could_be_read_in_two_ways_are_refused_and_nothing_behind_them_is_served(stage, body):
    await stage.proxy(POLICY)
    client = await stage.ask(post(b"Transfer-Encoding: chunked", body=body) + NEXT)
    assert (await client.answer()).status == 400
    await client.gone()
    assert [call.target for call in calls(stage)] in ([], ["/v1/files"])
    assert b"200 OK" not in client.received


def calls(stage):
    """Return the requests that came to the backend and were not looked at."""
    return [stage.backend.calls.get_nowait() for _ in range(stage.backend.calls.qsize())]


PASSED = [
    pytest.param(get(b"X: a\tb"), "x", "a\tb", id="a tab in a value"),
    pytest.param(get(b"X: a\xe4b"), "x", "a\xe4b", id="a byte that is no UTF-8"),
    pytest.param(get(b"X: \xc3\xa4 \xff"), "x", "\xc3\xa4 \xff", id="UTF-8 and a byte that is none"),
    pytest.param(get(host=b"Host: [::1]:80"), "x-forwarded-host", "[::1]:80", id="an address of IPv6"),
    pytest.param(get(host=b"Host: "), "x-forwarded-host", None, id="an empty host"),
    pytest.param(get(target=b"http://other:1/x"), "x-forwarded-host", "other:1", id="an absolute target's host counts"),
    pytest.param(
        get(b"Connection: host, x-forwarded-host"), "x-forwarded-host", "p", id="Connection can't hide the host"
    ),
    pytest.param(
        get(b"Connection: x-forwarded-for, via", b"Via: 1.1 q"), "x-forwarded-for", "127.0.0.1", id="nor who asks"
    ),
    pytest.param(
        get(b"Connection: x-forwarded-proto", b"X-Forwarded-Proto: https"), "x-forwarded-proto", "http", id="nor how"
    ),
    pytest.param(get(b"Connection: x-request-id", b"X-Request-Id: mine"), "x-request-id", "mine", id="nor its id"),
    pytest.param(get(b"Connection: authorization"), "authorization", "Bearer theirs", id="nor the backend's key"),
    pytest.param(b"\r\n\r\n" + get(), "x-forwarded-host", "p", id="empty lines before a request"),
]


@pytest.mark.parametrize(("raw", "name", "value"), PASSED)
async def test_a_request_that_can_be_read_in_one_way_only_is_served(stage, raw, name, value):
    await stage.proxy(KEYED)
    client = await stage.ask(raw)
    call = await stage.backend.call()
    assert call.target == "/x"
    assert call.head.all(name) == ([] if value is None else [value])
    call.answer(OK)
    assert (await client.answer()).status == 200


RAW_BODIES = [
    pytest.param((b"Content-Length: 5",), b"a\r\nb!", id="a length"),
    pytest.param((b"Transfer-Encoding: chunked",), b"5\r\na\r\nb!\r\n0\r\n\r\n", id="chunks"),
    pytest.param((b"Content-Length: 0",), b"", id="nothing"),
]


@pytest.mark.parametrize(("framing", "body"), RAW_BODIES)
async def test_bytes_that_are_no_utf_8_go_on_with_a_body(stage, framing, body):
    await stage.proxy(POLICY)
    client = await stage.ask(post(b"X-Title: caf\xe9", *framing, body=body))
    call = await stage.backend.call()
    assert call.get("x-title") == "caf\xe9"
    assert await call.body() == (b"a\r\nb!" if body else b"")
    call.answer(OK)
    assert (await client.answer()).status == 200


async def test_connection_can_t_take_a_body_s_length_away(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(post(b"Connection: content-length, transfer-encoding", b"Content-Length: 3") + NEXT)
    call = await stage.backend.call()
    assert await call.body() == b"abc"
    assert len(call.head.all("content-length") + call.head.all("transfer-encoding")) == 1
    call.answer(OK)
    assert (await client.answer()).body == b"ok"
    second = await stage.backend.call()
    assert second.target == "/next"


HIDDEN = b"POST /v1/files HTTP/1.1\r\nHost: p\r\nContent-Length: 0\r\n\r\n"
HIDING = [
    pytest.param(post(b"Content-Length: %d" % len(HIDDEN), body=HIDDEN), 200, id="a body that looks like a request"),
    pytest.param(get(b"Content-Length: %d" % len(HIDDEN)) + HIDDEN, 200, id="the body of a GET"),
    pytest.param(
        get(b"Content-Length: %d" % len(HIDDEN), method=b"TRACE") + HIDDEN, 405, id="the body of a refused request"
    ),
    pytest.param(
        post(b"Transfer-Encoding: chunked", body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)), 200, id="a chunk"
    ),
]


@pytest.mark.parametrize(("raw", "status"), HIDING)
async def test_a_request_inside_a_body_is_not_a_request(stage, raw, status):
    await stage.proxy(POLICY)
    client = await stage.ask(raw + NEXT)
    if status == 200:
        call = await stage.backend.call()
        assert await call.body() == HIDDEN
        call.answer(OK)
    assert (await client.answer()).status == status
    call = await stage.backend.call()
    assert call.target == "/next"
    call.answer(GOOD)
    assert (await client.answer()).body == b"good"
    assert stage.backend.calls.empty()


ENDING = [
    pytest.param(get(b"X : y"), id="what is no HTTP"),
    pytest.param(get(method=b"CONNECT", target=b"evil:80"), id="CONNECT"),
    pytest.param(post(b"Transfer-Encoding: gzip, chunked", body=CHUNKED), id="a coding that is not understood"),
]


@pytest.mark.parametrize("raw", ENDING)
async def test_nothing_behind_a_request_of_unknown_extent_is_served(stage, raw):
    await stage.proxy(POLICY)
    client = await stage.ask(get(target=b"/first"))
    call = await stage.backend.call()
    client.send(raw + NEXT)
    call.answer(OK)
    assert (await client.answer()).body == b"ok"
    assert (await client.answer()).status in (400, 405, 501)
    assert await client.rest() == b""
    assert stage.backend.calls.empty()


@pytest.mark.parametrize("protocol", [b"websocket", b"x"])
async def test_a_request_behind_an_upgrade_that_is_not_passed_on_is_not_served_in_another_s_place(stage, protocol):
    await stage.proxy(POLICY)
    upgrade = (b"Connection: upgrade", b"Upgrade: " + protocol)
    client = await stage.ask(post(*upgrade, b"Content-Length: 3") + NEXT)
    call = await stage.backend.call()
    assert (await call.body(), call.get("upgrade")) == (b"abc", None)
    call.answer(OK)
    answer = await client.answer()
    assert (answer.body, answer.get("connection")) == (b"ok", "close")
    assert await client.rest() == b""


async def test_no_100_is_sent_where_no_body_is_to_come(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(get(b"Expect: 100-continue"))
    call = await stage.backend.call()
    assert call.get("expect") is None
    call.answer(OK)
    assert (await client.answer()).status == 200


STATUS = b"HTTP/1.1 200 OK\r\n"
HOSTILE = [
    pytest.param(STATUS + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok!", id="two lengths"),
    pytest.param(STATUS + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok", id="two lengths that agree"),
    pytest.param(STATUS + b"Content-Length: +2\r\n\r\nok", id="a length with a sign"),
    pytest.param(STATUS + b"Content-Length: " + b"0" * 5000 + b"2\r\n\r\nok", id="a length of five thousand digits"),
    pytest.param(
        STATUS + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        id="a length and chunks",
    ),
    pytest.param(
        STATUS + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", id="a coding before chunked"
    ),
    pytest.param(STATUS + b"Transfer-Encoding: chunked, gzip\r\n\r\n2\r\nok\r\n0\r\n\r\n", id="a coding after chunked"),
    pytest.param(STATUS + b"Transfer-Encoding: xchunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", id="a coding like chunked"),
    pytest.param(
        STATUS + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        id="two codings",
    ),
    pytest.param(STATUS + b"Content-Length : 2\r\n\r\nok", id="a space before the colon"),
    pytest.param(STATUS + b"X Y: 2\r\nContent-Length: 2\r\n\r\nok", id="a space in a name"),
    pytest.param(STATUS + b"content_length: 9\r\nContent-Length: 2\r\n\r\nok", id="an underscore for a dash"),
    pytest.param(STATUS + b"X: a\rSet-Cookie: evil=1\r\nContent-Length: 2\r\n\r\nok", id="a bare carriage return"),
    pytest.param(STATUS + b"X: a\x01b\r\nContent-Length: 2\r\n\r\nok", id="a control character"),
    pytest.param(STATUS + b"X: a\0b\r\nContent-Length: 2\r\n\r\nok", id="a NUL"),
    pytest.param(b"HTTP/1.1 200 O\rK\r\nContent-Length: 2\r\n\r\nok", id="a carriage return in the reason"),
    pytest.param(b"HTTP/1.1 200 O\x01K\r\nContent-Length: 2\r\n\r\nok", id="a control character in the reason"),
    pytest.param(b"HTTP/1.1 000 X\r\nContent-Length: 2\r\n\r\nok", id="a status of nought"),
    pytest.param(b"HTTP/1.1 99 X\r\nContent-Length: 2\r\n\r\nok", id="a status of two digits"),
    pytest.param(b"HTTP/1.1 1000 X\r\nContent-Length: 2\r\n\r\nok", id="a status of four digits"),
    pytest.param(
        b"HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n" + EVIL, id="a switch that nobody asked for"
    ),
    pytest.param(b"HTTP/1.1 204 No\r\nContent-Length: 4\r\n\r\nevil", id="a body where none may be"),
    pytest.param(STATUS + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n", id="a chunk without a size"),
    pytest.param(STATUS + b"X: y\r\n" * 300 + b"Content-Length: 2\r\n\r\nok", id="three hundred headers"),
    pytest.param(STATUS + b"X: " + b"y" * 200_000 + b"\r\n\r\n", id="a header of two hundred thousand bytes"),
    pytest.param(
        STATUS + (b"X: " + b"y" * 100_000 + b"\r\n") * 20 + b"Content-Length: 2\r\n\r\nok",
        id="headers of two megabytes",
    ),
    pytest.param(b"<html>evil</html>\r\n\r\n", id="no head at all"),
    pytest.param(OK + b"junk", id="more than it said"),
]


@pytest.mark.parametrize("raw", HOSTILE)
async def test_an_answer_that_could_be_read_in_two_ways_is_not_passed_on_and_its_connection_not_used_again(stage, raw):
    await stage.proxy(POLICY)
    client = await stage.ask(get())
    first = await stage.backend.call()
    first.answer(raw)
    assert told(await client.answer()) == (502, "http_protocol_error")
    client.send(NEXT)
    second = await stage.backend.call()
    assert second.wire is not first.wire
    second.answer(GOOD)
    answer = await client.answer()
    assert (answer.body, b"evil" in answer.body) == (b"good", False)


LENIENT = [
    pytest.param(b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", b"ok", id="lines that end with a line feed"),
    pytest.param(STATUS + b"X: a\r\n b\r\nContent-Length: 2\r\n\r\nok", b"ok", id="a folded line, unfolded"),
    pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok", id="100 first"),
    pytest.param(b"HTTP/1.1 103 Early\r\nSet-Cookie: evil=1\r\n\r\n" * 3 + OK, b"ok", id="hints first"),
    pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" * 5000 + OK, b"ok", id="five thousand times 100 first"),
    pytest.param(
        STATUS + b"Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nok\r\n0\r\nSet-Cookie: evil=1\r\n\r\n",
        b"ok",
        id="trailers",
    ),
    pytest.param(b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", b"ok", id="no reason"),
    pytest.param(b"HTTP/1.1 999 X\r\nContent-Length: 2\r\n\r\nok", b"ok", id="a status of no class"),
    pytest.param(
        STATUS + b"Connection: content-length\r\nContent-Length: 2\r\n\r\nok", b"ok", id="a length for the hop"
    ),
]


@pytest.mark.parametrize(("raw", "body"), LENIENT)
async def test_an_odd_answer_goes_on_with_a_framing_of_our_own(stage, raw, body):
    await stage.proxy(POLICY)
    client = await stage.ask(get())
    (await stage.backend.call()).answer(raw)
    answer = await client.answer()
    assert (answer.body, answer.is_whole, answer.get("set-cookie")) == (body, True, None)
    assert len(answer.all("content-length") + answer.all("transfer-encoding")) == 1
    client.send(NEXT)
    (await stage.backend.call()).answer(GOOD)
    assert (await client.answer()).body == b"good"


async def test_bytes_of_an_answer_s_head_that_are_no_utf_8_come_back(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(get())
    named = b'Content-Disposition: attachment; filename="caf\xe9.txt"\r\n'
    (await stage.backend.call()).answer(b"HTTP/1.1 200 Gr\xfc\xdfe\r\n", named, b"Content-Length: 2\r\n\r\nok")
    answer = await client.answer()
    assert answer.first_line == "HTTP/1.1 200 Gr\xfc\xdfe"
    assert answer.get("content-disposition") == 'attachment; filename="caf\xe9.txt"'
    assert answer.body == b"ok"


LATE = [
    pytest.param(EVIL, id="a whole answer"),
    pytest.param(EVIL[:30], id="half an answer"),
    pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n", id="an interim answer"),
    pytest.param(b"junk", id="junk"),
]


@pytest.mark.parametrize("late", LATE)
async def test_what_a_backend_says_on_an_idle_connection_is_nobody_s_answer(stage, late):
    await stage.proxy(POLICY)
    one = await stage.ask(get())
    first = await stage.backend.call()
    first.answer(OK)
    assert (await one.answer()).body == b"ok"
    first.send(late)
    # Another connection's round trip: the late bytes were sent before it, so they have come by its end.
    await settled(stage)
    other = await stage.ask(get(target=b"/secret"))
    second = await stage.backend.call()
    assert second.target == "/secret"
    if second.wire is first.wire:
        assert not late.endswith(EVIL[-4:])
    second.answer(GOOD)
    answer = await other.answer()
    assert (answer.status, answer.body) in ((200, b"good"), (502, answer.body))
    assert b"evil" not in answer.body


async def settled(stage):
    """Wait until what was sent on loopback so far has been read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    writer.write(get(b"X : refused"))
    await reader.read()
    writer.close()
    await writer.wait_closed()


async def test_a_second_answer_in_the_same_packet_is_nobody_s(stage):
    await stage.proxy(POLICY)
    one = await stage.ask(get())
    first = await stage.backend.call()
    first.answer(OK + EVIL)
    assert (await one.answer()).body == b"ok"
    other = await stage.ask(get(target=b"/secret"))
    second = await stage.backend.call()
    assert second.wire is not first.wire
    second.answer(GOOD)
    assert (await other.answer()).body == b"good"


async def test_the_rest_of_an_answer_whose_client_left_is_nobody_s(stage):
    await stage.proxy(POLICY)
    one = await stage.ask(get())
    first = await stage.backend.call()
    first.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\npart")
    await one.sees(b"part")
    one.reset()
    await first.gone()
    other = await stage.ask(get(target=b"/secret"))
    second = await stage.backend.call()
    assert second.wire is not first.wire
    second.answer(GOOD)
    assert (await other.answer()).body == b"good"


async def test_two_clients_that_ask_at_once_get_each_its_own(stage):
    await stage.proxy(POLICY)
    clients = [await stage.ask(get(target=b"/%d" % number)) for number in range(20)]
    asked = [await stage.backend.call() for _ in clients]
    for call in reversed(asked):
        body = call.target.encode()
        call.answer(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    answers = await asyncio.gather(*(client.answer() for client in clients))
    assert [answer.body for answer in answers] == [b"/%d" % number for number in range(20)]
