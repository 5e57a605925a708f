"""Request bodies as people send them, and answers as backends send them: the faults of group G, each under its name."""

import codecs
import gzip
import json
import zlib

import pytest

POLICY = """
version: 1
backends: {main: {url: "${BACKEND}"}}
rules:
  - id: info
    when: {path: [/v1/chat/completions, "/v1/audio/*"], body: {stream: true, return_meta_info: true}}
    repair: [drop: [return_meta_info]]
  - {id: warm, when: {body: {temperature: {gt: 2}}}, repair: [clamp: {temperature: {max: 2}}]}
  - {id: spread, when: {body: {n: {gt: 1}}}, repair: [fan_out: {max: 8}]}
  - id: whole
    on_error: {message: "wants no x.*(n: not whole|Unauthorized)"}
    repair: [drop: [x]]
"""
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
PATH = "/v1/chat/completions"
SAID = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true%b}'
REPAIRABLE = SAID % b',"return_meta_info":true'
REPAIRED = SAID % b""
PLAIN = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def send(body, *headers, path=PATH, method="POST"):
    """Return a request with a body."""
    lines = [f"{method} {path} HTTP/1.1", "Host: p", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


async def seen(stage, raw):
    """Return the one request that the backend sees of this, its body, and the client's answer to it."""
    await stage.proxy(POLICY)
    client = await stage.ask(raw)
    call = await stage.backend.call()
    body = await call.body()
    call.answer(OK)
    answer = await client.answer()
    assert (answer.status, answer.body) == (200, b"ok")
    assert stage.backend.calls.empty()
    return call, body


async def refused(stage, raw):
    """Return the status, code and param of the proxy's own error, having checked that no backend was asked."""
    await stage.proxy(POLICY)
    client = await stage.ask(raw)
    answer = await client.answer()
    assert stage.backend.calls.empty()
    error = json.loads(answer.body)["error"]
    assert (answer.get("content-type"), error.keys()) == ("application/json", {"message", "type", "param", "code"})
    client.send(send(b"{}"))
    (await stage.backend.call()).answer(OK)
    assert (await client.answer()).body == b"ok", "the next request is served"
    return answer.status, error["code"]


@pytest.mark.parametrize("megabytes", [3, 20])
async def test_g01_a_body_with_pictures_arrives_whole(stage, megabytes):
    body = SAID % (b',"x":"data:image/png;base64,%b"' % (b"QUJD" * (megabytes << 18)))
    call, seen_body = await seen(stage, send(body))
    assert seen_body == body
    assert call.head.all("content-length") == [str(len(body))]


@pytest.mark.parametrize("megabytes", [3, 20])
async def test_g01_a_body_with_pictures_is_repaired(stage, megabytes):
    picture = b',"x":"data:image/png;base64,%b"' % (b"QUJD" * (megabytes << 18))
    call, body = await seen(stage, send(SAID % (picture + b',"return_meta_info":true')))
    assert body == SAID % picture
    assert call.head.all("content-length") == [str(len(body))]


async def test_g01_a_body_beyond_the_limit_is_refused_before_it_has_come(stage):
    await stage.proxy(POLICY + "limits: {body: 1MiB}\n")
    client = await stage.ask(f"POST {PATH} HTTP/1.1\r\nHost: p\r\nContent-Length: 2000000\r\n\r\n".encode())
    answer = await client.answer()
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["type"], error["param"]) == (413, "invalid_request_error", None)
    assert error["code"] == "body_too_large"


def deflated_bare(data):
    squeeze = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return squeeze.compress(data) + squeeze.flush()


