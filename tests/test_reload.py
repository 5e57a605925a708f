"""A policy that changes while the process runs: by a plain write, a rename, a swapped link; faulty or half-written."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from structlog.testing import capture_logs

from proxy import standin
from proxy.options import Loaded, Options
from proxy.policy import Policy
from proxy.policy.schema import PolicyFile
from proxy.reload import Reloader, Status, signature_of
from proxy.service import start_service

PATIENCE_S = 5.0
OLD = "version: 1\nbackends: {main: {url: 'http://old'}}\n"
NEW = "version: 1\nbackends: {main: {url: 'http://new'}}\n"
FAULTY = "version: 2\nbackends: {main: {url: 'http://new'}}\n"


class Watched:
    """A reloader at work on a file, what it put to use, and how often it has tried."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.status = Status()
        self.kept = 0
        self._news = asyncio.Event()
        options = Options(str(path))
        loaded = options.load()
        self.policy = loaded.policy
        self.reloader = Reloader(path, options.load, self, self.status, loaded.signature)

    async def use(self, loaded: Loaded) -> None:
        self.policy = loaded.policy
        self._news.set()

    def keep(self) -> None:
        self.kept += 1
        self._news.set()

    async def until(self, url: str, kept: int = 0) -> None:
        """Wait until the policy in force has this backend, and some reloads have failed."""
        async with asyncio.timeout(PATIENCE_S):
            while (self.policy.backends[0].url, self.kept) != (url, kept):
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def watched(path: Path) -> AsyncIterator[Watched]:
    one = Watched(path)
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(one.reloader.watch(0.01))
        yield one
        watch.cancel()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(OLD)
    return file


async def test_a_plain_write_is_seen(path: Path) -> None:
    async with watched(path) as one:
        path.write_text(NEW)
        await one.until("http://new")


async def test_a_file_renamed_over_it_is_seen(path: Path) -> None:
    async with watched(path) as one:
        other = path.with_suffix(".new")
        other.write_text(NEW)
        other.rename(path)
        await one.until("http://new")


async def test_a_swapped_link_is_seen(tmp_path: Path) -> None:
    # How a ConfigMap changes: policy.yaml → ..data/policy.yaml, and ..data → another folder.
    for name, text in (("..one", OLD), ("..two", NEW)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("..one")
    path = tmp_path / "policy.yaml"
    path.symlink_to("..data/policy.yaml")
    async with watched(path) as one:
        swap = tmp_path / "..data_tmp"
        swap.symlink_to("..two")
        swap.rename(tmp_path / "..data")
        await one.until("http://new")


async def test_a_faulty_file_keeps_the_old_policy_until_it_is_good(path: Path) -> None:
    async with watched(path) as one:
        path.write_text(FAULTY)
        await one.until("http://old", kept=1)
        assert [fault.partition(": ")[0] for fault in one.status.faults] == [f"{path}:1:10"]
        path.write_text(NEW)
        await one.until("http://new", kept=1)
        assert one.status.faults == ()


async def test_a_file_that_is_away_is_waited_for(path: Path) -> None:
    async with watched(path) as one:
        path.unlink()
        assert signature_of(path) is None
        path.write_text(NEW)
        await one.until("http://new")
        assert one.status.faults == ()


async def test_a_signal_for_a_file_that_is_away_keeps_the_old_policy(path: Path) -> None:
    async with watched(path) as one:
        path.unlink()
        await one.reloader.reload()
        assert (one.policy.backends[0].url, one.kept) == ("http://old", 1)
        assert one.status.faults == (f"{path}: No such file or directory",)


async def test_a_signal_and_the_watch_take_up_a_change_once(path: Path) -> None:
    async with watched(path) as one:
        path.write_text(FAULTY)
        await one.reloader.reload()
        path.write_text(NEW)
        await one.until("http://new", kept=1)


async def test_a_change_between_the_start_and_the_first_look_is_seen(path: Path) -> None:
    one = Watched(path)
    path.write_text(NEW)
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(one.reloader.watch(0.01))
        await one.until("http://new")
        watch.cancel()


def test_a_policy_is_one_file() -> None:
    # What it could include would have to be watched too.
    assert not {name for name in PolicyFile.model_fields if "include" in name or "import" in name or "file" in name}


RELOADS = 1000
RULED = """
version: 1
backends: {{main: {{url: "{url}"}}}}
rules:
  - {{id: rule-{number}, when: {{body: {{sharp: true}}}}, repair: [drop: [sharp]]}}
"""
SHARP = json.dumps({"model": "m", "sharp": True, "messages": [{"role": "user", "content": "hello"}]})


async def test_a_thousand_reloads_lose_no_request_and_leave_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    async with AsyncExitStack() as stack:
        url = (await stack.enter_async_context(standin.serve("sglang"))).url
        path.write_text(RULED.format(url=url, number=0))
        options = Options(str(path), port=0)
        service, _ = await stack.enter_async_context(start_service(options, options.load().policy))
        served = await service.listen(stack, options.host, options.port)
        reloader = Reloader(path, options.load, service, Status(), None)
        client = await stack.enter_async_context(aiohttp.ClientSession(served))
        with capture_logs():
            asked = await ask_and_reload(client, path, url, reloader)
        told = {task.result() for task in asked}
        assert service.policy.backends[0].rules[0].id == f"rule-{RELOADS}"
        assert len(told) > len(asked) / 2  # each was served by the policy of its time
        gc.collect()
        mine = [each for each in gc.get_objects() if isinstance(each, Policy) and each.backends[0].url == url]
        assert len(mine) <= 4  # the one in force, and what a connection or a thread holds until its next turn


async def ask_and_reload(
    client: aiohttp.ClientSession, path: Path, url: str, reloader: Reloader
) -> list[asyncio.Task[str]]:
    """Return the requests that were in flight while the policy changed a thousand times."""
    asked = []
    async with asyncio.TaskGroup() as group:
        for number in range(1, RELOADS + 1):
            if number % 4 == 0:
                asked.append(group.create_task(ask(client)))
            path.write_text(RULED.format(url=url, number=number))
            await reloader.reload()
    return asked


async def ask(client: aiohttp.ClientSession) -> str:
    """Return by which rule a request was repaired that takes as long as a few reloads."""
    headers = {"Content-Type": "application/json", "x-standin-pace-ms": "10"}
    async with client.post("/v1/chat/completions", data=SHARP, headers=headers) as answer:
        assert answer.status == 200
        assert (await answer.json())["choices"]
        return answer.headers["mendproxy-repairs"].partition(";")[0]
