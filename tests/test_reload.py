"""A policy that changes while the process runs: by a plain write, a rename, a swapped link; faulty or half-written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from proxy.direct import DirectUpstream
from proxy.policy import Policy, load_policy
from proxy.reload import Reloader, Status, signature_of
from proxy.server import DataPort

PATIENCE_S = 5.0
OLD = "version: 1\nbackends: {main: {url: 'http://old'}}\n"
NEW = "version: 1\nbackends: {main: {url: 'http://new'}}\n"
FAULTY = "version: 2\nbackends: {main: {url: 'http://new'}}\n"


class Port(DataPort):
    """The data port, which tells when a policy was put to use."""

    def __init__(self, *arguments: object) -> None:
        self.used = asyncio.Event()
        super().__init__(*arguments)

    def use(self, policy: Policy) -> None:
        super().use(policy)
        self.used.set()


class Watched:
    """A reloader at work on a file, and how often it has tried."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.status = Status()
        self.tries = 0
        self._tried = asyncio.Event()
        self.upstream = DirectUpstream(lambda _name, _outcome: None)
        self.port = Port(self._load(), self.upstream, lambda backend: backend.url)
        self.reloader = Reloader(path, self._load, self.port, self._prepare, self.status)

    def _load(self) -> Policy:
        self.tries += 1
        self._tried.set()
        return load_policy(self.path, environ={})

    async def _prepare(self, _policy: Policy) -> None:
        return

    async def until(self, url: str) -> None:
        """Wait until the policy in force has this backend."""
        async with asyncio.timeout(PATIENCE_S):
            while self.port.policy.backends[0].url != url:
                self.port.used.clear()
                await self.port.used.wait()

    async def tried(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.tries < count:
                self._tried.clear()
                await self._tried.wait()


@asynccontextmanager
async def watched(path: Path) -> AsyncIterator[Watched]:
    one = Watched(path)
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(one.reloader.watch(0.01))
        await asyncio.sleep(0)  # it has looked at the file
        yield one
        watch.cancel()
    await one.upstream.close()


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
        await one.tried(2)
        assert (one.port.policy.backends[0].url, one.status.last_reload_faults) == ("http://old", 1)
        path.write_text(NEW)
        await one.until("http://new")
        assert one.status.last_reload_faults == 0


async def test_a_file_that_is_away_is_waited_for(path: Path) -> None:
    async with watched(path) as one:
        path.unlink()
        assert signature_of(path) is None
        path.write_text(NEW)
        await one.until("http://new")
        assert one.status.last_reload_faults == 0


async def test_a_signal_for_a_file_that_is_away_keeps_the_old_policy(path: Path) -> None:
    async with watched(path) as one:
        path.unlink()
        await one.reloader.reload()
        assert (one.port.policy.backends[0].url, one.status.last_reload_faults) == ("http://old", 1)
