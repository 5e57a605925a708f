"""Nothing that is secret is logged or shown: marks go through every path, and all that the process says is searched.

What a client sent may come back to that client; it may stand nowhere else.
"""

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import aiohttp
import pytest

from proxy.errors import PolicyFault
from proxy.policy import load_policy

ROOT = Path(__file__).parent.parent
PATIENCE_S = 10.0
CHAT = "/v1/chat/completions"
# A client is waited for a minute in the middle of its body; not here.
START = "import proxy.bodies, proxy.cli; proxy.bodies.BODY_TIMEOUT_S = 0.3; proxy.cli.main()"
POLICY = """
version: 1
backends:
  main:
    url: ${BACKEND}
    models: [tiny]
    api_key: ${BACKEND_KEY}
    timeouts: {connect: 2s, first_content: 500ms, idle: 500ms}
  gone: {url: "http://127.0.0.1:1", models: [gone]}
  unnamed: {url: "http://name.invalid", models: [unnamed]}
limits: {body: 64KiB, response: 64KiB, event: 16KiB}
auth: {keys: ["${CLIENT_KEY}"]}
keep_alive: 200ms
rules:
  - {id: dropped, when: {body: {private: {exists: true}}}, repair: [drop: [private]]}
  - {id: set, when: {body: {user: {exists: true}}}, repair: [set: {user: anonymous}]}
  - {id: warned, when: {body: {odd: {exists: true}}}, repair: [warn: This is odd.]}
  - {id: rejected, when: {body: {forbidden: {exists: true}}}, repair: [reject: This is not served.]}
  - {id: fanned, when: {body: {n: {gt: 1}}}, repair: [fan_out: {}]}
  - {id: unstreamed, when: {body: {stream: true, meta: true}}, repair: [stream: false]}
  - id: unknown-field
    on_error: {status: [400], message: "unknown field '(?P<field>\\\\w+)'"}
    repair: [drop: ["{field}"]]
    learn: {for: 1h}
  - {id: empty-stream, on_error: {stream: [empty, error]}, repair: [set: {again: true}]}
"""
FAULTY = """
version: 1
backends:
  ftp: {url: "${FTP}"}
  userinfo: {url: "${USERINFO}", api_key: "${KEY_FILE}"}
  query: {url: "${QUERY}", max_concurrency: "${WORD}", timeouts: {connect: "${WORD}"}}
  list: {url: "http://backend", models: ["${WORD}["], api_key: ["${WORD}"]}
  key: {url: "http://backend", api_key: [literal-key-MARK]}
auth: {keys: {literal: client-key-MARK}}
rules:
  - {id: "${WORD} !", when: {body: {a: {matches: "(${WORD}"}}}, repair: [drop: [a]]}
  - {id: number, when: {body: {a: {gt: "${WORD}"}}}, repair: [clamp: {a: {max: "${WORD}"}}]}
  - {id: kind, when: {body: {a: {type: "${WORD}"}}}, repair: [coerce: {a: "${WORD}"}]}
"""


class Marks:
    """Secrets, each with a name of its own that can be found again however it is written."""

    def __init__(self):
        self.names = []

    def __call__(self, kind):
        self.names.append(f"zq{len(self.names):03}{kind}")
        return f"{self.names[-1]}+/=~"

    def found_in(self, text):
        """Return the names of the marks that stand in a text: as they are, in base64 at any offset, or in hex."""
        plain = text.lower()
        return [name for name in self.names if name in plain or any(form in text for form in encoded(name))]


