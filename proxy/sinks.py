"""What becomes of the branches' answers: one event stream, merged as they come, or one JSON answer, when all are whole.

A branch writes under the sink's lock, so a client that reads slowly holds the branches back.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from proxy import sse
from proxy.chunks import IDENTITY_TYPES, encode_json, identity_of, indexed_choices, require_finished
from proxy.errors import BackendFault
from proxy.exchange import Exchange
from proxy.exploded import events_of
from proxy.headers import Headers, get, strip_hop_by_hop, strip_of_the_bytes, without
from proxy.merge import Merger
from proxy.plans import Kind, Plan, Restore
from proxy.reader import Exploded, Pieces, Reader
from proxy.splice import Spliced, Splicer
from proxy.spread import Spread, merge_answers

# Design §7: how long the other branches' statuses are waited for once one branch has proved life.
STATUSES_S = 0.25
_ALONE = (Spread(1),)

More = Callable[[int], Plan | None]
"""How many choices a branch gave → the plan whose further branches now run for those that it did not give, or None."""


class Sink(Protocol):
    """What becomes of the branches' answers."""

    def start(self, group: asyncio.TaskGroup, waited_s: float) -> None:
        """Begin what has to be done beside the branches; for so long the client has been waiting already."""

    def stop(self) -> None:
        """End what is being done beside the branches."""

    def heard(self, headers: Headers) -> None:
        """Note that a branch has a good status."""

    async def take(self, branch: int, reader: Reader, more: More) -> None:
        """Take a branch's answer, to its end."""


class StreamSink:
    """Merges the branches' chunks into one event stream, as they come."""

    def __init__(self, exchange: Exchange, plan: Plan, restoring: Restore, kind: Kind) -> None:
        self._exchange = exchange
        self._plan = plan
        self._restoring = restoring
        self._kind = kind
        self._merger = Merger(
            spreads=restoring.spreads,
            total=restoring.total if kind == "chat" else None,
            kind=kind,
            include_usage=restoring.include_usage,
            usage=restoring.usage,
            fallback_id=_made_up_id(kind),
            created=int(time.time()),
            model=restoring.model,
        )
        self._lock = asyncio.Lock()
        self._all_heard = asyncio.Event()
        self._open = asyncio.Event()
        self._is_waiting = False  # for the first proof of life
        self._timer: asyncio.TimerHandle | None = None
        self._heads: list[Headers] = []
        self._left = len(plan.bodies)
        self._is_merged = True  # else it has gone by the merger

    def start(self, group: asyncio.TaskGroup, waited_s: float) -> None:
        """Have comments written while there is no proof of life."""
        self._is_waiting = True
        self._comment_later(group, waited_s)

    def stop(self) -> None:
        """Write no more comments."""
        self._is_waiting = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _comment_later(self, group: asyncio.TaskGroup, waited_s: float = 0.0) -> None:
        every_s = self._exchange.policy.keep_alive_s
        if every_s and self._is_waiting:
            self._timer = asyncio.get_running_loop().call_later(every_s - waited_s, self._start_comment, group)

    def _start_comment(self, group: asyncio.TaskGroup) -> None:
        writing = self._comment(group)
        try:
            group.create_task(writing)
        except RuntimeError:
            # The group ends: a branch has failed, or the client has left, in this very moment.
            writing.close()

    async def _comment(self, group: asyncio.TaskGroup) -> None:
        async with self._lock:
            if self._is_waiting:
                await self._begin()
                await self._exchange.client.write(sse.comment(b"waiting"))
        self._comment_later(group)

    async def _proved(self) -> None:
        """Begin the answer at the first proof of life, which the other branches wait for."""
        if not self._is_waiting:
            await self._open.wait()
            return
        self.stop()
        if not self._all_heard.is_set():
            await self._wait_for_statuses()
        async with self._lock:
            await self._begin()
        self._open.set()

    async def _wait_for_statuses(self) -> None:
        try:
            async with asyncio.timeout(STATUSES_S):
                await self._all_heard.wait()
        except TimeoutError:
            # The branches that have not answered by now can only be told of inside the stream.
            pass

    async def _begin(self) -> None:
        if self._exchange.client.begun_status is not None:
            return
        kept = stream_head(self._heads[0] if self._heads else ())
        await self._exchange.client.begin(200, None, self._exchange.passed_on(self._plan, kept))

    def heard(self, headers: Headers) -> None:
        """Note that a branch has a good status."""
        self._heads.append(headers)
        if len(self._heads) == len(self._plan.bodies):
            self._all_heard.set()

    async def take(self, branch: int, reader: Reader, more: More) -> None:
        """Write a branch's chunks, holding back those that come before the answer may begin."""
        held: Pieces = []
        splicer = None if self._restoring.undos else Splicer(self._kind)
        usage, at_once = self._restoring.include_usage, self._at_once
        async for pieces in reader.pieces(include_usage=usage, splicer=splicer, at_once=at_once):
            held += pieces
            if reader.is_whole or not (reader.is_alive or self._open.is_set()):
                continue
            if not self._open.is_set():
                await self._proved()
            await self._write(self._merged(branch, held, splicer))
            held = []
        if not self._open.is_set():
            await self._proved()
        await self._end(branch, self._merged(branch, held, None), more)

    def _at_once(self, answer: dict[str, Any]) -> bytes | None:
        restoring = self._restoring
        return events_of(answer, self._kind, include_usage=restoring.include_usage) if is_alone(restoring) else None

    def _ask_for_more(self, branch: int, more: More) -> None:
        new = more(self._merger.count(branch))
        if new is not None and new.restore is not None:
            self._plan = new
            self._merger.add(new.restore.spreads[1:])
            self._left += len(new.bodies) - 1

    def _merged(self, branch: int, pieces: Pieces, splicer: Splicer | None) -> Iterator[bytes]:
        """Yield the events to send."""
        for piece in pieces:
            if isinstance(piece, Exploded):
                self._is_merged = False
                yield piece.events
                continue
            if isinstance(piece, Spliced):
                self._merger.retell(piece.rest)
                yield piece.data
                continue
            merged = self._merger.feed(branch, piece.chunk)
            yield from map(_event, merged)
            if splicer is not None:
                splicer.learn(piece.data, piece.chunk, merged)

    async def _write(self, events: Iterator[bytes]) -> None:
        async with self._lock:
            data = b"".join(events)
            if data:
                self._exchange.record.has_content = True
                await self._exchange.client.write(data)

    async def _end(self, branch: int, events: Iterator[bytes], more: More) -> None:
        """Write a branch's last events and what its end makes of them, and after the last branch the stream's end."""
        async with self._lock:
            last = b"".join(events)
            try:
                self._ask_for_more(branch, more)
                end = b"".join(map(_event, self._merger.end(branch))) if self._is_merged else b""
            except BackendFault:
                # What came before it goes out, as where it comes by itself.
                await self._put(last)
                raise
            self._left -= 1
            await self._put(last + end, b"" if self._left else sse.DONE)
        if not self._left:
            await self._exchange.client.end()

    async def _put(self, events: bytes, done: bytes = b"") -> None:
        if events:
            self._exchange.record.has_content = True
        if events or done:
            await self._exchange.client.write(events + done)