CODINGS = [
    pytest.param("gzip", gzip.compress(REPAIRABLE), id="gzip"),
    pytest.param("X-GZip", gzip.compress(REPAIRABLE), id="gzip by its old name"),
    pytest.param("gzip", gzip.compress(REPAIRABLE[:20]) + gzip.compress(REPAIRABLE[20:]), id="gzip of two members"),
    pytest.param("deflate", zlib.compress(REPAIRABLE), id="deflate"),
    pytest.param("deflate", deflated_bare(REPAIRABLE), id="deflate without its wrapping"),
    pytest.param("identity", REPAIRABLE, id="identity"),
]


@pytest.mark.parametrize(("coding", "body"), CODINGS)
async def test_g02_a_compressed_body_is_repaired_and_goes_on_plain(stage, coding, body):
    call, seen_body = await seen(stage, send(body, f"Content-Encoding: {coding}"))
    assert seen_body == REPAIRED
    assert call.head.all("content-length") == [str(len(REPAIRED))]
    assert call.get("content-encoding") is None


UNKNOWN = [
    pytest.param("zstd", b"\x28\xb5\x2f\xfd" + REPAIRABLE, id="zstd"),
    pytest.param("br", REPAIRABLE, id="brotli"),
    pytest.param("gzip, gzip", gzip.compress(gzip.compress(REPAIRABLE)), id="gzip twice"),
    pytest.param("rot13", REPAIRABLE, id="what nobody knows"),
]


@pytest.mark.parametrize(("coding", "body"), UNKNOWN)
async def test_g02_a_coding_that_is_not_known_goes_on_as_it_came(stage, coding, body):
    call, seen_body = await seen(stage, send(body, f"Content-Encoding: {coding}"))
    assert (seen_body, call.get("content-encoding")) == (body, coding)


CORRUPT = [
    pytest.param(b"no gzip", (400, "invalid_body"), id="no gzip"),
    pytest.param(gzip.compress(REPAIRABLE)[:-9], (400, "invalid_body"), id="cut"),
    pytest.param(gzip.compress(REPAIRABLE)[:-4] + b"abcd", (400, "invalid_body"), id="a wrong length at its end"),
    pytest.param(gzip.compress(REPAIRABLE) + b"junk", (400, "invalid_body"), id="junk behind it"),
    pytest.param(gzip.compress(b"") * 1000, (400, "invalid_body"), id="a thousand members"),
    pytest.param(gzip.compress(b"x" * (65 << 20)), (413, "body_too_large"), id="a bomb"),
    pytest.param(gzip.compress(b"x" * (33 << 20)) * 2, (413, "body_too_large"), id="a bomb of two members"),
]


@pytest.mark.parametrize(("body", "expected"), CORRUPT)
async def test_g02_a_corrupt_or_growing_body_is_refused(stage, body, expected):
    assert await refused(stage, send(body, "Content-Encoding: gzip")) == expected


TWICE = [
    pytest.param(b'{"model":"m","n":1,"messages":[],"stream":false,"n":8,"stream":true}', id="n and stream"),
    pytest.param(b'{"return_meta_info":false,"stream":true,"return_meta_info":true}', id="what the rule drops"),
    pytest.param(b'{"return_meta_info":true,"stream":true,"\\u006dodel":"a","model":"b"}', id="one of them escaped"),
]


@pytest.mark.parametrize("body", TWICE)
async def test_g03_a_name_that_stands_twice_is_refused_where_a_rule_fires(stage, body):
    assert await refused(stage, send(body)) == (400, "duplicate_name")


async def test_g03_a_name_that_stands_twice_in_what_no_rule_touches_is_passed_on(stage):
    body = b'{"model":"m","messages":[],"top_k":1,"top_k":2}'
    assert (await seen(stage, send(body)))[1] == body


NUMBERS = (
    b',"seed":9007199254740993,"temperature":1.0,"top_p":0.10,"logit_bias":{"12345678901234567890":-1e2}'
    b',"a":-0,"b":1e400'
)


async def test_g05_numbers_that_no_rule_names_keep_their_digits(stage):
    assert (await seen(stage, send(SAID % (NUMBERS + b',"return_meta_info":true'))))[1] == SAID % NUMBERS