def encoded(name):
    """Return the forms in which a name is not seen at once."""
    raw = name.encode()
    yield raw.hex()
    yield "".join(f"%{byte:02X}" for byte in raw)
    for offset in range(3):
        text = base64.b64encode(b"-" * offset + raw + b"--").decode()
        # Only the characters that are made of this name alone.
        yield text[-(-8 * offset // 6) : 8 * (offset + len(raw)) // 6]


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(str, id="as it is"),
        pytest.param(str.upper, id="in capitals"),
        pytest.param(lambda text: quote(text, safe=""), id="in a URL"),
        pytest.param(lambda text: "".join(f"%{byte:02X}" for byte in text.encode()), id="in a URL that escapes all"),
        pytest.param(json.dumps, id="in JSON"),
        pytest.param(lambda text: text.encode().hex(), id="in hex"),
        pytest.param(lambda text: base64.b64encode(text.encode()).decode(), id="in base64"),
        pytest.param(
            lambda text: base64.urlsafe_b64encode(f"user:{text}".encode()).decode(), id="in basic credentials"
        ),
        pytest.param(lambda text: base64.b64encode(f"ab{text}".encode()).decode(), id="in base64 at an offset"),
        pytest.param(lambda text: text[:12], id="cut off"),
    ],
)
def test_a_mark_is_found_however_it_is_written(write):
    marks = Marks()
    marks("other")
    secret = marks("prompt")
    assert marks.found_in(f"event=request what={write(secret)}.") == ["zq001prompt"]


class Proxy:
    """A running `mendproxy serve`: what it says, where it is."""

    def __init__(self, process):
        self._process = process
        self._taken = 0
        self.said = ""
        self.admin = ""

    async def until(self, pattern):
        """Return the next match in what it says, reading on."""
        async with asyncio.timeout(PATIENCE_S):
            while (found := re.compile(pattern).search(self.said, self._taken)) is None:
                line = await self._process.stdout.readline()
                assert line, f"it ended and never said {pattern!r}, but:\n{self.said}"
                self.said += line.decode()
        self._taken = found.end()
        return found

    def reload(self):
        self._process.send_signal(signal.SIGHUP)

    async def end(self):
        """Drain it, take in the rest of what it says, and return its exit code."""
        self._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            self.said += (await self._process.stdout.read()).decode()
            return await self._process.wait()


@asynccontextmanager
async def serve(policy, environ, *flags):
    flags = ["--port", "0", "--admin-port", "0", "--drain-grace", "0s", "--log-level", "debug", *flags]
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", START, "serve", "-c", str(policy), *flags],
        cwd=ROOT,
        env=clean_environ() | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        limit=1 << 24,
    )
    proxy = Proxy(process)
    try:
        yield proxy
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def clean_environ():
    return {name: value for name, value in os.environ.items() if not name.startswith("MENDPROXY_")}


class Scene:
    """A client and a backend, with the proxy between them, and the marks that they let go through it."""

    def __init__(self, stage, mark, key):
        self.stage = stage
        self.mark = mark
        self._key = key

    def request(self, body, target=CHAT, method="POST", headers=(), **fields):
        """Return a request; its header, cookie and query are marked too."""
        raw = body if isinstance(body, bytes) else json.dumps(body | fields).encode()
        said = {
            "Host": "proxy",
            "Authorization": f"Bearer {self._key}",
            "Content-Type": "application/json",
            "Cookie": f"session={self.mark('cookie')}",
            "X-Trace": self.mark("header"),
            "Content-Length": str(len(raw)),
        } | dict(headers)
        lines = "".join(f"{name}: {value}\r\n" for name, value in said.items() if value is not None)
        return f"{method} {target}?key={self.mark('query')} HTTP/1.1\r\n{lines}\r\n".encode() + raw

    def body(self, **fields):
        """Return a chat request whose prompt and tool arguments are marked."""
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": self.mark("arguments")}}
        said = [{"role": "user", "content": self.mark("prompt")}, {"role": "assistant", "tool_calls": [call]}]
        return {"model": "tiny", "messages": said} | fields

    async def ask(self, **fields):
        return await self.stage.ask(self.request(self.body(**fields)))

    async def call(self):
        """Return the next request to the backend, its body read."""
        call = await self.stage.backend.call()
        await call.body()
        return call

    def echo(self, status, kind="application/json", message=None):
        """Return a backend's error that repeats the prompt."""
        text = message or f"can't serve {self.mark('echo')}"
        raw = json.dumps({"error": {"message": text}}).encode() if kind == "application/json" else text.encode()
        return framed(status, kind, raw)

    def answer(self):
        message = {"role": "assistant", "content": self.mark("answer")}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        whole = {"id": "i", "object": "chat.completion", "created": 1, "model": "tiny", "choices": [choice]}
        return framed(200, "application/json", json.dumps(whole).encode())

    def chunk(self):
        choice = {"index": 0, "delta": {"content": self.mark("answer")}, "finish_reason": None}
        whole = {"id": "i", "object": "chat.completion.chunk", "created": 1, "model": "tiny", "choices": [choice]}
        return b"data: " + json.dumps(whole).encode() + b"\n\n"


