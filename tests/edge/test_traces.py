"""Traces: a SERVER span a request, a CLIENT span an upstream request, and what goes upstream; or nothing at all."""

import json

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from proxy.otel import OtelTracer

CHAT = "/v1/chat/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
TRACED = {"traceparent": TRACEPARENT, "tracestate": "mine=1,other=2"}
HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "SECRET-prompt"}]}
POLICY = """
version: 1
backends: {main: {url: "${BACKEND}"}}
rules:
  - {id: fans, when: {body: {n: {gt: 1}}}, repair: [fan_out: {}]}
  - {id: unstreamed, when: {body: {stream: true, meta: true}}, repair: [stream: false]}
  - {id: other-name, when: {body: {model: alias}}, repair: [rename_model: {to: real}]}
"""
REACTIVE = POLICY + "  - {id: reacts, on_error: {status: 400, message: top_k}, repair: [drop: [top_k]]}\n"
KEYED = POLICY + "auth: {keys: [SECRET-key]}\n"
ANSWER = {"id": "a", "choices": [{"index": 0, "message": {"content": "SECRET-answer"}, "finish_reason": "stop"}]}
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "hi"}}]}\n\n'


def request(body, **headers):
    raw = json.dumps(body).encode()
    said = {"Host": "proxy", "Content-Type": "application/json", "Content-Length": str(len(raw))} | headers
    head = "".join(f"{name}: {value}\r\n" for name, value in said.items())
    return f"POST {CHAT}?key=SECRET-query HTTP/1.1\r\n{head}\r\n".encode(), raw


def answered(body, status="200 OK"):
    raw = json.dumps(body).encode()
    return b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        status.encode(),
        len(raw),
        raw,
    )


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


class Traced:
    """A stage whose data port is traced into memory."""

    def __init__(self, stage):
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider(shutdown_on_exit=False)
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.stage = stage

    async def proxy(self, policy=POLICY):
        await self.stage.proxy(policy)
        self.stage.data_port.tracer = OtelTracer(self._provider)

    async def spans(self):
        """Return the SERVER span, and the CLIENT spans in the order in which they began."""
        await self.stage.data_port.serves(0)
        spans = self._exporter.get_finished_spans()
        [server] = [span for span in spans if span.kind is SpanKind.SERVER]
        clients = [span for span in spans if span.kind is SpanKind.CLIENT]
        assert len(spans) == 1 + len(clients)
        assert {span.parent.span_id for span in clients} <= {server.context.span_id}
        assert "SECRET" not in "".join(span.to_json() for span in spans)
        return server, sorted(clients, key=lambda span: span.start_time)

    async def none(self):
        await self.stage.data_port.serves(0)
        return self._exporter.get_finished_spans() == ()


@pytest.fixture
def traced(stage):
    return Traced(stage)


def parent_of(span):
    """Return the traceparent by which a span is told upstream."""
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


@pytest.mark.parametrize("is_whole", [True, False], ids=["in the lane", "in a task"])
async def test_a_relayed_request_has_two_spans_in_the_clients_trace(traced, is_whole):
    await traced.proxy()
    head, body = request(HELLO, Authorization="Bearer SECRET-key", **TRACED)
    wire = await traced.stage.ask(head + body if is_whole else head)
    if not is_whole:
        await traced.stage.data_port.serves(1)
        wire.send(body)
    call = await traced.stage.backend.call()
    assert await call.body() == body
    call.answer(answered(ANSWER))
    assert (await wire.answer()).status == 200
    server, [client] = await traced.spans()

    assert f"{server.context.trace_id:032x}" == TRACE
    assert f"{server.parent.span_id:016x}" == PARENT
    assert call.head.all("traceparent") == [parent_of(client)]
    assert call.head.all("tracestate") == ["mine=1,other=2"]
    port = int(traced.stage.backend.url.rpartition(":")[2])
    assert (server.name, client.name) == (f"POST {CHAT}", "chat tiny")
    assert dict(server.attributes) == {
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
        "mendproxy.outcome": "untouched",
        "mendproxy.rules": (),
        "network.protocol.version": "1.1",
        "url.path": CHAT,
        "url.scheme": "http",
    }
    assert dict(client.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "tiny",
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "mendproxy.backend": "main",
        "mendproxy.branch": 0,
        "server.address": "127.0.0.1",
        "server.port": port,
    }
    assert server.status.status_code is client.status.status_code is StatusCode.UNSET
    assert server.start_time <= client.start_time <= client.end_time <= server.end_time


