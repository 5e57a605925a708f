"""Repaired requests on real sockets: other shapes of answer, choices by branches, and their failures."""

import asyncio
import gzip
import json

import pytest

POLICY = """
version: 1
backends: {main: {url: "${BACKEND}", timeouts: {first_content: 10s, idle: 10s}}}
keep_alive: 100ms
rules:
  - {id: whole, when: {body: {whole: true}}, repair: [drop: [whole], stream: false], loses: nothing}
  - {id: live, when: {body: {live: true}}, repair: [drop: [live], stream: true], loses: nothing}
  - {id: single-file, when: {body: {single_file: true, n: {gt: 1}}}, repair: [fan_out: {concurrency: 1}]}
  - {id: choices, when: {body: {n: {gt: 1}}}, repair: [fan_out: {max: 8}]}
"""
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nX-Theirs: 1\r\n\r\n"
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"


def ask(*headers, raw=None, **fields):
    """Return a chat completion request."""
    body = raw if raw is not None else json.dumps({"model": "m", "messages": []} | fields).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", "Host: p", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def whole(text, identity="chatcmpl-1"):
    """Return a JSON answer."""
    message = {"role": "assistant", "content": text}
    body = json.dumps(
        {
            "id": identity,
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
        }
    ).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def refusal(status=400, text="no n for you"):
    body = json.dumps({"object": "error", "message": text, "code": status}).encode()
    return b"HTTP/1.1 %d Nope\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def piece(finish_reason=None, **delta):
    """Return a chunk's event in one chunk of HTTP."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    event = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return chunk(b"data: " + json.dumps(event).encode() + b"\n\n")


USAGE = chunk(
    b'data: {"id": "c", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}\n\n'
)


async def asked(stage, *headers, branches=1, **fields):
    """Return a client that has asked, and the branches with their bodies, in the order of their bodies' seeds."""
    await stage.proxy(POLICY)
    client = await stage.ask(ask(*headers, **fields))
    calls = [await stage.backend.call() for _ in range(branches)]
    for call in calls:
        call.sent = json.loads(await call.body())
    return client, sorted(calls, key=lambda call: call.sent.get("seed", 0))


def events_of(body):
    """Return the data of an event stream's events, comments left out."""
    events = [event for event in body.split(b"\n\n") if event and not event.startswith(b":")]
    assert all(event.startswith(b"data: ") for event in events)
    return [event.removeprefix(b"data: ") for event in events]


def chunks_of(body):
    """Return the chunks of a whole stream, which must end with the sentinel."""
    *events, last = events_of(body)
    assert last == b"[DONE]"
    return [json.loads(event) for event in events]


def texts_of(chunks):
    """Return each choice's text."""
    texts = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
    return texts


def finishes_of(chunks):
    return sorted(
        (choice["index"], choice["finish_reason"])
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["finish_reason"]
    )


async def test_a_json_answer_becomes_the_stream_that_was_asked_for(stage):
    client, [call] = await asked(stage, whole=True, stream=True, stream_options={"include_usage": True})
    assert call.sent == {"model": "m", "messages": [], "stream": False}
    assert call.head.all("content-type") == ["application/json"]
    assert call.get("accept-encoding") == "identity"
    call.answer(whole("hello"))
    answer = await client.answer()
    chunks = chunks_of(answer.body)
    assert (answer.status, answer.is_whole) == (200, True)
    assert answer.get("content-type") == "text/event-stream; charset=utf-8"
    assert answer.get("content-length") is None
    assert answer.get("mendproxy-repairs") == 'whole;loss="none"'
    assert (texts_of(chunks), finishes_of(chunks)) == ({0: "hello"}, [(0, "stop")])
    assert chunks[-1]["usage"]["total_tokens"] == 7


