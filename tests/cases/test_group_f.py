"""Cases of group F that take more than a script: many connections, reloads, an environment, a resolver."""

import asyncio
import json
import socket

from proxy.policy import load_policy

POLICY = """
version: 1
backends: {main: {url: "${BACKEND}"}}
rules:
  - {id: choices, when: {body: {n: {gt: 1}}}, repair: [fan_out: {}]}
"""
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
END = b"0\r\n\r\n"


def ask(**fields):
    body = json.dumps({"model": "m", "messages": []} | fields).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def streamed(*choices):
    """Return one HTTP chunk with an event of these choices."""
    data = b"data: " + json.dumps({"id": "c", "object": "chat.completion.chunk", "choices": choices}).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def said(text, finish_reason=None):
    return streamed({"index": 0, "delta": {"content": text}, "finish_reason": finish_reason})


async def test_f01_a_hundred_and_fifty_streams_are_open_at_once(stage):
    await stage.proxy(POLICY)
    clients = [await stage.ask(ask(stream=True)) for _ in range(150)]
    calls = [await stage.backend.call() for _ in clients]
    for call in calls:
        call.send(STREAM, said("x"))
    for client in clients:
        await client.sees(b'"content": "x"')
    assert len(stage.backend.wires) == stage.data_port.in_flight == 150
    for call in calls:
        call.answer(said("", "stop"), END)
    assert [(await client.answer()).is_whole for client in clients] == [True] * 150


async def test_f01_thirty_fan_outs_of_eight_are_open_at_once(stage):
    await stage.proxy(POLICY)
    clients = [await stage.ask(ask(stream=True, n=8)) for _ in range(30)]
    calls = [await stage.backend.call() for _ in range(240)]
    for call in calls:
        call.answer(STREAM, said("x"), said("", "stop"), END)
    answers = [await client.answer() for client in clients]
    assert [answer.body.count(b'"content":"x"') for answer in answers] == [8] * 30
    assert all(answer.body.endswith(b"data: [DONE]\n\n") for answer in answers)


async def test_f01_a_request_that_waits_too_long_for_its_turn_is_told_so(stage):
    limited = POLICY.replace('"${BACKEND}"', '"${BACKEND}", max_concurrency: 1, timeouts: {first_content: 300ms}')
    await stage.proxy(limited)
    first = await stage.ask(ask(stream=True))
    call = await stage.backend.call()
    call.send(STREAM, said("x"))
    await first.sees(b'"content": "x"')
    answer = await (await stage.ask(ask())).answer()
    assert (answer.status, answer.get("proxy-status")) == (503, "mendproxy;error=connection_limit_reached")
    assert json.loads(answer.body)["error"]["code"] == "connection_limit_reached"
    assert stage.backend.calls.empty()
    call.answer(said("", "stop"), END)
    await first.answer()
    later = await stage.ask(ask())
    (await stage.backend.call()).answer(OK)
    assert (await later.answer()).status == 200


async def test_f09_running_answers_keep_their_policy_through_reloads(stage):
    await stage.proxy(POLICY)
    relayed = await stage.ask(ask(stream=True))
    plain = await stage.backend.call()
    fanned = await stage.ask(ask(stream=True, n=2))
    branches = [await stage.backend.call() for _ in range(2)]
    for call in (plain, *branches):
        call.send(STREAM, said("before "))
    await relayed.sees(b"before")
    await fanned.sees(b"before")
    other = POLICY.replace("n: {gt: 1}", "sharp: true").replace("fan_out: {}", "drop: [sharp]")
    policies = [load_policy("p", environ={"BACKEND": stage.backend.url}, text=text) for text in (other, POLICY)]
    for turn in range(51):
        stage.data_port.use(policies[turn % 2])
    new = await stage.ask(ask(sharp=True))
    call = await stage.backend.call()
    assert json.loads(await call.body()) == {"model": "m", "messages": []}
    call.answer(OK)
    assert (await new.answer()).get("mendproxy-repairs") == 'choices;loss="field sharp"'
    for call in (plain, *branches):
        call.answer(said("after", "stop"), END)
    answers = [await relayed.answer(), await fanned.answer()]
    assert [(answer.is_whole, answer.body.count(b"after")) for answer in answers] == [(True, 1), (True, 2)]
    # The connections outlive every policy, so that reloads leave nothing behind.
    assert len(stage.backend.wires) == 4


async def test_f15_the_environment_s_proxies_are_not_used(stage, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    await stage.proxy(POLICY)
    client = await stage.ask(ask())
    (await stage.backend.call()).answer(OK)
    assert (await client.answer()).status == 200


async def test_f15_a_backend_that_moved_is_found_by_the_next_request(stage, monkeypatch):
    real, addresses, asked = socket.getaddrinfo, ["127.0.0.2", "127.0.0.1"], []

    def resolve(host, *arguments, **options):
        if host != "backend.test":
            return real(host, *arguments, **options)
        asked.append(addresses[min(len(asked), 1)])
        return real(asked[-1], *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    await stage.proxy(POLICY.replace("${BACKEND}", stage.backend.url.replace("127.0.0.1", "backend.test")))
    lost = await (await stage.ask(ask())).answer()
    assert (lost.status, lost.get("proxy-status")) == (502, "mendproxy;error=connection_refused")
    client = await stage.ask(ask())
    async with asyncio.timeout(5):
        (await stage.backend.call()).answer(OK)
    assert (await client.answer()).status == 200
    assert asked == addresses
