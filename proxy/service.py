"""One process that serves: the data port and all that stands behind it."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from aiohttp import web

from proxy.data_path import make_server, make_upstream
from proxy.errors import BackendFault
from proxy.health import Belief, Health, of_policy
from proxy.learn import Lessons
from proxy.lessons import Lesson
from proxy.metrics import Metrics
from proxy.options import CannotStart, Loaded, Options
from proxy.policy import Backend, Policy
from proxy.server import DataPort
from proxy.shared_lessons import Keeper, SharedLessons
from proxy.snapshot import Picture, Snapshot
from proxy.tls import Contexts, TlsFault
from proxy.tracing import Tracer
from proxy.upstream import Upstream

STANDIN = "standin://"
# What still runs when the drain has ended is not waited for again.
CUT_S = 0.1
BACKLOG = 1024


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
                self._urls[kind] = await self._start(kind)

    async def _start(self, kind: str) -> str:
        # Whoever has a backend of their own does without it.
        from proxy import standin

        return (await self._stack.enter_async_context(standin.serve(kind))).url

    def address(self, backend: Backend) -> str:
        """Return the address at which a backend is reached."""
        return self._urls.get(backend.url.removeprefix(STANDIN), backend.url)


class Service:
    """Serves clients by a policy until it is closed."""

    def __init__(self, policy: Policy, standins: Standins, options: Options) -> None:
        self._standins = standins
        self._started_s = time.time()
        self.health = Health()
        self.metrics = Metrics()
        self.lessons = Lessons(time.time)
        self.keeper = make_keeper(options, self.lessons, self.metrics)
        self.tls = read_tls(options)
        self.upstream: Upstream = make_upstream(options.data_path, self._note, self.tls.backend)
        self.port = DataPort(policy, self.upstream, standins.address, self.metrics, self.lessons)
        self._site: web.TCPSite | None = None

    def _note(self, backend: str, outcome: BackendFault | int) -> None:
        self.health.note(backend, outcome)
        self.metrics.note(backend, outcome)
        self.lessons.note(backend, is_up=isinstance(outcome, int))

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.port.policy

    async def use(self, loaded: Loaded) -> None:
        """Serve new requests by another policy."""
        await self._standins.start(loaded.policy)
        self.port.use(loaded.policy)

    def keep(self) -> None:
        """Note that a reload has failed."""
        self.metrics.reloaded(None)

    async def listen(self, stack: AsyncExitStack, host: str, port: int, *, is_shared: bool = False) -> str:
        """Serve clients from now on; return the address. `is_shared`: other processes listen on the same port.

        Raises: CannotStart.
        """
        runner = web.ServerRunner(make_server(self.port), shutdown_timeout=CUT_S)
        self._site = await listen(stack, runner, host, port, is_shared=is_shared, tls=self.tls.served)
        return url_of(runner, host, is_tls=self.tls.served is not None)

    async def leave(self) -> None:
        """Let the answers that come say that their connections end with them: who keeps one has to find another."""
        self.port.leave()

    async def renew(self) -> None:
        """Show the certificates that the files hold now."""
        self.tls.renew()

    async def close(self) -> None:
        """Take no new connection, and turn away who comes on one that was left unused since the drain began."""
        if self._site is not None:
            await self._site.stop()
        self.port.close()

    async def in_flight(self) -> int:
        """Return how many requests are being served."""
        return self.port.in_flight

    async def wait_idle(self) -> None:
        """Return when no request is being served."""
        await self.port.wait_idle()

    def learned(self) -> list[Lesson]:
        """Return what refusals taught, the latest last."""
        return self.lessons.all()

    def snapshot(self) -> Snapshot:
        """Return what there is to say of this process."""
        return Snapshot(os.getpid(), self._started_s, self.port.in_flight, self.metrics.numbers, self.health.known)

    async def picture(self) -> Picture:
        """Return how everything is now."""
        return Picture([self.snapshot()], self.metrics.numbers)

    async def beliefs(self) -> dict[str, Belief]:
        """Return what is believed of each backend, looking where the last news of it is old."""
        known = await self.health.look(self.policy.backends, self.upstream, self._standins.address)
        return of_policy(self.policy, known)


@asynccontextmanager
async def start_service(options: Options, policy: Policy) -> AsyncIterator[tuple[Service, AsyncExitStack]]:
    """Give what serves by a policy, once it is told to listen, and what closes all that it opens.

    Raises: CannotStart, PolicyFault where the file of what was learned can't be read.
    """
    async with AsyncExitStack() as stack:
        standins = Standins(stack)
        await standins.start(policy)
        service = Service(policy, standins, options)
        stack.push_async_callback(service.upstream.close)
        if options.traces == "otlp":
            service.port.tracer = await stack.enter_async_context(open_tracer())
        yield service, stack


def open_tracer() -> AbstractAsyncContextManager[Tracer]:
    """Return what gives a tracer. Raises: CannotStart."""
    try:
        # Whoever does not trace need not have it.
        from proxy import otel
    except ModuleNotFoundError as error:
        told = f"--traces otlp takes packages that are not installed ({error.name}): pip install 'mendproxy[otel]'"
        raise CannotStart(told) from error
    return otel.open_tracer()


def make_keeper(options: Options, lessons: Lessons, metrics: Metrics) -> Keeper | None:
    """Return what keeps the lessons in a file, loaded from there; None where there is none to be kept in.

    Raises: CannotStart, PolicyFault.
    """
    if options.learned is None:
        return None
    keeper = Keeper(lessons, SharedLessons(Path(options.learned), time.time), metrics.learned)
    try:
        keeper.load()
    except OSError as error:
        raise CannotStart(f"{options.learned}: {error.strerror or error}") from error
    return keeper


def read_tls(options: Options) -> Contexts:
    """Return the TLS that is spoken to clients and backends. Raises: CannotStart."""
    try:
        return Contexts(options.tls)
    except TlsFault as fault:
        raise CannotStart(str(fault)) from fault


async def listen(
    stack: AsyncExitStack,
    runner: web.BaseRunner,
    host: str,
    port: int,
    *,
    is_shared: bool = False,
    tls: ssl.SSLContext | None = None,
) -> web.TCPSite:
    """Let a server take connections until the stack is closed. Raises: CannotStart."""
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, host, port, ssl_context=tls, backlog=BACKLOG, reuse_port=is_shared or None)
    try:
        await site.start()
    except OSError as error:
        raise CannotStart(f"can't listen on {host}:{port}: {error.strerror or error}") from error
    return site


def url_of(runner: web.BaseRunner, host: str, *, is_tls: bool = False) -> str:
    """Return the address of a server. Its port is the one that was got: port 0 asks for any that is free."""
    return url(host, runner.addresses[0][1], is_tls=is_tls)


def url(host: str, port: int, *, is_tls: bool = False) -> str:
    """Return the address of a port."""
    return f"http{'s' * is_tls}://{f'[{host}]' if ':' in host else host}:{port}"
