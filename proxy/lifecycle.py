"""The life of the process: start, reload on SIGHUP, drain on SIGTERM or SIGINT, end at once on a second signal.

start ─► serving ── SIGTERM ─► draining: /readyz 503 ── grace ─► listener closed ── idle or timeout ─► end
            └── SIGHUP ─► the new policy, or the old one where the new is faulty
"""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import structlog
from aiohttp import web

from proxy import standin
from proxy.admin import AdminPort
from proxy.data_path import DataPath, make_server, make_upstream
from proxy.errors import BackendFault
from proxy.health import Health
from proxy.learn import Lessons
from proxy.metrics import Metrics
from proxy.policy import Backend, Policy
from proxy.reload import Reloader, Status
from proxy.server import DataPort

STANDIN = "standin://"
SAVE_EVERY_S = 1.0
# What still runs when the drain has ended is not waited for again.
CUT_S = 0.1

log = structlog.get_logger("mendproxy")


class CannotStart(Exception):
    """A port can't be bound, or a file can't be read."""


@dataclass(frozen=True, slots=True)
class Options:
    """What `mendproxy serve` was told. Units: seconds where a name says so."""

    policy_path: Path
    load: Callable[[], Policy]
    host: str
    port: int
    admin_host: str
    admin_port: int
    drain_grace_s: float
    drain_timeout_s: float
    learned_path: Path | None = None
    data_path: DataPath = "direct"


class Standins:
    """The embedded backends that the policy names, each started once."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._urls: dict[str, str] = {}

    async def start(self, policy: Policy) -> None:
        """Start those that a policy names and that do not run yet."""
        for backend in policy.backends:
            kind = backend.url.removeprefix(STANDIN)
            if kind != backend.url and kind not in self._urls:
                self._urls[kind] = (await self._stack.enter_async_context(standin.serve(kind))).url

    def address(self, backend: Backend) -> str:
        """Return the address at which a backend is reached."""
        return self._urls.get(backend.url.removeprefix(STANDIN), backend.url)


async def serve(options: Options) -> None:
    """Serve until a signal ends it.

    Raises: CannotStart, PolicyFault, OSError where the policy's file can't be read.
    """
    policy = options.load()
    async with AsyncExitStack() as stack:
        standins = Standins(stack)
        await standins.start(policy)
        health = Health()
        metrics = Metrics()
        lessons = Lessons(time.time, options.learned_path)
        lessons.load()
        metrics.learned(len(lessons))

        def note(backend: str, outcome: BackendFault | int) -> None:
            health.note(backend, outcome)
            metrics.note(backend, outcome)
            lessons.note(backend, is_up=isinstance(outcome, int))

        upstream = make_upstream(options.data_path, note)
        stack.push_async_callback(upstream.close)
        port = DataPort(policy, upstream, standins.address, metrics, lessons)
        status = Status()
        reloader = Reloader(options.policy_path, options.load, port, standins.start, status)
        admin = AdminPort(port, health, upstream, standins.address, status)
        data_runner = web.ServerRunner(make_server(port), shutdown_timeout=CUT_S)
        admin_runner = web.AppRunner(admin.app(), access_log=None, shutdown_timeout=CUT_S)
        data_site = await _listen(stack, data_runner, options.host, options.port)
        await _listen(stack, admin_runner, options.admin_host, options.admin_port)
        life = Life(options, port, reloader, status, data_site)
        # Before anybody is told that the process serves: who reads it may send a signal at once.
        life.heed_signals()
        _say_what_is_served(options, policy, _url(data_runner, options.host), _url(admin_runner, options.admin_host))
        # What is loaded by now stays: the collector need not look at it again on every pass.
        gc.collect()
        gc.freeze()
        async with asyncio.TaskGroup() as group:
            keepers = [group.create_task(_keep(lessons)), group.create_task(reloader.watch())]
            await life.run()
            for keeper in keepers:
                keeper.cancel()
        _save(lessons, lessons.take_text())


async def _keep(lessons: Lessons) -> None:
    """Write what is learned, soon after it is learned."""
    while True:
        await asyncio.sleep(SAVE_EVERY_S)
        text = lessons.take_text()
        if text is not None:
            await asyncio.to_thread(_save, lessons, text)


def _save(lessons: Lessons, text: str | None) -> None:
    try:
        lessons.save(text)
    except OSError as error:
        log.error("learned.not_saved", file=error.filename, error=error.strerror)


async def _listen(stack: AsyncExitStack, runner: web.BaseRunner, host: str, port: int) -> web.TCPSite:
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError as error:
        raise CannotStart(f"can't listen on {host}:{port}: {error.strerror or error}") from error
    return site


def _url(runner: web.BaseRunner, host: str) -> str:
    # The port is the one that was got: port 0 asks for any that is free.
    return f"http://{f'[{host}]' if ':' in host else host}:{runner.addresses[0][1]}"


def _say_what_is_served(options: Options, policy: Policy, url: str, admin_url: str) -> None:
    log.info(
        "serving",
        url=url,
        admin=admin_url,
        policy=str(options.policy_path),
        sha256=policy.sha256[:12],
        backends={backend.name: backend.url for backend in policy.backends},
        rules=sum(len(backend.rules) for backend in policy.backends),
        client_auth="on" if policy.auth_keys else "off",
    )
    for warning in policy.warnings:
        log.warning("policy.warning", fault=str(warning))


class Life:
    """Waits for signals and does what they say."""

    def __init__(
        self, options: Options, port: DataPort, reloader: Reloader, status: Status, data_site: web.TCPSite
    ) -> None:
        self._options = options
        self._port = port
        self._reloader = reloader
        self._status = status
        self._site = data_site
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
        log.warning("ending.now", in_flight=self._port.in_flight)

    async def _drain(self) -> None:
        self._status.is_draining = True
        log.info("draining", in_flight=self._port.in_flight, grace_s=self._options.drain_grace_s)
        await asyncio.sleep(self._options.drain_grace_s)
        await self._site.stop()
        self._port.is_closing = True
        log.info("listener.closed", in_flight=self._port.in_flight)
        try:
            async with asyncio.timeout(self._options.drain_timeout_s):
                await self._port.wait_idle()
        except TimeoutError:
            log.warning("drain.timeout", in_flight=self._port.in_flight)
        log.info("drained")
