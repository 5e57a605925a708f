"""One soak: the load comes, is watched while policies change, stops, and what is left over is looked for."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.processes import Processes
from soak.backend import Backend
from soak.clients import PATIENCE_S, Clients
from soak.ledger import Ledger, Outcome
from soak.scripts import Drawer, Fault, Shape
from soak.subject import Subject
from soak.watch import Sample, grown, left_over

# An idle connection to a backend is kept for 4 s.
SETTLE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What a soak is to be. `pace` stretches all pauses: 1 is an event every 100 to 400 ms."""

    seconds: float
    streams: int
    seed: int
    pace: float = 1.0
    shapes: Collection[Shape] = tuple(Shape)
    faults: Collection[Fault] = tuple(Fault)
    arguments: Sequence[str] = ()


@dataclass(slots=True)
class Report:
    """What came of a soak. Units: lags in seconds, of the admin port and of this process itself."""

    settings: Settings
    ledger: Ledger
    before: Sample
    samples: list[Sample] = field(default_factory=list)
    after: Sample | None = None
    findings: list[str] = field(default_factory=list)
    reloads: dict[str, int] = field(default_factory=lambda: {"good": 0, "faulty": 0})
    lag_s: float = 0.0
    own_lag_s: float = 0.0
    drained_s: float = 0.0
    settled_s: float = 0.0
    cpu_s: float = 0.0
    took_s: float = 0.0


async def soak(settings: Settings, folder: Path) -> Report:
    """Return what came of it. Raises: CannotStart, Died, in a group."""
    ledger = Ledger()
    with Processes(folder) as processes:
        async with asyncio.TaskGroup() as group:
            backend = Backend(group, ledger)
            await backend.listen()
            subject = Subject(processes, folder, backend.port, settings.pace)
            try:
                await subject.start(settings.arguments)
                return await _Run(settings, ledger, backend, subject, await _at_rest(subject)).run()
            except* OSError as lost:
                raise subject.died() from lost
            finally:
                subject.close()
                backend.close()


async def _at_rest(subject: Subject) -> Sample:
    """Return how the proxy is before anybody asks it; what has just asked whether it is up has gone by then."""
    samples = []
    for _ in range(5):
        await asyncio.sleep(0.2)
        samples.append(await subject.sample(0))
    return min(samples, key=lambda sample: sample.descriptors)


class _Run:
    def __init__(self, settings: Settings, ledger: Ledger, backend: Backend, subject: Subject, before: Sample) -> None:
        self._settings = settings
        self._ledger = ledger
        self._backend = backend
        self._subject = subject
        self._report = Report(settings, ledger, before)
        self._clients = Clients(subject.port, ledger)

    async def run(self) -> Report:
        """Return what came of the load."""
        report, began_s = self._report, time.monotonic()
        async with asyncio.TaskGroup() as watching:
            watches = [watching.create_task(watch) for watch in self._watches()]
            await self._load()
            for task in watches:
                task.cancel()
        report.cpu_s, report.took_s = self._subject.cpu_s(), time.monotonic() - began_s
        await self._last_policy()
        report.after = await self._settle()
        report.findings += self._ledger.findings() + await self._counted()
        report.findings += left_over(report.before, report.after) + grown(report.samples)
        return report

    async def _load(self) -> None:
        """Let the clients ask for as long as wanted; then half of them leave at once, and half after their answers."""
        settings, clients = self._settings, []
        async with asyncio.TaskGroup() as group:
            for index in range(settings.streams):
                drawer = Drawer(f"{settings.seed}.{index}", settings.pace, settings.shapes, settings.faults)
                clients.append(group.create_task(self._clients.run(drawer, settings.pace)))
            await asyncio.sleep(settings.seconds)
            self._clients.is_stopping = True
            stopped_s = time.monotonic()
            for task in clients[::2]:
                task.cancel()
            _, late = await asyncio.wait(clients, timeout=2 * PATIENCE_S)
            self._report.drained_s = time.monotonic() - stopped_s
            for task in late:
                task.cancel()

    def _watches(self) -> list[Coroutine[Any, Any, None]]:
        return [self._sample(), self._probe(), self._tick(), self._reload()]

    async def _sample(self) -> None:
        """Take samples while the load is on, and none while it comes to its end."""
        every_s = min(2.0, self._settings.seconds / 40)
        while not self._clients.is_stopping:
            self._report.samples.append(await self._subject.sample(self._backend.connections))
            await asyncio.sleep(every_s)

    async def _probe(self) -> None:
        while True:
            asked_s = time.monotonic()
            await self._subject.get("/livez")
            self._report.lag_s = max(self._report.lag_s, time.monotonic() - asked_s)
            await asyncio.sleep(0.2)

    async def _tick(self) -> None:
        while True:
            slept_s = time.monotonic()
            await asyncio.sleep(0.05)
            self._report.own_lag_s = max(self._report.own_lag_s, time.monotonic() - slept_s - 0.05)

    async def _reload(self) -> None:
        draw = random.Random(self._settings.seed)  # noqa: S311 nothing is kept secret by it
        edition, is_good = 0, True
        while True:
            await asyncio.sleep(draw.uniform(0.5, 3.0) * min(1.0, self._settings.seconds / 15))
            # After a faulty one comes a good one, after a good one either: each has to show in the metric.
            edition, is_good = edition + 1, not is_good or draw.random() < 0.5
            kind, by_signal = "good" if is_good else "faulty", draw.random() < 0.7
            if not await self._subject.reload(edition, is_good=is_good, by_signal=by_signal):
                self._report.findings.append(f"policy edition {edition}, which is {kind}, is not noted")
            self._report.reloads[kind] += 1

    async def _last_policy(self) -> None:
        if not await self._subject.reload(1_000_000, is_good=True, by_signal=True):
            self._report.findings.append("the last policy, which is good, is not in force")

    async def _settle(self) -> Sample:
        """Return how the proxy is once nothing is left over, or when that takes too long."""
        began_s = time.monotonic()
        while True:
            after = await self._subject.sample(self._backend.connections)
            self._report.settled_s = time.monotonic() - began_s
            if not left_over(self._report.before, after) or self._report.settled_s > SETTLE_S:
                return after
            await asyncio.sleep(0.25)

    async def _counted(self) -> list[str]:
        """Return a finding where the backend is still busy, or the proxy counted other requests than were sent."""
        found = [] if not self._backend.busy else [f"the backend still answers {self._backend.busy} requests"]
        ended = self._ledger.ended
        begun, answered = ended.total(), ended.total() - ended[Outcome.LEFT] - ended[Outcome.BEHIND]
        counted = int(await self._subject.number("requests_total"))
        if not answered <= counted <= begun:
            found.append(f"the proxy counted {counted} requests, of {begun} begun and {answered} answered")
        return found + [f"the proxy said: {line}" for line in self._subject.outcries()]
