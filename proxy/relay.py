"""Carries out a plan, in rounds: relays the backend's bytes, or restores its answers, and re-plans what it refused.

plan ─► answered
  └──► Refused ─► replan ─► plan (three times at most) ─► the first refusal goes to the client
"""

from __future__ import annotations

import time

from proxy.begun import NOT_BEGUN, Begun, answer_of
from proxy.direct import DirectReply
from proxy.direct_client import DirectClient
from proxy.engine import Plan, observed, replan
from proxy.errors import BackendFault, ProxyError, without_frames
from proxy.exchange import Exchange, HttpRefusal, Refused, read_http_refusal, refused_by, tell_error, tell_refusal
from proxy.forward import forward
from proxy.passage import Passage
from proxy.restore import restore
from proxy.upstream import Reply

__all__ = ["MAX_RETRIES", "NOT_BEGUN", "Begun", "Relay", "carry_out", "pass_on"]

MAX_RETRIES = 3


async def carry_out(exchange: Exchange, plan: Plan, begun: Begun = NOT_BEGUN) -> None:
    """Answer the client as the plan says, of which something may have begun.

    Raises: ClientLeft. Every other failure is told to the client.
    """
    first: Refused | None = None
    while True:
        exchange.record.plan = plan
        if begun.asked is None:
            exchange.record.rounds += 1
        try:
            return await _round(exchange, plan, begun)
        except Refused as refused:
            begun = NOT_BEGUN
            if exchange.trace is not None:
                exchange.trace.end_branches()
            if exchange.record.has_content:
                return await tell_refusal(exchange, plan, refused)
            # What the backend itself said is told rather than what the proxy made of a dead connection.
            if first is None or (isinstance(first.answer, ProxyError) and isinstance(refused.answer, HttpRefusal)):
                first = without_frames(refused)
            new = _next(exchange, plan, refused)
            if new is None:
                exchange.record.plan = observed(plan, refused.failure)
                return await tell_refusal(exchange, plan, first)
            plan = new


async def _round(exchange: Exchange, plan: Plan, begun: Begun) -> None:
    if begun.asked is None:
        # The client's own bytes are counted where they are read.
        exchange.share.take(exchange.edited_bytes(plan))
    if plan.refusal is not None:
        await tell_error(exchange, plan, plan.refusal)
    elif plan.restore is not None:
        await restore(exchange, plan, plan.restore, begun)
    else:
        await _relay(exchange, plan, begun)


def _next(exchange: Exchange, plan: Plan, refused: Refused) -> Plan | None:
    if exchange.record.rounds > MAX_RETRIES:
        return None
    new = replan(plan, refused.failure, exchange.policy)
    if new is None or new.draft.rejection is not None:
        return new
    return new if new.refusal is None else None


async def _relay(exchange: Exchange, plan: Plan, begun: Begun) -> None:
    backend = plan.backend
    exchange.record.branches += 1
    try:
        if begun.failure is not None:
            raise begun.failure
        async with answer_of(exchange, plan, 0, begun) as reply:
            if reply.status >= 400 and (plan.may_react or exchange.record.rounds > 1):
                raise await read_http_refusal(exchange, reply, backend.timeouts.idle_s)
            await pass_on(exchange, plan, reply)
    except BackendFault as fault:
        raise refused_by(fault, plan) from fault


async def pass_on(exchange: Exchange, plan: Plan, reply: Reply) -> None:
    """Relay an answer to its end. Raises: Refused, BackendFault while nothing went to the client, ClientLeft."""
    client = exchange.client
    if isinstance(reply, DirectReply) and isinstance(client, DirectClient):
        await forward(exchange, plan, reply, client)
    else:
        await Relay(exchange, plan, reply).run()
        await reply.finish()


class Relay:
    """Passes one answer's bytes on as they come, its head once there is something behind it."""

    def __init__(self, exchange: Exchange, plan: Plan, reply: Reply) -> None:
        self._exchange = exchange
        self._client = exchange.client
        self._plan = plan
        self._reply = reply
        is_post = exchange.request.method == "POST"
        self._passage = Passage(exchange, plan, reply, is_post=is_post, now_s=time.monotonic())

    async def run(self) -> None:
        """Relay the answer to its end.

        Raises: Refused or BackendFault while nothing but comments has gone to the client, ClientLeft.
        """
        try:
            while data := await self._next():
                await self._put(self._passage.take(data))
            await self._put(self._passage.end())
            await self._begin()
            await self._client.end()
        except BackendFault as fault:
            # Where only the head of an event stream has gone out, another round may still follow it.
            has_begun = self._client.begun_status is not None
            if self._passage.has_content or (has_begun and not self._passage.is_stream):
                await self._cut_off(fault)
            else:
                raise

    async def _next(self) -> bytes:
        while True:
            try:
                return await self._reply.read(self._passage.wait_s(time.monotonic()))
            except TimeoutError:
                told = self._passage.late(time.monotonic())
                if told is None:
                    return b""
                await self._begin()
                if told:
                    await self._client.write(told)
            except BackendFault:
                if self._passage.is_over:
                    return b""
                raise

    async def _put(self, data: bytes) -> None:
        if data:
            await self._begin()
            self._exchange.record.has_content = True
            await self._client.write(data)

    async def _begin(self) -> None:
        if self._client.begun_status is None:
            reply = self._reply
            await self._client.begin(reply.status, reply.reason, self._exchange.passed_on(self._plan, reply.headers))

    async def _cut_off(self, fault: BackendFault) -> None:
        self._exchange.record.error = fault
        self._exchange.record.is_truncated = True
        if self._exchange.trace is not None:
            self._exchange.trace.failed(fault)
        last = self._passage.closing(fault)
        if last:
            await self._client.write(last)
        self._client.abort()
