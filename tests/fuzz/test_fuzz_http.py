"""The HTTP edge: any bytes of a client, in process. No bug, no task left over, and nothing goes on that was not asked.

What goes to the backend is held against a reader that knows the plainest HTTP/1.1 only and stops at whatever is not.
"""

import asyncio
import logging
import re
import socket
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

from structlog.testing import capture_logs

from proxy.data_path import make_server
from proxy.direct import DirectReply, DirectUpstream
from proxy.policy import load_policy
from proxy.pool import Answering, origin_of
from proxy.server import DataPort
from proxy.session import SessionReply
from proxy.upstream import Upstream
from proxy.wire import Connection

HEAD_BYTES = 3  # where the bytes are split
MAX_TURNS = 5000
POLICY = load_policy(
    "p.yaml",
    environ={},
    text="""
version: 1
backends: {main: {url: "http://x", models: ["m*"]}}
limits: {body: 2000, branches: 3}
rules:
  - {id: sharp, when: {path: "/v1/*", body: {sharp: true}}, repair: [drop: [sharp]]}
  - {id: whole, when: {body: {stream: true, whole: true}}, repair: [stream: false]}
  - {id: choices, when: {body: {n: {gt: 1}}}, repair: [fan_out: {}]}
  - {id: again, on_error: {status: 400}, repair: [drop: [again]]}
""",
)
JSON = b'{"id":"1","object":"chat.completion","choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}]}'
STREAM = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
ANSWERS = [
    (200, [(b"Content-Type", b"application/json")], [JSON]),
    (200, [(b"Content-Type", b"text/event-stream")], [STREAM[:20], STREAM[20:]]),
    (400, [(b"Content-Type", b"application/json"), (b"X-Odd", b"a\xe4")], [b'{"error":{"message":"no"}}']),
    (204, [(b"Connection", b"x-hop"), (b"X-Hop", b"1")], []),
]


def post(body, *headers, path="/v1/chat/completions"):
    lines = [f"POST {path} HTTP/1.1", "Host: p", *headers, f"Content-Length: {len(body)}", "", body]
    return "\r\n".join(lines).encode()


GET = b"GET /v1/models?a=b HTTP/1.1\r\nHost: p\r\n\r\n"
CHUNKED = b"POST /v1/files HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
REQUESTS = [
    GET * 3,
    post('{"model":"m","messages":[],"stream":true}') + GET,
    post('{"model":"m","messages":[],"stream":true,"whole":true}', "X-Request-Id: mine", "Prefer: handling=strict"),
    post('{"model":"m","messages":[],"n":3,"sharp":true}', "Expect: 100-continue"),
    post('{"model":"m","messages":[],"again":1}', "Connection: close, X-A", "X-A: b", "Authorization: Bearer k"),
    CHUNKED + GET,
    CHUNKED.replace(b"5\r\nhello", b"5;a=b\r\nhello").replace(b"0\r\n\r\n", b"0\r\nX-T: 1\r\n\r\n"),
    b"GET /ws HTTP/1.1\r\nHost: p\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n",
    b"GET http://elsewhere/v1/x%2f..%2e/y HTTP/1.1\r\nHost: p\r\n\r\n",
    b"GET /old HTTP/1.0\r\n\r\n",
    b"HEAD / HTTP/1.1\r\nHost: p\r\n\r\nOPTIONS * HTTP/1.1\r\nHost: p\r\n\r\n",
    b"CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nHost: p\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00",
    b"POST /v1/x HTTP/1.1\r\nHost: p\r\nContent-Type: multipart/form-data\r\nContent-Length: 5\r\n\r\n--b--",
]
SEEDS = [bytes([0, 40, 90]) + raw for raw in REQUESTS]
WORDS = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b": ",
    b" ",
    b"\t",
    b"\0",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: ",
]
WORDS += [
    b"chunked",
    b"Expect: 100-continue\r\n",
    b"Connection: close\r\n",
    b"Upgrade: h2c\r\n",
    b"HTTP/1.0",
    b"HTTP/2.0",
]
WORDS += [
    b"/..",
    b"%2e%2e",
    b"%0d%0a",
    b"//",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"Host: x\r\n",
    b"\xff",
    b"1;",
    b"GET ",
]


