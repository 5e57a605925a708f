"""The answer halves of repairs on real sockets: of chat and text, and of paths that have no chunks."""

import asyncio
import base64
import gzip
import json
import struct

import pytest

POLICY = """
version: 1
backends: {main: {url: "${BACKEND}", timeouts: {first_content: 10s, idle: 10s}}}
keep_alive: 100ms
rules:
  - {id: choices, when: {body: {n: {gt: 1}}}, repair: [fan_out: {}]}
  - {id: one-by-one, when: {path: /v1/embeddings}, repair: [split: {field: input, size: 2}]}
  - id: floats
    when: {path: /v1/embeddings, body: {encoding_format: base64}}
    repair: [recode_embeddings: {ask: float}]
  - {id: stopped, when: {body: {stop: {exists: true}}}, repair: [enforce_stop: {drop: true}]}
  - {id: live, when: {body: {live: true}}, repair: [drop: [live], stream: true], loses: nothing}
  - {id: whole, when: {body: {whole: true}}, repair: [drop: [whole], stream: false], loses: nothing}
  - id: model
    when: {path: [/v1/embeddings, /v1/responses], body: {named: true}}
    repair:
      - drop: [named]
      - response:
          both: [{map: {model: {/disk/m: m}}}, {drop: [secret]}]
          chunk: [{map: {response.model: {/disk/m: m}}}, {skip_chunks: {type: noise}}]
    loses: nothing
  - id: reasoning
    when: {body: {reasoned: true}}
    repair:
      - drop: [reasoned]
      - response:
          - move:
              choices[*].message.reasoning: choices[*].message.reasoning_content
          - finish_with_calls: tool_calls
          - skip_chunks: {choices: {empty: true}, usage: {exists: false}}
    loses: nothing
  - id: tried-again
    when: {path: /v1/responses}
    on_error: {stream: [empty]}
    repair: [set: {again: true}]
    loses: nothing
"""
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nX-Theirs: 1\r\n\r\n"
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"
CHAT, RESPONSES, EMBEDDINGS = "/v1/chat/completions", "/v1/responses", "/v1/embeddings"


def ask(path=CHAT, **fields):
    body = json.dumps({"model": "m"} | fields).encode()
    head = [f"POST {path} HTTP/1.1", "Host: p", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, "", ""]).encode() + body


def sent(body, status=b"200 OK", content_type=b"application/json", more=b""):
    """Return an answer with its length."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\n%bContent-Length: %d\r\n\r\n" % (status, content_type, more, len(data))
    return head + data


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(value, name=b""):
    """Return an event in one chunk of HTTP."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return chunk((b"event: " + name + b"\n" if name else b"") + b"data: " + data + b"\n\n")