def framed(status, kind, raw):
    return f"HTTP/1.1 {status} Said\r\nContent-Type: {kind}\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw


def streamed(*parts):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


async def untouched(scene):
    asking = await scene.ask()
    (await scene.call()).answer(scene.answer())
    answer = await asking.answer()
    assert (answer.status, answer.get("mendproxy-repairs")) == (200, None)


async def repaired(scene):
    asking = await scene.ask(private=scene.mark("private"), user=scene.mark("user"), odd=scene.mark("odd"))
    (await scene.call()).answer(scene.answer())
    answer = await asking.answer()
    assert [said.partition(";")[0] for said in answer.get("mendproxy-repairs").split(", ")] == [
        "dropped",
        "set",
        "warned",
    ]


async def restored(scene):
    asking = await scene.ask(stream=True, meta=True)
    (await scene.call()).answer(scene.answer())
    assert b"[DONE]" in (await asking.answer()).body


async def fanned(scene):
    asking = await scene.ask(n=2)
    (await scene.call()).answer(scene.answer())
    (await scene.call()).answer(scene.echo(400))
    assert (await asking.answer()).status == 400


async def refused_as_lossy(scene):
    raw = scene.request(scene.body(user=scene.mark("user")), headers={"Prefer": "handling=strict"})
    assert (await (await scene.stage.ask(raw)).answer()).status == 400


async def rejected(scene):
    assert (await (await scene.ask(forbidden=scene.mark("forbidden"))).answer()).status == 400


async def no_json(scene):
    asking = await scene.stage.ask(scene.request(b'{"model": "tiny", "messages": "%b' % scene.mark("prompt").encode()))
    (await scene.call()).answer(scene.echo(400))
    assert (await asking.answer()).status == 400


async def no_json_as_the_policy_reads_it(scene):
    twice = b'{"model": "tiny", "private": "%b", "private": 1}' % scene.mark("private").encode()
    assert (await (await scene.stage.ask(scene.request(twice))).answer()).status == 400


async def no_http(scene):
    whole = scene.request(scene.body())
    for raw in (
        b"GET /%b?%b HTTP/7.7.7\r\n\r\n" % (scene.mark("path").encode(), scene.mark("query").encode()),
        b"%b\r\n\r\n" % scene.mark("line").encode(),
        whole.replace(b"X-Trace", b"X Trace (%b)" % scene.mark("name").encode()),
        whole.replace(b"X-Trace: ", b"X-Trace: \0"),
        whole.replace(b"X-Trace: ", b"Transfer-Encoding: chunked\r\nX-Trace: "),
        whole.replace(b"Content-Length: ", b"Content-Length: %b" % scene.mark("length").encode()),
        whole.replace(b"X-Trace: ", b"X-Trace: " + b"x" * 200_000),
    ):
        asking = await scene.stage.ask(raw)
        assert re.match(rb"HTTP/1\.[01] 4\d\d ", await asking.rest())


