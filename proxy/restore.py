"""Restored answers: n branches of one plan, each read to chunks, merged into the shape that the client asked for.

    branch 0 ── read ─┐
    branch 1 ── read ─┼── sink: merge ──► SSE (as it comes)   or   one JSON answer (when all are whole)
    branch n ── read ─┘

No queue stands between a branch and the client: a branch writes under the sink's lock, so a client that reads slowly
holds the branches back, and the sockets' own windows hold back the backend.
"""

from __future__ import annotations

import asyncio

from proxy.allowance import Allowance
from proxy.begun import NOT_BEGUN, Begun, answer_of
from proxy.branches import choices_of
from proxy.engine import observed, top_up
from proxy.errors import BackendFault
from proxy.exchange import Exchange, Refused, read_http_refusal, refused_by
from proxy.plain import PlainSink
from proxy.plans import Plan, Restore
from proxy.reader import Reader
from proxy.refusals import Failure
from proxy.sinks import JsonSink, Sink, StreamSink
from proxy.upstream import Reply


async def restore(exchange: Exchange, plan: Plan, restoring: Restore, begun: Begun) -> None:
    """Run the plan's branches and answer the client; of a single branch something may have begun.

    Raises: Refused (the caller knows whether content had gone out: `Record.has_content`), ClientLeft.
    """
    try:
        async with asyncio.TaskGroup() as group:
            await _Branches(exchange, plan, restoring, begun, group).run()
    except BaseExceptionGroup as failed:
        # The first to fail had the others cancelled; what they say of that is no news.
        raise failed.exceptions[0] from None


class _Branches:
    """The branches of a plan while they run, and those that are added to them."""

    def __init__(
        self, exchange: Exchange, plan: Plan, restoring: Restore, begun: Begun, group: asyncio.TaskGroup
    ) -> None:
        self._exchange = exchange
        self._plan = plan
        self._restoring = restoring
        self._begun = begun
        self._group = group
        self._sink = _sink(exchange, plan, restoring)
        self._allowance = Allowance(exchange.policy.limits.response_bytes, exchange.share)

    async def run(self) -> None:
        """Start the sink and all branches; where there is but one, it is run here, and needs no task of its own."""
        self._sink.start(self._group, self._begun.waited_s())
        if len(self._plan.bodies) > 1:
            self._spawn(0)
            return
        try:
            await self._run(0)
        finally:
            self._sink.stop()

    def _spawn(self, first: int) -> None:
        slots = asyncio.Semaphore(self._restoring.concurrency or len(self._plan.bodies))
        for branch in range(first, len(self._plan.bodies)):
            self._group.create_task(self._run_in(slots, branch))

    async def _run_in(self, slots: asyncio.Semaphore, branch: int) -> None:
        try:
            async with slots:
                await self._run(branch)
        except BaseException:
            # One branch less is no answer, so nobody has to be told any more that it is waited for.
            self._sink.stop()
            raise

    async def _run(self, branch: int) -> None:
        if self._begun.asked is None:
            self._exchange.record.branches += 1
        index = self._restoring.spreads[branch].offset if len(self._plan.bodies) > 1 else None
        try:
            await self._ask(branch)
        except BackendFault as fault:
            raise refused_by(fault, self._plan, index=index) from fault
        except Refused as refused:
            refused.index = index
            raise

    async def _ask(self, branch: int) -> None:
        begun, self._begun = self._begun, NOT_BEGUN
        async with answer_of(self._exchange, self._plan, branch, begun) as reply:
            if not 200 <= reply.status < 300:
                raise await read_http_refusal(self._exchange, reply, self._plan.backend.timeouts.idle_s)
            self._sink.heard(reply.headers)
            await self._sink.take(branch, self._reader(reply), self._more)
            await reply.finish()

    def _reader(self, reply: Reply) -> Reader:
        restoring = self._restoring
        # A plain answer is undone where it is joined; chunks are undone as they are read.
        undos = [make() for make in restoring.undos] if restoring.kind is not None else []
        choices = choices_of(self._plan.draft, restoring.kind)
        if restoring.total is not None:
            choices = restoring.total // sum(spread.copies for spread in restoring.spreads)
        limits, timeouts = self._exchange.policy.limits, self._plan.backend.timeouts
        return Reader(reply, limits, timeouts, self._allowance, choices, undos)

    def _more(self, have: int) -> Plan | None:
        """Ask for the choices that a branch did not give, where a rule says so."""
        if not 0 < have < self._restoring.asked:
            return None
        new = top_up(self._plan, have)
        if new is None or new.restore is None:
            self._exchange.record.plan = observed(self._plan, Failure(None, fewer_choices=True))
            return None
        first = len(self._plan.bodies)
        # What was asked for is now being asked for, so no branch of these is looked after again.
        self._plan, self._restoring = new, new.restore
        self._exchange.record.plan = new
        self._spawn(first)
        return new


def _sink(exchange: Exchange, plan: Plan, restoring: Restore) -> Sink:
    if restoring.kind is None:
        return PlainSink(exchange, plan, restoring)
    if restoring.stream:
        return StreamSink(exchange, plan, restoring, restoring.kind)
    return JsonSink(exchange, plan, restoring, restoring.kind)
