"""The file of what was learned: what processes make of it that write it in turn, and an operator by hand."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from proxy.engine import Plan, Request, plan, replan
from proxy.errors import PolicyFault
from proxy.files import locked
from proxy.learn import MAX_RULES, Lessons
from proxy.lessons import as_text, read_lessons
from proxy.policy import load_policy
from proxy.refusals import Failure
from proxy.shared_lessons import Keeper, SharedLessons

CHAT = "/v1/chat/completions"
TEXT = r"""
version: 1
backends: {main: {url: "standin://sglang"}}
rules:
  - id: unexpected
    on_error: {status: [400, 422], message: "(?P<field>top_k|min_p)"}
    repair: [drop: ["{field}"]]
    learn: {for: 1h}
"""
POLICY = load_policy("policy.yaml", environ={}, text=TEXT)
PATIENCE_S = 10.0
FIELDS = ("top_k", "min_p")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


class Process:
    """A process's lessons and its view of the file, of which a test takes the steps."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.clock = clock
        self.lessons = Lessons(clock)
        self.file = SharedLessons(path, clock)

    def ask(self, field: str) -> Plan:
        body = json.dumps({"model": "m", field: 1}).encode()
        return plan(Request("POST", CHAT, "", [], body), POLICY, learned=self.lessons.rules)

    def learn(self, field: str) -> None:
        new = replan(
            plan(Request("POST", CHAT, "", [], b'{"model":"m","%s":1}' % field.encode()), POLICY), no(field), POLICY
        )
        assert new is not None
        self.lessons.answered(new)

    def hit(self, field: str) -> None:
        made = self.ask(field)
        if not made.skipped:
            self.lessons.answered(made)

    def forget(self, field: str) -> None:
        """Let the backend go and come back, and take the field: the lesson is tried without, and not needed."""
        self.lessons.note("main", is_up=False)
        self.lessons.note("main", is_up=True)
        self.lessons.answered(self.ask(field))

    def sync(self) -> None:
        changes = self.lessons.take()
        kept = self.file.sync(changes)
        if kept is None:
            self.lessons.give_back(changes)
        else:
            self.lessons.adopt(kept)

    @property
    def knows(self) -> set[str]:
        return {field for field in FIELDS if self.ask(field).applied or self.ask(field).skipped}

    @property
    def text(self) -> str:
        return as_text(self.lessons.all())


