"""What the admin port says: alive, ready by what is believed of the backends, the policy in force."""

import json
import os
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from structlog.testing import capture_logs

from proxy import health, standin
from proxy.admin import AdminPort
from proxy.engine import Request, plan
from proxy.errors import BackendFault
from proxy.exchange import Record
from proxy.explain import as_text, explain
from proxy.health import FRESH_S
from proxy.options import Options
from proxy.policy import load_policy
from proxy.reload import Status
from proxy.service import start_service

POLICY = """
version: 1
backends: {main: {url: "${URL}", api_key: sk-secret, max_concurrency: 1}}
"""
EXAMPLE = Path(__file__).parent / "data" / "page" / "status.json"
TWO = """
version: 1
backends: {one: {url: "${URL}", models: [a]}, two: {url: "${OTHER}"}}
"""


class Clock:
    """The monotonic clock of the beliefs, moved by hand."""

    now_s = 1000.0

    def monotonic(self):
        return self.now_s


class Admin:
    """An admin port on a real socket."""

    def __init__(self, client, service, status):
        self._client = client
        self.service = service
        self.beliefs = service.health
        self.status = status
        self.data_port = service.port

    async def get(self, path="/readyz"):
        """Return the status and text of an answer."""
        async with self._client.get(path) as answer:
            return answer.status, await answer.text()

    async def ask(self, method, path, **given):
        async with self._client.request(method, path, **given) as answer:
            return answer.status, answer.headers, await answer.text()


@pytest.fixture
def clock(monkeypatch):
    fake = Clock()
    monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=fake.monotonic))
    return fake


@pytest.fixture
async def admin():
    """Return what opens an admin port for a policy; URL and OTHER are the backends' addresses."""
    async with AsyncExitStack() as stack:

        async def start(text=POLICY, **environ):
            policy = load_policy("policy.yaml", environ=environ, text=text)
            service, _ = await stack.enter_async_context(start_service(Options("policy.yaml"), policy))
            status = Status()
            app = AdminPort(service, status, "policy.yaml", "admin.example").app()
            client = await stack.enter_async_context(TestClient(TestServer(app)))
            return Admin(client, service, status)

        yield start


@pytest.fixture
async def backend():
    async with standin.serve("sglang") as running:
        yield running


async def test_a_proxy_is_alive_whatever_its_backend_does(admin):
    port = await admin(URL="http://127.0.0.1:1")
    assert await port.get("/livez") == (200, "ok\n")
    assert await port.get() == (503, "not ready\n")


async def test_a_look_makes_the_backend_generate_nothing_and_has_its_key(admin, backend):
    port = await admin(URL=backend.url)
    assert await port.get() == (200, "ok\n")
    (seen,) = backend.requests
    assert (seen.method, seen.path, seen.body) == ("GET", "/v1/models", b"")
    assert seen.headers["authorization"] == "Bearer sk-secret"


async def test_a_belief_is_as_good_as_new_for_a_while(admin, backend, clock):
    port = await admin(URL=backend.url)
    for _ in range(3):
        assert (await port.get())[0] == 200
    assert len(backend.requests) == 1
    clock.now_s += FRESH_S
    assert (await port.get())[0] == 200
    assert len(backend.requests) == 1
    clock.now_s += 0.1
    assert (await port.get())[0] == 200
    assert len(backend.requests) == 2


async def test_a_backend_that_goes_and_comes_back_is_followed(admin, clock):
    async with standin.serve("sglang") as first:
        port = await admin(URL=first.url)
        assert (await port.get())[0] == 200
    assert (await port.get())[0] == 200
    clock.now_s += FRESH_S + 1
    assert await port.get() == (503, "not ready\n")
    async with standin.serve("sglang", port=int(first.url.rsplit(":", 1)[1])):
        assert (await port.get())[0] == 503
        clock.now_s += FRESH_S + 1
        assert await port.get() == (200, "ok\n")


async def test_traffic_tells_at_once_and_spares_the_look(admin, backend, clock):
    port = await admin(URL=backend.url)
    port.beliefs.note("main", BackendFault("The backend does not accept connections."))
    assert await port.get() == (503, "not ready\n")
    assert "[-]backend main: The backend does not accept connections.\n" in (await port.get("/readyz?verbose"))[1]
    port.beliefs.note("main", None)
    assert await port.get() == (200, "ok\n")
    clock.now_s += FRESH_S
    port.beliefs.note("main", None)
    clock.now_s += FRESH_S
    assert await port.get() == (200, "ok\n")
    assert not backend.requests


