"""What the admin port says: alive, ready by what is believed of the backends, the policy in force."""

from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from proxy import health, standin
from proxy.admin import AdminPort
from proxy.direct import DirectUpstream
from proxy.errors import BackendFault
from proxy.health import FRESH_S, Health
from proxy.policy import load_policy
from proxy.reload import Status
from proxy.server import DataPort

POLICY = """
version: 1
backends: {main: {url: "${URL}", api_key: sk-secret, max_concurrency: 1}}
"""
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

    def __init__(self, client, beliefs, status, data_port):
        self._client = client
        self.beliefs = beliefs
        self.status = status
        self.data_port = data_port

    async def get(self, path="/readyz"):
        """Return the status and text of an answer."""
        async with self._client.get(path) as answer:
            return answer.status, await answer.text()

    async def ask(self, method, path):
        async with self._client.request(method, path) as answer:
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
            beliefs, status = Health(), Status()
            upstream = DirectUpstream(beliefs.note)
            stack.push_async_callback(upstream.close)
            data_port = DataPort(policy, upstream, lambda backend: backend.url)
            app = AdminPort(data_port, beliefs, upstream, lambda backend: backend.url, status).app()
            client = await stack.enter_async_context(TestClient(TestServer(app)))
            return Admin(client, beliefs, status, data_port)

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
    ("faults", "line"),
    [
        pytest.param(0, "[+]policy: {sha256}", id="good"),
        pytest.param(1, "[-]policy: {sha256} (kept: the last reload had 1 fault)", id="one fault"),
        pytest.param(3, "[-]policy: {sha256} (kept: the last reload had 3 faults)", id="three faults"),
    ],
)
async def test_a_failed_reload_is_told_and_does_not_make_the_proxy_unready(admin, backend, faults, line):
    port = await admin(URL=backend.url)
    port.status.last_reload_faults = faults
    status, text = await port.get("/readyz?verbose")
    assert status == 200
    assert text.splitlines()[1] == line.format(sha256=port.data_port.policy.sha256[:12])


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
    ],
)
async def test_what_else_the_admin_port_answers(admin, method, path, status):
    port = await admin(URL="http://127.0.0.1:1")
    assert (await port.ask(method, path))[0] == status