async def test_comments_keep_a_waiting_client_and_stop_with_the_data(stage):
    client, [call] = await asked(stage, whole=True, stream=True)
    head = await client.until(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert [await client.part() for _ in range(2)] == [b": waiting\n\n"] * 2
    call.answer(whole("hello"))
    seen = b""
    while part := await client.part():
        seen += part
    assert b": waiting" not in seen.partition(b"data: ")[2]
    assert texts_of(chunks_of(seen)) == {0: "hello"}


async def test_a_failure_after_comments_is_told_in_the_stream(stage):
    client, [call] = await asked(stage, whole=True, stream=True)
    await client.wait(lambda: b": waiting" in client.received)
    call.answer(refusal(400, "no meta for you"))
    answer = await client.answer()
    [event] = events_of(answer.body)
    assert json.loads(event)["error"]["message"] == "no meta for you"
    assert answer.status == 200


async def test_a_stream_becomes_the_json_answer_that_was_asked_for(stage):
    client, [call] = await asked(stage, live=True)
    assert call.sent["stream"] is True
    assert call.sent["stream_options"] == {"include_usage": True}
    call.answer(
        STREAM, piece(role="assistant"), piece(content="hel"), piece("stop", content="lo"), USAGE, chunk(DONE), END
    )
    answer = await client.answer()
    body = json.loads(answer.body)
    assert (answer.status, answer.get("content-type")) == (200, "application/json")
    assert answer.all("content-length") == [str(len(answer.body))]
    assert answer.get("x-theirs") == "1"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "hello"}
    assert (body["choices"][0]["finish_reason"], body["usage"]["total_tokens"]) == ("stop", 7)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([piece(content="hel")], id="that is cut"),
        pytest.param([piece(content="hel"), END], id="that ends without a finish_reason"),
        pytest.param([piece(content="hel"), chunk(DONE), END], id="whose sentinel comes without a finish_reason"),
        pytest.param([piece(content="hel"), chunk(b'data: {"error": "boom"}\n\n'), END], id="that tells of an error"),
    ],
)
async def test_half_a_stream_is_no_json_answer(stage, parts):
    client, [call] = await asked(stage, live=True)
    call.send(STREAM, *parts)
    call.close()
    answer = await client.answer()
    assert (answer.status, answer.get("content-type")) == (502, "application/json")
    assert "error" in json.loads(answer.body)


