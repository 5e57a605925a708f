"""Restored answers: n branches of one plan, each read to chunks, merged into the shape that the client asked for.

    branch 0 ── read ─┐
    branch 1 ── read ─┼── sink: merge ──► SSE (as it comes)   or   one JSON answer (when all are whole)
    branch n ── read ─┘

No queue stands between a branch and the client: a branch writes under the sink's lock, so a client that reads slowly
holds the branches back, and the sockets' own windows hold back the backend.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from typing import Any, Protocol

from proxy import sse
from proxy.chunks import encode_json
from proxy.engine import Plan, Restore
from proxy.errors import BackendFault
from proxy.exchange import Exchange, Refused, read_http_refusal
from proxy.headers import Headers, strip_of_the_bytes, without
from proxy.merge import Merger
from proxy.reader import Reader
from proxy.refusals import Failure
from proxy.spread import merge_answers

# Design §7: how long the other branches' statuses are waited for once one branch has proved life.
STATUSES_S = 0.25


class Sink(Protocol):
    """What becomes of the branches' answers."""

    async def run(self) -> None:
        """Do what has to be done beside the branches."""

    def heard(self, headers: Headers) -> None:
        """Note that a branch has a good status."""

    async def take(self, branch: int, reader: Reader) -> None:
        """Take a branch's answer, to its end."""


async def restore(exchange: Exchange, plan: Plan, restoring: Restore) -> None:
    """Run the plan's branches and answer the client.

    Raises: Refused (the caller knows whether content had gone out: `Record.has_content`), ClientLeft.
    """
    sink: Sink = StreamSink(exchange, plan, restoring) if restoring.stream else JsonSink(exchange, plan, restoring)
    slots = asyncio.Semaphore(restoring.concurrency or len(plan.bodies))
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(sink.run())
            for branch in range(len(plan.bodies)):
                group.create_task(_run_branch(exchange, plan, branch, sink, slots))
    except BaseExceptionGroup as failed:
        # The first to fail had the others cancelled; what they say of that is no news.
        raise failed.exceptions[0] from None


async def _run_branch(exchange: Exchange, plan: Plan, branch: int, sink: Sink, slots: asyncio.Semaphore) -> None:
    async with slots:
        exchange.record.branches += 1
        index = branch if len(plan.bodies) > 1 else None
        try:
            await _ask(exchange, plan, branch, sink)
        except BackendFault as fault:
            how = "empty" if fault.token == "http_response_incomplete" else None
            raise Refused(Failure(None, fault.message, stream=how), fault, index=index) from fault
        except Refused as refused:
            refused.index = index
            raise


async def _ask(exchange: Exchange, plan: Plan, branch: int, sink: Sink) -> None:
    backend = plan.backend
    async with exchange.upstream.send(backend, exchange.address(backend), exchange.call(plan, branch)) as reply:
        if not 200 <= reply.status < 300:
            raise await read_http_refusal(reply, exchange.policy.limits.response_bytes, backend.timeouts.idle_s)
        sink.heard(reply.headers)
        await sink.take(
            branch, Reader(reply, exchange.policy.limits, backend.timeouts, _choices_of_a_branch(plan.restore))
        )
        await reply.finish()


def _choices_of_a_branch(restoring: Restore | None) -> int | None:
    if restoring is None or restoring.total is None:
        return None
    return restoring.total // sum(spread.copies for spread in restoring.spreads)


