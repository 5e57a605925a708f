"""What wire.py takes for granted of aiohttp, one test for each: a newer one that changes it is seen here first."""

import asyncio
import inspect
import re
import tomllib
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.client_proto import ResponseHandler
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import RequestHandler

from proxy.wire import Connection, Served, listen, message_of, take_body

ROOT = Path(__file__).parent.parent
GET = b"GET /%d HTTP/1.1\r\nHost: p\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: p\r\nContent-Length: 4\r\n\r\n"
PATIENCE_S = 5.0


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self, protocol):
        super().__init__()
        self.protocol = protocol
        self.written = b""
        self.is_paused = self.is_closed = False

    def write(self, data):
        self.written += data

    def writelines(self, parts):
        self.written += b"".join(parts)

    def get_extra_info(self, name, default=None):
        return ("127.0.0.1", 1) if name == "peername" else default

    def is_closing(self):
        return self.is_closed

    def close(self):
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False

    def is_reading(self):
        return not self.is_paused


class Taking:
    """Stands for the lane: takes what is offered, where told to."""

    def __init__(self, *, takes=True):
        self.takes = takes
        self.offered = []
        self.left = 0

    def __call__(self, connection, message, body):
        self.offered.append((message.path, take_body(body)))
        return self if self.takes else None

    def client_left(self):
        self.left += 1