async def test_a_look_waits_no_longer_than_it_may(admin, monkeypatch):
    async def hang(_request):
        await web.asyncio.Event().wait()

    monkeypatch.setattr(health, "LOOK_S", 0.05)
    app = web.Application()
    app.router.add_get("/v1/models", hang)
    async with TestServer(app, shutdown_timeout=0.01) as server:
        port = await admin(URL=str(server.make_url("")))
        status, text = await port.get("/readyz?verbose")
    assert status == 503
    assert "[-]backend main: The backend sent no answer in time.\n" in text


@pytest.mark.parametrize(
    ("is_up", "status", "signs"),
    [
        pytest.param((True, True), 200, "++", id="both up"),
        pytest.param((True, False), 200, "+-", id="one up is enough"),
        pytest.param((False, True), 200, "-+", id="whichever"),
        pytest.param((False, False), 503, "--", id="both down"),
    ],
)
async def test_a_proxy_is_ready_while_one_backend_is_up(admin, is_up, status, signs):
    port = await admin(TWO, URL="http://127.0.0.1:1", OTHER="http://127.0.0.1:1")
    for name, each in zip(("one", "two"), is_up, strict=True):
        port.beliefs.note(name, None if each else BackendFault("Gone."))
    told, text = await port.get("/readyz?verbose")
    why = {"+": "answers", "-": "Gone."}
    assert told == status
    assert text.splitlines()[2:4] == [
        f"[{sign}]backend {name}: {why[sign]}" for sign, name in zip(signs, ("one", "two"), strict=True)
    ]


async def test_a_draining_proxy_is_not_ready_and_still_alive(admin, backend):
    port = await admin(URL=backend.url)
    port.status.is_draining = True
    assert await port.get() == (503, "not ready\n")
    status, text = await port.get("/readyz?verbose")
    assert status == 503
    assert text.splitlines()[0] == "[-]draining: yes"
    assert text.splitlines()[2] == "[+]backend main: answers"
    assert await port.get("/livez") == (200, "ok\n")


@pytest.mark.parametrize(
    ("faults", "lines"),
    [
        pytest.param((), ["[+]policy: {sha256}"], id="good"),
        pytest.param(
            ("p.yaml:1:2: no",),
            ["[-]policy: {sha256} (kept: the last reload had 1 fault)", "[-]p.yaml:1:2: no"],
            id="one fault",
        ),
        pytest.param(
            ("p.yaml:1:2: no", "p.yaml:3:4: nor this"),
            [
                "[-]policy: {sha256} (kept: the last reload had 2 faults)",
                "[-]p.yaml:1:2: no",
                "[-]p.yaml:3:4: nor this",
            ],
            id="each of several",
        ),
    ],
)
async def test_a_failed_reload_is_told_and_does_not_make_the_proxy_unready(admin, backend, faults, lines):
    port = await admin(URL=backend.url)
    port.status.faults = faults
    status, text = await port.get("/readyz?verbose")
    assert status == 200
    told = text.splitlines()[1:]
    assert told[: len(lines)] == [line.format(sha256=port.data_port.policy.sha256[:12]) for line in lines]
    assert told[len(lines)] == "[+]backend main: answers"


@pytest.mark.parametrize(
    ("answering", "status", "line"),
    [
        pytest.param(2, 200, "[+]workers: 2 of 2 answer", id="all"),
        pytest.param(1, 200, "[-]workers: 1 of 2 answer", id="one is enough"),
        pytest.param(0, 503, "[-]workers: 0 of 2 answer", id="none"),
    ],
)
async def test_workers_that_answer_are_told_where_there_are_several(
    admin, backend, monkeypatch, answering, status, line
):
    port = await admin(URL=backend.url)
    picture = await port.service.picture()

    async def of_two():
        return replace(picture, expected=2, answering=answering)

    monkeypatch.setattr(port.service, "picture", of_two)
    told, text = await port.get("/readyz?verbose")
    assert (told, text.splitlines()[-2]) == (status, line)


async def test_the_policy_in_force_is_shown_without_its_secrets(admin):
    port = await admin(URL="http://127.0.0.1:1")
    status, headers, text = await port.ask("GET", "/policy")
    assert (status, headers["Content-Type"]) == (200, "application/yaml; charset=utf-8")
    assert yaml.safe_load(text)["backends"]["main"]["url"] == "${URL}"
    assert "sk-secret" not in text
    port.data_port.use(load_policy("p", environ={"URL": "http://b"}, text=POLICY + "keep_alive: 7s\n"))
    assert yaml.safe_load((await port.ask("GET", "/policy"))[2])["keep_alive"] == "7s"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        pytest.param("GET", "/v1/models", 404, id="the backend's paths are not here"),
        pytest.param("POST", "/livez", 405, id="only to be read"),
        pytest.param("HEAD", "/livez", 200, id="HEAD for probes"),
        pytest.param("GET", "/explain", 405, id="an explanation needs a request"),
    ],
)
async def test_what_else_the_admin_port_answers(admin, method, path, status):
    port = await admin(URL="http://127.0.0.1:1")
    assert (await port.ask(method, path))[0] == status