async def no_chunks(scene):
    head = scene.request(b"", headers={"Content-Length": None, "Transfer-Encoding": "chunked"})
    asking = await scene.stage.ask(head + b"%b\r\n" % scene.mark("chunk").encode())
    assert re.match(rb"HTTP/1\.[01] 4\d\d ", await asking.rest())


async def refused_by_the_backend(scene):
    for status, kind in ((400, "application/json"), (422, "application/json"), (500, "text/plain"), (503, "text/html")):
        asking = await scene.ask()
        (await scene.call()).answer(scene.echo(status, kind))
        assert (await asking.answer()).status == status


async def retried_and_learned(scene):
    asking = await scene.ask(extra=scene.mark("extra"))
    (await scene.call()).answer(scene.echo(400, message=f"unknown field 'extra': {scene.mark('echo')}"))
    (await scene.call()).answer(scene.answer())
    assert (await asking.answer()).status == 200


async def retried_after_an_error_event(scene):
    asking = await scene.ask(stream=True)
    error = b'data: {"error": {"message": "%b"}}\n\n' % scene.mark("echo").encode()
    (await scene.call()).answer(streamed(error, b""))
    call = await scene.call()
    call.send(streamed(error, b""))
    call.close()
    assert b"error" in (await asking.answer()).body


async def cut(scene):
    asking = await scene.ask(stream=True)
    call = await scene.call()
    call.send(streamed(scene.chunk()))
    await asking.sees(b"data: ")
    call.reset()
    assert b"[DONE]" not in await asking.rest()


async def answered_with_no_http(scene):
    for raw in (
        b"%b\r\n\r\n" % scene.mark("echo").encode(),
        b"HTTP/1.1 200 OK\r\nX (%b): 1\r\n\r\n" % scene.mark("echo").encode(),
        b"HTTP/1.1 200 OK\r\nContent-Length: %b\r\n\r\n" % scene.mark("echo").encode(),
    ):
        asking = await scene.ask()
        call = await scene.call()
        call.send(raw)
        call.close()
        assert (await asking.answer()).status == 502


async def goes_on_as_no_http(scene):
    asking = await scene.ask()
    call = await scene.call()
    call.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n%b\r\n" % scene.mark("echo").encode())
    answer = await asking.answer()
    assert (answer.status, answer.is_whole) in [(502, True), (200, False)]


async def silent(scene):
    asking = await scene.ask()
    await scene.call()
    assert (await asking.answer()).status == 504


async def silent_in_the_middle(scene):
    asking = await scene.ask(stream=True)
    (await scene.call()).send(streamed(scene.chunk()))
    assert b"[DONE]" not in await asking.rest()


async def unreachable(scene):
    for model in ("gone", "unnamed"):
        assert (await (await scene.ask(model=model)).answer()).status == 502


async def unauthorised(scene):
    basic = base64.b64encode(f"user:{scene.mark('password')}".encode()).decode()
    for credentials in (f"Bearer {scene.mark('key')}", f"Basic {basic}", scene.mark("scheme")):
        asking = await scene.stage.ask(scene.request(scene.body(), headers={"Authorization": credentials}))
        assert (await asking.answer()).status == 401


async def too_large(scene):
    asking = await scene.ask(padding=scene.mark("padding") * 10_000)
    assert (await asking.answer()).status == 413
    head = scene.request(b"", headers={"Content-Length": None, "Transfer-Encoding": "chunked"})
    part = scene.mark("padding").encode() * 10_000
    asking = await scene.stage.ask(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(part), part))
    assert (await asking.answer()).status == 413


async def too_slow(scene):
    raw = scene.request(scene.body())
    asking = await scene.stage.ask(raw[:-20])
    assert (await asking.answer()).status == 408


async def tunnelled(scene):
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Content-Type": None, "Content-Length": None}
    asking = await scene.stage.ask(scene.request(b"", target="/v1/realtime", method="GET", headers=upgrade))
    call = await scene.stage.backend.call()
    call.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    assert (await asking.answer("GET")).status == 101
    said = scene.mark("frame").encode()
    asking.send(said)
    assert await call.wire.exactly(len(said)) == said
    call.close()
    await asking.gone()


