"""Several processes that serve on one port, and the one that starts them, restarts them and speaks for them.

    signals, watched file ─► supervisor ─┬─ channel ─► worker ─┐
    admin port ◄─────────────────────────┼─ channel ─► worker ─┼─ the data port (SO_REUSEPORT)
                                         └─ channel ─► worker ─┘
Each policy is read once, here, and its text handed to all, so that they never serve by different ones. What one of them
learns the others read from the file of what was learned; without one, from a file of their own that goes with them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import structlog

from proxy.channel import Gone
from proxy.health import Belief, is_fresh, newest, of_policy
from proxy.learn import Lessons
from proxy.lessons import Lesson
from proxy.metrics import Metrics
from proxy.numbers import Numbers, join
from proxy.options import CannotStart, Loaded, Options
from proxy.policy import Policy
from proxy.service import make_keeper
from proxy.snapshot import Picture, Snapshot
from proxy.workers import Worker

# How often workers are asked without anybody asking: what one had counted since is lost when it dies.
ASK_EVERY_S = 1.0
# A worker that dies younger than this waits for its successor, each time for longer.
YOUNG_S = 10.0
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 30.0

log = structlog.get_logger("mendproxy")


class Supervisor:
    """Keeps the workers running until it is told to close."""

    def __init__(self, options: Options, loaded: Loaded) -> None:
        """Know what to serve. Raises: CannotStart, PolicyFault where the file of what was learned can't be read."""
        self._options = options
        self._loaded = loaded
        self._workers: dict[int, Worker] = {}
        self._starting: set[Worker] = set()
        self._dead = Numbers.none().of_the_dead()
        self._is_closing = asyncio.Event()
        self._metrics = Metrics()
        self._metrics.reloaded(loaded.policy)
        self._lessons = Lessons(time.time)
        self.keeper = make_keeper(options, self._lessons, self._metrics)

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._loaded.policy

    async def start(self, group: asyncio.TaskGroup) -> str:
        """Start all workers in a group; return what is in the way, nothing where they serve."""
        log.info("workers.starting", workers=self._options.workers)
        slots = range(self._options.workers)
        troubles = await asyncio.gather(*(self._start_one(slot, group) for slot in slots))
        if not any(troubles):
            for slot in slots:
                group.create_task(self._keep_running(slot, group))
        return next(filter(None, troubles), "")

    async def _start_one(self, slot: int, group: asyncio.TaskGroup) -> str:
        """Start a worker; return what is in the way, nothing where it serves."""
        loaded = self._loaded
        try:
            worker = await Worker.spawn(group)
        except OSError as error:
            return f"no process can be started: {error.strerror or error}"
        self._starting.add(worker)
        try:
            await worker.serve(self._options, loaded)
        except CannotStart as error:
            return str(error)
        finally:
            self._starting.discard(worker)
        self._workers[slot] = worker
        if self._loaded is not loaded:
            await worker.use(self._loaded.text)
        return ""

    async def ask_again(self) -> None:
        """Ask the workers now and then, so that little of what they counted is lost when one dies."""
        while True:
            await asyncio.sleep(ASK_EVERY_S)
            await self._snapshots()

    async def _keep_running(self, slot: int, group: asyncio.TaskGroup) -> None:
        wait_s = 0.0
        while (worker := self._workers.get(slot)) is not None:
            code = await worker.wait()
            self._bury(slot, worker)
            if self._is_closing.is_set():
                return
            wait_s = _longer(wait_s) if time.monotonic() - worker.started_s < YOUNG_S else 0.0
            log.error("worker.died", worker=worker.pid, how=worker.how_it_ended(code), restart_in_s=wait_s)
            await self._start_again(slot, group, wait_s)

    def _bury(self, slot: int, worker: Worker) -> None:
        del self._workers[slot]
        if worker.last is not None:
            self._dead = join([self._dead, worker.last.numbers.of_the_dead()]).of_the_dead()

    async def _start_again(self, slot: int, group: asyncio.TaskGroup, wait_s: float) -> None:
        while not await self._closes_within(wait_s):
            trouble = await self._start_one(slot, group)
            if not trouble or self._is_closing.is_set():
                return
            wait_s = _longer(wait_s)
            log.error("worker.not_started", error=trouble, restart_in_s=wait_s)

    async def _closes_within(self, wait_s: float) -> bool:
        try:
            async with asyncio.timeout(wait_s):
                await self._is_closing.wait()
        except TimeoutError:
            return False
        return True

    async def use(self, loaded: Loaded) -> None:
        """Let all workers serve by another policy."""
        self._loaded = loaded
        self._metrics.reloaded(loaded.policy)
        await asyncio.gather(*(worker.use(loaded.text) for worker in self._all()))

    async def renew(self) -> None:
        """Let all workers show the certificates that the files hold now."""
        await asyncio.gather(*(worker.renew() for worker in self._all()))

    def keep(self) -> None:
        """Note that a reload has failed."""
        self._metrics.reloaded(None)

    async def in_flight(self) -> int:
        """Return how many requests are being served."""
        return sum(snapshot.in_flight for snapshot in await self._snapshots())

    async def leave(self) -> None:
        """Let the workers' answers say that their connections end with them."""
        await asyncio.gather(*(worker.leave() for worker in self._all()))

    async def close(self) -> None:
        """Let no worker take a new connection; each ends when its last answer is out."""
        self._stop_starting()
        await asyncio.gather(*(worker.close() for worker in self._all()))

    async def wait_idle(self) -> None:
        """Return when no worker is left."""
        await asyncio.gather(*(worker.wait() for worker in self._all()))

    async def end(self) -> None:
        """End all workers now."""
        self._stop_starting()
        await asyncio.gather(*(worker.end() for worker in self._all()))

    def _stop_starting(self) -> None:
        self._is_closing.set()
        for worker in self._starting:
            worker.kill()

    def learned(self) -> list[Lesson]:
        """Return what refusals taught, the latest last."""
        return self._lessons.all()

    async def picture(self) -> Picture:
        """Return how everything is now."""
        alive = await self._snapshots()
        numbers = join([self._metrics.numbers, self._dead, *(snapshot.numbers for snapshot in alive)])
        for name, belief in newest(snapshot.beliefs for snapshot in alive).items():
            # Not every worker has asked a backend lately.
            numbers.gauges["backend_up"][(name,)] = float(belief.is_up)
        answering = sum(not worker.is_silent for worker in self._all())
        return Picture(alive, numbers, self._options.workers, answering)

    async def beliefs(self) -> dict[str, Belief]:
        """Return what is believed of each backend; where the last news of one is old, one worker looks for all."""
        known = newest(snapshot.beliefs for snapshot in await self._snapshots())
        if not all(is_fresh(known.get(backend.name)) for backend in self.policy.backends):
            known = newest([known, await self._look()])
        return of_policy(self.policy, known)

    async def _look(self) -> dict[str, Belief]:
        for worker in self._all():
            try:
                return await worker.look()
            except Gone:
                continue
        return {}

    async def _snapshots(self) -> Sequence[Snapshot]:
        told = await asyncio.gather(*(worker.snapshot() for worker in self._all()))
        return [snapshot for snapshot in told if snapshot is not None]

    def _all(self) -> list[Worker]:
        return list(self._workers.values())


def _longer(wait_s: float) -> float:
    return min(max(2 * wait_s, FIRST_WAIT_S), LONGEST_WAIT_S)