# The page, and what it asks for


async def test_the_page_may_do_nothing_but_ask_this_port(admin):
    port = await admin(URL="http://127.0.0.1:1")
    status, headers, text = await port.ask("GET", "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert text == (files("proxy") / "page.html").read_text("utf-8")
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "script-src": "'unsafe-inline'",
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert headers["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize("path", ["/", "/livez", "/metrics", "/status", "/policy", "/learned", "/missing"])
async def test_nothing_is_kept_or_guessed_at_by_a_browser(admin, path):
    port = await admin(URL="http://127.0.0.1:1")
    _, headers, _ = await port.ask("GET", path)
    assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff")


RULED = """
version: 1
backends:
  one: {url: "http://127.0.0.1:2", api_key: sk-secret, models: [a], presets: [openai-errors]}
  two: {url: "${OTHER}", presets: [sglang]}
disable: []
rules:
  - {id: sharp, about: Too sharp., when: {body: {sharp: true}}, repair: [drop: [sharp], set: {flat: true}]}
  - {id: seen, mode: observe, when: {backend: two}, repair: [drop: [user]]}
"""


def plan_of(port, body):
    return plan(Request("POST", "/v1/completions", "", [], json.dumps(body).encode()), port.data_port.policy)


async def test_the_status_tells_all_that_the_page_shows(admin):
    port = await admin(RULED, OTHER="http://127.0.0.1:1")
    port.beliefs.note("one", 200)
    port.beliefs.note("two", BackendFault("Gone."))
    port.status.faults = ("policy.yaml:1:1: no",)
    made = plan_of(port, {"model": "a", "sharp": True})
    port.service.metrics.answered("/v1/completions", 200, Record(plan=made), 0.1, 0.1)
    port.service.metrics.answered("/v1/completions", 502, Record(error=BackendFault("Gone.")), 0.1, None)
    _, headers, text = await port.ask("GET", "/status")
    told = json.loads(text)
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    assert told.keys() == json.loads(EXAMPLE.read_text()).keys()
    assert told["workers"] == [{"pid": os.getpid(), "started": told["started"], "in_flight": 0}]
    assert told["policy"] | {"loaded": ""} == {
        "sha256": port.data_port.policy.sha256,
        "file": "policy.yaml",
        "loaded": "",
        "faults": ["policy.yaml:1:1: no"],
    }
    assert told["backends"] == [
        {"name": "one", "url": "http://127.0.0.1:2", "up": True, "why": "answers"},
        {"name": "two", "url": "http://127.0.0.1:1", "up": False, "why": "Gone."},
    ]
    assert told["requests"] == {
        "untouched": 0, "repaired": 1, "refused": 0, "failed": 1, "in_flight": 0, "streams_open": 0
    }  # fmt: skip
    assert told["fanouts"] == {"requests": 0, "branches": 0}
    assert "secret" not in text


async def test_the_status_has_every_rule_once_in_the_order_of_evaluation(admin):
    port = await admin(RULED, OTHER="http://127.0.0.1:1")
    made = plan_of(port, {"model": "a", "sharp": True})
    port.service.metrics.answered("/v1/completions", 200, Record(plan=made), 0.1, 0.1)
    rules = json.loads((await port.ask("GET", "/status"))[2])["rules"]
    for backend in port.data_port.policy.backends:
        mine = [rule["id"] for rule in rules if backend.name in rule["backends"]]
        assert mine == [rule.id for rule in backend.rules]
    sharp, seen = rules[-2:]
    assert sharp.pop("last_seen").endswith("Z")
    assert sharp == {
        "id": "sharp",
        "backends": ["one", "two"],
        "about": "Too sharp.",
        "repairs": ["drop", "set"],
        "mode": "apply",
        "on_error": False,
        "exact": 0,
        "lossy": 1,
        "observed": 0,
    }
    assert (seen["backends"], seen["mode"], seen["observed"], seen["last_seen"]) == (["one", "two"], "observe", 0, None)
    assert {rule["on_error"] for rule in rules if rule["id"].startswith("openai-errors/")} == {True}


ASKED = [
    pytest.param({"body": {"model": "a", "sharp": True}}, b'{"model":"a","sharp":true}', id="any JSON"),
    pytest.param({"body": '{"model": "a", "x": 1, "x": 2}'}, b'{"model": "a", "x": 1, "x": 2}', id="a raw body"),
    pytest.param({"path": "/v1/models", "method": "GET"}, None, id="without a body"),
    pytest.param({"path": "/v1/x?a=b", "headers": [["X-A", "1"], ["X-A", "2"]], "body": 1}, b"1", id="with headers"),
]


@pytest.mark.parametrize(("asked", "body"), ASKED)
async def test_an_explanation_is_that_of_the_command(admin, asked, body):
    port = await admin(RULED, OTHER="http://127.0.0.1:1")
    status, _, text = await port.ask("POST", "/explain", json=asked)
    path, _, query = asked.get("path", "/v1/chat/completions").partition("?")
    headers = [tuple(header) for header in asked.get("headers", [])]
    told = explain(Request(asked.get("method", "POST"), path, query, headers, body), port.data_port.policy)
    assert status == 200
    assert json.loads(text) == json.loads(json.dumps(told)) | {"text": as_text(told)}


NO_REQUESTS = [
    pytest.param(b"{", id="no JSON"),
    pytest.param(b"[]", id="no object"),
    pytest.param(b'{"path": 1}', id="a path that is none"),
    pytest.param(b'{"headers": [["a"]]}', id="half a header"),
    pytest.param(b'{"bdoy": {}}', id="a key that is none"),
    pytest.param(b'{"body": NaN}', id="what JSON has no word for"),
    pytest.param(b'{"body": ' + b"[" * 100_000 + b"}", id="nested without end"),
    pytest.param(b"", id="nothing"),
]


@pytest.mark.parametrize("raw", NO_REQUESTS)
async def test_what_is_no_request_is_not_explained(admin, raw):
    port = await admin(URL="http://127.0.0.1:1")
    status, headers, text = await port.ask("POST", "/explain", data=raw, headers=JSON)
    error = json.loads(text)["error"]
    assert (status, headers["Content-Type"]) == (400, "application/json; charset=utf-8")
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_request")


ADDRESS = "127.0.0.1:8081"
JSON = {"Content-Type": "application/json"}
OWN = [
    pytest.param({}, id="a script"),
    pytest.param({"Sec-Fetch-Site": "same-origin", "Origin": f"http://{ADDRESS}"}, id="this port's page"),
    pytest.param({"Sec-Fetch-Site": "none"}, id="the person at the browser"),
    pytest.param({"Host": "localhost:1", "Origin": "http://localhost:1"}, id="by localhost"),
    pytest.param({"Host": "[::1]:1"}, id="by an IPv6 address"),
    pytest.param({"Host": "admin.example"}, id="by the name that it was given"),
    pytest.param({"Content-Type": "application/json; charset=utf-8"}, id="with a charset"),
]
FOREIGN = [
    pytest.param({"Sec-Fetch-Site": "cross-site"}, 403, id="a page from elsewhere"),
    pytest.param({"Sec-Fetch-Site": "same-site"}, 403, id="a page of another port"),
    pytest.param({"Origin": "https://evil.example"}, 403, id="a page from elsewhere, in an old browser"),
    pytest.param({"Origin": "null"}, 403, id="a page without an origin"),
    pytest.param({"Host": "evil.example:8081"}, 403, id="a name that points here"),
    pytest.param({"Host": "127.0.0.1.evil.example"}, 403, id="a name that looks like an address"),
    pytest.param({"Content-Type": "text/plain"}, 415, id="a form of another site"),
    pytest.param({"Content-Type": "application/x-www-form-urlencoded"}, 415, id="another form"),
]


@pytest.mark.parametrize("headers", OWN)
async def test_its_own_page_and_scripts_may_ask(admin, headers):
    port = await admin(URL="http://127.0.0.1:1")
    given = JSON | {"Host": ADDRESS} | headers
    assert (await port.ask("POST", "/explain", data=b"{}", headers=given))[0] == 200


@pytest.mark.parametrize(("headers", "status"), FOREIGN)
async def test_pages_from_elsewhere_may_not_ask(admin, headers, status):
    port = await admin(URL="http://127.0.0.1:1")
    given = JSON | {"Host": ADDRESS} | headers
    told, _, text = await port.ask("POST", "/explain", data=b"{}", headers=given)
    assert told == status
    assert json.loads(text)["error"]["type"] == "invalid_request_error"


async def test_what_is_explained_is_not_logged(admin):
    port = await admin(URL="http://127.0.0.1:1")
    with capture_logs() as said:
        await port.ask("POST", "/explain", json={"path": "/SECRET", "body": {"model": "SECRET"}})
        await port.ask("POST", "/explain", data=b"SECRET", headers=JSON)
    assert said == []
