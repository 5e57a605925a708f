"""How long an answer on a connection of our own is waited for: one timer serves many reads."""

import asyncio

import pytest

from proxy.pool import Answering, Pool, origin_of
from proxy.wire import Connection

LONG_S = 30.0
SHORT_S = 0.01


@pytest.fixture
async def answering():
    one = Answering(Pool(), origin_of("http://127.0.0.1:1"), Connection(asyncio.get_running_loop()))
    yield one
    one.end()


async def told_after(answering, after_s, wait_s):
    """Wait for news that come after a time."""
    asyncio.get_running_loop().call_later(after_s, answering.more_came)
    async with asyncio.timeout(LONG_S / 2):
        await answering.wait(wait_s)


@pytest.mark.parametrize("wait_s", [LONG_S, None, float("inf")], ids=["longer", "as long as it takes", "for ever"])
async def test_the_time_of_an_earlier_read_does_not_end_a_later_one(answering, wait_s):
    await told_after(answering, 0, SHORT_S)
    await told_after(answering, 5 * SHORT_S, wait_s)


@pytest.mark.parametrize("wait_s", [SHORT_S, 0], ids=["shorter", "not at all"])
@pytest.mark.parametrize("before_s", [LONG_S, None, SHORT_S / 2], ids=["long", "without end", "short"])
async def test_a_read_waits_for_its_own_time_whatever_was_waited_before(answering, before_s, wait_s):
    await told_after(answering, 0, before_s)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(LONG_S / 2) as limit:
            await answering.wait(wait_s)
    assert not limit.expired()


async def test_no_timer_is_left_when_the_answer_has_ended(answering):
    await told_after(answering, 0, LONG_S)
    left = answering._timer
    answering.end()
    assert left.cancelled()