async def test_a_fan_out_has_a_span_a_branch_each_told_upstream_by_its_own_name(traced):
    await traced.proxy()
    wire = await traced.stage.ask(b"".join(request(HELLO | {"n": 3}, **TRACED)))
    calls = [await traced.stage.backend.call() for _ in range(3)]
    for call in calls:
        await call.body()
        call.answer(answered(ANSWER))
    assert (await wire.answer()).status == 200
    server, clients = await traced.spans()
    assert sorted(span.attributes["mendproxy.branch"] for span in clients) == [0, 1, 2]
    assert sorted(call.get("traceparent") for call in calls) == sorted(map(parent_of, clients))
    assert len({call.get("traceparent") for call in calls}) == 3
    assert server.attributes["mendproxy.rules"] == ("fans",)
    assert server.attributes["mendproxy.outcome"] == "repaired"
    assert not any("gen_ai.request.choice.count" in span.attributes for span in clients)


async def test_choices_that_one_request_asks_for_are_told(traced):
    await traced.proxy(POLICY.replace("fan_out: {}", "warn: many"))
    wire = await traced.stage.ask(b"".join(request(HELLO | {"n": 3})))
    (await traced.stage.backend.call()).answer(answered(ANSWER))
    assert (await wire.answer()).status == 200
    _, [client] = await traced.spans()
    assert client.attributes["gen_ai.request.choice.count"] == 3


async def test_the_model_is_told_as_the_backend_is_asked_for_it(traced):
    await traced.proxy()
    wire = await traced.stage.ask(b"".join(request(HELLO | {"model": "alias"})))
    (await traced.stage.backend.call()).answer(answered(ANSWER | {"model": "real"}))
    assert (await wire.answer()).status == 200
    _, [client] = await traced.spans()
    assert (client.name, client.attributes["gen_ai.request.model"]) == ("chat real", "real")


async def test_a_restored_answer_has_a_span_too(traced):
    await traced.proxy()
    wire = await traced.stage.ask(b"".join(request(HELLO | {"stream": True, "meta": True}, **TRACED)))
    call = await traced.stage.backend.call()
    call.answer(answered(ANSWER))
    assert (await wire.answer()).body.endswith(b"data: [DONE]\n\n")
    server, [client] = await traced.spans()
    assert server.attributes["mendproxy.rules"] == ("unstreamed",)
    assert call.get("traceparent") == parent_of(client)


@pytest.mark.parametrize("is_kept", [False, True], ids=["on a new connection", "on one that was kept"])
async def test_each_round_has_a_span(traced, is_kept):
    await traced.proxy(REACTIVE)
    wire = await traced.stage.client()
    if is_kept:
        wire.send(b"GET /health HTTP/1.1\r\nHost: proxy\r\n\r\n")
        (await traced.stage.backend.call()).answer(answered({}))
        await wire.answer("GET")
        await traced.spans()
        traced._exporter.clear()
    wire.send(b"".join(request(HELLO | {"top_k": 5}, **TRACED)))
    first = await traced.stage.backend.call()
    await first.body()
    first.answer(answered({"error": {"message": "no top_k: SECRET-words"}}, "400 Bad Request"))
    second = await traced.stage.backend.call()
    await second.body()
    second.answer(answered(ANSWER))
    assert (await wire.answer()).status == 200
    server, [refused, repaired] = await traced.spans()
    assert [call.get("traceparent") for call in (first, second)] == [parent_of(refused), parent_of(repaired)]
    assert (refused.attributes["http.response.status_code"], refused.attributes["error.type"]) == (400, "400")
    assert refused.status.status_code is StatusCode.ERROR
    assert refused.end_time <= repaired.start_time
    assert "error.type" not in repaired.attributes
    assert (server.attributes["mendproxy.rules"], server.status.status_code) == (("reacts",), StatusCode.UNSET)


