"""What has become of a plan's first round where no task waited for it, and how a task goes on with that.

lane ── asked, and maybe answered ──► Begun ── answer_of ──► Reply, as if the task itself had asked
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace

import aiohttp
from aiohttp.http import HttpProcessingError

from proxy.direct import DirectReply
from proxy.engine import Plan
from proxy.errors import BackendFault
from proxy.exchange import Exchange, Refused
from proxy.pool import Answering, is_stale
from proxy.upstream import Call, Reply, before_head

_NEVER_S = float("inf")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was sent, and counted, at `began_s`: its answer, or the connection for it, is still to come.

    `is_old`: it went out on an idle connection, which may have been closed. `is_noted`: that an answer has come was
    told. `data` was taken of its body. What comes next may be waited for until `until_s`.
    """

    asking: Answering | asyncio.Task[Answering]
    began_s: float
    is_old: bool
    is_noted: bool
    data: bytes
    until_s: float


@dataclass(frozen=True, slots=True)
class Begun:
    """What has become of the first round already: its answer's head is there, or it has failed, or it was in vain.

    `takes_fresh`: it has to be sent on a new connection: there was no idle one, or that had been closed. `asked`: it is
    still being answered.
    """

    reply: Reply | None = None
    failure: Refused | BackendFault | None = None
    takes_fresh: bool = False
    asked: Asked | None = None

    def waited_s(self) -> float:
        """Return for how long the client has been waiting since the request was sent."""
        return time.monotonic() - self.asked.began_s if self.asked is not None else 0.0

    def drop(self) -> None:
        """Cut off what nobody will go on with."""
        if self.reply is not None:
            self.reply.close()
        if self.asked is not None:
            cut_off(self.asked.asking)


NOT_BEGUN = Begun()


def answer_of(exchange: Exchange, plan: Plan, branch: int, begun: Begun) -> AbstractAsyncContextManager[Reply]:
    """Give the answer to a branch, of which something may have begun; it is cut off where it was not read to its end.

    Raises: BackendFault.
    """
    if begun.reply is not None:
        return _closing(begun.reply)
    call = exchange.call(plan, branch)
    if begun.asked is not None:
        return _waiting(exchange, plan, call, begun.asked)
    call = replace(call, is_fresh=True) if begun.takes_fresh else call
    return exchange.upstream.send(plan.backend, exchange.address(plan.backend), call)


@asynccontextmanager
async def _closing(reply: Reply) -> AsyncIterator[Reply]:
    """Give an answer, and cut off what was not read of it."""
    try:
        yield reply
    finally:
        reply.close()


@asynccontextmanager
async def _waiting(exchange: Exchange, plan: Plan, call: Call, asked: Asked) -> AsyncIterator[Reply]:
    """Give the answer that is still to come, or one on a fresh connection where the idle one had been closed."""
    backend, upstream = plan.backend, exchange.upstream
    try:
        try:
            rest = await _headed(asked, backend.timeouts.first_content_s)
        except BackendFault as fault:
            upstream.note(backend.name, fault)
            raise
        if rest is not None:
            if not asked.is_noted:
                upstream.note(backend.name, rest.status)
            yield rest
            return
    finally:
        cut_off(asked.asking)
    async with upstream.send(backend, exchange.address(backend), replace(call, is_fresh=True)) as reply:
        yield reply


async def _headed(asked: Asked, first_content_s: float) -> _Rest | None:
    """Return the answer once its head is there; None where its connection had been closed. Raises: BackendFault."""
    answering, until_s = asked.asking, asked.until_s
    if not isinstance(answering, Answering):
        answering = await answering
        answering.sent_at_s, until_s = asked.began_s, time.monotonic() + first_content_s
    try:
        await answering.head(max(0.0, until_s - time.monotonic()))
    except (aiohttp.ClientError, OSError, HttpProcessingError) as error:
        if asked.is_old and is_stale(error):
            return None
        raise before_head(error) from error
    return _Rest(answering, asked)


def cut_off(asking: Answering | asyncio.Task[Answering]) -> None:
    """Give up a request, unless its answer was read to its end."""
    if isinstance(asking, Answering):
        asking.end()
    elif not asking.cancel() and not asking.cancelled() and asking.exception() is None:
        asking.result().end()


class _Rest(DirectReply):
    """An answer of which something was taken, and waited for, before."""

    def __init__(self, answering: Answering, asked: Asked) -> None:
        super().__init__(answering, answering.sent_at_s)
        self._data = asked.data
        # Where there is a head, it is the body that was waited for.
        self._until_s = asked.until_s if asked.is_noted else _NEVER_S

    async def read(self, wait_s: float | None) -> bytes:
        if self._data:
            data, self._data = self._data, b""
            return data
        if self._until_s < _NEVER_S:
            left_s = max(0.0, self._until_s - time.monotonic())
            wait_s = left_s if wait_s is None else min(wait_s, left_s)
        data = await super().read(wait_s)
        self._until_s = _NEVER_S
        return data