class StreamSink:
    """Merges the branches' chunks into one event stream, as they come."""

    def __init__(self, exchange: Exchange, plan: Plan, restoring: Restore) -> None:
        self._exchange = exchange
        self._plan = plan
        self._restoring = restoring
        self._merger = Merger(
            spreads=restoring.spreads,
            total=restoring.total if restoring.kind == "chat" else None,
            kind=restoring.kind,
            include_usage=restoring.include_usage,
            usage=restoring.usage,
            fallback_id=_made_up_id(restoring.kind),
            created=int(time.time()),
            model=restoring.model,
        )
        self._lock = asyncio.Lock()
        self._alive = asyncio.Event()
        self._all_heard = asyncio.Event()
        self._open = asyncio.Event()
        self._heads: list[Headers] = []
        self._left = len(plan.bodies)

    async def run(self) -> None:
        """Begin the answer at the first proof of life; write comments while there is none."""
        await self._wait_for_life()
        try:
            async with asyncio.timeout(STATUSES_S):
                await self._all_heard.wait()
        except TimeoutError:
            # The branches that have not answered by now can only be told of inside the stream.
            pass
        await self._begin()
        self._open.set()

    async def _wait_for_life(self) -> None:
        every_s = self._exchange.policy.keep_alive_s or None
        while not self._alive.is_set():
            try:
                async with asyncio.timeout(every_s):
                    await self._alive.wait()
            except TimeoutError:
                await self._begin()
                await self._exchange.client.write(sse.comment(b"waiting"))

    async def _begin(self) -> None:
        if self._exchange.client.begun_status is not None:
            return
        head = self._heads[0] if self._heads else ()
        kept = without(strip_of_the_bytes(head), "content-type", "cache-control", "x-accel-buffering")
        kept += [
            ("Content-Type", "text/event-stream; charset=utf-8"),
            ("Cache-Control", "no-cache"),
            ("X-Accel-Buffering", "no"),
        ]
        await self._exchange.client.begin(200, None, self._exchange.passed_on(self._plan, kept))

    def heard(self, headers: Headers) -> None:
        """Note that a branch has a good status."""
        self._heads.append(headers)
        if len(self._heads) == len(self._plan.bodies):
            self._all_heard.set()

    async def take(self, branch: int, reader: Reader) -> None:
        """Write a branch's chunks, holding back those that come before the answer may begin."""
        held: list[dict[str, Any]] = []
        async for chunks in reader.chunks(include_usage=self._restoring.include_usage):
            held += chunks
            if not reader.is_alive and not self._open.is_set():
                continue
            self._alive.set()
            await self._open.wait()
            await self._write(self._merged(branch, held))
            held = []
        await self._open.wait()
        await self._end(branch)

    def _merged(self, branch: int, chunks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for chunk in chunks:
            yield from self._merger.feed(branch, chunk)

    async def _write(self, chunks: Iterator[dict[str, Any]]) -> None:
        async with self._lock:
            data = b"".join(sse.encode(encode_json(chunk)) for chunk in chunks)
            if data:
                self._exchange.record.has_content = True
                await self._exchange.client.write(data)

    async def _end(self, branch: int) -> None:
        await self._write(iter(self._merger.end(branch)))
        self._left -= 1
        if not self._left:
            await self._exchange.client.write(sse.DONE)
            await self._exchange.client.end()


class JsonSink:
    """Joins the branches' answers into one JSON answer."""

    def __init__(self, exchange: Exchange, plan: Plan, restoring: Restore) -> None:
        self._exchange = exchange
        self._plan = plan
        self._restoring = restoring
        self._answers: list[dict[str, Any] | None] = [None] * len(plan.bodies)
        self._heads: list[Headers] = []

    async def run(self) -> None:
        """Do nothing: the answer begins when it is whole."""

    def heard(self, headers: Headers) -> None:
        """Note that a branch has a good status."""
        self._heads.append(headers)

    async def take(self, branch: int, reader: Reader) -> None:
        """Collect a branch's answer; the last one answers the client."""
        self._answers[branch] = await reader.answer()
        answers = [answer for answer in self._answers if answer is not None]
        if len(answers) == len(self._answers):
            await self._write(merge_answers(answers, self._restoring.spreads, self._restoring.usage))

    async def _write(self, answer: dict[str, Any]) -> None:
        restoring = self._restoring
        identity = {"id": _made_up_id(restoring.kind), "created": int(time.time()), "model": restoring.model}
        body = encode_json(answer | {key: value for key, value in identity.items() if not answer.get(key)})
        kept = [
            *without(strip_of_the_bytes(self._heads[0]), "content-type"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
        ]
        client = self._exchange.client
        self._exchange.record.has_content = True
        await client.begin(200, None, self._exchange.passed_on(self._plan, kept))
        await client.write(body)
        await client.end()


def _made_up_id(kind: str) -> str:
    return f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{uuid.uuid4().hex}"