class Wire(asyncio.Transport):
    """The client's end: what the proxy writes is kept, and closing closes."""

    def __init__(self, protocol, own_socket):
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2), "socket": own_socket})
        self.protocol = protocol
        self.written = bytearray()
        self.is_closed = False

    def write(self, data):
        assert isinstance(data, bytes | bytearray | memoryview)
        self.written += data

    def writelines(self, parts):
        self.write(b"".join(parts))

    def is_closing(self):
        return self.is_closed

    def close(self):
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def pause_reading(self):
        """Nothing comes by itself here."""

    def resume_reading(self):
        """Nothing comes by itself here."""


class SessionBackend(Upstream):
    """Stands for the upstream of aiohttp's client: takes each request whole, and answers as its size says."""

    def __init__(self):
        super().__init__(lambda _name, _outcome: None)
        self.calls = []

    @asynccontextmanager
    async def answer(self, _backend, _base, call, sent_at_s):
        status, raw_headers, parts = await taken(call, self.calls)
        left = list(parts)

        async def readany():
            return left.pop(0) if left else b""

        response = SimpleNamespace(
            status=status,
            reason="So",
            raw_headers=raw_headers,
            headers={},
            connection=None,
            content=SimpleNamespace(read_nowait=lambda: b"", readany=readany),
            close=lambda: None,
        )
        yield SessionReply(response, sent_at_s)


class DirectBackend(DirectUpstream):
    """Stands for the upstream of connections of our own: each is new, and answers when its request was read."""

    def __init__(self):
        super().__init__(lambda _name, _outcome: None)
        self.calls = []

    async def ask_fresh(self, base, call, connect_s):
        wire = BackendWire(await taken(call, self.calls), is_bare=call.method == "HEAD")
        answering = Answering(self.pool, origin_of(base), wire.connection)
        answering.ask(replace(call, body=None))
        wire.answer()
        return answering

    @asynccontextmanager
    async def answer(self, _backend, base, call, sent_at_s):
        answering = await self.ask_fresh(base, call, 1.0)
        try:
            await answering.head(1.0)
            yield DirectReply(answering, sent_at_s)
        finally:
            answering.end()


class BackendWire(asyncio.Transport):
    """The wire of one connection to a backend, which answers once."""

    def __init__(self, answer, *, is_bare):
        super().__init__()
        self._answer = answer
        self._is_bare = is_bare
        self._is_closed = False
        self.connection = Connection(asyncio.get_running_loop())
        self.connection.connection_made(self)

    def answer(self):
        status, raw_headers, parts = self._answer
        said = b"".join(b"%b: %b\r\n" % header for header in raw_headers)
        framing = b"" if status == 204 else b"Transfer-Encoding: chunked\r\n"
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
        end = b"" if status == 204 or self._is_bare else chunks + b"0\r\n\r\n"
        loop = asyncio.get_running_loop()
        loop.call_soon(self._come, b"HTTP/1.1 %d So\r\n%b%b\r\n" % (status, said, framing) + end)

    def _come(self, data):
        if not self._is_closed:
            self.connection.data_received(data)

    def write(self, data):
        """Let what is asked go: the test has it already."""

    def is_closing(self):
        return self._is_closed

    def close(self):
        if not self._is_closed:
            self._is_closed = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    abort = close

    def get_extra_info(self, _name, default=None):
        return default


async def taken(call, calls):
    """Return the answer to a call, which is read whole and kept."""
    body = call.body or b""
    if not isinstance(body, bytes):
        body = b"".join([part async for part in body])
    calls.append((call, body))
    return ANSWERS[(len(calls) + len(body)) % len(ANSWERS)]