def piece(finish_reason=None, index=0, **delta):
    choice = {"index": index, "delta": delta, "finish_reason": finish_reason}
    return event({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


USAGE = event({"id": "c", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}})


def completion(text, finish_reason="length", **message):
    choice = {"index": 0, "message": {"role": "assistant", "content": text} | message, "finish_reason": finish_reason}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


async def asked(stage, path=CHAT, branches=1, **fields):
    """Return a client that has asked, and the branches with their bodies, in the order of the inputs or seeds."""
    await stage.proxy(POLICY)
    client = await stage.ask(ask(path, **fields))
    calls = [await stage.backend.call() for _ in range(branches)]
    for call in calls:
        call.sent = json.loads(await call.body())
    return client, sorted(calls, key=lambda call: json.dumps([call.sent.get("input"), call.sent.get("seed")]))


def chunks_of(body):
    """Return the chunks of a whole stream, which must end with the sentinel."""
    *events, last = [part for part in body.split(b"\n\n") if part and not part.startswith(b":")]
    assert last == b"data: [DONE]"
    return [json.loads(part.removeprefix(b"data: ")) for part in events]


def told(chunks, index=0):
    """Return a choice's text and finish_reasons."""
    own = [choice for part in chunks for choice in part["choices"] if choice["index"] == index]
    text = "".join(choice["delta"].get("content") or "" for choice in own)
    return text, [choice["finish_reason"] for choice in own if choice["finish_reason"]]


# enforce_stop


async def test_a_stream_that_is_cut_ends_and_its_branch_is_closed(stage):
    client, [call] = await asked(stage, stream=True, stop=["END"])
    assert "stop" not in call.sent
    call.send(STREAM, piece(role="assistant"), piece(content="a E"), piece(content="N"))
    await client.sees(b'"a "')
    assert b"EN" not in client.received
    call.send(piece(content="D and more"), piece(content="never"))
    answer = await client.answer()
    assert answer.is_whole
    assert told(chunks_of(answer.body)) == ("a ", ["stop"])
    await call.gone()


async def test_a_stream_that_is_not_cut_gives_all_that_it_held_and_its_usage(stage):
    client, [call] = await asked(stage, stream=True, stop="END", stream_options={"include_usage": True})
    call.answer(STREAM, piece(content="a EN"), piece("length"), USAGE, chunk(DONE), END)
    answer = await client.answer()
    chunks = chunks_of(answer.body)
    assert told(chunks) == ("a EN", ["length"])
    assert chunks[-1]["usage"]["completion_tokens"] == 9
    assert answer.get("mendproxy-repairs") == 'stopped;loss="the usage of a stream that is cut"'


async def test_a_json_answer_is_cut(stage):
    client, [call] = await asked(stage, stop="END")
    call.answer(sent(completion("a END b") | {"usage": {"completion_tokens": 9}}))
    answer = json.loads((await client.answer()).body)
    assert answer == completion("a ", "stop") | {"usage": {"completion_tokens": 9}}


async def test_a_json_answer_of_a_stream_is_cut_and_the_branch_closed(stage):
    client, [call] = await asked(stage, stop="END", live=True)
    call.send(STREAM, piece(content="a END b"))
    answer = json.loads((await client.answer()).body)
    assert answer["choices"][0]["message"]["content"] == "a "
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert "usage" not in answer
    await call.gone()


async def test_a_stream_of_a_json_answer_is_cut(stage):
    client, [call] = await asked(stage, stop="END", stream=True, whole=True)
    call.answer(sent(completion("a END b")))
    assert told(chunks_of((await client.answer()).body)) == ("a ", ["stop"])


async def test_each_branch_of_a_fan_out_is_cut_and_closed_by_itself(stage):
    client, [one, two] = await asked(stage, branches=2, stream=True, stop="END", n=2, seed=1)
    for call in (one, two):
        call.send(STREAM, piece(role="assistant"), piece(content="a "))
    await client.wait(lambda: client.received.count(b'"a "') == 2)
    one.send(piece(content="END"))
    await one.gone()
    two.answer(piece(content="b"), piece("length"), chunk(DONE), END)
    chunks = chunks_of((await client.answer()).body)
    assert (told(chunks, 0), told(chunks, 1)) == (("a ", ["stop"]), ("a b", ["length"]))


async def test_a_failure_after_held_text_is_told_and_is_no_stop(stage):
    client, [call] = await asked(stage, stream=True, stop="END")
    call.send(STREAM, piece(content="a EN"))
    await client.sees(b'"a "')
    call.close()
    body = (await client.answer()).body
    assert b'"http_response_incomplete"' in body
    assert b"[DONE]" not in body
    assert b'"stop"' not in body


async def test_completions_of_two_prompts_are_cut_and_closed_when_both_are(stage):
    client, [call] = await asked(stage, "/v1/completions", prompt=["p", "q"], stop="END", stream=True)
    call.send(STREAM)
    for index, text in ((0, "a END"), (1, "b"), (0, "never"), (1, " EN"), (1, "D")):
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
        call.send(event({"id": "c", "object": "text_completion", "choices": [choice], "usage": None}))
    chunks = chunks_of((await client.answer()).body)
    await call.gone()
    texts = [(c["index"], c["text"], c["finish_reason"]) for part in chunks for c in part["choices"]]
    assert texts == [(0, "a ", "stop"), (1, "b", None), (1, " ", None), (1, "", "stop")]


# response


async def test_chunks_are_repaired_and_those_left_out_are_not_sent(stage):
    client, [call] = await asked(stage, stream=True, reasoned=True, stream_options={"include_usage": True})
    filtered = event({"id": "c", "choices": [], "prompt_filter_results": [1]})
    tool = {"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    parts = [piece(role="assistant"), piece(reasoning="hm"), piece(tool_calls=[tool]), piece("stop"), USAGE]
    call.answer(STREAM, filtered, *parts, chunk(DONE), END)
    chunks = chunks_of((await client.answer()).body)
    deltas = [part["choices"][0]["delta"] for part in chunks if part["choices"]]
    assert [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta] == ["hm"]
    assert not any("reasoning" in delta for delta in deltas)
    assert told(chunks)[1] == ["tool_calls"]
    assert [part.get("usage", {}).get("total_tokens") for part in chunks if not part["choices"]] == [14]


async def test_a_json_answer_is_repaired(stage):
    client, [call] = await asked(stage, reasoned=True)
    call.answer(sent(completion(None, "stop", reasoning="hm")))
    message = json.loads((await client.answer()).body)["choices"][0]["message"]
    assert message == {"role": "assistant", "content": None, "reasoning_content": "hm"}


# recode_embeddings, and paths without chunks


def vectors(*embeddings, tokens=3, **more):
    data = [{"object": "embedding", "index": i, "embedding": e} for i, e in enumerate(embeddings)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": "/disk/m", "usage": usage} | more


def floats(*numbers):
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


async def test_embeddings_come_as_base64_of_a_backend_that_knows_floats(stage):
    client, [call] = await asked(stage, EMBEDDINGS, input="a", encoding_format="base64", named=True)
    assert call.sent == {"model": "m", "input": "a", "encoding_format": "float"}
    call.answer(sent(vectors([0.5, -1], secret=1), more=b"X-Theirs: 1\r\nETag: x\r\n"))
    answer = await client.answer()
    assert json.loads(answer.body) == vectors(floats(0.5, -1)) | {"model": "m"}
    assert (answer.first_line, answer.get("x-theirs"), answer.get("etag")) == ("HTTP/1.1 200 OK", "1", None)
    assert answer.get("content-type") == "application/json"
    assert answer.get("mendproxy-repairs") == 'floats;loss="none", model;loss="none"'


async def test_a_list_of_inputs_is_split_recoded_and_joined_in_order(stage):
    inputs = ["a", "b", "c"]
    client, calls = await asked(stage, EMBEDDINGS, 2, input=inputs, encoding_format="base64", named=True)
    assert [call.sent["input"] for call in calls] == [["a", "b"], ["c"]]
    calls[1].answer(sent(vectors([3], tokens=2)))
    calls[0].answer(sent(vectors([1], [2])))
    answer = json.loads((await client.answer()).body)
    assert [(e["index"], e["embedding"]) for e in answer["data"]] == [(i, floats(i + 1)) for i in range(3)]
    assert answer["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    assert answer["model"] == "m"


FAILURES = [
    pytest.param(sent({"error": {"message": "no"}}, b"422 Nope"), 422, id="a refusal"),
    pytest.param(sent({"error": {"message": "no"}}), 502, id="an error with a good status"),
    pytest.param(sent({"object": "list"}), 502, id="no data"),
    pytest.param(sent(b"<html>", content_type=b"text/html"), 502, id="no JSON"),
    pytest.param(STREAM + event({"a": 1}), 502, id="an event stream"),
    pytest.param(sent(b""), 502, id="no body"),
]


@pytest.mark.parametrize(("failed", "status"), FAILURES)
async def test_a_branch_that_fails_is_the_answer(stage, failed, status):
    client, calls = await asked(stage, EMBEDDINGS, 2, input=["a", "b", "c"])
    calls[0].answer(sent(vectors([1], [2])))
    calls[1].send(failed)
    answer = await client.answer()
    assert (answer.status, answer.is_whole) == (status, True)
    assert json.loads(answer.body)["error"]["message"]
    assert (answer.get("proxy-status") is None) == (status == 422)


async def test_the_other_branch_of_one_that_fails_is_closed(stage):
    client, calls = await asked(stage, EMBEDDINGS, 2, input=["a", "b", "c"])
    calls[1].answer(sent({"error": "no"}, b"500 Oops"))
    assert (await client.answer()).first_line == "HTTP/1.1 500 Oops"
    await calls[0].gone()


AS_THEY_CAME = [
    pytest.param(b"a,b\n1,2\n", b"text/csv", id="text"),
    pytest.param(b"[ 1 ]", b"application/json", id="JSON that is no object"),
    pytest.param(b'{ "model" : "other",  "x": 1.50 }', b"application/json; charset=utf-8", id="JSON without an edit"),
    pytest.param(bytes(range(256)), b"application/octet-stream", id="bytes"),
]


@pytest.mark.parametrize(("body", "content_type"), AS_THEY_CAME)
async def test_what_needs_no_edit_passes_as_it_came(stage, body, content_type):
    client, [call] = await asked(stage, RESPONSES, input="a", named=True)
    call.answer(sent(body, b"203 Other", content_type))
    answer = await client.answer()
    assert (answer.first_line, answer.body) == ("HTTP/1.1 203 Other", body)
    assert answer.get("content-type") == content_type.decode()
    assert answer.all("content-length") == [str(len(body))]


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", id="an answer that can have no body"),
        pytest.param(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n", id="an empty body"),
    ],
)
async def test_an_answer_of_nothing_passes(stage, head):
    client, [call] = await asked(stage, RESPONSES, input="a", named=True)
    call.answer(head)
    answer = await client.answer()
    assert (answer.first_line, answer.body, answer.is_whole) == (head.split(b"\r\n")[0].decode(), b"", True)
    assert answer.get("content-length") == (None if b"204" in head else "0")


async def test_a_response_that_tells_of_its_own_failure_is_an_answer(stage):
    client, [call] = await asked(stage, RESPONSES, input="a", named=True)
    failed = {"object": "response", "status": "failed", "error": {"message": "no"}, "model": "/disk/m"}
    call.answer(sent(failed))
    answer = await client.answer()
    assert (answer.status, json.loads(answer.body)) == (200, failed | {"model": "m"})


async def test_a_compressed_answer_is_read_and_sent_plain(stage):
    client, [call] = await asked(stage, RESPONSES, input="a", named=True)
    call.answer(sent(gzip.compress(b'{"model": "/disk/m"}'), more=b"Content-Encoding: gzip\r\n"))
    answer = await client.answer()
    assert (answer.get("content-encoding"), json.loads(answer.body)) == (None, {"model": "m"})


@pytest.mark.parametrize("status", [b"400 Bad", b"500 Oops"])
async def test_an_error_passes_byte_for_byte(stage, status):
    client, [call] = await asked(stage, RESPONSES, input="a", named=True)
    body = b'{"model" :  "/disk/m", "error": "no"}'
    call.answer(sent(body, status))
    answer = await client.answer()
    assert (answer.first_line, answer.body) == ("HTTP/1.1 " + status.decode(), body)


EVENTS = [
    ({"type": "response.created", "response": {"model": "/disk/m", "error": None}}, b"response.created"),
    ({"type": "noise"}, b"noise"),
    ({"type": "response.output_text.delta", "delta": "é\n"}, b"response.output_text.delta"),
    ({"type": "error", "message": "no", "model": "/disk/m"}, b"error"),
    (b"no JSON", b""),
    (b'{"type":  "as.it.came"}', b""),
    ({"type": "response.completed", "response": {"model": "/disk/m"}, "secret": 1}, b"response.completed"),
]
EDITED = [
    b'event: response.created\ndata: {"type":"response.created","response":{"model":"m","error":null}}',
    b'event: response.output_text.delta\ndata: {"type": "response.output_text.delta", "delta": "\\u00e9\\n"}',
    b'event: error\ndata: {"type": "error", "message": "no", "model": "/disk/m"}',
    b"data: no JSON",
    b'data: {"type":  "as.it.came"}',
    b'event: response.completed\ndata: {"type":"response.completed","response":{"model":"m"}}',
]


async def test_events_are_edited_one_by_one_and_keep_their_names(stage):
    client, [call] = await asked(stage, RESPONSES, input="a", stream=True, named=True)
    call.answer(STREAM, *(event(value, name) for value, name in EVENTS), END)
    answer = await client.answer()
    assert answer.is_whole
    assert answer.body.split(b"\n\n") == [*EDITED, b""]
    assert (answer.get("content-type"), answer.get("x-theirs")) == ("text/event-stream", "1")
    assert answer.get("content-length") is None


async def test_events_go_on_as_they_come_and_comments_between_them(stage):
    client, [call] = await asked(stage, RESPONSES, input="a", stream=True, named=True)
    call.send(STREAM, chunk(b": early\n\n"), event({"model": "/disk/m"}))
    await client.sees(b'data: {"model":"m"}\n\n')
    assert b":" not in client.received.partition(b"\r\n\r\n")[2].partition(b"data")[0]
    call.send(chunk(b": ping\n\n"))
    await client.sees(b": waiting\n\n")
    call.answer(chunk(DONE), END)
    answer = await client.answer()
    assert answer.body.endswith(DONE)
    assert answer.is_whole


async def test_a_stream_that_dies_is_told_of_in_the_stream(stage):
    client, [call] = await asked(stage, RESPONSES, input="a", stream=True, named=True)
    call.send(STREAM, event({"model": "/disk/m"}), chunk(b'data: {"mod'))
    await client.sees(b'"m"')
    call.close()
    answer = await client.answer()
    first, last, _ = answer.body.split(b"\n\n")
    assert first == b'data: {"model":"m"}'
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "http_response_incomplete"


EMPTY = [
    pytest.param([chunk(b'data: {"mod')], id="a piece of an event"),
    pytest.param([chunk(b": ping\n\n")], id="a comment"),
    pytest.param([chunk(b": ping\n\n"), END], id="a comment and an end"),
]


@pytest.mark.parametrize("parts", EMPTY)
async def test_a_stream_that_dies_before_any_event_may_be_tried_again(stage, parts):
    client, [call] = await asked(stage, RESPONSES, input="a", stream=True, named=True)
    call.send(STREAM, *parts)
    call.close()
    again = await stage.backend.call()
    assert json.loads(await again.body())["again"] is True
    again.answer(sent({"model": "/disk/m"}))
    answer = await client.answer()
    assert (answer.status, json.loads(answer.body)) == (200, {"model": "m"})


async def test_a_client_that_leaves_closes_the_branches(stage):
    client, calls = await asked(stage, EMBEDDINGS, 2, input=["a", "b", "c"])
    client.close()
    async with asyncio.timeout(3):
        for call in calls:
            await call.gone()