FAILURES = [
    pytest.param(lambda call: call.close(), 502, "connection_terminated", id="closes without an answer"),
    pytest.param(lambda call: call.reset(), 502, "connection_terminated", id="resets"),
    pytest.param(lambda call: call.send(b"nonsense\r\n\r\n"), 502, "http_protocol_error", id="speaks no HTTP"),
    pytest.param(lambda call: call.send(answered({}, "503 No")), 503, "503", id="answers that it can't"),
]


@pytest.mark.parametrize(("fail", "status", "kind"), FAILURES)
async def test_a_backend_that_fails_is_told_in_both_spans(traced, fail, status, kind):
    await traced.proxy()
    wire = await traced.stage.ask(b"".join(request(HELLO)))
    call = await traced.stage.backend.call()
    await call.body()
    fail(call)
    assert (await wire.answer()).status == status
    server, [client] = await traced.spans()
    for span in (server, client):
        assert (span.attributes["error.type"], span.status.status_code) == (kind, StatusCode.ERROR)
        assert span.status.description is None
        assert span.events == ()
    assert server.attributes["http.response.status_code"] == status
    assert server.attributes["mendproxy.outcome"] == "failed"


async def test_a_backend_that_is_gone_is_told(traced):
    await traced.proxy(POLICY.replace("${BACKEND}", "http://127.0.0.1:1"))
    wire = await traced.stage.ask(b"".join(request(HELLO)))
    assert (await wire.answer()).status == 502
    server, [client] = await traced.spans()
    assert server.attributes["error.type"] == client.attributes["error.type"] == "connection_refused"


@pytest.mark.parametrize("is_repaired", [False, True], ids=["relayed", "restored"])
async def test_an_answer_that_is_cut_off_is_told_in_both_spans(traced, is_repaired):
    await traced.proxy()
    wire = await traced.stage.ask(b"".join(request(HELLO | {"stream": True} | ({"n": 2} if is_repaired else {}))))
    call = await traced.stage.backend.call()
    call.send(STREAM, chunk(EVENT))
    await wire.sees(b"hi")
    call.close()
    await wire.sees(b'"error"')
    server, clients = await traced.spans()
    assert "http_response_incomplete" in {span.attributes.get("error.type") for span in clients}
    assert all(span.status.status_code is StatusCode.ERROR for span in clients)
    assert (server.attributes["error.type"], server.status.status_code) == (
        "http_response_incomplete",
        StatusCode.ERROR,
    )


@pytest.mark.parametrize("is_repaired", [False, True], ids=["relayed", "restored"])
async def test_a_client_that_leaves_is_no_fault_of_the_server(traced, is_repaired):
    await traced.proxy()
    wire = await traced.stage.ask(b"".join(request(HELLO | {"stream": True} | ({"n": 2} if is_repaired else {}))))
    call = await traced.stage.backend.call()
    call.send(STREAM, chunk(EVENT))
    await wire.sees(b"hi")
    wire.drop()
    server, clients = await traced.spans()
    assert (server.attributes["error.type"], server.status.status_code) == ("ClientLeft", StatusCode.UNSET)
    assert server.attributes["http.response.status_code"] == 499
    assert {span.attributes["error.type"] for span in clients} <= {"ClientLeft", "CancelledError"}
    assert len(clients) == 1 + is_repaired


