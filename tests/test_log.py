"""The log: one line a request, and no word of what was in it."""

import asyncio
import io
import json
import logging
import re
import socket
from urllib.parse import urlsplit

import pytest
import structlog

from proxy.log import Sink, Told, set_up, tell

POLICY = """
version: 1
backends:
  main: {url: standin://sglang, models: [tiny], presets: [sglang], api_key: SECRET-api-key}
  dead: {url: "http://127.0.0.1:1", models: [dead]}
auth: {keys: [SECRET-auth-key]}
limits: {body: 4KiB}
rules:
  - {id: sharp, when: {path: "*", body: {sharp: {exists: true}}}, repair: [drop: [sharp]]}
  - {id: bad, when: {body: {bad: {exists: true}}}, repair: [reject: No.]}
  - {id: watched, mode: observe, when: {body: {seen: {exists: true}}}, repair: [drop: [seen]]}
  - {id: fans, when: {body: {stream: true, n: {gt: 1}}}, repair: [fan_out: {}]}
  - {id: reacts, on_error: {status: 400, message: "(?P<all>top_k.*)"}, repair: [drop: [top_k]]}
"""
FIELDS = {"id", "method", "path", "model", "backend", "status", "rules", "branches", "sent_bytes", "seconds"}
KEY = {"Authorization": "Bearer SECRET-auth-key", "X-Mine": "SECRET-header"}
MESSAGES = [{"role": "user", "content": "SECRET-prompt"}]
HELLO = {"model": "tiny", "messages": MESSAGES, "user": "SECRET-user"}
LATIN = "/v1/chat/completions?key=SECRET-query"

# What is asked, then what the line says of it: status, model, backend, rules, branches.
ASKED = [
    pytest.param(HELLO, KEY, (200, "tiny", "main", [], 1), id="untouched"),
    pytest.param(HELLO | {"sharp": "SECRET-value"}, KEY, (200, "tiny", "main", ["sharp"], 1), id="repaired"),
    pytest.param(HELLO | {"stream": True, "n": 3}, KEY, (200, "tiny", "main", ["fans"], 3), id="fanned out"),
    pytest.param(
        HELLO | {"stream": True, "return_meta_info": True},
        KEY,
        (200, "tiny", "main", ["sglang/meta-info-streamed"], 1),
        id="restored",
    ),
    pytest.param(HELLO | {"bad": "SECRET-value"}, KEY, (400, "tiny", "main", ["bad"], 0), id="refused by the proxy"),
    pytest.param(HELLO | {"messages": "SECRET-prompt"}, KEY, (400, "tiny", "main", [], 1), id="refused by the backend"),
    pytest.param(
        HELLO | {"sharp": "SECRET-value"},
        KEY | {"Prefer": "handling=strict"},
        (400, "tiny", "main", ["sharp"], 0),
        id="refused rather than repaired",
    ),
    pytest.param(HELLO | {"model": "dead"}, KEY, (502, "dead", "dead", [], 1), id="of a backend that is gone"),
    pytest.param(HELLO | {"model": "none"}, KEY, (404, None, None, [], 0), id="of no backend"),
    pytest.param(HELLO, {"X-Mine": "SECRET-header"}, (401, None, None, [], 0), id="without a key"),
    pytest.param(HELLO, {"Authorization": "Bearer SECRET-wrong"}, (401, None, None, [], 0), id="with a wrong key"),
    pytest.param(b'{"model": "SECRET-prompt', KEY, (400, None, "main", [], 1), id="no JSON"),
    pytest.param(HELLO | {"user": "SECRET-long" * 500}, KEY, (413, None, None, [], 0), id="too large"),
]


@pytest.fixture(scope="module")
def proxy(serving, tmp_path_factory):
    policy = tmp_path_factory.mktemp("log") / "policy.yaml"
    policy.write_text(POLICY)
    with serving(policy, "--log-level", "debug") as running:
        yield running


@pytest.mark.parametrize(("body", "headers", "expected"), ASKED)
def test_a_request_has_one_line(proxy, body, headers, expected):
    given = {"x-request-id": "mine"}
    status, said, _ = proxy.post(body, LATIN, **headers, **given)
    line = proxy.until("request")
    assert line.keys() >= FIELDS
    assert (line["id"], line["method"], line["path"]) == ("mine", "POST", "/v1/chat/completions")
    assert (line["status"], line["model"], line["backend"], line["rules"], line["branches"]) == expected
    assert line["status"] == status
    assert said["x-request-id"] == "mine"
    assert line["sent_bytes"] > 0
    assert line["seconds"] > 0
    assert "SECRET" not in json.dumps(line)


