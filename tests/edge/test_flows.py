"""Streams whose heads are known, which pass without being parsed: whatever comes of one, the client is told to the byte
what the lane tells where no head is known, and as much is counted.
"""

import asyncio
import json

import pytest

from proxy import flow
from proxy.flow import Flow
from tests.edge.seen import CALM, Seen, answered, read, read_on

POLICY = """
version: 1
backends: {main: {url: "${BACKEND}", timeouts: {first_content: %s, idle: %s}}}
keep_alive: %s
rules:
  - {id: renamed, when: {body: {sharp: true}}, repair: [drop: [sharp]]}
"""
# With a rule that waits for a refusal, nothing goes out before a stream proves life.
HOLDING = (
    POLICY
    + """\
  - {id: reacts, on_error: {status: 400, message: "unknown field '(?P<field>[a-z]+)'"}, repair: [drop: ["{field}"]]}
"""
)
REVIVING = (
    HOLDING
    + """\
  - {id: revives, on_error: {stream: empty}, repair: [set: {again: true}]}
  - {id: wakes, on_error: {stream: silent}, repair: [set: {again: true}]}
"""
)
ELSEWHERE = (
    POLICY
    + """\
  - {id: elsewhere, when: {path: /v1/other, body: {sharp: true}}, repair: [drop: [sharp]]}
"""
)
BOTH = pytest.mark.parametrize("policy", [POLICY, HOLDING], ids=["at once", "held back"])


def ask(*headers, version="1.1", path="/v1/chat/completions", **fields):
    """Return a request for a stream."""
    body = json.dumps({"model": "m", "messages": [], "stream": True} | fields)
    lines = [f"POST {path} HTTP/{version}", "Host: p", *headers, f"Content-Length: {len(body)}", "", body]
    return "\r\n".join(lines).encode()


def head(*lines, status="200 OK", kind="text/event-stream"):
    """Return the head of a stream."""
    told = [f"HTTP/1.1 {status}", "Server: s", f"Content-Type: {kind}", *lines, "Transfer-Encoding: chunked", "", ""]
    return "\r\n".join(told).encode()


def event(text="", finish=None, **fields):
    """Return an event of a stream; its text is that of a role alone where it is empty."""
    delta = {"content": text} if text else {"role": "assistant", "content": ""}
    choice = {"index": 0, "delta": delta if finish is None else {}, "finish_reason": finish}
    told = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]} | fields
    return b"data: " + json.dumps(told).encode() + b"\n\n"


def chunk(*contents):
    """Return some bytes as one chunk."""
    data = b"".join(contents)
    return b"%x\r\n%b\r\n" % (len(data), data)


HEAD, ROLE, ONE, TWO = head(), event(), event("one"), event("two")
STOP, DONE, END = event(finish="stop"), b"data: [DONE]\n\n", b"0\r\n\r\n"
BEGUN = [HEAD + chunk(ROLE), chunk(ONE)]
WHOLE = [*BEGUN, chunk(TWO), chunk(STOP), chunk(DONE) + END]
ERROR = b'data: {"error": {"message": "boom", "code": 503}}\n\n'