async def test_g05_seeds_of_branches_are_counted_exactly(stage):
    await stage.proxy(POLICY)
    await stage.ask(send(SAID % b',"n":3,"seed":9007199254740993'))
    bodies = [await (await stage.backend.call()).body() for _ in range(3)]
    assert sorted(json.loads(body)["seed"] for body in bodies) == [9007199254740993 + branch for branch in range(3)]


ODD_N = [b"null", b'"2"', b"0", b"-1", b"2.5", b"true", b"[2]", b'" 2 "', b"{}", b"1", b"1.0", b"-2e0", b"NaN"]


@pytest.mark.parametrize("n", ODD_N, ids=bytes.decode)
async def test_g06_a_number_of_choices_that_is_no_whole_one_above_1_is_the_backend_s_to_judge(stage, n):
    body = SAID % (b',"n":' + n)
    assert (await seen(stage, send(body)))[1] == body


@pytest.mark.parametrize("n", [b"2.0", b"2", b"2e0"], ids=bytes.decode)
async def test_g06_a_whole_number_however_written_is_that_many_choices(stage, n):
    await stage.proxy(POLICY)
    client = await stage.ask(send(SAID % (b',"n":' + n)))
    for _ in range(2):
        call = await stage.backend.call()
        assert json.loads(await call.body()).get("n", 1) == 1
        call.answer(*streamed({"index": 0, "delta": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}))
    assert {choice["index"] for chunk in chunks(await client.answer()) for choice in chunk["choices"]} == {0, 1}


