"""The life of the process: start, reload on SIGHUP, drain on SIGTERM or SIGINT, end at once on a second signal.

start ─► serving ── SIGTERM ─► draining: /readyz 503 ── grace ─► listener closed ── idle or timeout ─► end
            └── SIGHUP ─► the new policy, or the old one where the new is faulty
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

import structlog
from aiohttp import web

from proxy.admin import AdminPort
from proxy.collector import freeze
from proxy.options import Options
from proxy.policy import Policy
from proxy.posture import posture
from proxy.reload import Reloader, Status
from proxy.service import CUT_S, listen, start_service, url_of
from proxy.snapshot import Operated

log = structlog.get_logger("mendproxy")


class Serving(Protocol):
    """What serves, and can be asked to end: this process, or its workers."""

    async def in_flight(self) -> int:
        """Return how many requests are being served."""

    async def leave(self) -> None:
        """Let the answers that come say that their connections end with them."""

    async def renew(self) -> None:
        """Show the certificates that the files hold now."""

    async def close(self) -> None:
        """Take no new connection, and end those that are kept alive with their next answer."""

    async def wait_idle(self) -> None:
        """Return when no request is being served."""


async def serve(options: Options) -> None:
    """Serve in this process until a signal ends it.

    Raises: CannotStart, PolicyFault, OSError where the policy's file can't be read.
    """
    loaded = options.load()
    async with start_service(options, loaded.policy) as (service, stack):
        status = Status()
        url = await service.listen(stack, options.host, options.port)
        admin_url = await open_admin_port(stack, options, service, status)
        reloader = Reloader(Path(options.config), options.load, service, status, loaded.signature)
        life = Life(options, service, reloader, status)
        # Before anybody is told that the process serves: who reads it may send a signal at once.
        life.heed_signals()
        say_what_is_served(options, loaded.policy, url, admin_url)
        freeze()
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(reloader.watch())
            keep = service.keeper
            if keep is not None:
                group.create_task(keep.run())
            await life.run()
            watch.cancel()
            if keep is not None:
                keep.end()


def allow_descriptors() -> None:
    """Let the process, and those that it starts, open as many files as they may: a stream takes two of them.

    What is set where nobody chose is 1024, for the sake of programs that are not this one.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def open_admin_port(stack: AsyncExitStack, options: Options, operated: Operated, status: Status) -> str:
    """Let the admin port take connections until the stack is closed; return its address. Raises: CannotStart."""
    app = AdminPort(operated, status, options.config, options.admin_host).app()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=CUT_S)
    await listen(stack, runner, options.admin_host, options.admin_port)
    return url_of(runner, options.admin_host)


def say_what_is_served(options: Options, policy: Policy, url: str, admin_url: str) -> None:
    """Tell the log that the process serves, and what there is to be doubted in its policy."""
    stance = posture(policy, options)
    log.log(logging.WARNING if stance.risks else logging.INFO, "posture", **stance.told, risks=stance.risks)
    log.info(
        "serving",
        url=url,
        admin=admin_url,
        policy=options.config,
        sha256=policy.sha256[:12],
        backends={backend.name: backend.url for backend in policy.backends},
        rules=sum(len(backend.rules) for backend in policy.backends),
        client_auth="on" if policy.auth_keys else "off",
        workers=options.workers,
        learned=options.learned,
    )
    for warning in policy.warnings:
        log.warning("policy.warning", fault=str(warning))


class Life:
    """Waits for signals and does what they say."""

    def __init__(self, options: Options, serving: Serving, reloader: Reloader, status: Status) -> None:
        self._options = options
        self._serving = serving
        self._reloader = reloader
        self._status = status
        self._signals: asyncio.Queue[signal.Signals] = asyncio.Queue()

    def heed_signals(self) -> None:
        """Take in signals from now on; `run` does what they say."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signals.put_nowait, number)

    async def run(self) -> None:
        """Return when the process is to end."""
        while await self._signals.get() is signal.SIGHUP:
            await self._reloader.reload()
            await self._serving.renew()
        await self._until_second_signal()

    async def _until_second_signal(self) -> None:
        async with asyncio.TaskGroup() as group:
            drain = group.create_task(self._drain())
            second = group.create_task(self._second())
            await asyncio.wait({drain, second}, return_when=asyncio.FIRST_COMPLETED)
            drain.cancel()
            second.cancel()

    async def _second(self) -> None:
        while await self._signals.get() is signal.SIGHUP:
            continue
        log.warning("ending.now", in_flight=await self._serving.in_flight())

    async def _drain(self) -> None:
        self._status.is_draining = True
        await self._serving.leave()
        log.info("draining", in_flight=await self._serving.in_flight(), grace_s=self._options.drain_grace_s)
        await asyncio.sleep(self._options.drain_grace_s)
        await self._serving.close()
        log.info("listener.closed", in_flight=await self._serving.in_flight())
        try:
            async with asyncio.timeout(self._options.drain_timeout_s):
                await self._serving.wait_idle()
        except TimeoutError:
            log.warning("drain.timeout", in_flight=await self._serving.in_flight())
        log.info("drained")