# What the backend sends, one read after the other, that passes to its end without being parsed.
PLAIN = [
    pytest.param(WHOLE, id="event by event"),
    pytest.param([b"".join(WHOLE)], id="all in one read"),
    pytest.param([HEAD, *[part.removeprefix(HEAD) for part in WHOLE]], id="its head alone"),
    pytest.param([*WHOLE[:-1], chunk(DONE), END], id="its end alone"),
    pytest.param([*WHOLE[:-1], chunk(DONE), None], id="a backend that closes after its sentinel"),
    pytest.param([*WHOLE[:-1], END], id="no sentinel"),
    pytest.param([*BEGUN, *[chunk(event("long " * 900))] * 3, chunk(DONE) + END], id="long chunks"),
    pytest.param([HEAD + chunk(ONE, TWO), chunk(STOP, DONE) + END], id="several events in a chunk"),
    pytest.param([HEAD + chunk(ONE) + chunk(TWO), chunk(STOP) + chunk(DONE) + END], id="several chunks in a read"),
    pytest.param([HEAD, chunk(ONE[:30]), chunk(ONE[30:]), chunk(DONE) + END], id="an event in two chunks"),
    pytest.param([HEAD, chunk(ONE), chunk(b"d"), chunk(b"ata: [DONE]\n"), chunk(b"\n"), END], id="a cut sentinel"),
    pytest.param(
        [*BEGUN, chunk(TWO), chunk(b"data: [DO"), chunk(b"NE]\n"), chunk(b"\n"), None], id="a cut sentinel, and no end"
    ),
    pytest.param([HEAD, chunk(b": ping\n\n"), chunk(ONE), chunk(DONE) + END], id="a comment first"),
    pytest.param([HEAD, chunk(ONE.replace(b"\n", b"\r\n")), chunk(DONE) + END], id="other ends of lines"),
    pytest.param([HEAD, chunk(event("data: [DONE]\n\n")), chunk(TWO), chunk(DONE) + END], id="a text like a sentinel"),
    pytest.param([HEAD, chunk(ONE), chunk(DONE), chunk(TWO), chunk(DONE) + END], id="more after the sentinel"),
    pytest.param([HEAD, chunk(ONE), chunk(ERROR) + END], id="a failure after its beginning"),
    pytest.param([head("Date: Sun, 06 Nov 1994 08:49:37 GMT"), chunk(ONE), chunk(DONE) + END], id="dated"),
    pytest.param([head("X-Request-Id: theirs"), chunk(ONE), chunk(DONE) + END], id="with an id of theirs"),
]
# As above, but the lane goes on with it: from its head, or from where it stands. One that ends with None is cut there.
ODD = [
    pytest.param([HEAD, *[chunk(event("long " * 900))] * 3, chunk(DONE) + END], id="a long chunk first"),
    pytest.param([HEAD[:40], HEAD[40:] + chunk(ONE), chunk(DONE) + END], id="its head in two reads"),
    pytest.param([*BEGUN, chunk(TWO)[:9], chunk(TWO)[9:], chunk(DONE) + END], id="a cut chunk"),
    pytest.param([*BEGUN, chunk(TWO)[:2], chunk(TWO)[2:], chunk(DONE) + END], id="a cut size"),
    pytest.param([*BEGUN, b"000" + chunk(TWO), chunk(STOP), chunk(DONE) + END], id="a size with zeros"),
    pytest.param([*BEGUN, chunk(TWO).replace(b"\r\n", b";a=b\r\n", 1), chunk(DONE) + END], id="an extension"),
    pytest.param([*BEGUN, chunk(DONE) + b"0\r\nX-Trailer: 1\r\n\r\n"], id="a trailer"),
    pytest.param([*BEGUN, b"zz\r\n"], id="no HTTP"),
    pytest.param([*BEGUN, chunk(DONE) + END + b"HTTP/1.1 200 OK\r\n"], id="more than there may be"),
    pytest.param([*BEGUN, chunk(TWO), None], id="a cut stream"),
    pytest.param([HEAD, chunk(ONE[:-1]), chunk(b"\n"), None], id="a stream that is cut after a cut event"),
    pytest.param([*BEGUN, chunk(TWO)[:20], None], id="a stream that is cut in a chunk"),
    pytest.param([*BEGUN, chunk(TWO[:20]), None], id="a stream that is cut in an event"),
    pytest.param([HEAD, None], id="a stream that is cut after its head"),
    pytest.param([HEAD + chunk(ROLE), None], id="a stream that is cut after its role"),
    pytest.param([HEAD + chunk(ROLE) + END], id="no content"),
    pytest.param([HEAD + END], id="nothing"),
    pytest.param([HEAD, END], id="nothing, after its head"),
    pytest.param([HEAD + chunk(ERROR) + END], id="a failure"),
    pytest.param([HEAD + chunk(ROLE), chunk(ERROR), END], id="a failure after its role"),
    pytest.param([HEAD + chunk(b'data: {"error": "x'), None], id="half a failure"),
    pytest.param([HEAD, *[chunk(b": ping %b\n\n" % (b"x" * 4000))] * 20, chunk(ONE), END], id="many comments first"),
    pytest.param([head("Set-Cookie: a=1"), chunk(ONE), chunk(DONE) + END], id="another head"),
    pytest.param([head("Connection: close"), chunk(ONE), chunk(DONE) + END], id="a backend that closes"),
    pytest.param([head("Content-Encoding: gzip"), chunk(b"\x1f\x8b"), END], id="a coding"),
    pytest.param([head(kind="application/json"), chunk(b'{"id": "x"}') + END], id="JSON in chunks"),
    pytest.param([head(kind="text/plain"), chunk(ONE), chunk(DONE) + END], id="events, labelled as text"),
    pytest.param([b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n", b'{"id": "x"}'], id="JSON"),
    pytest.param([b"HTTP/1.1 103 Early Hints\r\n\r\n" + HEAD, chunk(ONE), chunk(DONE) + END], id="an interim answer"),
]
KNOWN = [(ask(), WHOLE), *[(ask(), param.values[0]) for param in PLAIN[-2:]]]
ASKED = [
    pytest.param(ask(), id="untouched"),
    pytest.param(ask(sharp=True), id="repaired"),
    pytest.param(ask("X-Request-Id: mine"), id="with an id"),
    pytest.param(ask(path="/v1/completions"), id="for a completion"),
]


@pytest.fixture
def ends(monkeypatch):
    """Count streams that came to their end without being parsed, and those with which the lane went on."""
    told = []
    for name in ("_end", "_widen"):
        was = getattr(Flow, name)
        monkeypatch.setattr(
            Flow,
            name,
            lambda self, *given, was=was, name=name, **named: (told.append(name), was(self, *given, **named))[1],
        )
    return told


@pytest.fixture
def asked(stage, monkeypatch, ends):
    """Return what is told of a request: first where no head is ever known, then where they are."""

    async def told_of(policy, raw, *rounds, timeouts=CALM, known=KNOWN):
        seen, told = Seen(stage, monkeypatch, policy, [*known, (raw, WHOLE)]), []
        for path in ("lane", "direct"):
            client = await seen.begin(path, timeouts, how="known")
            ends.clear()
            client.send(raw)
            bodies = []
            for parts in rounds:
                call = await stage.backend.call()
                bodies.append(json.loads(await call.body()))
                await answered(call, parts)
            told.append(await seen.end(bodies, await read(client)))
        return told

    return told_of


@BOTH
@pytest.mark.parametrize("parts", PLAIN)
async def test_a_stream_of_whole_chunks_passes_as_in_the_lane(asked, ends, policy, parts):
    lane, direct = await asked(policy, ask(), parts)
    assert direct == lane
    assert ends == ["_end"]


@BOTH
@pytest.mark.parametrize("raw", ASKED)
async def test_whoever_asks_is_told_what_the_lane_tells(asked, ends, policy, raw):
    lane, direct = await asked(policy, raw, WHOLE)
    assert direct == lane
    assert ends == ["_end"]


async def test_a_stream_of_a_path_that_has_no_chunks_is_the_lane_s(asked, ends):
    lane, direct = await asked(ELSEWHERE, ask(path="/v1/other"), WHOLE)
    assert direct == lane
    assert ends == []


@BOTH
@pytest.mark.parametrize("parts", ODD)
async def test_what_the_lane_goes_on_with_is_told_as_in_the_lane(asked, ends, policy, parts):
    lane, direct = await asked(policy, ask(), parts)
    assert direct == lane
    assert "_end" not in ends or policy is POLICY


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([HEAD + END], id="nothing"),
        pytest.param([HEAD, chunk(ROLE), END], id="a role alone"),
        pytest.param([HEAD, chunk(ROLE), chunk(DONE), None], id="a role and the sentinel"),
        pytest.param([HEAD + chunk(ROLE), None], id="a cut stream"),
        pytest.param([HEAD], id="silence after its head"),
        pytest.param([HEAD + chunk(ROLE)], id="silence after its role"),
    ],
)
async def test_another_round_follows_a_stream_without_life(asked, ends, parts):
    lane, direct = await asked(REVIVING, ask(), parts, [*WHOLE], timeouts=("300ms", "10s", "10s"))
    assert direct == lane
    assert "data: [DONE]" in direct
    assert ends == ["_widen"]