async def tunnel_refused(scene):
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Content-Type": None, "Content-Length": None}
    asking = await scene.stage.ask(scene.request(b"", target="/v1/realtime", method="GET", headers=upgrade))
    (await scene.stage.backend.call()).answer(scene.echo(403))
    assert (await asking.answer("GET")).status == 403


async def left(scene):
    asking = await scene.ask(stream=True)
    call = await scene.call()
    call.send(streamed(scene.chunk()))
    await asking.sees(b"data: ")
    asking.reset()
    await call.gone()


async def listed(scene):
    asking = await scene.stage.ask(
        scene.request(b"", target="/v1/models", method="GET", headers={"Content-Length": None})
    )
    (await scene.stage.backend.call()).answer(scene.echo(500))
    await asking.answer("GET")


SCENES = [
    untouched,
    repaired,
    restored,
    fanned,
    refused_as_lossy,
    rejected,
    no_json,
    no_json_as_the_policy_reads_it,
    no_http,
    no_chunks,
    refused_by_the_backend,
    retried_and_learned,
    retried_after_an_error_event,
    cut,
    answered_with_no_http,
    goes_on_as_no_http,
    silent,
    silent_in_the_middle,
    unreachable,
    unauthorised,
    too_large,
    too_slow,
    tunnelled,
    tunnel_refused,
    left,
    listed,
]
PAGES = ["/", "/livez", "/readyz?verbose", "/health", "/metrics", "/policy", "/status", "/learned"]


def faulty_environ(mark):
    """Return variables whose values are secret, in forms that no policy can use."""
    return {
        "FTP": f"ftp://backend/{mark('path')}",
        "USERINFO": f"http://user:{mark('password')}@backend",
        "QUERY": f"http://backend?key={mark('query')}",
        "KEY_FILE": f"/run/secrets/{mark('file')}",
        "WORD": mark("word"),
    }


def faulty_policy(mark):
    return re.sub("MARK", lambda _: mark("literal"), FAULTY)


async def asked_to_explain(session, scene):
    asked = {"path": f"{CHAT}?key={scene.mark('query')}", "headers": [["x-key", scene.mark("header")]]}
    for body in (scene.body(user=scene.mark("user")), scene.mark("text")):
        async with session.post("/explain", json=asked | {"body": body}) as answer:
            assert answer.status == 200
    async with session.post(
        "/explain", data=f'{{"{scene.mark("key")}', headers={"Content-Type": "application/json"}
    ) as answer:
        assert answer.status == 400


