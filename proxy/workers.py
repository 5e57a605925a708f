"""The supervisor's side of a worker: how it is started, asked, and ended."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec
import structlog

import proxy
from proxy.channel import Channel, Gone, Silent
from proxy.health import Belief
from proxy.options import CannotStart, Loaded, Options
from proxy.snapshot import Snapshot
from proxy.worker import Start

START_S = 60.0
ASK_S = 1.0
# One that did not answer is not waited for again, so that the others can be spoken for without delay.
SILENT_S = 0.05
# A worker that is to use another policy may have to start a stand-in first; one that closes answers at once.
DO_S = 30.0
END_S = 3.0

log = structlog.get_logger("mendproxy")


class Worker:
    """A process that serves."""

    def __init__(self, process: asyncio.subprocess.Process, channel: Channel) -> None:
        self._process = process
        self._channel = channel
        self.pid = process.pid
        self.started_s = time.monotonic()
        self.last: Snapshot | None = None
        self.is_silent = False

    @classmethod
    async def spawn(cls, group: asyncio.TaskGroup) -> Worker:
        """Return a new process that does not serve yet; `group` is where its answers are taken in."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "proxy.worker", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": _where_this_is()},
            )
        worker = cls(process, await Channel.open(ours))
        group.create_task(worker._channel.hear())
        return worker

    async def serve(self, options: Options, loaded: Loaded) -> None:
        """Let the process serve by a policy. Raises: CannotStart; it has ended then."""
        try:
            start = msgspec.to_builtins(Start(options, loaded.text))
            trouble = await self._channel.ask("serve", str, start, within_s=START_S)
        except Gone:
            self.kill()
            trouble = f"a worker ended before it served ({self.how_it_ended(await self.wait())})"
        if trouble:
            await self.end()
            raise CannotStart(trouble)
        log.info("worker.started", worker=self.pid)

    def kill(self) -> None:
        """End a process that has nothing to lose."""
        if self._process.returncode is None:
            self._process.kill()

    async def snapshot(self) -> Snapshot | None:
        """Return what the worker says of itself; where it does not answer what it said last."""
        within_s = SILENT_S if self.is_silent else ASK_S
        try:
            self.last = await self._channel.ask("snapshot", Snapshot, within_s=within_s)
            self.is_silent = False
        except Silent:
            if not self.is_silent:
                log.warning("worker.silent", worker=self.pid, asked="snapshot")
            self.is_silent = True
        except Gone:
            self.is_silent = True
        return self.last

    async def look(self) -> dict[str, Belief]:
        """Return what the worker believes of the backends, having looked. Raises: Gone."""
        return await self._channel.ask("look", dict[str, Belief], within_s=DO_S)

    async def use(self, text: str) -> None:
        """Let the worker serve by another policy. One that has ended gets it when it is started again."""
        await self._do("use", text)

    async def leave(self) -> None:
        """Let the worker's answers say that their connections end with them."""
        await self._do("leave", None)

    async def renew(self) -> None:
        """Let the worker show the certificates that the files hold now."""
        await self._do("renew", None)

    async def close(self) -> None:
        """Let the worker take no new connection, and end when its last answer is out."""
        await self._do("close", None)

    async def _do(self, what: str, value: str | None) -> None:
        try:
            await self._channel.ask(what, type(None), value, within_s=DO_S)
        except Silent:
            log.warning("worker.silent", worker=self.pid, asked=what)
        except Gone:
            return  # it will be started again, or is to end

    async def wait(self) -> int:
        """Return the exit code when the process has ended; negative is a signal."""
        return await self._process.wait()

    async def end(self) -> int:
        """End the process now and return its exit code."""
        await self._channel.close()
        try:
            async with asyncio.timeout(END_S):
                return await self._process.wait()
        except TimeoutError:
            self.kill()
            return await self._process.wait()

    @staticmethod
    def how_it_ended(code: int) -> str:
        """Return an exit code in words."""
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _where_this_is() -> str:
    """Return the module search path by which a worker finds this package first, wherever it was started."""
    known = os.environ.get("PYTHONPATH")
    own = str(Path(proxy.__file__).parent.parent)
    return f"{own}{os.pathsep}{known}" if known else own
