"""Several backends: who serves which model, and the list of models that they make together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from proxy import standin
from proxy.direct import DirectUpstream
from proxy.policy import load_policy
from proxy.server import DataPort

TWO = """
version: 1
backends:
  first: {{url: "{first}", models: ["tiny"]}}
  second: {{url: "{second}", models: ["*"]}}
"""
NOBODY = "http://127.0.0.1:9"


@asynccontextmanager
async def serving(text: str) -> AsyncIterator[str]:
    async with AsyncExitStack() as stack:
        upstream = DirectUpstream(lambda _name, _outcome: None)
        stack.push_async_callback(upstream.close)
        port = DataPort(load_policy("policy.yaml", environ={}, text=text), upstream, lambda backend: backend.url)
        runner = web.ServerRunner(port.server())
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"


@pytest.fixture
async def backends() -> AsyncIterator[tuple[standin.Standin, standin.Standin]]:
    async with standin.serve("sglang") as first, standin.serve("llamafactory") as second:
        yield first, second


async def fetch(url: str, **options: object) -> tuple[int, dict[str, object]]:
    async with aiohttp.ClientSession() as session, session.request(url=url, **({"method": "GET"} | options)) as answer:
        return answer.status, await answer.json()


async def test_the_lists_are_joined_in_the_policy_s_order(backends: tuple[standin.Standin, standin.Standin]) -> None:
    first, second = backends
    async with serving(TWO.format(first=first.url, second=second.url)) as url:
        status, listed = await fetch(f"{url}/v1/models")
    assert (status, listed["object"]) == (200, "list")
    assert [model["id"] for model in listed["data"]] == ["tiny", "tiny-model"]


async def test_a_model_that_another_backend_serves_is_not_listed(
    backends: tuple[standin.Standin, standin.Standin],
) -> None:
    first, second = backends
    text = TWO.format(first=first.url, second=second.url).replace('["tiny"]', '["other"]')
    async with serving(text) as url:
        _, listed = await fetch(f"{url}/v1/models")
    assert [model["id"] for model in listed["data"]] == ["tiny-model"]


async def test_a_dead_backend_has_no_models(backends: tuple[standin.Standin, standin.Standin]) -> None:
    _, second = backends
    async with serving(TWO.format(first=NOBODY, second=second.url)) as url:
        status, listed = await fetch(f"{url}/v1/models")
    assert (status, [model["id"] for model in listed["data"]]) == (200, ["tiny-model"])


async def test_without_any_backend_the_list_is_a_failure() -> None:
    async with serving(TWO.format(first=NOBODY, second=NOBODY)) as url:
        status, said = await fetch(f"{url}/v1/models")
    assert (status, said["error"]["code"]) == (502, "connection_refused")


@pytest.mark.parametrize(("model", "served_by"), [("tiny", 0), ("tiny-model", 1), ("anything", 1)])
async def test_a_request_goes_to_the_backend_of_its_model(
    backends: tuple[standin.Standin, standin.Standin], model: str, served_by: int
) -> None:
    first, second = backends
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    async with serving(TWO.format(first=first.url, second=second.url)) as url:
        status, _ = await fetch(f"{url}/v1/chat/completions", method="POST", json=body)
    assert status == 200
    assert [len(backend.requests) for backend in backends] == [1 - served_by, served_by]