def streamed(*choices, raw=b""):
    """Yield the parts of a streamed answer."""
    yield b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    events = b"".join(b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n" for choice in choices)
    body = raw + events + b"data: [DONE]\n\n"
    yield b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def strict(data):
    """Return a JSON value, which must be one by the letter of RFC 8259."""

    def no(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(data.decode(), parse_constant=no)


def chunks(answer):
    """Return the chunks of a streamed answer."""
    events = [line.removeprefix(b"data: ") for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]"
    return [strict(event) for event in events[:-1]]


INFINITE = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"x"},"logprobs":{"content":[{"token":"x","logprob":'
    b'-Infinity,"bytes":null,"top_logprobs":[{"token":"y","logprob":NaN,"bytes":null}]}]},"finish_reason":"stop"}]}\n\n'
)


async def test_g07_numbers_that_are_none_are_null_in_what_the_proxy_writes(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(send(SAID % b',"n":2,"logprobs":true'))
    for _ in range(2):
        (await stage.backend.call()).answer(*streamed(raw=INFINITE))
    told = [
        choice["logprobs"]["content"][0]
        for chunk in chunks(await client.answer())
        for choice in chunk["choices"]
        if choice.get("logprobs")
    ]
    assert [(one["logprob"], one["top_logprobs"][0]["logprob"]) for one in told] == [(None, None)] * 2


async def test_g07_numbers_that_are_none_pass_where_nothing_is_repaired(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(send(REPAIRED))
    (await stage.backend.call()).answer(*streamed(raw=INFINITE))
    assert INFINITE in (await client.answer()).body


NONE = [
    pytest.param(REPAIRABLE[:-1] + b',"temperature":NaN,"top_p":1e400}', id="NaN beside a field to drop"),
    pytest.param(SAID % b',"temperature":1e400', id="an infinite number to clamp"),
    pytest.param(SAID % b',"temperature":Infinity', id="Infinity to clamp"),
    pytest.param(SAID % b',"x":-NaN,"return_meta_info":true', id="a negative NaN"),
]


@pytest.mark.parametrize("body", NONE)
async def test_g08_a_body_with_a_number_that_is_none_goes_on_untouched(stage, body):
    assert (await seen(stage, send(body)))[1] == body


SURROGATES = [
    pytest.param(b'{"stream":true,"return_meta_info":true,"x":"cut \\ud83d here"}', id="a field to drop"),
    pytest.param(b'{"stream":true,"n":2,"messages":[{"role":"user","content":"\\ude00"}]}', id="a fan-out"),
]


@pytest.mark.parametrize("body", SURROGATES)
async def test_g09_half_a_character_never_fails_the_proxy(stage, body):
    await stage.proxy(POLICY)
    client = await stage.ask(send(body))
    call = await stage.backend.call()
    text = (await call.body()).decode()
    assert "\\ud83d" in text or "\\ude00" in text or "\ufffd" in text
    call.answer(b"HTTP/1.1 418 Teapot\r\nContent-Length: 2\r\n\r\nno")
    assert (await client.answer()).status == 418


async def test_g09_a_whole_character_arrives(stage):
    body = REPAIRABLE.replace(b"hi", b"\\ud83d\\ude00 \xf0\x9f\x98\x80")
    assert json.loads((await seen(stage, send(body)))[1])["messages"][0]["content"] == "\U0001f600 \U0001f600"


async def test_g09_half_a_character_in_an_answer_is_a_replacement_character_in_what_is_merged(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(send(SAID % b',"n":2'))
    for _ in range(2):
        choice = {"index": 0, "delta": {"content": "a\ud83d"}, "finish_reason": "stop"}
        (await stage.backend.call()).answer(*streamed(choice))
    deltas = [choice["delta"] for chunk in chunks(await client.answer()) for choice in chunk["choices"]]
    assert [delta["content"] for delta in deltas if delta.get("content")] == ["a\ufffd"] * 2


def nested(depth):
    return b'{"a":' * depth + b"1" + b"}" * depth


DEEP = [
    pytest.param(b"[" * 20_000 + b"]" * 20_000, id="a list of lists"),
    pytest.param(REPAIRABLE[:-1] + b',"x":' + nested(20_000) + b"}", id="a field of twenty thousand levels"),
    pytest.param(REPAIRABLE[:-1] + b',"x":' + nested(100_000) + b"}", id="a field of a hundred thousand levels"),
    pytest.param(b'{"a":' * 50_000, id="levels without an end"),
    pytest.param(SAID % (b',"n":' + b"9" * 5000), id="a number of choices of five thousand digits"),
    pytest.param(SAID % (b',"temperature":' + b"9" * 5000), id="a number to clamp of five thousand digits"),
]


@pytest.mark.parametrize("body", DEEP)
async def test_g10_a_body_that_can_t_be_read_goes_on_untouched(stage, body):
    assert (await seen(stage, send(body)))[1] == body


@pytest.mark.parametrize("field", [b',"x":' + nested(200), b',"seed":' + b"9" * 5000], ids=["a schema", "a long seed"])
async def test_g10_what_no_rule_names_may_be_deep_or_long(stage, field):
    assert (await seen(stage, send(SAID % (field + b',"return_meta_info":true'))))[1] == SAID % field


BAD_ANSWERS = [
    pytest.param(b"[" * 100_000, id="lists without an end"),
    pytest.param(b'{"choices":' + nested(100_000) + b"}", id="a hundred thousand levels"),
    pytest.param(b'{"choices":[{"index":' + b"9" * 5000 + b"}]}", id="an index of five thousand digits"),
    pytest.param(b'{"created":' + b"9" * 5000 + b',"choices":[]}', id="a time of five thousand digits"),
    pytest.param(b'["x"]', id="a list"),
    pytest.param(b"\xff\xfe", id="no text"),
]


@pytest.mark.parametrize("body", BAD_ANSWERS)
async def test_g10_an_answer_that_can_t_be_read_is_the_backend_s_fault(stage, body):
    await stage.proxy(POLICY)
    client = await stage.ask(send(json.dumps({**PLAIN, "n": 2}).encode()))
    for _ in range(2):
        call = await stage.backend.call()
        call.answer(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body), body
        )
    answer = await client.answer()
    assert (answer.status, strict(answer.body)["error"]["type"]) == (502, "backend_error")


TYPES = [
    pytest.param(None, id="none"),
    pytest.param("application/json; charset=utf-8", id="JSON with a parameter"),
    pytest.param("Application/JSON", id="JSON in capitals"),
    pytest.param("application/vnd.api+json", id="a kind of JSON"),
    pytest.param("application/x-www-form-urlencoded", id="what curl sends"),
    pytest.param("text/plain", id="text"),
]


@pytest.mark.parametrize("label", TYPES)
async def test_g12_a_body_that_is_json_is_repaired_whatever_it_is_called_and_then_called_json(stage, label):
    call, body = await seen(stage, send(REPAIRABLE, *([f"Content-Type: {label}"] if label else [])))
    assert (body, call.head.all("content-type")) == (REPAIRED, ["application/json"])


@pytest.mark.parametrize("label", TYPES)
async def test_g12_the_type_of_a_body_that_is_not_repaired_stays(stage, label):
    call, _ = await seen(stage, send(REPAIRED, *([f"Content-Type: {label}"] if label else [])))
    assert call.head.all("content-type") == ([label] if label else [])


async def test_g13_an_upload_passes_byte_for_byte(stage):
    part = bytes(range(256)) * 20_000
    body = b"--xYz\r\nContent-Disposition: form-data; name=file\r\n\r\n" + part + b"\r\n--xYz\r\n"
    body += b'Content-Disposition: form-data; name=model\r\n\r\n{"stream":true,"return_meta_info":true}\r\n--xYz--\r\n'
    label = 'multipart/form-data; boundary="xYz"'
    head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: p\r\nContent-Type: {label}\r\n"
    await stage.proxy(POLICY)
    client = await stage.ask(
        head.encode() + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    )
    call = await stage.backend.call()
    assert (await call.body(), call.head.all("content-type")) == (body, [label])
    srt = b"1\n00:00:00,000 --> 00:00:01,000\nh\xe4llo\n"
    call.answer(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(srt), srt)
    answer = await client.answer()
    assert (answer.status, answer.get("content-type"), answer.body) == (200, "text/plain", srt)


UNREAD = [
    pytest.param(codecs.BOM_UTF8 + REPAIRABLE, id="a byte order mark"),
    pytest.param(REPAIRABLE.decode().encode("utf-16-le"), id="UTF-16"),
    pytest.param(codecs.BOM_UTF16_LE + REPAIRABLE.decode().encode("utf-16-le"), id="UTF-16 with its mark"),
    pytest.param(REPAIRABLE + b"\0", id="a NUL behind it"),
    pytest.param(b'{"a":1}{"b":2}', id="two documents"),
    pytest.param(b"", id="nothing"),
    pytest.param(b"null", id="null"),
    pytest.param(b"[]", id="a list"),
    pytest.param(b'[{"stream":true,"return_meta_info":true}]', id="a list with a body"),
    pytest.param(b'"x"', id="a string"),
    pytest.param(b'{"stream":true,"return_meta_info":tru', id="half of it"),
]


@pytest.mark.parametrize("body", UNREAD)
async def test_g14_what_is_no_json_object_goes_on_as_it_came(stage, body):
    assert (await seen(stage, send(body)))[1] == body


READ = [
    pytest.param(REPAIRABLE + b"\r\n", REPAIRED, id="a line's end behind it"),
    pytest.param(b"\r\n\t " + REPAIRABLE, REPAIRED, id="blanks before it"),
    pytest.param(REPAIRABLE.replace(b"hi", b"\xe9"), REPAIRED.replace(b"hi", b"\xe9"), id="latin-1 that no rule names"),
]


@pytest.mark.parametrize(("body", "expected"), READ)
async def test_g14_what_is_json_but_for_its_edges_is_repaired(stage, body, expected):
    assert (await seen(stage, send(body)))[1] == expected


async def test_g14_a_byte_order_mark_hides_no_event_of_a_merged_stream(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(send(SAID % b',"n":2'))
    first = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"first"}}]}\n\n'
    for _ in range(2):
        last = {"index": 0, "delta": {"content": "last"}, "finish_reason": "stop"}
        (await stage.backend.call()).answer(*streamed(last, raw=codecs.BOM_UTF8 + first))
    texts = [choice["delta"].get("content") for chunk in chunks(await client.answer()) for choice in chunk["choices"]]
    assert sorted(filter(None, texts)) == ["first", "first", "last", "last"]


OTHERS = [
    pytest.param("GET", "/v1/models", REPAIRABLE, OK, b"ok", id="GET with a body"),
    pytest.param("GET", "/v1/models", b"", b"HTTP/1.1 204 No Content\r\n\r\n", b"", id="204"),
    pytest.param("GET", "/v1/models", b"", b'HTTP/1.1 304 Not Modified\r\nETag: "x"\r\n\r\n', b"", id="304"),
    pytest.param("HEAD", "/v1/models", b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", b"", id="HEAD"),
    pytest.param("DELETE", "/v1/files/x", b"", OK, b"ok", id="DELETE"),
    pytest.param("OPTIONS", PATH, b"", b"HTTP/1.1 204 No Content\r\nAllow: POST\r\n\r\n", b"", id="OPTIONS"),
]


@pytest.mark.parametrize(("method", "path", "body", "raw", "expected"), OTHERS)
async def test_g15_what_is_no_completion_passes(stage, method, path, body, raw, expected):
    await stage.proxy(POLICY)
    headers = ("Content-Type: application/json", f"Content-Length: {len(body)}", "", "")
    client = await stage.ask("\r\n".join([f"{method} {path} HTTP/1.1", "Host: p", *headers]).encode() + body)
    call = await stage.backend.call()
    assert (call.method, call.target, call.get("content-type")) == (method, path, "application/json")
    assert await call.body() == body
    call.answer(raw)
    answer = await client.answer(method)
    assert (answer.body, answer.get("transfer-encoding")) == (expected, None)
    assert answer.get("content-length") == next((str(n) for n in (99, 2) if f"Length: {n}".encode() in raw), None)
    client.send(send(b"{}"))
    (await stage.backend.call()).answer(OK)
    assert (await client.answer()).body == b"ok", "the connection serves on"


DETAIL = json.dumps({"detail": [{"loc": ["body", "n"], "msg": "Input should be a valid integer", "type": "int_type"}]})
ERRORS = [
    pytest.param(413, "text/html", b"<html>413 Request Entity Too Large</html>", id="a page"),
    pytest.param(401, "application/json", b'{"error":"Unauthorized"}', id="an error that is a text"),
    pytest.param(422, "application/json", DETAIL.encode(), id="details"),
    pytest.param(502, None, b"", id="nothing"),
    pytest.param(400, "text/plain; charset=utf-8", b"\xff\xfe\x00broken", id="no text"),
    pytest.param(400, "application/json", b'["no"]', id="a list"),
    pytest.param(400, "application/json", b'{"error":{"message":{"deep":[1]}}}', id="a message that is no text"),
    pytest.param(400, "application/json", b'{"error":', id="half a JSON"),
    pytest.param(400, "application/json", b"[" * 100_000, id="lists without an end"),
    pytest.param(200, "text/html", b"<html>hello</html>", id="a page that is called an answer"),
]


@pytest.mark.parametrize("fields", [b"", b',"return_meta_info":true'], ids=["untouched", "repaired"])
@pytest.mark.parametrize(("status", "label", "body"), ERRORS)
async def test_g16_an_error_of_any_form_comes_back_as_it_is(stage, status, label, body, fields):
    await stage.proxy(POLICY)
    client = await stage.ask(send(SAID % (b',"x":1' + fields)))
    type_line = f"Content-Type: {label}\r\n" if label else ""
    head = f"HTTP/1.1 {status} Because\r\n{type_line}Content-Length: {len(body)}\r\n\r\n"
    (await stage.backend.call()).answer(head.encode(), body)
    answer = await client.answer()
    assert (answer.first_line, answer.get("content-type"), answer.body) == (f"HTTP/1.1 {status} Because", label, body)


KNOWN = [
    pytest.param(
        "application/json",
        json.dumps({"detail": [{"loc": ["body"], "msg": "wants no x"}, {"loc": ["body", "n"], "msg": "not whole"}]}),
        id="in details, each with where it is",
    ),
    pytest.param("application/json", '{"error":"wants no x, Unauthorized"}', id="in a text"),
    pytest.param("text/html", "<html><p>wants no x</p><p>Unauthorized</p></html>", id="in a page"),
    pytest.param("application/json", '["wants no x", "Unauthorized"]', id="in a list"),
    pytest.param("text/plain", "wants no x\nUnauthorized \xff", id="in a text that is not all text"),
]


@pytest.mark.parametrize(("label", "body"), KNOWN)
async def test_g16_a_rule_knows_an_error_of_any_form_by_its_text(stage, label, body):
    await stage.proxy(POLICY)
    client = await stage.ask(send(SAID % b',"x":1'))
    raw = body.encode("latin-1")
    head = f"HTTP/1.1 400 No\r\nContent-Type: {label}\r\nContent-Length: {len(raw)}\r\n\r\n"
    (await stage.backend.call()).answer(head.encode(), raw)
    call = await stage.backend.call()
    assert json.loads(await call.body()) == json.loads(SAID % b"")
    call.answer(OK)
    assert (await client.answer()).body == b"ok"


COUNTED = """
version: 1
backends: {main: {url: "${BACKEND}"}}
rules:
  - {id: fewer, on_error: {choices: fewer}, repair: [fan_out: {max: 8}]}
"""


async def test_an_answer_that_was_inflated_to_be_counted_is_passed_on_plain_and_by_its_own_length(stage):
    await stage.proxy(COUNTED)
    client = await stage.ask(send(json.dumps({**PLAIN, "n": 2}).encode()))
    choices = [{"index": index, "message": {"content": "x" * 500}, "finish_reason": "stop"} for index in range(2)]
    plain = json.dumps({"id": "c", "choices": choices}).encode()
    body = gzip.compress(plain)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    (await stage.backend.call()).answer(head % len(body), body)
    answer = await client.answer()
    assert (answer.body, answer.get("content-encoding")) == (plain, None)
    client.send(send(b"{}"))
    (await stage.backend.call()).answer(OK)
    assert (await client.answer()).body == b"ok"


async def test_g16_a_page_is_never_called_a_stream(stage):
    await stage.proxy(POLICY)
    client = await stage.ask(send(SAID % b',"n":2'))
    # Both are there before one is answered: the first that fails has the other cancelled.
    for call in [await stage.backend.call() for _ in range(2)]:
        call.answer(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 18\r\n\r\n<html>hello</html>")
    answer = await client.answer()
    assert (answer.status, answer.get("content-type")) == (502, "application/json")


async def test_the_last_part_of_a_large_body_is_no_head(stage):
    await stage.proxy(POLICY)
    body = json.dumps({"model": "m", "messages": [], "padding": "x" * 600_000}).encode()
    raw = b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: %d\r\n\r\n" % len(body)
    client = await stage.ask(raw + body[:100])
    await stage.data_port.serves(1)
    for _ in range(2):
        # In one part of more than a head may have.
        client.send(body[100:] + raw + body[:100])
        call = await stage.backend.call()
        assert await call.body() == body
        call.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        assert (await client.answer()).status == 200