async def passes(holds):
    """Let the event loop go on until something holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 a pass of the loop is what is waited for
            await asyncio.sleep(0)


async def served(lane, **options):
    """Return a connection, its wire, and the paths that a task has answered."""
    answered = []

    async def handle(request):
        answered.append((request.path, await request.read(), request.protocol.handed_over()))
        return web.Response(text="by a task")

    connection = listen(handle, lane, **options)()
    connection._tcp_keepalive = False
    wire = Wire(connection)
    connection.connection_made(wire)
    await passes(lambda: connection._waiter is not None)
    return connection, wire, answered


def test_the_version_is_bounded_by_what_was_tried():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [bound] = [line for line in wanted if re.match(r"aiohttp\b", line)]
    low, high = re.fullmatch(r"aiohttp>=(\d+\.\d+)\.\d+,<(\d+\.\d+)", bound).groups()
    assert [int(high.split(".")[0]), int(high.split(".")[1]) - 1] == [int(part) for part in low.split(".")]
    assert aiohttp.__version__.startswith(f"{low}.")


def test_nothing_else_of_the_proxy_uses_what_is_not_public():
    private = re.compile(
        r"aiohttp[\w.]* import [^\n]*\b_\w+|(?:request|connector|session|writer|protocol|content|body)\._[a-z]"
    )
    found = {
        path.name: private.findall(path.read_text())
        for path in (ROOT / "proxy").rglob("*.py")
        if path.name != "wire.py" and private.search(path.read_text())
    }
    assert found == {}


NAMES = (
    "_close",
    "_drain_helper",
    "_force_close",
    "_keepalive",
    "_keepalive_handle",
    "_keepalive_timeout",
    "_loop",
    "_manager",
    "_max_msg_queue_size",
    "_message_tail",
    "_messages",
    "_next_keepalive_close_time",
    "_parser",
    "_payload_parser",
    "_request_count",
    "_upgraded",
    "_waiter",
    "_buffer_paused",
)


@pytest.mark.parametrize("name", NAMES)
async def test_a_server_s_protocol_has(name):
    connection, *_ = await served(None)
    assert hasattr(connection, name)


async def test_a_request_that_comes_while_the_task_waits_is_offered_to_the_lane():
    lane = Taking()
    connection, _, answered = await served(lane)
    connection.data_received(GET % 1)
    assert lane.offered == [("/1", b"")]
    await asyncio.sleep(0)
    assert answered == []


async def test_what_the_lane_does_not_take_a_task_answers():
    connection, wire, answered = await served(Taking(takes=False))
    connection.data_received(GET % 1)
    await passes(lambda: b"by a task" in wire.written)
    assert answered == [("/1", b"", None)]


async def test_a_request_behind_one_in_the_lane_waits_for_its_end():
    lane = Taking()
    connection, wire, answered = await served(lane)
    connection.data_received(GET % 1)
    connection.data_received(GET % 2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert (len(lane.offered), answered, wire.written) == (1, [], b"")
    connection.finish(is_closing=False)
    await passes(lambda: b"by a task" in wire.written)
    assert [path for path, *_ in answered] == ["/2"]


async def test_the_lane_is_free_again_after_its_request_and_after_a_task_s():
    lane = Taking(takes=False)
    connection, wire, _ = await served(lane)
    connection.data_received(GET % 1)
    await passes(lambda: b"by a task" in wire.written)
    lane.takes = True
    connection.is_answered = True
    # The task has yet to come round: the request is kept until it has.
    connection.data_received(GET % 2)
    await passes(lambda: len(lane.offered) == 2)
    connection.finish(is_closing=False)
    connection.data_received(GET % 3)
    assert [path for path, _ in lane.offered] == ["/1", "/2", "/3"]


async def test_a_task_goes_on_with_what_the_lane_hands_over():
    lane = Taking()
    connection, wire, answered = await served(lane)
    connection.data_received(POST + b"body")
    message = body = None

    def keep(_connection, kept_message, kept_body):
        nonlocal message, body
        message, body = kept_message, kept_body
        return lane

    connection.finish(is_closing=False)
    connection._lane = keep
    connection.data_received(POST + b"more")
    connection.hand_over(message, body, "work", lambda: None)
    await passes(lambda: b"by a task" in wire.written)
    assert answered == [("/", b"more", "work")]


async def test_what_was_handed_over_is_abandoned_where_the_client_leaves_before_the_task_began():
    lane, abandoned = Taking(), []
    connection, _, answered = await served(lane)
    connection.data_received(GET % 1)
    connection.hand_over(None, EMPTY_PAYLOAD, "work", lambda: abandoned.append(1))
    connection.connection_lost(None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert (abandoned, answered) == ([1], [])


async def test_what_is_handed_over_when_its_connection_is_being_closed_ends_once():
    lane, abandoned = Taking(), []
    connection, *_ = await served(lane)
    connection.data_received(GET % 1)
    connection.force_close()
    connection.hand_over(None, EMPTY_PAYLOAD, "work", lambda: abandoned.append(1))
    await passes(lambda: len(asyncio.all_tasks()) == 1)
    assert (abandoned, lane.left) == ([1], 0)


async def test_a_client_that_leaves_ends_what_is_in_the_lane_and_the_task():
    lane = Taking()
    connection, wire, _ = await served(lane)
    connection.data_received(GET % 1)
    wire.close()
    await passes(lambda: lane.left == 1)
    await passes(lambda: len(asyncio.all_tasks()) == 1)


async def test_a_connection_is_closed_with_the_lane_s_answer_where_that_says_so():
    connection, wire, _ = await served(Taking())
    connection.data_received(GET % 1)
    connection.finish(is_closing=True)
    assert wire.is_closed
    await passes(lambda: len(asyncio.all_tasks()) == 1)


async def test_a_connection_that_is_idle_after_the_lane_is_closed_in_time():
    connection, wire, _ = await served(Taking(), keepalive_timeout=0.05)
    connection.data_received(GET % 1)
    connection.finish(is_closing=False)
    async with asyncio.timeout(PATIENCE_S):
        while not wire.is_closed:  # noqa: ASYNC110 nobody tells when a connection is closed for being idle
            await asyncio.sleep(0.01)


async def test_what_is_no_http_behind_a_request_in_the_lane_is_refused_after_it():
    connection, wire, _ = await served(Taking())
    connection.data_received(GET % 1)
    connection.data_received(b"\0\0\r\n\r\n")
    assert wire.written == b""
    connection.finish(is_closing=False)
    await passes(lambda: b"400" in wire.written)


async def test_a_shutdown_ends_what_is_in_the_lane():
    lane = Taking()
    connection, wire, _ = await served(lane)
    connection.data_received(GET % 1)
    await connection.shutdown(0.01)
    await passes(lambda: lane.left == 1)
    assert wire.is_closed


async def test_a_request_has_its_message():
    seen = []

    async def handle(request):
        seen.append(message_of(request).path)
        return web.Response()

    connection = listen(handle)()
    connection._tcp_keepalive = False
    wire = Wire(connection)
    connection.connection_made(wire)
    connection.data_received(GET % 7)
    await passes(lambda: wire.written)
    assert seen == ["/7"]


# Backends


class Asking:
    """Stands for who asks: keeps what it is told."""

    def __init__(self):
        self.heads = []
        self.body = EMPTY_PAYLOAD
        self.news = 0

    def head_came(self, message, said, body):
        self.heads.append((message.code, list(said)))
        self.body = body

    def more_came(self):
        self.news += 1


async def asked(**options):
    connection, asker = Connection(asyncio.get_running_loop()), Asking()
    wire = Wire(connection)
    connection.connection_made(wire)
    connection.ask(asker, b"GET / HTTP/1.1\r\n\r\n", **({"is_bare": False} | options))
    return connection, wire, asker


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n"


async def test_the_head_is_told_once_and_interim_ones_are_not():
    connection, _, asker = await asked()
    connection.data_received(b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\n" + HEAD)
    assert asker.heads == [(200, [("Content-Length", "6")])]
    assert not asker.body.is_eof()


async def test_a_body_is_taken_as_it_comes_and_the_connection_can_be_used_again():
    connection, _, asker = await asked()
    connection.data_received(HEAD + b"abc")
    assert take_body(asker.body) == b"abc"
    connection.data_received(b"def")
    assert (take_body(asker.body), asker.body.at_eof()) == (b"def", True)
    assert connection.release()


async def test_a_connection_whose_answer_is_not_read_to_its_end_can_not_be_used_again():
    connection, _, _ = await asked()
    connection.data_received(HEAD + b"abc")
    assert not connection.release()


async def test_an_answer_to_a_head_has_no_body():
    connection, _, asker = await asked(is_bare=True)
    connection.data_received(HEAD)
    assert asker.body is EMPTY_PAYLOAD
    assert connection.release()


async def test_a_body_without_a_length_ends_with_its_connection_but_not_with_a_reset():
    for error, kind in ((None, type(None)), (ConnectionResetError(), aiohttp.ClientPayloadError)):
        connection, _, asker = await asked()
        connection.data_received(b"HTTP/1.1 200 OK\r\n\r\nabc")
        connection.connection_lost(error)
        assert take_body(asker.body) == b"abc"
        assert isinstance(asker.body.exception(), kind)


async def test_a_connection_that_ends_before_its_answer_tells_so():
    connection, _, asker = await asked()
    connection.connection_lost(None)
    assert asker.news == 1
    assert isinstance(connection.exception(), aiohttp.ServerDisconnectedError)


async def test_what_came_before_bytes_that_are_no_http_is_still_had():
    connection, wire, asker = await asked()
    connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    connection.data_received(b"3\r\nabc\r\nzz\r\n")
    assert take_body(asker.body) == b"abc"
    with pytest.raises(aiohttp.ClientError):
        take_body(asker.body)
    assert wire.is_closed


async def test_a_second_answer_makes_a_connection_useless():
    connection, _, asker = await asked()
    connection.data_received(HEAD + b"abcdef" + HEAD + b"abcdef")
    assert len(asker.heads) == 1
    assert not connection.release()


async def test_a_backend_that_speaks_while_nobody_asks_is_cut_off():
    connection, wire, asker = await asked()
    connection.data_received(HEAD + b"abcdef")
    assert connection.release()
    connection.data_received(HEAD)
    assert wire.is_closed
    assert not connection.is_connected()
    assert len(asker.heads) == 1


async def test_reading_is_paused_while_nobody_takes_the_body_and_goes_on_when_it_is_taken():
    connection, wire, asker = await asked()
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 200_000)
    assert wire.is_paused
    assert len(take_body(asker.body)) == 200_000
    assert not wire.is_paused


async def test_an_empty_body_is_one_object_that_can_be_read():
    assert EMPTY_PAYLOAD.is_eof()
    assert take_body(EMPTY_PAYLOAD) == b""
    assert {"_buffer", "_read_nowait"} <= {*StreamReader.__slots__, *vars(StreamReader)}


ARGUMENTS = {"skip_payload", "read_until_eof", "auto_decompress", "read_bufsize", "max_line_size", "max_field_size"}


def test_answers_can_be_parsed_as_the_proxy_needs_it():
    assert inspect.signature(ResponseHandler.set_response_params).parameters.keys() >= ARGUMENTS


def test_both_protocols_are_aiohttp_s_own():
    assert issubclass(Served, RequestHandler)
    assert issubclass(Connection, ResponseHandler)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ONE, TWO = b"7\r\ndata:\n\n\r\n", b"8\r\ndata: \n\n\r\n"
# What was parsed, and whether the next chunk may then pass the parser by.
PARSED = [
    pytest.param(b"", False, id="the head"),
    pytest.param(ONE, True, id="a whole chunk"),
    pytest.param(ONE + TWO, True, id="two of them"),
    pytest.param(ONE + b"8", False, id="the start of a size"),
    pytest.param(ONE + b"8\r\n", False, id="a size"),
    pytest.param(ONE + b"8\r\ndata: \n", False, id="a part of a chunk"),
    pytest.param(ONE + b"8\r\ndata: \n\n", False, id="a chunk without its end"),
    pytest.param(ONE + b"8\r\ndata: \n\n\r", False, id="a chunk with half of its end"),
    pytest.param(b"5\r\ndata:\r\n", False, id="a chunk whose text ends otherwise"),
    pytest.param(b"9\r\nda\n\r\n7\n\r\n", False, id="a chunk that ends as a size does"),
    pytest.param(ONE + b"0\r\n\r\n", False, id="the last chunk"),
]


@pytest.mark.parametrize(("parsed", "passes_by"), PARSED)
async def test_a_whole_chunk_may_pass_the_parser_by_where_it_waits_for_a_size(parsed, passes_by):
    connection, _, asker = await asked()
    passed = []
    connection.data_received(CHUNKED + parsed)
    body = take_body(asker.body)
    connection.relay = lambda data: passed.append(data) is None
    connection.data_received(TWO)
    assert passed == [TWO] * passes_by
    if passes_by:
        connection.relay = None
        connection.data_received(ONE + b"0\r\n\r\n")
        assert (take_body(asker.body), asker.body.at_eof()) == (b"data:\n\n", True)
        assert body == b"".join(part for part in (b"data:\n\n", b"data: \n\n") if part in parsed)


async def test_chunks_pass_nobody_by_while_something_waits_to_be_taken():
    connection, _, asker = await asked()
    connection.relay = lambda _data: pytest.fail("what came before was not taken yet")
    connection.data_received(CHUNKED + ONE)
    connection.data_received(TWO)
    assert take_body(asker.body) == b"data:\n\ndata: \n\n"


async def test_a_connection_on_which_something_came_early_is_not_idle():
    connection, _, answered = await served(Taking(takes=False))
    connection.data_received(GET % 1)
    await passes(connection.is_idle)
    waiter, connection._waiter, connection.is_answered = connection._waiter, None, True
    connection.data_received(GET % 2)
    connection._waiter = waiter
    assert not connection.is_idle()
    await passes(lambda: len(answered) == 2)
    await passes(connection.is_idle)


async def test_a_message_that_was_not_parsed_may_be_handed_to_the_task():
    message = [None]
    connection, wire, answered = await served(lambda _connection, one, _body: message.__setitem__(0, one))
    connection.data_received(GET % 1)
    await passes(connection.is_idle)
    connection._quick = lambda *_: Taking()
    connection.data_received(GET % 2)
    connection._quick = None
    assert not connection.is_idle()
    connection.hand_over(message[0], EMPTY_PAYLOAD, "work", lambda: None)
    await passes(connection.is_idle)
    connection.data_received(GET % 3)
    await passes(lambda: len(answered) == 3)
    assert answered == [("/1", b"", None), ("/1", b"", "work"), ("/3", b"", None)]
    assert wire.written.count(b"by a task") == 3