class Complaints(logging.Handler):
    """Keeps what aiohttp and asyncio complain of."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = []

    def emit(self, record):
        self.said.append(f"{record.getMessage()} {record.exc_info}")


async def settle():
    """Wait until nothing more happens by itself."""
    loop = asyncio.get_running_loop()
    for _ in range(MAX_TURNS):
        await asyncio.sleep(0)
        if not loop._ready:
            return
    raise AssertionError("it goes on and on")


async def connect(pieces, own_socket, make):
    """Return the upstream calls and what was written to a client that sent the pieces, then left."""
    loop, complaints, backend = asyncio.get_running_loop(), [], make()
    loop.set_exception_handler(lambda _loop, context: complaints.append(str(context)))
    port = DataPort(POLICY, backend, lambda _backend: "http://x")
    protocol = make_server(port)()
    wire = Wire(protocol, own_socket)
    protocol.connection_made(wire)
    for piece in pieces:
        if not wire.is_closed:
            protocol.data_received(piece)
        await settle()
    is_open = not wire.is_closed
    if is_open:
        protocol.eof_received()
    wire.close()
    await settle()
    assert complaints == []
    if isinstance(backend, DirectBackend):
        await backend.close()
    assert (port.in_flight, port.reserve.held_bytes) == (0, 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return backend.calls, bytes(wire.written), is_open


def run(pieces, make):
    complaints = Complaints()
    own = [logging.getLogger(name) for name in ("aiohttp.server", "asyncio", "aiohttp.web")]
    for logger in own:
        logger.addHandler(complaints)
    try:
        with capture_logs() as said, socket.socket() as own_socket, asyncio.Runner() as runner:
            result = runner.run(connect(pieces, own_socket, make))
    finally:
        for logger in own:
            logger.removeHandler(complaints)
    assert complaints.said == []
    assert [line for line in said if line["log_level"] not in ("info", "debug")] == []
    return result


HEAD = re.compile(rb"([A-Z]+) (/[!-~]*) HTTP/1\.1\r\n((?:[A-Za-z0-9-]+: ?[!-~]?[ -~]*\r\n)*)\r\n")
PART = re.compile(rb"([0-9a-fA-F]{1,6})\r\n")


def read_plainly(data):
    """Return the (method, target, body) of each request up to the first thing that isn't plain, and whether all was."""
    requests = []
    while data:
        head = HEAD.match(data)
        if head is None:
            return requests, False
        fields = [line.partition(b":")[::2] for line in head[3].split(b"\r\n")[:-1]]
        names = {name.lower(): value.strip() for name, value in fields}
        if len(names) < len(fields) or {b"upgrade", b"connection", b"expect"} & names.keys() or head[1] == b"CONNECT":
            return requests, False
        body, data = framed(names, data[head.end() :])
        if body is None:
            return requests, False
        requests.append((head[1].decode(), head[2].decode(), body))
    return requests, True


def framed(names, data):
    """Return a body and what comes behind it; None for one that is not framed plainly."""
    length, coding = names.get(b"content-length"), names.get(b"transfer-encoding")
    if coding is not None:
        return unchunked(data) if coding == b"chunked" and length is None else (None, data)
    if length is None:
        return b"", data
    if not re.fullmatch(rb"\d{1,6}", length) or len(data) < int(length):
        return None, data
    return data[: int(length)], data[int(length) :]


def unchunked(data):
    body = b""
    while (part := PART.match(data)) is not None:
        size, rest = int(part[1], 16), data[part.end() :]
        if rest[size : size + 2] != b"\r\n":
            break
        if not size:
            return body, rest[2:]
        body, data = body + rest[:size], rest[size + 2 :]
    return None, data


def check(data):
    head, stream = data[:HEAD_BYTES].ljust(HEAD_BYTES, b"\0"), data[HEAD_BYTES:]
    places = sorted(place % (len(stream) + 1) for place in head)
    pieces = [stream[start:end] for start, end in zip([0, *places], [*places, len(stream)], strict=True)]
    # Either data path has to do, and which one is told by the bytes, so that a finding can be seen again.
    make = (DirectBackend, SessionBackend)[len(stream) % 2]
    calls, written, is_open = run([piece for piece in pieces if piece], make)
    plain, is_all = read_plainly(stream)
    for call, _ in calls:
        wrong = re.compile(r"[\0\r\n]")
        assert not wrong.search(call.method + call.target)
        assert re.fullmatch(r"[!-~]+", call.target)
        assert not any(wrong.search(name + value) for name, value in call.headers)
    assert written == b"" or re.match(rb"HTTP/1\.[01] [1-5]\d\d ", written)
    if plain and is_open:
        assert written, "a whole request is answered"
    if b"Mendproxy-Repairs" not in written:
        check_asked([(call.method, call.target, body) for call, body in calls], plain, is_all)


def check_asked(calls, plain, is_all):
    """What went on is what the client asked, in its order; of what is not plain nothing is said."""
    # yarl, which holds the upstream's address, writes no "?" before an empty query.
    left = iter([(method, target.removesuffix("?"), body) for method, target, body in plain])
    for call in calls:
        for request in left:
            if request == call:
                break
        else:
            assert not is_all, f"{call} was never asked"
            return


def test_any_bytes_are_answered_or_refused(fuzz):
    fuzz(check, SEEDS, WORDS)
