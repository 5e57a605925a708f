"""Requests that a rule edits, as the backend gets them, and what the client is told of it."""

import gzip
import json

import pytest

POLICY = """
version: 1
backends: {main: {url: "${BACKEND}"}}
rules:
  - {id: exact, when: {body: {sharp: true}}, repair: [drop: [sharp]], loses: nothing}
  - {id: lossy, when: {body: {hot: true}}, repair: [set: {temperature: 1}, drop: [hot]], loses: the heat}
"""
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
STRICT = "Prefer: handling=strict"


def ask(*headers, raw=None, **fields):
    """Return a chat completion request."""
    body = raw if raw is not None else json.dumps({"model": "m", "messages": []} | fields).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", "Host: p", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


async def asked(stage, raw):
    """Return a client that has asked, what the backend saw, and its body."""
    await stage.proxy(POLICY)
    client = await stage.ask(raw)
    call = await stage.backend.call()
    return client, call, await call.body()


async def test_a_lossy_repair_is_refused_where_the_client_is_strict(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(ask(STRICT, hot=True, temperature=9))
    answer = await client.answer()
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"]) == (400, "repair_refused")
    assert answer.get("preference-applied") == "handling=strict"
    assert "lossy" in error["message"]
    assert "the heat" in error["message"]
    assert stage.backend.calls.empty()


@pytest.mark.parametrize("headers", [pytest.param([STRICT], id="strict"), pytest.param([], id="not strict")])
async def test_an_exact_repair_is_made_for_every_client(stage, headers):
    client, call, body = await asked(stage, ask(*headers, sharp=True))
    assert json.loads(body) == {"model": "m", "messages": []}
    call.answer(OK)
    answer = await client.answer()
    assert (answer.status, answer.get("mendproxy-repairs")) == (200, 'exact;loss="none"')


async def test_a_lossy_repair_is_told(stage):
    client, call, _ = await asked(stage, ask(hot=True))
    call.answer(OK)
    assert (await client.answer()).get("mendproxy-repairs") == 'lossy;loss="the heat"'


async def test_an_edited_body_keeps_what_no_rule_touched_byte_for_byte(stage):
    _, call, body = await asked(stage, ask(raw=b'{ "sharp" : true,\n"a": 1.50,  "b":{"c" :  "\\u00e9"} }'))
    assert body == b'{"a":1.50,"b":{"c" :  "\\u00e9"}}'
    assert call.head.all("content-length") == ["32"]


async def test_a_name_that_stands_twice_is_refused_only_where_a_rule_would_edit(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(ask(raw=b'{"model": "m", "model": "m"}'))
    (await stage.backend.call()).answer(OK)
    assert (await client.answer()).status == 200
    client.send(ask(raw=b'{"sharp": true, "model": "m", "model": "m"}'))
    answer = await client.answer()
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (400, "duplicate_name")
    assert stage.backend.calls.empty()


async def test_a_gzipped_body_is_repaired_and_goes_on_plain(stage):
    body = gzip.compress(b'{"sharp": true, "model": "m"}')
    await stage.proxy(POLICY)
    client = await stage.ask(ask("Content-Encoding: gzip", 'ETag: "x"', raw=body))
    call = await stage.backend.call()
    assert await call.body() == b'{"model":"m"}'
    assert call.head.names() & {"content-encoding", "etag"} == set()
    call.answer(OK)
    assert (await client.answer()).status == 200


async def test_a_chunked_body_that_is_repaired_goes_on_with_its_length(stage):
    await stage.proxy(POLICY)
    raw = ask("Transfer-Encoding: chunked", raw=b"").replace(b"Content-Length: 0\r\n", b"")
    await stage.ask(raw + b'1d\r\n{"sharp": true, "model": "m"}\r\n0\r\n\r\n')
    call = await stage.backend.call()
    assert (await call.body(), call.get("transfer-encoding")) == (b'{"model":"m"}', None)


async def test_a_repair_of_what_the_backend_refuses_all_the_same_passes_its_refusal_on(stage):
    client, call, _ = await asked(stage, ask(sharp=True))
    call.answer(b'HTTP/1.1 418 Teapot\r\nContent-Length: 5\r\nX-Theirs: 1\r\n\r\n{"a"}')
    answer = await client.answer()
    assert (answer.first_line, answer.body, answer.get("x-theirs")) == ("HTTP/1.1 418 Teapot", b'{"a"}', "1")
    assert answer.get("mendproxy-repairs") == 'exact;loss="none"'
    assert answer.get("proxy-status") is None