async def all_know(session, lesson):
    """Wait until what one process has learned is known to the one that speaks for all."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with session.get("/learned") as answer:
                if lesson in await answer.text():
                    return


async def pages_of(proxy, scene):
    """Return all that the admin port shows, by its path."""
    async with aiohttp.ClientSession(proxy.admin) as session:
        await all_know(session, "extra")
        await asked_to_explain(session, scene)
        shown = {}
        for path in PAGES:
            async with session.get(path, headers={"X-Key": scene.mark("admin")}) as answer:
                shown[path] = await answer.text()
                assert answer.status == 200, path
    return shown


@pytest.mark.parametrize(
    ("flags", "scenes"),
    [
        pytest.param([], SCENES, id="as JSON"),
        pytest.param(["--log-format", "console"], SCENES, id="for people"),
        # In a worker's process a client is waited for as long as ever.
        pytest.param(["--workers", "2"], [play for play in SCENES if play is not too_slow], id="by several processes"),
    ],
)
async def test_no_secret_is_logged_or_shown_whatever_becomes_of_a_request(stage, tmp_path, flags, scenes):
    mark = Marks()
    keys = {"CLIENT_KEY": mark("client"), "BACKEND_KEY": mark("backend")}
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    environ = keys | faulty_environ(mark) | {"BACKEND": stage.backend.url}
    async with serve(policy, environ, "--learned", str(tmp_path / "learned"), *flags) as proxy:
        stage.port = int((await proxy.until(r"\burl\"?[=:] ?\"?http://127\.0\.0\.1:(\d+)"))[1])
        proxy.admin = re.search(r"\badmin\"?[=:] ?\"?(http://[\d.:]+)", proxy.said)[1]
        scene = Scene(stage, mark, keys["CLIENT_KEY"])
        for play in scenes:
            await play(scene)
        policy.write_text(faulty_policy(mark))
        proxy.reload()
        await proxy.until("policy.kept")
        shown = await pages_of(proxy, scene)
        assert await proxy.end() == 0
    shown["the log"] = proxy.said
    shown["the learned file"] = (tmp_path / "learned").read_text()
    assert {where: mark.found_in(text) for where, text in shown.items() if mark.found_in(text)} == {}
    assert proxy.said.count("unknown-field") > 0
    assert len(mark.names) > 100


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('backends: {main: {url: "http://b", presets: ["${WORD}"]}}', id="a preset"),
        pytest.param('rules: [{id: a, repair: [drop: ["${WORD}[["]]}]', id="a field path"),
        pytest.param('rules: [{id: "${WORD} !", repair: [drop: [a]]}]', id="an id"),
        pytest.param('backends: {main: {url: "${USERINFO}"}}', id="a url"),
        pytest.param('limits: {body: "${WORD}"}', id="a size"),
    ],
)
def test_a_fault_shows_a_variable_by_its_name(text):
    mark = Marks()
    with pytest.raises(PolicyFault) as caught:
        load_policy("policy.yaml", environ=faulty_environ(mark), text=f"version: 1\n{text}\n")
    assert mark.found_in(str(caught.value)) == []


def test_a_warning_shows_a_variable_by_its_name():
    mark = Marks()
    text = 'version: 1\nbackends: {main: {url: "http://backend"}}\ndisable: ["${WORD}"]\n'
    [warning] = load_policy("policy.yaml", environ=faulty_environ(mark), text=text).warnings
    assert mark.found_in(str(warning)) == []


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["check"], id="check"),
        pytest.param(["check", "--format", "json"], id="check as JSON"),
        pytest.param(["serve", "--port", "0", "--admin-port", "0", "-c"], id="serve"),
    ],
)
def test_a_fault_does_not_show_what_a_variable_holds(command, tmp_path):
    mark = Marks()
    policy = tmp_path / "policy.yaml"
    policy.write_text(faulty_policy(mark))
    done = subprocess.run(  # noqa: S603 the command is this test's own
        [sys.executable, "-m", "proxy", *command, str(policy)],
        cwd=ROOT,
        env=clean_environ() | faulty_environ(mark),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode in (1, 3)
    said = done.stdout + done.stderr
    assert len(re.findall(r"policy\.yaml", said)) > 5
    assert mark.found_in(said) == []


def test_the_effective_policy_shows_variables_and_no_keys(tmp_path):
    mark = Marks()
    policy = tmp_path / "policy.yaml"
    backends = f'{{main: {{url: "${{URL}}", api_key: {mark("literal")}}}}}'
    keys = f'["${{KEY:-{mark("default")}}}", {mark("literal")}]'
    policy.write_text(f"version: 1\nbackends: {backends}\nauth: {{keys: {keys}}}\n")
    done = subprocess.run(  # noqa: S603 the command is this test's own
        [sys.executable, "-m", "proxy", "show", "-c", str(policy)],
        cwd=ROOT,
        env=clean_environ() | {"URL": f"http://backend/{mark('path')}", "KEY": mark("key")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "${URL}" in done.stdout
    assert mark.found_in(done.stdout + done.stderr) == []