async def test_a_failure_is_told_before_the_stream_s_end(asked):
    lane, direct = await asked(HOLDING, ask(), [HEAD, chunk(ROLE), chunk(ERROR)])
    assert direct == lane
    assert "boom" in direct


SILENT = [
    pytest.param([], ("300ms", "10s", "10s"), id="before its head"),
    pytest.param([HEAD], ("300ms", "10s", "10s"), id="after its head"),
    pytest.param([HEAD], ("10s", "300ms", "10s"), id="after its head, for what comes next"),
    pytest.param([HEAD], ("400ms", "10s", "200ms"), id="after its head, which has gone on"),
    pytest.param([HEAD, chunk(ROLE)], ("300ms", "10s", "10s"), id="after its role"),
    pytest.param([HEAD, chunk(ROLE)], ("400ms", "10s", "200ms"), id="after its role, with a comment"),
    pytest.param([HEAD, chunk(ROLE)], ("10s", "300ms", "10s"), id="after its role, for what comes next"),
    pytest.param([HEAD, chunk(ROLE), chunk(ONE)], ("200ms", "400ms", "10s"), id="after content"),
    pytest.param([HEAD, chunk(ONE), chunk(DONE)], ("10s", "10s", "10s"), id="after its sentinel"),
    pytest.param([HEAD, chunk(ONE), chunk(DONE)], ("10s", "100ms", "10s"), id="after its sentinel, briefly"),
]


