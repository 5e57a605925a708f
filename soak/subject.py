"""The proxy under test: a real process with a policy of its own, and what can be seen of it from outside."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from bench.processes import Processes, cpu_ns, free_port
from soak import policies
from soak.messages import Message, exchange
from soak.watch import Sample
from soak.wire import Wire

HOST: Final = "127.0.0.1"
START_S: Final = 20.0
# Two looks at the file, a second apart, and time to load it on a machine that is busy.
RELOAD_S: Final = 8.0


class CannotStart(Exception):
    """The proxy does not serve."""


class Died(Exception):
    """The proxy is gone before it was told to go."""


class Subject:
    """The proxy, while it runs."""

    def __init__(self, processes: Processes, folder: Path, backend_port: int, pace: float) -> None:
        """Let it serve `backend_port`, with its files in `folder`."""
        self._processes = processes
        self._policy = folder / "policy.yaml"
        self._log = folder / "proxy.log"
        self._backend_port = backend_port
        self._pace = pace
        # Bound and not listened on: connections to it are refused, and nobody else gets it.
        self._closed = socket.create_server((HOST, 0))
        self._closed_port: int = self._closed.getsockname()[1]
        self._closed.close()
        self._closed = socket.socket()
        self._closed.bind((HOST, self._closed_port))
        self.port, self.admin_port = free_port(), free_port()
        self.pid = 0

    async def start(self, arguments: Sequence[str]) -> None:
        """Start it. Raises: CannotStart."""
        self.write(edition=0)
        command = [sys.executable, "-m", "proxy", "serve", "-c", str(self._policy), "--host", HOST]
        command += ["--port", str(self.port), "--admin-port", str(self.admin_port), "--log-level", "warning"]
        self.pid = self._processes.start("proxy", [*command, *arguments], os.sched_getaffinity(0))
        started_s = time.monotonic()
        while time.monotonic() < started_s + START_S and self._processes.is_running(self.pid):
            if await self._is_up(self.port) and await self._is_up(self.admin_port):
                return
            await asyncio.sleep(0.05)
        raise CannotStart(f"The proxy does not serve: {self._processes.said('proxy')}")

    async def _is_up(self, port: int) -> bool:
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            return False
        writer.close()
        return True

    def died(self) -> Died:
        """Return what tells that it is gone, and what it said last."""
        return Died(f"The proxy has gone, or takes no connections any more: {self._processes.said('proxy')}")

    def outcries(self) -> list[str]:
        """Return the first lines of what it said that belong in no log: tracebacks, and warnings of the interpreter."""
        with self._log.open(errors="replace") as lines:
            return [line.strip() for line in islice((line for line in lines if not line.startswith("{")), 5)]

    def write(self, edition: int, *, is_good: bool = True) -> None:
        """Write its policy anew."""
        good = policies.good(edition, self._backend_port, self._closed_port, self._pace)
        new = self._policy.with_suffix(".new")
        new.write_text(good if is_good else policies.faulty(edition))
        new.replace(self._policy)

    async def reload(self, edition: int, *, is_good: bool, by_signal: bool) -> bool:
        """Have it take up another policy, or refuse to. Return whether it did so in time."""
        self.write(edition, is_good=is_good)
        if by_signal:
            os.kill(self.pid, signal.SIGHUP)
        until_s = time.monotonic() + RELOAD_S
        while time.monotonic() < until_s:
            await asyncio.sleep(0.2)
            if (await self.number("policy_last_reload_successful")) == float(is_good):
                return True
        return False

    async def get(self, path: str) -> Message:
        """Return what the admin port says."""
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(Wire, HOST, self.admin_port)
        try:
            request = f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"
            return await exchange(wire, request.encode())
        finally:
            wire.close()

    async def number(self, name: str) -> float:
        """Return a metric, all its series together."""
        return _numbers(bytes((await self.get("/metrics")).body), name)

    async def sample(self, upstream: int) -> Sample:
        """Return how it is now."""
        family = _family(self.pid)
        # Before the question on the next line takes one too.
        descriptors = sum(_descriptors(pid) for pid in family)
        text = bytes((await self.get("/metrics")).body)
        return Sample(
            time.monotonic(),
            sum(_status(pid, "VmRSS") for pid in family) * 1024,
            descriptors,
            sum(_status(pid, "Threads") for pid in family),
            int(_numbers(text, "requests_in_flight")),
            int(_numbers(text, "streams_open")),
            upstream,
        )

    def cpu_s(self) -> float:
        """Return the CPU time that it has taken."""
        return cpu_ns(self.pid) / 1e9

    def close(self) -> None:
        """End it."""
        self._closed.close()
        self._processes.stop(self.pid)


def _numbers(text: bytes, name: str) -> float:
    series = re.findall(rb"^mendproxy_%b(?:\{[^\n]*\})? (\S+)$" % name.encode(), text, re.MULTILINE)
    return sum(map(float, series))


def _status(pid: int, name: str) -> int:
    """Return a number of a process. Source: proc(5), status."""
    found = re.search(rf"^{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def _descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def _family(pid: int) -> list[int]:
    """Return a process and its children. Source: proc(5), children."""
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [pid, *(member for text in lists for child in text.split() for member in _family(int(child)))]
