"""The operator's page before a browser: a tab, and a stub of the admin port for it to look at."""

import asyncio
import copy
import json
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from proxy.engine import Request
from proxy.explain import as_text, explain
from proxy.policy import load_policy
from tests.page.devtools import chromium_running, open_tab

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "proxy" / "page.html"
STATUS = json.loads((ROOT / "tests" / "data" / "page" / "status.json").read_text())
CSP = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
POLICY = """
version: 1
backends: {main: {url: "http://127.0.0.1:9"}}
rules:
  - {id: n-streamed, when: {body: {stream: true, n: {gt: 1}}}, repair: [fan_out: {max: 8}]}
  - {id: n-too-big, when: {body: {n: {gt: 8}}}, repair: [reject: "Ask for 8 choices at most."]}
  - {id: named, mode: observe, when: {body: {stream: true}}, repair: [default: {user: anyone}]}
"""


@pytest.fixture(scope="session")
def chromium():
    """Return the address of a browser's DevTools socket."""
    with chromium_running() as address:
        yield address


@pytest.fixture
async def tab(chromium):
    """Return a tab; a script that throws and a breach of the page's own rules fail the test."""
    async with open_tab(chromium) as page:
        yield page
        await page.send("Runtime.evaluate", expression="0")
        assert page.faults == []


class Stub:
    """The admin port as the page sees it: `status` is what it tells, `asked` what it had to explain, to `origins`."""

    def __init__(self):
        self.status = copy.deepcopy(STATUS)
        self.is_broken = False
        self.polls = asyncio.Queue()
        self.asked = []
        self.origins = []
        self._policy = load_policy("policy.yaml", environ={}, text=POLICY)
        self.url = ""

    def app(self):
        app = web.Application()
        app.add_routes(
            [web.get("/", self._page), web.get("/status", self._status), web.post("/explain", self._explain)]
        )
        return app

    async def _page(self, _request):
        return web.Response(body=PAGE.read_bytes(), content_type="text/html", headers={"Content-Security-Policy": CSP})

    async def _status(self, _request):
        self.polls.put_nowait(True)
        if self.is_broken:
            return web.Response(status=502, text="bad gateway")
        return web.json_response(self.status, headers={"Date": "Mon, 30 Nov 2026 12:00:04 GMT"})

    async def _explain(self, request):
        asked = await request.json()
        self.asked.append(asked)
        self.origins.append(request.headers["Origin"])
        if asked["path"] == "/refused":
            return web.json_response({"error": {"message": "Not this one."}}, status=400)
        headers = [tuple(pair) for pair in asked["headers"]]
        told = explain(Request(asked["method"], asked["path"], "", headers, asked["body"].encode()), self._policy)
        return web.json_response(told | {"text": as_text(told)})


@pytest.fixture
async def stub():
    """Return a stub that is being served."""
    running = Stub()
    async with TestServer(running.app()) as server:
        running.url = str(server.make_url("/"))
        yield running