@BOTH
@pytest.mark.parametrize(("parts", "timeouts"), SILENT)
async def test_a_backend_that_falls_silent_is_told_of(asked, policy, parts, timeouts):
    lane, direct = await asked(policy, ask(), parts, timeouts=timeouts)
    assert direct == lane


@BOTH
@pytest.mark.parametrize("parts", [[HEAD], [HEAD, chunk(ROLE)]], ids=["after its head", "after its role"])
async def test_a_client_is_told_that_it_is_waited_for(stage, monkeypatch, policy, parts):
    for path in ("lane", "direct"):
        client = await Seen(stage, monkeypatch, policy, KNOWN).begin(path, ("10s", "10s", "100ms"), how="known")
        client.send(ask())
        call = await stage.backend.call()
        for part in parts:
            call.send(part)
        if policy is HOLDING:
            await client.wait(lambda: client.received.count(b": waiting\n\n") >= 2)  # noqa: B023 it is waited for here
        else:
            await client.sees(b"\r\n\r\n")
        rest = [chunk(ONE), chunk(DONE) + END]
        await answered(call, rest)
        _, _, body, is_whole = await read(client)
        assert (is_whole, body.replace(b": waiting\n\n", b"")) == (
            True,
            b"".join([*([ROLE] * (len(parts) - 1)), ONE, DONE]),
        )
        await stage.data_port.serves(0)


LEAVING = [
    pytest.param([], id="before its head"),
    pytest.param([HEAD], id="after its head"),
    pytest.param([HEAD, chunk(ROLE)], id="after its role"),
    pytest.param([HEAD, chunk(ROLE), chunk(ONE)], id="after content"),
    pytest.param([HEAD, chunk(ONE), chunk(DONE)], id="after its sentinel"),
]


@BOTH
@pytest.mark.parametrize("way", ["close", "reset"])
@pytest.mark.parametrize("parts", LEAVING)
async def test_the_backend_is_let_go_when_the_client_leaves(stage, monkeypatch, policy, parts, way):
    seen, told = Seen(stage, monkeypatch, policy, KNOWN), []
    for path in ("lane", "direct"):
        client = await seen.begin(path, how="known")
        client.send(ask())
        call = await stage.backend.call()
        await call.body()
        for part in parts:
            call.send(part)
            await read_on()
        getattr(client, way)()
        await call.gone()
        told.append(await seen.end())
        assert (stage.data_port.upstream.busy, stage.data_port.metrics.numbers.gauges["streams_open"]) == (0, {(): 0.0})
    assert told[1] == told[0]


@BOTH
async def test_a_client_that_is_slow_holds_the_backend_back_and_gets_all(stage, monkeypatch, ends, policy):
    client = await Seen(stage, monkeypatch, policy, KNOWN).begin("direct", how="known")
    ends.clear()
    client.transport.pause_reading()
    client.send(ask())
    call = await stage.backend.call()
    call.send(*BEGUN)
    sent = 0
    while sent < 100_000 and await call.wire.drained(0.2):
        call.send(chunk(event(f"{sent:9} {'x' * 3000}")))
        sent += 1
    assert sent < 100_000
    client.transport.resume_reading()
    await answered(call, [chunk(DONE) + END])
    body = (await client.answer()).body
    assert body == ROLE + ONE + b"".join(event(f"{at:9} {'x' * 3000}") for at in range(sent)) + DONE
    assert ends == ["_widen"]


