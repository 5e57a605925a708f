"""TLS on real sockets: towards clients and towards backends, over either data path."""

import asyncio
import io
import json
import ssl
from contextlib import AsyncExitStack

import aiohttp
import pytest
import trustme
from aiohttp import web

from proxy.data_path import make_server, make_upstream
from proxy.policy import load_policy
from proxy.server import DataPort
from proxy.tls import Contexts, Tls
from tests.stage import DATA_PATH, HOST, PATIENCE_S

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": []}
POLICY = "version: 1\nbackends: {main: {url: '${BACKEND}'}}\n"
EVENTS = [b'data: {"choices": [{"index": 0, "delta": {"content": "%d"}}]}\n\n' % number for number in range(3)]
DONE = b"data: [DONE]\n\n"


class Trust:
    """Two authorities: one that is trusted here, and a stranger; and the files of both."""

    def __init__(self, folder):
        self._folder = folder
        self.ours, self.strange = trustme.CA(), trustme.CA()
        self.files = {}
        for name, authority in (("ours", self.ours), ("strange", self.strange)):
            self._keep(f"{name}_ca", authority.cert_pem)
            for host in (HOST, "other.example"):
                leaf = authority.issue_cert(host)
                self._keep(f"{name}_{host}_cert", leaf.cert_chain_pems[0])
                self._keep(f"{name}_{host}_key", leaf.private_key_pem)

    def _keep(self, name, blob):
        self.files[name] = str(self._folder / f"{name}.pem")
        blob.write_to_path(self.files[name])

    def pair(self, whose="ours", host=HOST):
        return self.files[f"{whose}_{host}_cert"], self.files[f"{whose}_{host}_key"]

    def client(self, whose=None):
        """Return a context that trusts ours, and shows a certificate of `whose`."""
        context = ssl.create_default_context(cafile=self.files["ours_ca"])
        if whose is not None:
            context.load_cert_chain(*self.pair(whose))
        return context


@pytest.fixture(scope="module")
def trust(tmp_path_factory):
    return Trust(tmp_path_factory.mktemp("trust"))


