"""What the supervisor does with workers that die, or don't start: here they are played."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy import supervisor as module
from proxy.channel import Gone
from proxy.health import Belief
from proxy.metrics import Metrics
from proxy.options import CannotStart, Loaded, Options
from proxy.snapshot import Snapshot
from proxy.supervisor import Supervisor
from proxy.workers import Worker

PATIENCE_S = 5.0
POLICY = "version: 1\nbackends: {main: {url: 'http://backend'}}\n"


class Played:
    """A worker that a test lets die, by its exit code."""

    all: list[Played]
    troubles: list[str]
    news: asyncio.Event
    how_it_ended = staticmethod(Worker.how_it_ended)

    def __init__(self) -> None:
        self.pid = 1000 + len(self.all)
        self.started_s = module.time.monotonic()
        self.policy = ""
        self.metrics = Metrics()
        self.beliefs: dict[str, Belief] = {}
        self.last: Snapshot | None = None
        self.is_silent = False
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @classmethod
    async def spawn(cls, _group: asyncio.TaskGroup) -> Played:
        cls.all.append(cls())
        return cls.all[-1]

    async def serve(self, _options: Options, loaded: Loaded) -> None:
        if self.troubles and (trouble := self.troubles.pop(0)):
            raise CannotStart(trouble)
        self.policy = loaded.text
        self.news.set()

    async def snapshot(self) -> Snapshot:
        self.last = Snapshot(self.pid, 0.0, 1, self.metrics.numbers, self.beliefs)
        return self.last

    async def look(self) -> dict[str, Belief]:
        raise Gone

    async def use(self, text: str) -> None:
        self.policy = text

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    def die(self, code: int) -> None:
        if not self._code.done():
            self._code.set_result(code)

    async def end(self) -> int:
        self.die(0)
        return 0

    close = end

    def kill(self) -> None:
        self.die(-9)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> type[Played]:
    monkeypatch.setattr(module, "Worker", Played)
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.001)
    Played.all, Played.troubles, Played.news = [], [], asyncio.Event()
    return Played


@pytest.fixture
def supervisor(tmp_path: Path) -> Supervisor:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    options = Options(str(path), workers=2)
    return Supervisor(options, options.load())


async def until_there_are(played: type[Played], count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(played.all) < count or not played.all[-1].policy:
            played.news.clear()
            await played.news.wait()


async def test_a_worker_that_dies_at_once_again_waits_for_longer_each_time(played, supervisor) -> None:
    with capture_logs() as said:
        async with asyncio.TaskGroup() as group:
            assert await supervisor.start(group) == ""
            for count, code in ((3, -11), (4, 1), (5, 0), (6, -9)):
                played.all[-1].die(code)
                await until_there_are(played, count)
            await supervisor.end()
    died = [(line["how"], line["restart_in_s"]) for line in said if line["event"] == "worker.died"]
    assert died == [
        ("signal SIGSEGV", 0.001),
        ("exit code 1", 0.002),
        ("exit code 0", 0.004),
        ("signal SIGKILL", 0.008),
    ]


async def test_a_worker_that_was_old_is_replaced_at_once(played, supervisor) -> None:
    with capture_logs() as said:
        async with asyncio.TaskGroup() as group:
            await supervisor.start(group)
            played.all[0].started_s -= module.YOUNG_S + 1
            played.all[0].die(1)
            await until_there_are(played, 3)
            await supervisor.end()
    assert [line["restart_in_s"] for line in said if line["event"] == "worker.died"] == [0.0]


def test_nobody_waits_for_ever_to_be_started_again() -> None:
    waits = [0.0]
    for _ in range(20):
        waits.append(module._longer(waits[-1]))
    assert waits[1:4] == [0.1, 0.2, 0.4]
    assert waits[-1] == module.LONGEST_WAIT_S


async def test_a_start_that_one_worker_can_t_follow_is_given_up(played, supervisor) -> None:
    played.troubles += ["", "can't listen"]
    async with asyncio.TaskGroup() as group:
        assert await supervisor.start(group) == "can't listen"
        await supervisor.end()
    assert len(played.all) == 2


async def test_a_successor_that_does_not_start_is_tried_again(played, supervisor) -> None:
    with capture_logs() as said:
        async with asyncio.TaskGroup() as group:
            await supervisor.start(group)
            played.troubles += ["no memory", "no memory"]
            played.all[0].die(1)
            await until_there_are(played, 5)
            await supervisor.end()
    tries = [(line["error"], line["restart_in_s"]) for line in said if line["event"] == "worker.not_started"]
    assert tries == [("no memory", 0.002), ("no memory", 0.004)]


async def test_nobody_is_started_again_once_it_closes(played, supervisor) -> None:
    with capture_logs() as said:
        async with asyncio.TaskGroup() as group:
            await supervisor.start(group)
            await supervisor.close()
    assert len(played.all) == 2
    assert [line["event"] for line in said] == ["workers.starting"]


async def test_a_successor_has_the_policy_that_came_while_it_started(played, supervisor, monkeypatch) -> None:
    other = Options("p").load_text(POLICY + "keep_alive: 7s\n")

    async def reload_meanwhile(self, options, loaded):
        if len(played.all) == 3:
            await supervisor.use(other)
        await serve(self, options, loaded)

    serve = Played.serve
    monkeypatch.setattr(Played, "serve", reload_meanwhile)
    async with asyncio.TaskGroup() as group:
        await supervisor.start(group)
        played.all[0].die(1)
        await until_there_are(played, 3)
        await supervisor.end()
    assert {worker.policy for worker in played.all[1:]} == {other.text}


async def test_what_a_dead_worker_counted_stays_and_what_it_served_does_not(played, supervisor) -> None:
    async with asyncio.TaskGroup() as group:
        await supervisor.start(group)
        for worker in played.all:
            worker.metrics.note("main", 200)
            worker.metrics.in_flight[()] += 1
        before = await supervisor.picture()
        played.all[0].die(1)
        await until_there_are(played, 3)
        after = await supervisor.picture()
        await supervisor.end()
    assert before.numbers.counters == after.numbers.counters
    assert after.numbers.counters["upstream_requests_total"] == {("main", "200"): 2}
    assert before.numbers.gauges["requests_in_flight"][()] == 2
    assert after.numbers.gauges["requests_in_flight"][()] == 1


async def test_of_a_backend_the_latest_news_of_any_worker_is_believed(played, supervisor) -> None:
    now_s = module.time.monotonic()
    async with asyncio.TaskGroup() as group:
        await supervisor.start(group)
        played.all[0].beliefs = {"main": Belief(is_up=True, why="answers", at_s=now_s - 1)}
        played.all[1].beliefs = {"main": Belief(is_up=False, why="Gone.", at_s=now_s)}
        played.all[0].metrics.note("main", 200)
        beliefs, picture = await supervisor.beliefs(), await supervisor.picture()
        await supervisor.end()
    assert beliefs["main"].why == "Gone."
    assert picture.numbers.gauges["backend_up"] == {("main",): 0.0}


async def test_without_a_worker_that_answers_nothing_is_known(played, supervisor) -> None:
    async with asyncio.TaskGroup() as group:
        await supervisor.start(group)
        beliefs = await supervisor.beliefs()
        await supervisor.end()
    assert (beliefs["main"].is_up, beliefs["main"].why) == (False, "no news yet")


async def test_a_worker_that_does_not_answer_is_not_counted_among_those_that_do(played, supervisor) -> None:
    async with asyncio.TaskGroup() as group:
        await supervisor.start(group)
        played.all[0].is_silent = True
        picture = await supervisor.picture()
        await supervisor.end()
    assert (len(picture.processes), picture.answering, picture.expected) == (2, 1, 2)