@BOTH
async def test_a_client_that_is_slow_is_not_taken_for_a_backend_that_is(stage, monkeypatch, policy):
    client = await Seen(stage, monkeypatch, policy, KNOWN).begin("direct", ("10s", "200ms", "10s"), how="known")
    client.transport.pause_reading()
    client.send(ask())
    call = await stage.backend.call()
    call.send(*BEGUN)
    sent = 0
    while not any(served.writing_paused for served in stage.listener.connections):
        call.send(chunk(event(f"{sent:9} {'x' * 3000}")))
        sent += 1
        await read_on()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.6):
            await stage.data_port.serves(0)
    client.transport.resume_reading()
    await answered(call, [chunk(DONE) + END])
    answer = await client.answer()
    assert (answer.is_whole, answer.body.endswith(DONE)) == (True, True)


async def test_a_connection_whose_stream_has_no_end_serves_no_other(stage, monkeypatch, ends):
    client = await Seen(stage, monkeypatch, HOLDING, KNOWN).begin("direct", ("10s", "10s", "10s"), how="known")
    ends.clear()
    client.send(ask())
    call = await stage.backend.call()
    await call.body()
    call.send(HEAD + chunk(ONE), chunk(DONE))
    assert (await client.answer()).body == ONE + DONE
    client.send(ask())
    again = await stage.backend.call()
    assert (again.wire is not call.wire, ends) == (True, ["_end"])


async def test_the_connections_serve_again_afterwards(stage, monkeypatch, ends):
    client = await Seen(stage, monkeypatch, HOLDING, KNOWN).begin("direct", how="known")
    ends.clear()
    for number in range(3):
        client.send(ask())
        call = await stage.backend.call()
        await call.body()
        await answered(call, [HEAD, chunk(event(f"text {number}")), chunk(DONE) + END])
        assert f"text {number}".encode() in (await client.answer()).body
    assert (ends, len(stage.backend.wires)) == (["_end"] * 3, 1)


@BOTH
async def test_a_bug_costs_one_stream(stage, monkeypatch, ends, policy):
    client = await Seen(stage, monkeypatch, policy, KNOWN).begin("direct", how="known")
    monkeypatch.setattr(flow, "whole_chunks", lambda _: 1 / 0)
    client.send(ask())
    await answered(await stage.backend.call(), [HEAD, chunk(ONE)])
    answer = await client.answer()
    assert (answer.status, b"internal_error" in answer.body) == (500, True)
    monkeypatch.undo()
    client = await Seen(stage, monkeypatch, policy, KNOWN).begin("direct", how="known")
    client.send(ask())
    call = await stage.backend.call()
    call.send(HEAD + chunk(ONE))
    await client.sees(ONE)
    monkeypatch.setattr(flow, "one_chunk", lambda _: 1 / 0)
    call.send(chunk(TWO))
    answer = await client.answer()
    assert (answer.body, answer.is_whole) == (ONE, False)
    await stage.data_port.serves(0)
    assert stage.data_port.metrics.numbers.gauges["streams_open"] == {(): 0.0}
    assert stage.data_port.reserve.held_bytes == 0


async def test_a_request_s_body_is_let_go_of_when_its_stream_begins(stage, monkeypatch):
    client = await Seen(stage, monkeypatch, HOLDING, KNOWN).begin("direct", how="known")
    client.send(ask(user="u" * 3000))
    call = await stage.backend.call()
    call.send(HEAD + chunk(ROLE))
    await read_on()
    assert stage.data_port.reserve.held_bytes > 3000 + len(chunk(ROLE))
    call.send(chunk(ONE))
    await client.sees(ONE)
    (one,) = [served._taken._one for served in stage.listener.connections]
    assert (stage.data_port.reserve.held_bytes, one.request.body, one.plan.facts.body) == (0, None, None)
    await answered(call, [chunk(DONE) + END])
    assert (await client.answer()).is_whole


async def test_a_reload_and_a_drain_leave_a_stream_alone(stage, monkeypatch, ends):
    client = await Seen(stage, monkeypatch, HOLDING, KNOWN).begin("direct", how="known")
    ends.clear()
    client.send(ask())
    call = await stage.backend.call()
    call.send(HEAD + chunk(ONE))
    await client.sees(ONE)
    stage.data_port.use(stage.data_port.policy)
    stage.data_port.leave()
    stage.data_port.close()
    await answered(call, [chunk(TWO), chunk(DONE) + END])
    assert (await client.answer()).body == ONE + TWO + DONE
    assert ends == ["_end"]
