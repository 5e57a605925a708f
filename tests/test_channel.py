"""Questions and answers between two processes, here the two ends in one."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from proxy.channel import Channel, Gone, Silent

PATIENCE_S = 5.0


class Worker:
    """The end that answers."""

    def __init__(self):
        self.may_go_on = asyncio.Event()
        self.began = asyncio.Event()
        self.handlers = {"double": self._double, "wait": self._wait}

    async def _double(self, value):
        return 2 * value

    async def _wait(self, value):
        self.began.set()
        await self.may_go_on.wait()
        return value


@asynccontextmanager
async def two_ends():
    asking, answering = [await Channel.open(end) for end in socket.socketpair()]
    worker = Worker()
    async with asyncio.TaskGroup() as group:
        group.create_task(asking.hear())
        group.create_task(answering.answer(worker.handlers))
        try:
            yield asking, answering, worker
        finally:
            worker.may_go_on.set()
            await asking.close()
            await answering.close()


@pytest.mark.parametrize("value", [1, "x", b"\0" * 1_000_000, [1, [2]]], ids=["number", "text", "large", "list"])
async def test_a_question_is_answered(value):
    async with two_ends() as (asking, _, _):
        assert await asking.ask("double", type(value), value, within_s=PATIENCE_S) == 2 * value


async def test_a_slow_answer_holds_up_no_other():
    async with two_ends() as (asking, _, worker), asyncio.TaskGroup() as group:
        slow = group.create_task(asking.ask("wait", int, 1, within_s=PATIENCE_S))
        await worker.began.wait()
        assert await asking.ask("double", int, 2, within_s=PATIENCE_S) == 4
        assert not slow.done()
        worker.may_go_on.set()
        assert await slow == 1


async def test_who_does_not_answer_in_time_is_gone_and_may_answer_the_next():
    async with two_ends() as (asking, _, worker):
        with pytest.raises(Silent):
            await asking.ask("wait", int, 1, within_s=0.01)
        worker.may_go_on.set()
        assert await asking.ask("double", int, 2, within_s=PATIENCE_S) == 4


async def test_who_ends_in_the_middle_of_a_question_is_gone_for_good():
    async with two_ends() as (asking, answering, worker), asyncio.TaskGroup() as group:
        slow = group.create_task(gone(asking, "wait"))
        await worker.began.wait()
        await answering.close()
        assert await slow
        assert await gone(asking, "double")


async def gone(asking, what):
    try:
        await asking.ask(what, int, 1, within_s=PATIENCE_S)
    except Gone as error:
        return type(error) is Gone
    return False


async def test_the_end_of_who_asks_ends_the_answers():
    ours, theirs = socket.socketpair()
    answering = await Channel.open(theirs)
    ours.close()
    async with asyncio.timeout(PATIENCE_S):
        await answering.answer({})
        assert await answering.asked() is None
    await answering.close()