def no(field: str) -> Failure:
    return Failure(422, f"Unexpected field {field}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "learned.yaml"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def two(path: Path, clock: Clock) -> tuple[Process, Process]:
    return Process(path, clock), Process(path, clock)


def test_it_outlives_the_process(path: Path, clock: Clock) -> None:
    before = Process(path, clock)
    before.learn("top_k")
    before.sync()
    after = Process(path, clock)
    after.sync()
    assert after.knows == {"top_k"}
    assert after.text == before.text == path.read_text()
    assert {file.name for file in path.parent.iterdir()} == {"learned.yaml", ".learned.yaml.lock"}


def test_nothing_new_is_not_written(path: Path, clock: Clock) -> None:
    Process(path, clock).sync()
    assert list(path.parent.iterdir()) == []


def test_what_one_learns_the_other_knows_and_neither_writes_over_the_other(two: tuple[Process, Process]) -> None:
    one, other = two
    one.learn("top_k")
    other.learn("min_p")
    one.sync()
    other.sync()
    one.sync()
    assert one.knows == other.knows == {"top_k", "min_p"}


def test_hits_are_added_up(two: tuple[Process, Process], path: Path) -> None:
    one, other = two
    one.learn("top_k")
    one.sync()
    other.sync()
    for process, count in ((one, 3), (other, 4)):
        for _ in range(count):
            process.hit("top_k")
        process.sync()
    one.sync()
    assert one.text == other.text
    assert [lesson.hits for lesson in read_lessons(path)] == [7]


def test_what_one_forgets_the_other_forgets(two: tuple[Process, Process], path: Path) -> None:
    one, other = two
    one.learn("top_k")
    one.sync()
    other.sync()
    one.forget("top_k")
    one.sync()
    other.hit("top_k")
    other.sync()
    assert one.knows == other.knows == set()
    assert read_lessons(path) == []


def test_what_was_needed_after_it_was_forgotten_stays(two: tuple[Process, Process], clock: Clock) -> None:
    one, other = two
    one.learn("top_k")
    one.sync()
    other.sync()
    one.forget("top_k")
    clock.now_s += 0.002
    other.learn("top_k")
    other.sync()
    one.sync()
    other.sync()
    assert one.knows == other.knows == {"top_k"}


def test_what_one_needed_last_counts_for_how_long_it_holds(two: tuple[Process, Process], clock: Clock) -> None:
    one, other = two
    one.learn("top_k")
    one.sync()
    other.sync()
    clock.now_s += 3000
    other.learn("top_k")
    other.sync()
    clock.now_s += 3000  # over for the one, who has not heard yet
    assert one.lessons.all() == []
    one.sync()
    assert one.knows == {"top_k"}


def test_what_is_over_leaves_the_file(two: tuple[Process, Process], path: Path, clock: Clock) -> None:
    one, other = two
    one.learn("top_k")
    one.sync()
    clock.now_s += 3601
    assert one.knows == set()
    one.sync()
    other.sync()
    assert read_lessons(path) == other.lessons.all() == []


def test_there_is_an_end_to_what_is_remembered_together(two: tuple[Process, Process], clock: Clock) -> None:
    one, other = two
    for number in range(MAX_RULES + 10):
        clock.now_s += 1
        process = two[number % 2]
        body = b'{"model":"m%d","top_k":1}' % number
        new = replan(plan(Request("POST", CHAT, "", [], body), POLICY), no("top_k"), POLICY)
        assert new is not None
        process.lessons.answered(new)
    for process in (one, other, one):
        process.sync()
    assert len(one.lessons) == MAX_RULES
    assert one.text == other.text
    assert "model: m9\n" not in one.text


def test_what_an_operator_removes_is_gone_and_what_he_approves_stays_so(
    two: tuple[Process, Process], path: Path
) -> None:
    one, other = two
    one.learn("top_k")
    one.learn("min_p")
    one.sync()
    other.sync()
    kept = [lesson for lesson in read_lessons(path) if "min_p" in str(lesson.raw)]
    written = path.with_suffix(".new")
    written.write_text(as_text(kept).replace("  when:", "  mode: observe\n  when:"))
    written.rename(path)
    other.learn("min_p")
    for process in (other, other, one):  # what was written by hand has to stay as it is for a look
        process.sync()
    assert one.text == other.text
    assert "top_k" not in one.text
    assert one.ask("min_p").observed
    assert not one.ask("min_p").applied
    path.unlink()
    one.sync()
    other.sync()
    assert one.knows == other.knows == set()


def test_a_file_that_is_being_written_is_waited_for(two: tuple[Process, Process], path: Path) -> None:
    one, other = two
    one.learn("top_k")
    one.learn("min_p")
    one.sync()
    other.sync()
    whole = path.read_text()
    other.learn("top_k")
    path.write_text(whole[: whole.index("- id", whole.index("- id") + 1)])  # the first rule so far
    other.sync()
    assert other.knows == {"top_k", "min_p"}
    path.write_text(whole)
    for process in (other, other, one, one):
        process.sync()
    assert one.knows == other.knows == {"top_k", "min_p"}


def test_a_faulty_file_is_told_once_and_not_written_over_until_it_is_good(
    two: tuple[Process, Process], path: Path
) -> None:
    one, other = two
    one.learn("top_k")
    one.sync()
    good = path.read_text()
    path.unlink()
    path.write_text("- {id: x, repair: [dorp: [a]]}\n")
    one.learn("min_p")
    changes = one.lessons.take()
    assert one.file.sync(changes) is None
    with pytest.raises(PolicyFault) as caught:
        one.file.sync(changes)
    assert str(caught.value.faults[0]).startswith(f'{path}:1:20: unknown repair "dorp"')
    assert one.file.sync(changes) is None
    one.lessons.give_back(changes)
    assert one.knows == {"top_k", "min_p"}
    assert "dorp" in path.read_text()
    path.unlink()
    path.write_text(good)
    for process in (one, one, other):
        process.sync()
    assert one.knows == other.knows == {"top_k", "min_p"}


def test_processes_that_write_at_the_same_time_lose_nothing(path: Path, clock: Clock) -> None:
    processes = [Process(path, clock) for _ in range(4)]

    def work(number: int) -> None:
        for model in range(5):
            body = b'{"model":"m%d-%d","top_k":1}' % (number, model)
            new = replan(plan(Request("POST", CHAT, "", [], body), POLICY), no("top_k"), POLICY)
            assert new is not None
            processes[number].lessons.answered(new)
            processes[number].sync()

    with ThreadPoolExecutor() as pool:
        list(pool.map(work, range(4)))
    for process in processes:
        process.sync()
    assert len(read_lessons(path)) == 20
    assert {process.text for process in processes} == {path.read_text()}


def test_a_lock_that_is_held_for_too_long_is_given_up(path: Path) -> None:
    with locked(path), pytest.raises(TimeoutError, match="another process has held its lock"), locked(path, 0.02):
        raise AssertionError("two hold it")


# Any order of steps

STEPS = st.tuples(
    st.sampled_from((0, 1)),
    st.sampled_from(("learn", "hit", "forget", "sync")),
    st.sampled_from(FIELDS),
)


class Told:
    """What may be known in the end: a field that was learned since it was forgotten, as far as that was known."""

    def __init__(self) -> None:
        self.step = 0
        self.learned = {(who, field): -1 for who in (0, 1) for field in FIELDS}
        self.forgotten = dict.fromkeys(FIELDS, -1)
        self.synced = [-1, -1]

    def note(self, who: int, what: str, field: str) -> None:
        self.step += 1
        if what == "learn":
            self.learned[who, field] = self.step
        elif what == "forget":
            self.forgotten[field] = self.step
            self.learned[who, field] = -1
            if self.learned[1 - who, field] <= self.synced[1 - who]:
                self.learned[1 - who, field] = -1
        elif what == "sync":
            self.synced[who] = self.step

    def may_be_known(self) -> set[str]:
        return {field for field in FIELDS if max(self.learned[0, field], self.learned[1, field]) > 0}


@settings(max_examples=60)
@given(st.lists(STEPS, max_size=14))
def test_two_processes_end_with_the_same_whatever_the_order(steps: list[tuple[int, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        two = tuple(Process(Path(folder, "learned.yaml"), clock) for _ in range(2))
        told = Told()
        for who, what, field in steps:
            clock.now_s += 0.01
            if what == "sync":
                two[who].sync()
            elif what == "learn" or field in two[who].knows:
                getattr(two[who], what)(field)
            else:
                continue
            told.note(who, what, field)
        for _ in range(2):
            for process in two:
                process.sync()
        assert two[0].text == two[1].text
        assert two[0].knows <= told.may_be_known()


@settings(max_examples=40)
@given(st.lists(STEPS.filter(lambda step: step[1] in ("learn", "hit")), min_size=1, max_size=14))
def test_no_hit_and_no_lesson_is_lost_while_nothing_is_forgotten(steps: list[tuple[int, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        two = tuple(Process(Path(folder, "learned.yaml"), clock) for _ in range(2))
        hits = 0
        for who, what, field in steps:
            clock.now_s += 0.01
            hits += field in two[who].knows
            if what == "learn" or field in two[who].knows:
                getattr(two[who], what)(field)
            two[who].sync()
        for process in two:
            process.sync()
        assert two[0].text == two[1].text
        assert two[0].knows == {field for _, what, field in steps if what == "learn"}
        assert sum(lesson.hits for lesson in two[0].lessons.all()) == hits


# The loop that keeps them in step


class Kept:
    """A process with a keeper at work, and what it says."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.process = Process(path, clock)
        self.keeper = Keeper(self.process.lessons, self.process.file, self._adopted)
        self._news = asyncio.Event()

    def _adopted(self, _count: int) -> None:
        self._news.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def kept(path: Path, clock: Clock) -> AsyncIterator[Kept]:
    one = Kept(path, clock)
    one.keeper.load()
    async with asyncio.TaskGroup() as group:
        group.create_task(one.keeper.run(0.01))
        yield one
        one.keeper.end()


async def test_what_one_learns_the_other_knows_soon(path: Path, clock: Clock) -> None:
    async with kept(path, clock) as one, kept(path, clock) as other:
        one.process.learn("top_k")
        await other.until(lambda: other.process.knows == {"top_k"})
        other.process.forget("top_k")
        await one.until(lambda: one.process.knows == set())


async def test_what_is_learned_last_is_written_at_the_end(path: Path, clock: Clock) -> None:
    async with kept(path, clock) as one:
        one.process.learn("top_k")
        one.process.hit("top_k")
    assert [lesson.hits for lesson in read_lessons(path)] == [1]


async def test_hits_alone_wait_for_a_while(path: Path, clock: Clock) -> None:
    one = Kept(path, clock)
    one.process.learn("top_k")
    await one.keeper.look()
    written = path.read_text()
    one.process.hit("top_k")
    await one.keeper.look()
    assert path.read_text() == written
    await one.keeper.look(is_last=True)
    assert path.read_text() == written.replace("0 hits", "1 hits")


async def test_a_failure_is_told_once(path: Path, clock: Clock) -> None:
    one = Kept(path / "missing" / "learned.yaml", clock)
    one.process.learn("top_k")
    with capture_logs() as said:
        await one.keeper.look()
        await one.keeper.look()
    assert [line["event"] for line in said] == ["learned.not_kept"]
    assert one.process.knows == {"top_k"}


async def test_every_fault_of_the_file_is_told_once(path: Path, clock: Clock) -> None:
    path.write_text("- {id: x, repair: [dorp: [a]]}\n- {id: y, repair: [dorp: [a]]}\n")
    one = Kept(path, clock)
    one.process.learn("top_k")
    with capture_logs() as said:
        await one.keeper.look()
        await one.keeper.look()
    assert [line["fault"].partition(" unknown")[0] for line in said] == [f"{path}:1:20:", f"{path}:2:20:"]


# Two real processes


REFUSED = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "temperature": -1}
LEARNING = r"""
version: 1
backends: {main: {url: "standin://sglang"}}
rules:
  - id: refused
    on_error: {status: 400, message: "(?P<field>temperature)"}
    repair: [drop: ["{field}"]]
    learn: {for: 1h}
"""


def test_what_one_process_was_refused_another_repairs_beforehand(serving, tmp_path) -> None:
    policy, file = tmp_path / "policy.yaml", tmp_path / "learned.yaml"
    policy.write_text(LEARNING)
    with serving(policy, "--learned", str(file)) as one, serving(policy, "--learned", str(file)) as other:
        assert one.post(REFUSED)[1]["mendproxy-repairs"].startswith("refused;")
        assert other.until("learned.adopted")["lessons"] == 1
        status, headers, _ = other.post(REFUSED)
        assert status == 200
        assert headers["mendproxy-repairs"].startswith("learned/refused-")
        assert (one.until("request")["rounds"], other.until("request")["rounds"]) == (2, 1)


def test_what_a_process_learned_is_in_the_file_when_it_has_ended(serving, tmp_path) -> None:
    policy, file = tmp_path / "policy.yaml", tmp_path / "learned.yaml"
    policy.write_text(LEARNING)
    with serving(policy, "--learned", str(file), "--drain-grace", "0s") as proxy:
        proxy.post(REFUSED)
        proxy.send_signal("SIGTERM")
        assert proxy.exit_code() == 0
    assert [lesson.source for lesson in read_lessons(file)] == ["refused"]
