"""One of several processes that serve on the same port: does what the supervisor asks, and ends when that is gone.

start ─► ready ─► snapshot, look, use, … ─► close ─► the last answer is out ─► end
                                 └── the supervisor's end of the channel is closed ─► end at once
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import msgspec

import proxy.bare_imports  # noqa: F401 before anything that imports what it imports
from proxy.channel import Ask, Channel
from proxy.collector import freeze
from proxy.errors import PolicyFault
from proxy.health import Belief
from proxy.log import set_up
from proxy.options import CannotStart, Options, loop_factory
from proxy.service import Service, start_service
from proxy.snapshot import Snapshot


def main(handle: int) -> None:
    """Serve as the process at the other end of the socket `handle` says."""
    # They come to the supervisor too, where they come to a whole group of processes, and it knows what is to be done.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_work(socket.socket(fileno=handle)))


class Start(msgspec.Struct):
    """The first question: what is to be served, by the policy that all workers have."""

    options: Options
    policy: str


async def _work(end: socket.socket) -> None:
    channel = await Channel.open(end)
    asked = await channel.asked()
    if asked is None:
        return
    start = msgspec.convert(asked.value, Start)
    sink = set_up(start.options.log_format, start.options.log_level, pid=os.getpid())
    try:
        await _serve(channel, asked, start)
    except (CannotStart, PolicyFault) as error:
        await channel.tell(asked, str(error))
    finally:
        await channel.close()
        sink.flush()


async def _serve(channel: Channel, asked: Ask, start: Start) -> None:
    options = start.options
    async with start_service(options, options.load_text(start.policy).policy) as (service, stack):
        await service.listen(stack, options.host, options.port, is_shared=True)
        await channel.tell(asked, "")
        freeze()
        await Work(service, options, channel).run()


def _tidy_up(options: Options) -> None:
    """Remove what the supervisor would have removed, had it not been killed."""
    if options.learned is not None and not options.is_learned_kept:
        shutil.rmtree(Path(options.learned).parent, ignore_errors=True)


class Work:
    """What a worker does between its start and its end."""

    def __init__(self, service: Service, options: Options, channel: Channel) -> None:
        self._service = service
        self._options = options
        self._channel = channel
        self._done = asyncio.Event()
        self._is_closed = asyncio.Event()

    async def run(self) -> None:
        """Do what the supervisor asks until it is gone, or the last answer is out after it said so."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._answer()), group.create_task(self._until_idle())]
            keep = self._service.keeper
            if keep is not None:
                group.create_task(keep.run())
            await self._done.wait()
            for task in tasks:
                task.cancel()
            if keep is not None:
                keep.end(is_kept=self._options.is_learned_kept)
        if not self._is_closed.is_set():
            _tidy_up(self._options)

    async def _answer(self) -> None:
        await self._channel.answer(
            {
                "snapshot": self._snapshot,
                "look": self._look,
                "use": self._use,
                "renew": self._renew,
                "leave": self._leave,
                "close": self._close,
            }
        )
        self._done.set()

    async def _until_idle(self) -> None:
        await self._is_closed.wait()
        await self._service.wait_idle()
        self._done.set()

    async def _snapshot(self, _: None) -> Snapshot:
        return self._service.snapshot()

    async def _look(self, _: None) -> dict[str, Belief]:
        return await self._service.beliefs()

    async def _use(self, text: str) -> None:
        await self._service.use(self._options.load_text(text))

    async def _leave(self, _: None) -> None:
        await self._service.leave()

    async def _renew(self, _: None) -> None:
        await self._service.renew()

    async def _close(self, _: None) -> None:
        await self._service.close()
        self._is_closed.set()


if __name__ == "__main__":
    main(int(sys.argv[1]))
