"""A backend that gives fewer choices than it was asked for, and says nothing of it: the missing ones are asked for."""

import json

POLICY = """
version: 1
backends: {main: {url: "${BACKEND}"}}
rules:
  - {id: fewer, on_error: {choices: fewer}, repair: [fan_out: {}]}
"""
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def ask(**fields):
    body = json.dumps({"model": "m", "messages": [], "seed": 7} | fields).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def whole(*texts, space=" "):
    choices = [
        {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for index, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": 5, "completion_tokens": len(texts), "total_tokens": 5 + len(texts)}
    answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}
    body = json.dumps(answer, separators=(",", ":" + space)).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def streamed(*texts):
    events = [
        {"id": "c", "choices": [{"index": index, "delta": {"content": text}, "finish_reason": None}]}
        for index, text in enumerate(texts)
    ]
    events += [
        {"id": "c", "choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]} for index in range(len(texts))
    ]
    data = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + DONE
    return STREAM + b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)


async def sent(call):
    return json.loads(await call.body())


async def test_the_missing_choices_of_an_answer_are_asked_for_and_no_others(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(ask(n=4))
    first = await stage.backend.call()
    assert (await sent(first))["n"] == 4
    first.answer(whole("a", "b"))
    more = [await stage.backend.call() for _ in range(2)]
    bodies = [await sent(call) for call in more]
    assert sorted(body["seed"] for body in bodies) == [9, 10]
    assert all("n" not in body for body in bodies)
    for call, body in zip(more, bodies, strict=True):
        call.answer(whole(f"seed {body['seed']}"))
    answer = await client.answer()
    told = json.loads(answer.body)
    assert [(choice["index"], choice["message"]["content"]) for choice in told["choices"]] == [
        (0, "a"),
        (1, "b"),
        (2, "seed 9"),
        (3, "seed 10"),
    ]
    assert told["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
    assert answer.get("mendproxy-repairs") == 'fewer;loss="none"'


async def test_an_answer_with_all_choices_is_the_backend_s_to_the_byte(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(ask(n=2))
    raw = whole("a", "b", space="   ")
    (await stage.backend.call()).answer(raw)
    answer = await client.answer()
    assert answer.body == raw.partition(b"\r\n\r\n")[2]
    assert answer.get("mendproxy-repairs") is None
    assert stage.backend.calls.empty()


async def test_the_missing_choices_of_a_stream_join_it_before_its_end(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(ask(n=3, stream=True))
    (await stage.backend.call()).answer(streamed("a"))
    await client.until(b'"finish_reason":"stop"')
    for _ in range(2):
        call = await stage.backend.call()
        call.answer(streamed(f"seed {(await sent(call))['seed']}"))
    rest = await client.until(b"[DONE]")
    assert rest.count(b'"finish_reason":"stop"') == 2
    assert b'"index":1,"delta":{"content":"seed 8"}' in rest
    assert b'"index":2,"delta":{"content":"seed 9"}' in rest


async def test_a_missing_choice_that_fails_is_an_error_and_no_end(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(ask(n=2, stream=True))
    (await stage.backend.call()).answer(streamed("a"))
    call = await stage.backend.call()
    await sent(call)
    call.close()
    answer = await client.answer()
    *_, last, end = answer.body.split(b"\n\n")
    assert (json.loads(last.removeprefix(b"data: "))["error"]["index"], end) == (1, b"")
    assert DONE not in answer.body


async def test_one_choice_is_never_looked_after(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(ask(n=1))
    raw = whole("a", space="  ")
    (await stage.backend.call()).answer(raw)
    assert (await client.answer()).body == raw.partition(b"\r\n\r\n")[2]