async def test_choices_of_a_stream_come_from_branches_as_they_speak(stage):
    client, calls = await asked(stage, branches=3, n=3, seed=7, stream=True, stream_options={"include_usage": True})
    assert [call.sent for call in calls] == [
        {
            "model": "m",
            "messages": [],
            "seed": 7 + branch,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        for branch in range(3)
    ]
    assert len({call.get("x-request-id") for call in calls}) == 3
    for call in calls:
        call.send(STREAM, piece(role="assistant", content=""))
    calls[2].send(piece(content="two"))
    await client.sees(b'"two"')
    for call, text in zip(calls, ("zero", "one", " and more"), strict=True):
        call.answer(piece(content=text), piece("stop"), USAGE, chunk(DONE), END)
    answer = await client.answer()
    chunks = chunks_of(answer.body)
    roles = [c["choices"][0]["index"] for c in chunks if c["choices"] and c["choices"][0]["delta"].get("role")]
    assert roles == [0, 1, 2]
    assert texts_of(chunks) == {0: "zero", 1: "one", 2: "two and more"}
    assert finishes_of(chunks) == [(0, "stop"), (1, "stop"), (2, "stop")]
    assert len({c["id"] for c in chunks}) == 1
    assert [c["usage"] for c in chunks if c.get("usage")] == [
        {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
    ]
    assert answer.get("mendproxy-repairs") == 'choices;loss="none"'


async def test_choices_of_a_json_answer_come_from_branches(stage):
    client, calls = await asked(stage, branches=3, n=3, seed=7)
    for branch in (1, 2, 0):
        calls[branch].answer(whole(f"text {branch}"))
    body = json.loads((await client.answer()).body)
    assert [(c["index"], c["message"]["content"]) for c in body["choices"]] == [(i, f"text {i}") for i in range(3)]
    assert body["usage"] == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}


async def test_branches_in_single_file_are_asked_one_after_another(stage):
    client, [call] = await asked(stage, n=3, seed=7, stream=True, single_file=True)
    for seed in (7, 8, 9):
        assert stage.backend.calls.empty()
        call.send(STREAM, piece(role="assistant"), piece(content=f"text {seed}"))
        await client.sees(b"text %d" % seed)
        call.answer(piece("stop"), chunk(DONE), END)
        if seed < 9:
            call = await stage.backend.call()
            assert json.loads(await call.body())["seed"] == seed + 1
    assert texts_of(chunks_of((await client.answer()).body)) == {0: "text 7", 1: "text 8", 2: "text 9"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_branch_that_is_refused_before_the_answer_began_is_the_answer(stage, stream):
    client, calls = await asked(stage, branches=3, n=3, seed=7, stream=stream)
    calls[0].send(STREAM, piece(role="assistant"))
    calls[1].answer(refusal(422))
    answer = await client.answer()
    assert answer.first_line == "HTTP/1.1 422 Nope"
    assert answer.body == refusal(422).partition(b"\r\n\r\n")[2]
    assert answer.get("proxy-status") is None
    for call in (calls[0], calls[2]):
        await call.gone()


async def test_a_branch_that_dies_after_the_answer_began_is_told_of_with_its_choice(stage):
    client, calls = await asked(stage, branches=3, n=3, seed=7, stream=True)
    for call in calls:
        call.send(STREAM, piece(role="assistant"), piece(content="text"))
    await client.wait(lambda: client.received.count(b'"text"') == 3)
    calls[1].close()
    answer = await client.answer()
    *_, last = events_of(answer.body)
    error = json.loads(last)["error"]
    assert (error["index"], error["code"]) == (1, "http_response_incomplete")
    assert b"[DONE]" not in answer.body
    for call in (calls[0], calls[2]):
        await call.gone()


STAYING = [
    pytest.param({"live": True}, 1, id="a JSON answer"),
    pytest.param({"n": 2, "stream": True}, 2, id="a stream of two choices"),
]


@pytest.mark.parametrize(("fields", "branches"), STAYING)
async def test_a_backend_that_stays_after_its_sentinel_is_not_waited_for(stage, fields, branches):
    client, calls = await asked(stage, branches=branches, **fields)
    async with asyncio.timeout(0.5):
        for call in calls:
            call.send(STREAM, piece("stop", role="assistant", content="hello"), chunk(DONE))
        assert (await client.answer()).is_whole
        for call in calls:
            await call.gone()


async def test_a_backend_that_goes_on_after_its_sentinel_is_cut_off(stage):
    client, [call] = await asked(stage, live=True)
    call.send(STREAM, piece("stop", role="assistant", content="hello"), chunk(DONE))
    assert (await client.answer()).is_whole
    async with asyncio.timeout(2):
        while not call.wire.has_ended:
            call.send(chunk(b": still here\n\n"))
            await asyncio.sleep(0)


async def test_a_slow_client_holds_all_branches_back(stage):
    client, calls = await asked(stage, branches=2, n=2, seed=7, stream=True)
    client.transport.pause_reading()
    for call in calls:
        call.send(STREAM, piece(content="x"))
    part = piece(content="x" * 100_000)
    for call in calls:
        sent = 0
        while await call.wire.drained(0.2):
            call.send(part)
            sent += len(part)
            assert sent < 64 << 20, "nobody holds the backend back"
    client.transport.resume_reading()
    for call in calls:
        call.answer(piece("stop"), chunk(DONE), END)
    assert (await client.answer()).is_whole


async def test_a_compressed_answer_that_nobody_asked_for_is_read(stage):
    client, [call] = await asked(stage, live=True)
    plain = b"".join(
        [b'data: {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}\n\n', DONE]
    )
    call.answer(STREAM.replace(b"X-Theirs: 1", b"Content-Encoding: gzip"), chunk(gzip.compress(plain)), END)
    answer = await client.answer()
    assert answer.get("content-encoding") is None
    assert json.loads(answer.body)["choices"][0]["message"]["content"] == "hi"


async def test_two_repaired_requests_in_one_packet_are_answered_in_order(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(ask(whole=True, stream=True) + ask(live=True))
    (await stage.backend.call()).answer(whole("first"))
    assert texts_of(chunks_of((await client.answer()).body)) == {0: "first"}
    (await stage.backend.call()).answer(STREAM, piece("stop", content="second"), chunk(DONE), END)
    assert json.loads((await client.answer()).body)["choices"][0]["message"]["content"] == "second"


async def test_too_many_choices_are_refused(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(ask(n=9))
    answer = await client.answer()
    assert (answer.status, json.loads(answer.body)["error"]["param"]) == (400, "n")
    assert stage.backend.calls.empty()


async def test_a_greedy_answer_is_asked_for_once_and_copied(stage):
    client, [call] = await asked(stage, n=3, temperature=0)
    call.answer(whole("same"))
    body = json.loads((await client.answer()).body)
    assert [(c["index"], c["message"]["content"]) for c in body["choices"]] == [(i, "same") for i in range(3)]
    assert body["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("start", [1, 3, 5], ids=["after its first byte", "within a word", "before its colon"])
async def test_events_that_are_labelled_as_json_are_known_however_they_come(stage, start):
    client, [call] = await asked(stage, live=True)
    head = STREAM.replace(b"text/event-stream", b"application/json")
    stream = (
        b"event: x\ndata: "
        + json.dumps(
            {"id": "c", "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}
        ).encode()
    )
    call.send(head, chunk(stream[:start]))
    for _ in range(20):  # the proxy has read what there is before more of it comes
        await asyncio.sleep(0)
    call.send(chunk(stream[start:] + b"\n\n" + DONE), END)
    answer = await client.answer()
    assert json.loads(answer.body)["choices"][0]["message"]["content"] == "hi"
