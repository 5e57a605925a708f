"""The quick lane: who asks again is answered as the first time, and whatever goes wrong is told as it is elsewhere."""

import asyncio
import re

import pytest

from proxy.policy import load_policy
from proxy.shortcut import Shortcut
from tests.edge.seen import read_on

PATIENCE_S = 5.0
POLICY = """
version: 1
backends:
  main: {url: "${BACKEND}/base", models: ["*"], timeouts: {connect: 5s, first_content: 2s, idle: 2s}}
  fast: {url: "${BACKEND}/fast", models: [fast], timeouts: {connect: 5s, first_content: 100ms, idle: 2s}}
rules:
  - {id: dropped, when: {body: {sharp: true}}, repair: [drop: [sharp]]}
  - {id: by-header, when: {header: {content-length: {in: ["50"]}}}, repair: [set: {long: true}]}
  - {id: refused, when: {body: {never: true}}, repair: [reject: "no"]}
"""


def post(body, *headers, name="Content-Length", path="/v1/chat/completions?a=b"):
    lines = [f"POST {path} HTTP/1.1", "Host: p:81", "Authorization: Bearer mine", *headers, f"{name}: {len(body)}"]
    return ("\r\n".join([*lines, "", ""]) + body).encode()


def said(status, *headers, body=b'{"id": "x"}', name="content-length"):
    lines = [f"HTTP/1.1 {status}", "Server: s", f"{name}: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.fixture
def shortcuts(monkeypatch):
    """Count what went to its end without being parsed."""
    told = []
    monkeypatch.setattr(
        Shortcut, "_tell", lambda self, *given, was=Shortcut._tell: (told.append(self), was(self, *given))
    )
    return told


def plain(told):
    """Return it with what differs from time to time replaced by a word."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", "ID", repr(told))
    return re.sub(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} [\d:]{8} GMT", "NOW", text)


async def ask(stage, client, raw, answer):
    """Return what the backend is asked and what the client is answered, to the byte."""
    client.send(raw)
    call = await stage.backend.call()
    asked = (call.head, await call.body())
    call.answer(answer)
    told = await client.answer()
    await stage.data_port.serves(0)
    return plain((asked, told.first_line, told.headers, told.body, told.is_whole))


KNOWN = [
    pytest.param(post('{"model": "m"}', "X-Request-Id: a"), said("200 OK"), id="an id of the client's"),
    pytest.param(post('{"model": "m"}'), said("200 OK"), id="untouched"),
    pytest.param(post('{"model": "m", "sharp": true}'), said("200 OK"), id="repaired"),
    pytest.param(
        post('{"model": "m"}', name="content-length"), said("200 OK", name="Content-Length"), id="in other letters"
    ),
    pytest.param(
        post('{"model": "m"}'), said("201 Made", "Date: Sun, 06 Nov 1994 08:49:37 GMT"), id="dated by the backend"
    ),
    pytest.param(
        post('{"model": "m"}', "X-Forwarded-For: 1.2.3.4", "Via: 1.0 a"), said("200 OK"), id="by another proxy"
    ),
    pytest.param(post('{"model": "m"}', path="/v1/completions"), said("200 OK"), id="another path"),
    pytest.param(post("no JSON"), said("200 OK"), id="no JSON"),
]
UNKNOWN = [
    pytest.param(post('{"model": "m"}'), said("200 OK", body=b""), id="nothing in it"),
    pytest.param(post('{"model": "m"}', "X-Request-Id: a b"), said("200 OK"), id="an id that is none"),
    pytest.param(post('{"model": "m"}', "x-request-ID: a"), said("200 OK"), id="an id in odd letters"),
    pytest.param(post('{"model": "m"}', "Prefer: handling=strict"), said("200 OK"), id="a preference"),
    pytest.param(post('{"model": "m", "n": 1}'), said("404 Not Found"), id="an error"),
    pytest.param(post('{"model": "m"}'), said("200 OK", "Content-Encoding: zip"), id="an answer in a coding"),
    pytest.param(post('{"model": "m"}'), said("200 OK", "Connection: close"), id="an answer that is the last one"),
    pytest.param(post('{"model": "m"}'), said("200 OK", "Odd_Name: a"), id="an odd name"),
    pytest.param(
        post('{"model": "m"}'),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        id="an answer in chunks",
    ),
    pytest.param(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        said("200 OK"),
        id="a request in chunks",
    ),
    pytest.param(b"GET /v1/files HTTP/1.1\r\nHost: p\r\n\r\n", said("200 OK"), id="a GET"),
]


@pytest.fixture
async def client(stage):
    stage.data_path = "direct"
    await stage.proxy(POLICY)
    return await stage.client()


@pytest.mark.parametrize(("raw", "answer"), KNOWN)
async def test_who_asks_again_is_answered_as_the_first_time(stage, client, shortcuts, raw, answer):
    first = await ask(stage, client, raw, answer)
    again = [await ask(stage, client, raw, answer) for _ in range(4)]
    assert again == [first] * 4
    assert len(shortcuts) == 3


@pytest.mark.parametrize(("raw", "answer"), UNKNOWN)
async def test_what_is_not_as_usual_is_parsed_each_time(stage, client, shortcuts, raw, answer):
    first = await ask(stage, client, raw, answer)
    assert [await ask(stage, client, raw, answer) for _ in range(4)] == [first] * 4
    assert shortcuts == []


async def test_a_length_that_stands_twice_is_never_known(stage, client):
    await known(stage, client)
    client.send(post('{"model": "m"}', "content-length: 14"))
    assert (await client.answer()).status == 400


PLAIN = post('{"model": "m"}')


async def known(stage, client, raw=PLAIN):
    """Have a head known, and that of its answer."""
    for _ in range(3):
        await ask(stage, client, raw, said("200 OK"))


async def answered(stage, client):
    """Answer one request as it should be."""
    call = await stage.backend.call()
    assert await call.body() == b'{"model": "m"}'
    call.answer(said("200 OK"))
    assert (await client.answer()).body == b'{"id": "x"}'


async def test_a_body_of_another_length_belongs_to_a_head_that_is_known(stage, client, shortcuts):
    for size in (0, 1, 9, 10, 99, 100, 5000, 60_000):
        asked = f'{{"model": "{"m" * size}"}}'
        body = b'{"a": "%b"}' % (b"b" * size)
        client.send(post(asked))
        call = await stage.backend.call()
        assert (call.get("content-length"), await call.body()) == (str(len(asked)), asked.encode())
        call.answer(said("200 OK", body=body))
        told = await client.answer()
        assert (told.get("content-length"), told.body, told.is_whole) == (str(len(body)), body, True)
    assert len(shortcuts) == 6


async def test_rules_see_the_length_of_each_request(stage, client, shortcuts):
    await known(stage, client)
    client.send(post('{"model": "m", "user": "a name that makes it 50"}'.ljust(50)))
    call = await stage.backend.call()
    assert b'"long":true' in (await call.body()).replace(b" ", b"")
    call.answer(said("200 OK"))
    assert (await client.answer()).get("mendproxy-repairs").startswith("by-header;")


PARTS = [
    pytest.param(lambda whole: [whole[:-11], whole[-11:]], 1, id="head and body"),
    pytest.param(lambda whole: [whole[:20], whole[20:]], 0, id="in the middle of the head"),
    pytest.param(lambda whole: [whole[:-5], whole[-5:-2], whole[-2:]], 0, id="in three parts"),
    pytest.param(lambda whole: [whole[index : index + 1] for index in range(len(whole))], 0, id="byte by byte"),
]


@pytest.mark.parametrize(("cut", "count"), PARTS)
async def test_an_answer_may_come_in_parts(stage, client, shortcuts, cut, count):
    await known(stage, client)
    before = len(shortcuts)
    client.send(PLAIN)
    call = await stage.backend.call()
    seen = asyncio.Event()
    connection = next(iter(stage.data_port.upstream.pool._busy))
    connection.data_received = lambda data, was=connection.data_received: (was(data), seen.set())
    *first, last = cut(said("200 OK"))
    for part in first:
        connection.data_received(part)
    call.answer(last)
    told = await client.answer()
    assert (told.status, told.body, told.is_whole) == (200, b'{"id": "x"}', True)
    assert len(shortcuts) - before == count


@pytest.mark.parametrize(("cut", "count"), PARTS)
async def test_a_request_may_come_in_parts(stage, client, shortcuts, cut, count):
    await known(stage, client)
    before = len(shortcuts)
    for part in cut(PLAIN):
        stage.listener.connections[0].data_received(part)
    await answered(stage, client)
    assert len(shortcuts) - before == (b"\r\n\r\n" in cut(PLAIN)[0])


async def test_who_sends_the_body_after_the_head_is_known_as_well(stage, client, shortcuts):
    for _ in range(5):
        connection = stage.listener.connections[0]
        connection.data_received(PLAIN[:-14])
        connection.data_received(PLAIN[-14:])
        await answered(stage, client)
    assert len(shortcuts) == 3


async def test_a_body_is_not_waited_for_before_it_is_read_in_parts(stage, client):
    await known(stage, client)
    client.send(PLAIN[:-14])
    await stage.data_port.serves(1)
    client.send(PLAIN[-14:])
    await answered(stage, client)


async def test_no_body_is_waited_for_once_the_proxy_leaves(stage, client):
    await known(stage, client)
    stage.data_port.leave()
    stage.listener.connections[0].data_received(PLAIN[:-14])
    await stage.data_port.serves(1)
    client.send(PLAIN[-14:])
    await answered(stage, client)


async def test_who_leaves_before_the_body_leaves_nothing(stage, client):
    await known(stage, client)
    connection = stage.listener.connections[0]
    connection.data_received(PLAIN[:-14])
    connection.transport.abort()
    await asyncio.sleep(0)
    assert connection.transport is None
    assert connection._held is None


CUTS = [
    pytest.param(said("200 OK")[:-4], (200, False), id="in its body"),
    pytest.param(said("200 OK")[:-11], (502, True), id="after its head"),
]


@pytest.mark.parametrize(("sent", "expected"), CUTS)
async def test_an_answer_that_is_cut_looks_cut(stage, client, sent, expected):
    await known(stage, client)
    client.send(PLAIN)
    call = await stage.backend.call()
    call.send(sent)
    call.close()
    told = await client.answer()
    assert (told.status, told.is_whole) == expected
    await stage.data_port.serves(0)


@pytest.mark.parametrize("sent", [b"", said("200 OK")[:30]], ids=["before its head", "in its head"])
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_what_died_with_an_old_connection_is_asked_again(stage, client, sent, how):
    await known(stage, client)
    client.send(PLAIN)
    call = await stage.backend.call()
    if sent:
        call.send(sent)
    getattr(call, how)()
    again = await stage.backend.call()
    assert await again.body() == b'{"model": "m"}'
    again.answer(said("200 OK"))
    assert (await client.answer()).body == b'{"id": "x"}'


async def test_who_leaves_is_not_worked_for_any_longer(stage, client):
    await known(stage, client)
    client.send(PLAIN)
    call = await stage.backend.call()
    client.close()
    await call.gone()
    await stage.data_port.serves(0)


async def test_an_answer_that_is_late_is_told(stage, client):
    raw = post('{"model": "fast"}')
    await known(stage, client, raw)
    client.send(raw)
    call = await stage.backend.call()
    told = await client.answer()
    assert (told.status, told.get("proxy-status")) == (504, "mendproxy;error=http_response_timeout")
    await call.gone()


async def test_requests_that_come_at_once_are_answered_one_after_the_other(stage, client):
    await known(stage, client)
    client.send(PLAIN + post('{"model": "two"}') + PLAIN)
    for body in (b'{"model": "m"}', b'{"model": "two"}', b'{"model": "m"}'):
        call = await stage.backend.call()
        assert await call.body() == body
        call.answer(said("200 OK", body=body))
        assert (await client.answer()).body == body


async def test_a_request_that_comes_while_another_is_answered_waits_for_it(stage, client):
    await known(stage, client)
    client.send(PLAIN)
    call = await stage.backend.call()
    client.send(post('{"model": "two"}'))
    client.send(post('{"model": "three"}'))
    call.answer(said("200 OK", body=b"one"))
    assert (await client.answer()).body == b"one"
    for told in (b"two", b"three"):
        call = await stage.backend.call()
        assert await call.body() == b'{"model": "%b"}' % told
        call.answer(said("200 OK", body=told))
        assert (await client.answer()).body == told


async def test_what_comes_after_an_answer_goes_to_nobody(stage, client):
    await known(stage, client)
    client.send(PLAIN)
    call = await stage.backend.call()
    call.send(said("200 OK") + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nstolen")
    assert (await client.answer()).body == b'{"id": "x"}'
    await call.gone()
    client.send(PLAIN)
    (await stage.backend.call()).answer(said("200 OK", body=b"mine"))
    assert (await client.answer()).body == b"mine"


async def test_a_policy_that_is_replaced_is_followed_at_once(stage, client):
    await known(stage, client)
    other = POLICY + "limits: {body: 10B}\n"
    stage.data_port.use(load_policy("policy.yaml", environ={"BACKEND": stage.backend.url}, text=other))
    client.send(PLAIN)
    assert (await client.answer()).status == 413


async def test_a_request_keeps_the_policy_that_it_began_with(stage, client):
    await known(stage, client)
    client.send(PLAIN)
    call = await stage.backend.call()
    other = POLICY.replace("version: 1", "version: 1\nauth: {keys: [another]}")
    stage.data_port.use(load_policy("policy.yaml", environ={"BACKEND": stage.backend.url}, text=other))
    call.answer(said("404 Not Found"))
    assert (await client.answer()).status == 404
    client.send(PLAIN)
    assert (await client.answer()).status == 401


@pytest.mark.parametrize("is_closed", [False, True], ids=["in the grace", "after it"])
async def test_who_asks_while_the_proxy_leaves_is_told(stage, client, is_closed):
    await known(stage, client)
    await read_on()
    stage.data_port.leave()
    if is_closed:
        stage.data_port.close()
    client.send(PLAIN)
    if not is_closed:
        (await stage.backend.call()).answer(said("200 OK"))
    told = await client.answer()
    assert (told.status, told.get("connection")) == (503 if is_closed else 200, "close")


async def test_a_refusal_by_a_rule_is_told(stage, client):
    await known(stage, client)
    client.send(post('{"model": "m", "never": true}'))
    told = await client.answer()
    assert (told.status, b"no" in told.body) == (400, True)


async def test_what_is_held_is_given_back(stage, client):
    await known(stage, client)
    client.send(PLAIN)
    call = await stage.backend.call()
    assert stage.data_port.reserve.held_bytes == len('{"model": "m"}')
    call.answer(said("200 OK"))
    await client.answer()
    await stage.data_port.serves(0)
    assert stage.data_port.reserve.held_bytes == 0


@pytest.mark.parametrize("name", ["Date", "date"])
async def test_each_answer_has_the_date_that_the_backend_told(stage, client, shortcuts, name):
    for minute in range(10, 16):
        date = f"Sun, 06 Nov 1994 08:{minute}:37 GMT"
        client.send(PLAIN)
        call = await stage.backend.call()
        await call.body()
        call.answer(said("200 OK", f"{name}: {date}", f"X-Request-Id: {minute}"))
        told = await client.answer()
        assert told.all("date") == [date]
        await stage.data_port.serves(0)
    assert len(shortcuts) == 4


ODD_HEADS = [
    pytest.param("Date: yesterday", id="a date that is none"),
    pytest.param("Date: Sun, 06 Nov 1994 08:49:37 GMT+1", id="a long date"),
    pytest.param("X-Request-Id: \x7f", id="an id that is not visible"),
]


@pytest.mark.parametrize("line", ODD_HEADS)
async def test_an_odd_line_is_told_as_the_first_time(stage, client, line):
    first = await ask(stage, client, PLAIN, said("200 OK", line))
    assert [await ask(stage, client, PLAIN, said("200 OK", line)) for _ in range(4)] == [first] * 4


async def test_an_answer_of_another_kind_is_told_as_the_first_time(stage, client, shortcuts):
    other = said("200 OK", "X-Other: 1", body=b"[]")
    first = await ask(stage, client, PLAIN, other)
    for _ in range(3):
        await ask(stage, client, PLAIN, said("200 OK"))
    before = len(shortcuts)
    assert await ask(stage, client, PLAIN, other) == first
    assert len(shortcuts) == before + 1


async def test_a_key_that_opens_nothing_does_so_however_often_it_comes(stage, client):
    await stage.proxy(POLICY + "auth: {keys: [mine]}\n")
    client, other = await stage.client(), await stage.client()
    await known(stage, client)
    for _ in range(4):
        other.send(PLAIN.replace(b"Bearer mine", b"Bearer mind"))
        assert (await other.answer()).status == 401
    assert (await ask(stage, client, PLAIN, said("200 OK"))).count("authorization") == 0


@pytest.mark.parametrize("name", ["X-Request-Id", "x-request-id", "X-Request-ID"])
async def test_each_request_keeps_the_id_that_its_client_gave(stage, client, shortcuts, name):
    for given in ("one", "two", "3", "x" * 128, "five"):
        client.send(post('{"model": "m"}', f"{name}: {given}", "X-Last: 1"))
        call = await stage.backend.call()
        await call.body()
        assert call.head.all("x-request-id") == [given]
        call.answer(said("200 OK"))
        assert (await client.answer()).all("x-request-id") == [given]
        await stage.data_port.serves(0)
    assert len(shortcuts) == 3


async def test_a_body_that_does_not_follow_its_head_is_waited_for_in_the_lane(stage, client, monkeypatch):
    await known(stage, client)
    widened, widen = asyncio.Event(), Shortcut.widen
    monkeypatch.setattr(Shortcut, "widen", lambda self: (widened.set(), widen(self))[1])
    client.send(PLAIN)
    call = await stage.backend.call()
    await call.body()
    call.send(said("200 OK")[:-11])
    async with asyncio.timeout(PATIENCE_S):
        await widened.wait()
    call.answer(said("200 OK")[-11:])
    assert (await client.answer()).body == b'{"id": "x"}'


@pytest.mark.parametrize("name", ["ask", "_take"])
async def test_a_bug_costs_one_request(stage, client, monkeypatch, name):
    await known(stage, client)

    def fail(*_given):
        raise ValueError("SECRET")

    with monkeypatch.context() as patched:
        patched.setattr(Shortcut, name, fail)
        client.send(PLAIN)
        if name == "_take":
            call = await stage.backend.call()
            call.send(said("200 OK"))
            await call.gone()
        told = await client.answer()
    assert (told.status, b"SECRET" in told.body) == (500, False)
    await stage.data_port.serves(0)
    assert stage.data_port.reserve.held_bytes == 0
    client.send(PLAIN)
    await answered(stage, client)


async def test_a_head_is_never_taken_for_that_of_a_request_behind_it(stage, client):
    strict = post('{"model": "m"}', "Prefer: handling=strict", "X-Who: first")
    other = post('{"model": "m"}', "X-Who: second").replace(b"Bearer mine", b"Bearer other")
    for _ in range(4):
        client.send(strict + other)
        for who, key in (("first", "Bearer mine"), ("second", "Bearer other")):
            call = await stage.backend.call()
            await call.body()
            assert (call.get("x-who"), call.get("authorization")) == (who, key)
            call.answer(said("200 OK"))
            await client.answer()
        await stage.data_port.serves(0)
    for raw, who, key in ((strict, "first", "Bearer mine"), (other, "second", "Bearer other")) * 4:
        client.send(raw)
        call = await stage.backend.call()
        await call.body()
        assert (call.get("x-who"), call.get("authorization")) == (who, key)
        call.answer(said("200 OK"))
        await client.answer()
        await stage.data_port.serves(0)