class Backend:
    """A backend that answers at once, streams as the test lets it, or waits until its client leaves."""

    def __init__(self):
        self.url = ""
        self.heads = []
        self.shown = []
        self.left = asyncio.Event()
        self.parts = asyncio.Queue()

    async def listen(self, stack, context):
        runner = web.ServerRunner(web.Server(self.handle, handler_cancellation=True), shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, HOST, 0, ssl_context=context).start()
        self.url = f"{'https' if context else 'http'}://{HOST}:{runner.addresses[0][1]}"

    async def handle(self, request):
        self.heads.append(request.headers)
        self.shown.append(request.get_extra_info("peercert"))
        if request.path == "/socket":
            return await _echo(request)
        if request.path == "/large":
            return web.Response(body=await request.content.read())
        if not (await request.json()).get("stream"):
            return web.json_response({"choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]})
        return await self._stream(request)

    async def _stream(self, request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            while (part := await self.parts.get()) is not None:
                await response.write(part)
        except asyncio.CancelledError:
            self.left.set()
            raise
        return response


async def _echo(request):
    """Say over a WebSocket what was said."""
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        await socket.send_bytes(message.data)
    return socket


class Between:
    """The data port between a backend and clients, any of them by TLS."""

    def __init__(self, stack, trust):
        self._stack = stack
        self._trust = trust
        self.backend = Backend()
        self.url = ""

    async def start(self, tls, backend_context=None, policy=POLICY):
        await self.backend.listen(self._stack, backend_context)
        contexts = Contexts(tls)
        upstream = make_upstream(DATA_PATH, lambda _name, _outcome: None, contexts.backend)
        self._stack.push_async_callback(upstream.close)
        read = load_policy("policy.yaml", environ=self._urls(), text=policy)
        port = DataPort(read, upstream, lambda backend: backend.url)
        runner = web.ServerRunner(make_server(port), shutdown_timeout=0.1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, HOST, 0, ssl_context=contexts.served).start()
        self.url = f"{'https' if contexts.served else 'http'}://{HOST}:{runner.addresses[0][1]}"

    def _urls(self):
        return {"BACKEND": self.backend.url, "BY_TLS": self.backend.url.replace("http:", "https:")}

    async def session(self, context=None):
        connector = aiohttp.TCPConnector(ssl=context if context is not None else True)
        return await self._stack.enter_async_context(aiohttp.ClientSession(self.url, connector=connector))

    async def ask(self, context=None, **extra):
        """Return the status and the answer of a plain request."""
        session = await self.session(context)
        async with session.post(CHAT, json=HELLO | extra) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def between(trust):
    async with AsyncExitStack() as stack:
        yield Between(stack, trust)


@pytest.fixture
def served(trust):
    cert, key = trust.pair()
    return Tls(cert=cert, key=key)


def backend_context(trust, whose="ours", host=HOST, client_ca=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*trust.pair(whose, host))
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(trust.files[f"{client_ca}_ca"])
    return context


async def test_a_client_is_answered_by_tls_and_the_backend_is_told(between, served, trust):
    await between.start(served)
    session = await between.session(trust.client())
    for _ in range(3):
        async with session.post(CHAT, json=HELLO) as answer:
            assert (answer.status, (await answer.json())["choices"][0]["message"]["content"]) == (200, "hi")
    assert [head.getall("X-Forwarded-Proto") for head in between.backend.heads] == [["https"]] * 3


@pytest.mark.parametrize("is_backend_by_tls", [False, True], ids=["to a plain backend", "to a backend by TLS"])
async def test_each_event_comes_before_the_next_is_sent(between, trust, is_backend_by_tls):
    cert, key = trust.pair()
    tls = Tls(cert=cert, key=key, backend_ca=trust.files["ours_ca"])
    await between.start(tls, backend_context(trust) if is_backend_by_tls else None)
    session = await between.session(trust.client())
    for _ in range(2):
        # The head waits for the first event.
        between.backend.parts.put_nowait(EVENTS[0])
        async with session.post(CHAT, json=HELLO | {"stream": True}) as answer:
            assert await answer.content.readexactly(len(EVENTS[0])) == EVENTS[0]
            for event in EVENTS[1:]:
                between.backend.parts.put_nowait(event)
                assert await answer.content.readexactly(len(event)) == event
            between.backend.parts.put_nowait(DONE)
            between.backend.parts.put_nowait(None)
            assert await answer.content.read() == DONE


async def test_a_repaired_answer_goes_by_tls_both_ways(between, trust):
    cert, key = trust.pair()
    rule = "rules: [{id: n, when: {body: {n: {gt: 1}}}, repair: [fan_out: {}]}]\n"
    tls = Tls(cert=cert, key=key, backend_ca=trust.files["ours_ca"])
    await between.start(tls, backend_context(trust), POLICY + rule)
    status, answer = await between.ask(trust.client(), n=3)
    assert (status, [choice["index"] for choice in answer["choices"]]) == (200, [0, 1, 2])
    assert len(between.backend.heads) == 3


async def test_a_large_body_comes_whole_both_ways(between, trust):
    cert, key = trust.pair()
    await between.start(Tls(cert=cert, key=key, backend_ca=trust.files["ours_ca"]), backend_context(trust))
    body = bytes(range(256)) * 12_000
    session = await between.session(trust.client())
    async with session.post("/large", data=io.BytesIO(body)) as answer:
        assert await answer.read() == body


async def test_a_websocket_goes_by_tls_both_ways(between, trust):
    cert, key = trust.pair()
    await between.start(Tls(cert=cert, key=key, backend_ca=trust.files["ours_ca"]), backend_context(trust))
    session = await between.session(trust.client())
    async with session.ws_connect("/socket") as socket:
        for size in (1, 100_000, 5):
            await socket.send_bytes(b"x" * size)
            assert await socket.receive_bytes(timeout=PATIENCE_S) == b"x" * size


async def test_a_backend_that_speaks_no_tls_is_told(between, trust):
    await between.start(Tls(), policy=POLICY.replace("${BACKEND}", "${BY_TLS}"))
    status, answer = await between.ask()
    assert (status, answer["error"]["code"]) == (502, "tls_protocol_error")


async def test_a_client_that_leaves_is_told_to_a_backend_by_tls(between, trust):
    cert, key = trust.pair()
    await between.start(Tls(cert=cert, key=key, backend_ca=trust.files["ours_ca"]), backend_context(trust))
    session = await between.session(trust.client())
    between.backend.parts.put_nowait(EVENTS[0])
    answer = await session.post(CHAT, json=HELLO | {"stream": True})
    answer.close()
    await asyncio.wait_for(between.backend.left.wait(), PATIENCE_S)


async def test_http_1_1_is_agreed_on_and_nothing_older_than_tls_1_2(between, served, trust):
    await between.start(served)
    port = int(between.url.rpartition(":")[2])
    context = trust.client()
    context.set_alpn_protocols(["h2", "http/1.1"])
    _, writer = await asyncio.open_connection(HOST, port, ssl=context)
    agreed = writer.get_extra_info("ssl_object")
    assert agreed.selected_alpn_protocol() == "http/1.1"
    assert agreed.version() in ("TLSv1.2", "TLSv1.3")
    writer.close()
    await writer.wait_closed()


async def test_a_plain_request_to_a_port_of_tls_is_no_answer_and_harms_nobody(between, served, trust):
    await between.start(served)
    port = int(between.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert not (await reader.read()).startswith(b"HTTP")
    writer.close()
    await writer.wait_closed()
    assert (await between.ask(trust.client()))[0] == 200
    assert len(between.backend.heads) == 1


@pytest.mark.parametrize("whose", [None, "strange"], ids=["without a certificate", "with a stranger's"])
async def test_a_client_that_is_not_known_is_refused_by_mutual_tls(between, trust, whose):
    cert, key = trust.pair()
    await between.start(Tls(cert=cert, key=key, client_ca=trust.files["ours_ca"]))
    with pytest.raises((aiohttp.ClientError, ConnectionError, ssl.SSLError)):
        await between.ask(trust.client(whose))
    assert between.backend.heads == []
    assert (await between.ask(trust.client("ours")))[0] == 200


BACKENDS = [
    # What the backend shows, what we trust, what comes of it.
    pytest.param({}, {"backend_ca": "ours_ca"}, 200, None, id="a private CA that is trusted"),
    pytest.param({}, {}, 502, "tls_certificate_error", id="a private CA that is not"),
    pytest.param({}, {"backend_ca": "strange_ca"}, 502, "tls_certificate_error", id="another private CA is trusted"),
    pytest.param(
        {"host": "other.example"}, {"backend_ca": "ours_ca"}, 502, "tls_certificate_error", id="another host's name"
    ),
    pytest.param({"whose": "strange"}, {"backend_insecure": True}, 200, None, id="anybody is trusted"),
    pytest.param({"host": "other.example"}, {"backend_insecure": True}, 200, None, id="anybody is, by whatever name"),
]


@pytest.mark.parametrize(("shown", "trusted", "status", "token"), BACKENDS)
async def test_a_backend_is_asked_only_where_its_certificate_is_trusted(between, trust, shown, trusted, status, token):
    tls = Tls(
        **{name: trust.files.get(value, value) if isinstance(value, str) else value for name, value in trusted.items()}
    )
    await between.start(tls, backend_context(trust, **shown))
    got, answer = await between.ask()
    assert (got, answer.get("error", {}).get("code")) == (status, token)
    assert len(between.backend.heads) == (status == 200)


async def test_a_backend_that_knows_us_by_our_certificate_is_shown_it(between, trust):
    cert, key = trust.pair("strange", "other.example")
    tls = Tls(backend_ca=trust.files["ours_ca"], backend_cert=cert, backend_key=key)
    await between.start(tls, backend_context(trust, client_ca="strange"))
    assert (await between.ask())[0] == 200
    [shown] = between.backend.shown
    assert ("DNS", "other.example") in shown["subjectAltName"]


async def test_a_backend_that_asks_for_a_certificate_and_gets_none_is_a_failure_of_the_backend(between, trust):
    await between.start(Tls(backend_ca=trust.files["ours_ca"]), backend_context(trust, client_ca="ours"))
    status, answer = await between.ask()
    assert (status, answer["error"]["type"]) == (502, "backend_error")
    assert between.backend.heads == []


async def test_an_answer_is_cut_where_the_backend_by_tls_was(between, trust):
    cert, key = trust.pair()
    await between.start(Tls(cert=cert, key=key, backend_ca=trust.files["ours_ca"]), backend_context(trust))
    session = await between.session(trust.client())
    between.backend.parts.put_nowait(EVENTS[0])
    async with session.post(CHAT, json=HELLO | {"stream": True}) as answer:
        assert await answer.content.readexactly(len(EVENTS[0])) == EVENTS[0]
        between.backend.parts.put_nowait(b"data: cut")
        between.backend.parts.put_nowait("no bytes, so the handler fails")
        rest = await read_what_comes(answer)
    assert b"[DONE]" not in rest
    assert json.loads(rest.rpartition(b"data: ")[2])["error"]["code"] == "http_response_incomplete"


async def read_what_comes(answer):
    """Return the rest of an answer, which is not whole."""
    rest = b""
    try:
        while part := await answer.content.readany():
            rest += part
    except aiohttp.ClientPayloadError:
        return rest
    raise AssertionError("the answer looks whole")