def is_alone(restoring: Restore) -> bool:
    """Return whether the one answer that is asked for is all that the client gets, each choice at its own index."""
    return restoring.spreads == _ALONE and restoring.total is None and not restoring.asked


def stream_head(head: Headers) -> Headers:
    """Return the head of an answer that is made a stream of, as that stream's."""
    kept = without(strip_of_the_bytes(head), "content-type", "cache-control", "x-accel-buffering")
    return [
        *kept,
        ("Content-Type", "text/event-stream; charset=utf-8"),
        ("Cache-Control", "no-cache"),
        ("X-Accel-Buffering", "no"),
    ]


def _event(chunk: dict[str, Any]) -> bytes:
    return sse.encode(encode_json(chunk))


class JsonSink:
    """Joins the branches' answers into one JSON answer."""

    def __init__(self, exchange: Exchange, plan: Plan, restoring: Restore, kind: Kind) -> None:
        self._exchange = exchange
        self._plan = plan
        self._restoring = restoring
        self._kind = kind
        self._answers: dict[int, dict[str, Any]] = {}
        self._heads: list[Headers] = []

    def start(self, group: asyncio.TaskGroup, waited_s: float) -> None:
        """Do nothing: the answer begins when it is whole."""

    def stop(self) -> None:
        """Do nothing: there is nothing beside the branches."""

    def heard(self, headers: Headers) -> None:
        """Note that a branch has a good status."""
        self._heads.append(headers)

    async def take(self, branch: int, reader: Reader, more: More) -> None:
        """Collect a branch's answer; the last one answers the client."""
        answer = await reader.answer()
        if len(self._plan.bodies) > 1:
            # What can't be joined is told at once, rather than when the others are whole too.
            require_finished([choice for _, choice in indexed_choices(answer)])
        self._answers[branch] = answer
        new = more(len(indexed_choices(answer)))
        if new is not None and new.restore is not None:
            self._plan, self._restoring = new, new.restore
        if len(self._answers) < len(self._plan.bodies):
            return
        if reader.raw is not None and self._restoring.asked and not self._restoring.undos:
            # Nothing was missing, so the answer is the backend's own to the byte.
            await self._send(reader.raw, self._head_of(reader.raw))
        else:
            answers = [self._answers[index] for index in sorted(self._answers)]
            await self._write(merge_answers(answers, self._restoring.spreads, self._restoring.usage))

    async def _write(self, answer: dict[str, Any]) -> None:
        body = json_body(answer, self._restoring, self._kind)
        await self._send(body, json_head(self._heads[0], body))

    def _head_of(self, raw: bytes) -> Headers:
        head = strip_hop_by_hop(self._heads[0])
        if get(head, "content-encoding") is None:
            return head
        # It was inflated to be read.
        return [*strip_of_the_bytes(head), ("Content-Length", str(len(raw)))]

    async def _send(self, body: bytes, head: Headers) -> None:
        client = self._exchange.client
        self._exchange.record.has_content = True
        await client.begin(200, None, self._exchange.passed_on(self._plan, head))
        await client.write(body)
        await client.end()


def json_body(answer: dict[str, Any], restoring: Restore, kind: Kind) -> bytes:
    """Return the JSON of an answer, with what it does not say of itself. Raises: BackendFault."""
    told = identity_of(answer)
    if len(told) == len(IDENTITY_TYPES):
        return encode_json(answer)
    identity = {
        "id": _made_up_id(kind),
        "object": "chat.completion" if kind == "chat" else "text_completion",
        "created": int(time.time()),
        "model": restoring.model,
    }
    return encode_json(answer | identity | told)


def json_head(head: Headers, body: bytes) -> Headers:
    """Return the head of an answer as that of its restored body."""
    return [
        *without(strip_of_the_bytes(head), "content-type"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
    ]


def _made_up_id(kind: Kind) -> str:
    return f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{os.urandom(16).hex()}"