def test_a_request_without_an_id_gets_one(proxy):
    _, said, _ = proxy.post(HELLO, **KEY)
    assert proxy.until("request")["id"] == said["x-request-id"] != ""


def talk(proxy, raw):
    """Send bytes and return the first of what comes back."""
    at = urlsplit(proxy.url)
    with socket.create_connection((at.hostname, at.port), timeout=5) as connection:
        connection.sendall(raw)
        return connection.recv(4096)


ODD = [
    pytest.param(b"GET /SECRET-path HTTP/9.9\r\n\r\n", id="another protocol"),
    pytest.param(b"SECRET-noise\r\n\r\n", id="no HTTP"),
    pytest.param(b"POST / HTTP/1.1\r\nSECRET header: x\r\n\r\n", id="a header that is none"),
    pytest.param(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: SECRET\r\n\r\n", id="a coding that is none"),
    pytest.param(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: SECRET\r\n\r\n", id="a length that is none"),
    pytest.param(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer SECRET-auth-key\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nSECRET-chunk\r\n",
        id="a chunk that is none",
    ),
]


@pytest.mark.parametrize("raw", ODD)
def test_bytes_that_are_no_request_are_refused(proxy, raw):
    assert talk(proxy, raw).split()[1] == b"400"


def leave(proxy):
    """Begin an answer without an end, and leave."""
    with proxy.connection() as connection:
        endless = HELLO | {"messages": [{"role": "user", "content": "run forever"}], "stream": True}
        connection.request("POST", LATIN, json.dumps(endless), KEY | {"Content-Type": "application/json"})
        assert connection.getresponse().readline()


def test_a_client_that_leaves_is_told_as_such(proxy):
    leave(proxy)
    line = proxy.until("request")
    assert (line["status"], line["model"], line["branches"]) == (499, "tiny", 1)


def test_no_secret_is_said_on_any_way_through_a_process(serving, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    flags = ("--log-level", "debug", "--drain-grace", "0s", "--drain-timeout", "0s")
    with serving(policy, *flags) as proxy:
        for case in ASKED:
            body, headers, _ = case.values
            proxy.post(body, LATIN, **headers)
        for case in ODD:
            talk(proxy, *case.values)
        leave(proxy)
        proxy.get("/readyz?verbose&key=SECRET-query")
        policy.write_text(POLICY.replace("api_key: SECRET-api-key", "api_key: [SECRET-new-key]"))
        proxy.send_signal("SIGHUP")
        proxy.until("policy.kept")
        proxy.send_signal("SIGTERM")
        assert proxy.exit_code() == 0
        said = "".join(proxy.output)
    assert said.count('"event":"request"') >= len(ASKED)
    assert "SECRET" not in said


# The standard library's records, as aiohttp and asyncio make them


@pytest.fixture
def own_log():
    """Set the log up as a process would; put it back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield set_up
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(capsys):
    said = capsys.readouterr()
    assert said.out == ""
    return [json.loads(line) for line in said.err.splitlines()]


def test_an_event_is_one_json_object_with_level_and_time(own_log, capsys):
    own_log("json")
    structlog.get_logger("mendproxy").info("serving", port=1, name="caf\u00e9\n")
    (line,) = lines(capsys)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "serving", "port": 1, "name": "caf\u00e9\n", "level": "info"}


def test_a_line_for_people_has_no_colours_where_nobody_looks(own_log, capsys):
    own_log("console")
    structlog.get_logger("mendproxy").info("serving", port=1)
    said = capsys.readouterr().err
    assert "serving" in said
    assert "port=1" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("level", "heard"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_what_is_below_the_level_is_not_said(own_log, capsys, level, heard):
    own_log("json", level)
    for each in ("debug", "info", "warning", "error"):
        getattr(structlog.get_logger("mendproxy"), each)("event")
    assert [line["level"] for line in lines(capsys)] == heard


def fail():
    raise ValueError("SECRET-prompt")


def test_a_record_of_a_library_is_told_without_its_arguments_and_traceback(own_log, capsys):
    own_log("json", "debug")
    try:
        fail()
    except ValueError:
        logging.getLogger("aiohttp.server").exception("Error handling request from %s", "SECRET-peer")
    logging.getLogger("asyncio").error("Task %r was destroyed", "SECRET-task")
    logging.getLogger("asyncio").debug("Using selector: SECRET")
    first, second = lines(capsys)
    assert (first["event"], first["error"], first["level"]) == (
        "Error handling request from %s",
        "ValueError",
        "error",
    )
    assert (second["event"], second["error"]) == ("Task %r was destroyed", None)


ODD_VALUES = [
    pytest.param("caf\u00e9", id="a letter with an accent"),
    pytest.param("\u009b31m", id="what controls a terminal"),
    pytest.param("\udc80", id="a lone surrogate"),
    pytest.param("a\nb", id="a line break"),
]


@pytest.mark.parametrize("value", ODD_VALUES)
def test_a_line_is_one_of_ascii_whatever_it_tells(own_log, capsys, value):
    own_log("json")
    structlog.get_logger("mendproxy").info("serving", name=value)
    said = capsys.readouterr().err
    assert said.isascii()
    assert said.count("\n") == 1
    assert json.loads(said)["name"] == value


def test_what_json_has_no_word_for_is_told_as_python_shows_it(own_log, capsys):
    own_log("json")
    structlog.get_logger("mendproxy").info("serving", name={1, 2}, other=b"\xff")
    (line,) = lines(capsys)
    assert line["name"] in ([1, 2], "{1, 2}")


def test_a_process_tells_its_id_where_there_are_several(own_log, capsys):
    own_log("json", pid=1234)
    structlog.get_logger("mendproxy").info("serving")
    assert [line["pid"] for line in lines(capsys)] == [1234]


class Stream(io.StringIO):
    """A stream that keeps every write, and may break."""

    def __init__(self, error=None):
        super().__init__()
        self.writes = []
        self._error = error

    def write(self, text):
        if self._error is not None:
            raise self._error
        self.writes.append(text)
        return len(text)


async def test_the_lines_of_one_pass_of_the_loop_are_one_write():
    stream = Stream()
    sink = Sink(stream)
    for line in (b"a", b"b", b"c"):
        sink.info(line)
    assert stream.writes == []
    await asyncio.sleep(0)
    assert stream.writes == ["a\nb\nc\n"]


async def test_a_warning_is_written_at_once_after_what_waited():
    stream = Stream()
    sink = Sink(stream)
    sink.info(b"a")
    sink.warning("b")
    assert stream.writes == ["a\nb\n"]
    await asyncio.sleep(0)
    assert stream.writes == ["a\nb\n"]


def test_a_line_is_written_at_once_where_no_loop_runs():
    stream = Stream()
    Sink(stream).info(b"a")
    assert stream.writes == ["a\n"]


async def test_what_waits_at_the_end_is_flushed():
    stream = Stream()
    sink = Sink(stream)
    sink.info(b"a")
    sink.flush()
    assert stream.writes == ["a\n"]


async def test_lines_are_written_in_parts_that_no_other_process_can_come_between():
    stream = Stream()
    sink = Sink(stream)
    for _ in range(9):
        sink.info(b"x" * 999)
    sink.info(b"y" * 5000)
    sink.info(b"z")
    sink.flush()
    assert [len(text) for text in stream.writes] == [4000, 4000, 1000, 5001, 2]
    assert all(text.endswith("\n") for text in stream.writes)


async def test_a_log_that_nobody_reads_any_more_stops_nothing():
    sink = Sink(Stream(BrokenPipeError()))
    sink.info(b"a")
    await asyncio.sleep(0)
    sink.error(b"b")
    sink.flush()


class Asked(Told, kw_only=True):
    method: str
    status: int
    event: str = "request"


@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.parametrize("bound", [{}, {"of": "all"}], ids=["with nothing bound", "with something bound"])
def test_an_event_of_known_fields_is_told_as_any_other(own_log, capsys, log_format, bound):
    own_log(log_format, pid=7)
    logger = structlog.get_logger("mendproxy").bind(**bound)
    logger.warning("request", method="GET", status=200)
    tell(logger, "warning", Asked(method="GET", status=200))
    one, other = re.sub(r"[\d:.]{8,}", "now", capsys.readouterr().err).splitlines()
    assert (json.loads(one), log_format) == (json.loads(other), "json") if one.startswith("{") else one == other


def test_whether_a_line_would_be_heard_can_be_asked_beforehand(own_log):
    own_log("json", "warning")
    log = structlog.get_logger("mendproxy").bind()
    assert not log.is_enabled_for(logging.INFO)
    assert log.is_enabled_for(logging.WARNING)