async def test_a_client_without_a_key_is_told_and_no_backend_is_asked(traced):
    await traced.proxy(KEYED)
    wire = await traced.stage.ask(b"".join(request(HELLO, Authorization="Bearer SECRET-wrong")))
    assert (await wire.answer()).status == 401
    server, clients = await traced.spans()
    assert clients == []
    assert (server.attributes["error.type"], server.status.status_code) == ("http_request_error", StatusCode.UNSET)
    assert server.attributes["mendproxy.outcome"] == "refused"


async def test_a_path_that_is_none_of_the_apis_is_not_in_a_name(traced):
    await traced.proxy()
    wire = await traced.stage.ask(b"GET /made/up/by/a/client HTTP/1.1\r\nHost: proxy\r\n\r\n")
    (await traced.stage.backend.call()).answer(answered({}))
    assert (await wire.answer("GET")).status == 200
    server, [client] = await traced.spans()
    assert (server.name, client.name) == ("GET", "GET")
    assert (server.attributes["url.path"], "http.route" in server.attributes) == ("/made/up/by/a/client", False)
    assert "gen_ai.operation.name" not in client.attributes


async def test_a_path_is_told_in_bounds(traced):
    await traced.proxy(KEYED)
    wire = await traced.stage.ask(b"GET /%b HTTP/1.1\r\nHost: proxy\r\n\r\n" % (b"a" * 5000))
    assert (await wire.answer("GET")).status == 401
    server, _ = await traced.spans()
    assert server.attributes["url.path"] == "/" + "a" * 255


async def test_a_model_is_told_in_bounds(traced):
    await traced.proxy()
    wire = await traced.stage.ask(b"".join(request(HELLO | {"model": "m" * 5000})))
    (await traced.stage.backend.call()).answer(answered(ANSWER))
    assert (await wire.answer()).status == 200
    _, [client] = await traced.spans()
    assert client.attributes["gen_ai.request.model"] == "m" * 256


UNKNOWN = [
    pytest.param([], id="none"),
    pytest.param(["nonsense"], id="nonsense"),
    pytest.param([f"00-{'0' * 32}-{PARENT}-01"], id="a trace of zeros"),
    pytest.param([TRACEPARENT, TRACEPARENT.replace("b7", "b8")], id="two of them"),
]


@pytest.mark.parametrize("said", UNKNOWN)
async def test_a_trace_that_is_not_understood_begins_anew(traced, said):
    await traced.proxy()
    head, body = request(HELLO)
    lines = "".join(f"traceparent: {value}\r\n" for value in said).encode()
    wire = await traced.stage.ask(head.removesuffix(b"\r\n") + lines + b"\r\n" + body)
    call = await traced.stage.backend.call()
    call.answer(answered(ANSWER))
    assert (await wire.answer()).status == 200
    server, [client] = await traced.spans()
    assert server.parent is None
    assert f"{server.context.trace_id:032x}" != TRACE
    assert call.head.all("traceparent") == [parent_of(client)]


async def test_a_trace_that_the_client_does_not_sample_goes_on_unsampled(traced):
    await traced.proxy()
    wire = await traced.stage.ask(b"".join(request(HELLO, traceparent=TRACEPARENT[:-1] + "0")))
    call = await traced.stage.backend.call()
    call.answer(answered(ANSWER))
    assert (await wire.answer()).status == 200
    assert await traced.none()
    [told] = call.head.all("traceparent")
    assert told.startswith(f"00-{TRACE}-")
    assert told.endswith("-00")


@pytest.mark.parametrize("extra", [{}, {"n": 2}], ids=["relayed", "fanned out"])
async def test_without_traces_what_the_client_said_goes_on_as_it_was(stage, extra):
    await stage.proxy(POLICY)
    said = {"TraceParent": "anything at all", "Tracestate": "mine=1, ,other=2", "Baggage": "a=b"}
    wire = await stage.ask(b"".join(request(HELLO | extra, **said)))
    for _ in range(extra.get("n", 1)):
        call = await stage.backend.call()
        await call.body()
        assert {name: value for name, value in call.head.headers if name in said} == said
        call.answer(answered(ANSWER))
    assert (await wire.answer()).status == 200
