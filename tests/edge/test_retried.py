"""Reactive rules on real sockets: what the backend refused, or answered with nothing, is asked for again, repaired."""

import json

import pytest

POLICY = """
version: 1
backends: {main: {url: "${BACKEND}", timeouts: {first_content: 10s, idle: 10s}}}
keep_alive: 20s
rules:
  - id: unsupported
    on_error: {status: [400, 422, 500], message: "unsupported: (?P<field>\\\\w+)"}
    repair: [drop: ["{field}"]]
    loses: an option
  - id: dead-stream
    when: {body: {stream: true, meta: true}}
    on_error: {stream: [empty, error, silent]}
    repair: [drop: [meta]]
    loses: nothing
"""
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ROLE = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": null}]}\n\n'
HELLO = b'data: {"choices": [{"index": 0, "delta": {"content": "hello"}, "finish_reason": null}]}\n\n'
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
END = b"0\r\n\r\n"


def ask(*headers, **fields):
    body = json.dumps({"model": "m"} | fields).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", "Host: p", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def refusal(field, status=400):
    body = json.dumps({"detail": f"Unsupported: {field}"}).encode()
    return b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


async def asked(stage, raw, policy=POLICY):
    await stage.proxy(policy)
    client = await stage.ask(raw)
    return client, *await heard(stage)


async def heard(stage):
    """Return the next request at the backend, and its body."""
    call = await stage.backend.call()
    return call, json.loads(await call.body())


@pytest.mark.parametrize("status", [400, 422, 500])
async def test_a_refused_field_is_dropped_and_the_client_told(stage, status):
    client, call, _ = await asked(stage, ask(a=1, b=2))
    call.answer(refusal("a", status))
    call, body = await heard(stage)
    assert body == {"model": "m", "b": 2}
    call.answer(OK)
    answer = await client.answer()
    assert (answer.status, answer.body) == (200, b"{}")
    assert answer.get("mendproxy-repairs") == 'unsupported;loss="an option"'


async def test_what_no_repair_helps_is_answered_with_the_first_refusal(stage):
    client, call, _ = await asked(stage, ask(a=1, b=2))
    call.answer(refusal("a"))
    call, _ = await heard(stage)
    call.answer(refusal("b", 422))
    answer = await client.answer()
    assert (answer.status, answer.body) == (400, refusal("a").partition(b"\r\n\r\n")[2])
    assert stage.backend.calls.empty()


async def test_a_refusal_that_no_rule_knows_is_passed_on(stage):
    client, call, _ = await asked(stage, ask(a=1))
    call.answer(b"HTTP/1.1 400 No\r\nContent-Length: 6\r\n\r\nb\x00\r\nye")
    answer = await client.answer()
    assert (answer.status, answer.body, answer.get("mendproxy-repairs")) == (400, b"b\x00\r\nye", None)


async def test_a_strict_client_gets_the_refusal_rather_than_a_lossy_repair(stage):
    client, call, _ = await asked(stage, ask("Prefer: handling=strict", a=1))
    call.answer(refusal("a"))
    assert (await client.answer()).body == refusal("a").partition(b"\r\n\r\n")[2]
    assert stage.backend.calls.empty()


DEAD = [
    pytest.param([], "close", id="cut before its first event"),
    pytest.param([END], None, id="that ends before its first event"),
    pytest.param([chunk(ROLE)], "close", id="cut after a role"),
    pytest.param([chunk(ROLE), END], None, id="that ends after a role"),
    pytest.param([chunk(b": ping\n\n"), END], None, id="of comments only"),
    pytest.param([chunk(b'data: {"error": {"message": "no meta"}}\n\n')], None, id="that begins with an error"),
    pytest.param([chunk(b'data: {"error": "no "meta""}\n\n'), END], None, id="that begins with nearly an error"),
    pytest.param([chunk(ROLE)], "silence", id="that falls silent after a role"),
    pytest.param([], "silence", id="that never says anything"),
]


@pytest.mark.parametrize(("parts", "end"), DEAD)
async def test_a_stream_that_died_before_any_content_is_asked_for_again(stage, parts, end):
    policy = POLICY.replace("10s", "300ms") if end == "silence" else POLICY
    client, call, _ = await asked(stage, ask(stream=True, meta=True), policy)
    call.answer(STREAM, *parts)
    if end == "close":
        call.close()
    call, body = await heard(stage)
    assert body == {"model": "m", "stream": True}
    call.answer(STREAM, chunk(ROLE), chunk(HELLO), END)
    answer = await client.answer()
    assert (answer.status, answer.body, answer.is_whole) == (200, ROLE + HELLO, True)
    assert answer.get("mendproxy-repairs") == 'dead-stream;loss="none"'


async def test_a_stream_that_lives_is_passed_on_from_its_first_byte(stage):
    client, call, _ = await asked(stage, ask(stream=True, meta=True))
    call.send(STREAM, chunk(b": ping\n\n"), chunk(ROLE), chunk(HELLO))
    assert (await client.until(HELLO)).endswith(b": ping\n\n" + ROLE + HELLO)
    call.answer(chunk(HELLO), END)
    answer_end = await client.until(END)
    assert HELLO in answer_end


async def test_a_stream_that_died_after_content_is_not_asked_for_again(stage):
    client, call, _ = await asked(stage, ask(stream=True, meta=True))
    call.send(STREAM, chunk(HELLO))
    await client.sees(HELLO)
    call.close()
    answer = await client.answer()
    assert b"http_response_incomplete" in answer.body
    assert stage.backend.calls.empty()


async def test_a_comment_is_no_byte_of_the_answer(stage):
    client, call, _ = await asked(stage, ask(stream=True, meta=True), POLICY.replace("20s", "100ms"))
    call.send(STREAM, chunk(ROLE))
    await client.sees(b": waiting")
    call.close()
    call, _ = await heard(stage)
    call.answer(STREAM, chunk(ROLE), chunk(HELLO), END)
    answer = await client.answer()
    assert answer.body.replace(b": waiting\n\n", b"") == ROLE + HELLO


async def test_a_failure_after_a_comment_is_told_in_the_stream(stage):
    client, call, _ = await asked(stage, ask(stream=True, meta=True), POLICY.replace("20s", "100ms"))
    call.send(STREAM, chunk(ROLE))
    await client.sees(b": waiting")
    call.close()
    call, _ = await heard(stage)
    call.answer(refusal("nothing"))
    answer = await client.answer()
    *_, last = answer.body.removesuffix(b"\n\n").split(b"\n\n")
    assert json.loads(last.removeprefix(b"data: "))["error"]["message"] == "Unsupported: nothing"


async def test_a_backend_that_can_t_be_reached_is_no_refusal(stage):
    client, call, _ = await asked(stage, ask(a=1))
    call.close()
    assert (await client.answer()).status == 502
    assert stage.backend.calls.empty()
