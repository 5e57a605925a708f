"""One request in the quick lane: it goes to its backend, and the answer to the client, and neither is parsed.

ask ──► took ─ known, whole ─► the client
 └────────┴─ what takes more ─► widen: it goes on in the lane
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from aiohttp import EMPTY_PAYLOAD

from proxy.deadlines import Deadlines
from proxy.direct import DirectUpstream
from proxy.direct_client import DirectClient, date_now
from proxy.engine import Plan, Request
from proxy.exchange import Record, repairs_of
from proxy.headers import HeaderList
from proxy.heads import Heads, KnownAnswer, KnownRequest, KnownStream, answer_head_of
from proxy.lane import InLane, Lane
from proxy.plans import Restore
from proxy.pool import Answering, origin_of, send_large
from proxy.restoring import MAX_BYTES
from proxy.server import LEFT, DataPort
from proxy.upstream import PART_BYTES
from proxy.whole import Whole
from proxy.wire import HOLD_S, READ_BYTES, Connection, Served


class Around(Protocol):
    """What all requests in the quick lane share."""

    port: DataPort
    upstream: DirectUpstream
    lane: Lane
    heads: Heads

    def deadlines(self, wait_s: float) -> Deadlines:
        """Return when what waits as long as this has waited too long."""


class Shortcut:
    """One request in the quick lane: sent to its backend, or about to be."""

    __slots__ = (
        "_came",
        "_client",
        "_connection",
        "_deadlines",
        "_held_bytes",
        "_known",
        "_lane",
        "_origin",
        "_plan",
        "_policy",
        "_request",
        "_request_id",
        "_said",
        "_sent_at_s",
        "_started_s",
        "_whole",
    )

    def __init__(
        self,
        lane: Around,
        client: Served,
        known: KnownRequest,
        said: HeaderList,
        request: Request,
        plan: Plan,
        started_s: float,
        request_id: str,
    ) -> None:
        """Take a request whose head is known; it is counted from now on."""
        lane.port.came()
        self._known = known
        self._said = said
        self._lane = lane
        self._client = client
        self._request = request
        self._plan = plan
        self._started_s = started_s
        self._policy = lane.port.policy
        self._request_id = request_id
        self._connection: Connection | None = None
        self._held_bytes = 0
        self._whole: Whole | None = None
        self._came = b""

    def ask(self) -> bool:
        """Return whether the request was sent on."""
        lane, plan, request = self._lane, self._plan, self._request
        port, backend, bodies = lane.port, plan.backend, plan.bodies
        if plan.refusal is not None or backend.max_concurrency or len(bodies) > 1:
            return False
        if plan.restore is not None and not self._is_to_be_streamed(plan, plan.restore):
            return False
        client = self._client
        base, is_edited, is_restored = port.address(backend), bool(bodies), plan.restore is not None
        around = self._known.goes.get((client.peer, client.scheme, backend.name, base, is_edited, is_restored))
        body = bodies[0] if bodies else request.body
        held_bytes = len(body or b"") + (len(request.body or b"") if body is not request.body else 0)
        if around is None or body is None or not port.reserve.has(held_bytes):
            return False
        self._origin = origin = origin_of(base)
        connection = lane.upstream.pool.take(origin)
        transport = connection.transport if connection is not None else None
        if connection is None or transport is None:
            return False
        port.reserve.held_bytes += held_bytes
        self._held_bytes = held_bytes
        self._connection = connection
        self._sent_at_s = time.monotonic()
        wait_s = backend.timeouts.first_content_s
        if is_restored:
            # Then the client is told that it is waited for.
            wait_s = min(wait_s, self._policy.keep_alive_s or wait_s)
        self._deadlines = lane.deadlines(wait_s)
        self._deadlines.add(self, self._sent_at_s)
        length, request_id = b"%d" % len(body), self._request_id.encode()
        one, other = (request_id, length) if is_edited else (length, request_id)
        head = b"%b%b%b%b%b" % (around.first, one, around.second, other, around.third)
        connection.show(self)
        if len(body) <= PART_BYTES:
            client.outbox.put(transport, head + body)
        else:
            transport.write(head)
            send_large(connection, body)
        if plan.asks_for_stream:
            # Its answer will have to be looked at, so what that takes is done while the backend is at work.
            asyncio.get_running_loop().call_soon(self._widen_early)
        return True

    def _is_to_be_streamed(self, plan: Plan, restoring: Restore) -> bool:
        """Return whether one JSON answer is asked for, of which a stream is to be made."""
        self._whole = Whole.of(plan) if restoring.stream else None
        return self._whole is not None

    def _widen_early(self) -> None:
        if self._connection is not None and not self._came:
            self.widen()

    def took(self, data: bytes) -> bytes | None:
        """Take what came of the answer; return what has to be parsed, or None."""
        try:
            return self._take(data)
        except Exception as bug:  # noqa: BLE001 the outermost edge: a bug costs one request, and its text may be a prompt
            self.failed(bug)
            return None

    def failed(self, bug: Exception) -> None:
        """Let the lane tell that a bug kept the request from being served."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._deadlines.remove(self)
            self._lane.upstream.pool.drop(connection)
        self._in_lane().failed(bug)

    def _take(self, data: bytes) -> bytes | None:
        is_second = bool(self._came)
        data = self._came + data if is_second else data
        head = answer_head_of(data)
        if head is None:
            return self._to_parse(data)
        key, length, date, at = head
        heads, plan = self._lane.heads, self._plan
        known = heads.answers.get(key) if self._whole is None else heads.streams.get(key)
        if known is None or len(data) > READ_BYTES or self._client.writing_paused:
            return self._to_parse(data)
        if self._whole is None and plan.may_react and plan.asks_for_stream:
            return self._to_parse(data)  # as passage.is_looked_at
        missing = at + int(length) - len(data)
        if missing == 0:
            body = data[at:] if self._whole is None else self._events(self._whole, data[at:])
            if body is None:
                return self._to_parse(data)
            self._tell(known, body, date)
        elif missing < 0 or is_second:
            return self._to_parse(data)
        else:
            # Its head: the body is a part of its own with most servers. It is not waited for here for long.
            self._came = data
            self._deadlines.remove(self)
            self._deadlines = self._lane.deadlines(HOLD_S)
            self._deadlines.add(self, time.monotonic())
        return None

    def _events(self, whole: Whole, data: bytes) -> bytes | None:
        """Return the stream that is made of an answer; None where it takes more than the quick lane has."""
        if (
            not data.startswith(b"{")
            or len(data) > self._policy.limits.response_bytes
            or not self._lane.port.reserve.has(len(data))
        ):
            return None
        events = whole.events(data)
        return events if events is not None and len(events) <= MAX_BYTES else None

    def _to_parse(self, data: bytes) -> bytes:
        self._came = b""
        self.widen()
        return data

    def _tell(self, known: KnownAnswer | KnownStream, body: bytes, date: bytes) -> None:
        lane, plan, transport = self._lane, self._plan, self._client.transport
        port, request, size = lane.port, self._request, len(body)
        self._deadlines.remove(self)
        lane.upstream.note(plan.backend.name, known.status)
        record = Record(plan, 1, 1, None, size > 0)
        begun_at_s = time.perf_counter()
        if transport is None or transport.is_closing():
            record.has_left = True
        else:
            repaired = repairs_of(plan.applied) if plan.applied else None
            self._client.outbox.put(
                transport, known.told(self._request_id.encode(), repaired, body, date or date_now().encode())
            )
            port.learn_from(record, known.status)
        connection, self._connection = self._connection, None
        if connection is not None:
            lane.upstream.pool.give_back(self._origin, connection)
        port.reserve.held_bytes -= self._held_bytes
        status = LEFT if record.has_left else known.status
        port.went(request, self._request_id, record, status, size, self._started_s, begun_at_s)
        self._client.finish(is_closing=record.has_left)

    def is_lost(self) -> None:
        """Let the lane find out what is to be done: the connection to the backend is gone."""
        self.widen()

    def is_late(self) -> None:
        """Let the lane tell that there is no answer in time; one that has begun has a time of its own."""
        has_begun, is_restored, one = bool(self._came), self._whole is not None, self.widen()
        if not (has_begun or is_restored):
            one.is_late()

    def client_left(self) -> None:
        """Stop: the client has closed its connection."""
        self.widen().client_left()

    def widen(self) -> InLane:
        """Go on in the lane, with an answer that is parsed as it comes."""
        connection, came = self._connection, self._came
        one = self._in_lane()
        self._connection = None
        if connection is not None:
            self._deadlines.remove(self)
            answering = Answering(self._lane.upstream.pool, self._origin, connection)
            connection.parse_for(answering)
            if self._whole is None:
                one.asked(answering, self._sent_at_s)
            else:
                one.asked_to_restore(answering, self._sent_at_s, self._whole)
            if came:
                connection.data_received(came)
        return one

    def widen_unsent(self) -> InLane:
        """Go on in the lane, with a request that is still to be sent."""
        one = self._in_lane()
        one.go_on()
        return one

    def _in_lane(self) -> InLane:
        """Return the request as the lane has it. Its body was taken, so there is nothing to be read of it."""
        port, client, request, message = self._lane.port, self._client, self._request, self._known.message
        told = DirectClient(client, message, port.metrics.streams_open)
        begun = self._started_s, self._request_id, self._said
        work = port.work_of(message, told, client.peer, client.scheme, begun)
        exchange, work.plan, size = work.exchange, self._plan, len(request.body or b"")
        exchange.policy, exchange.request, exchange.body = self._policy, request, request.body
        port.reserve.held_bytes -= self._held_bytes
        exchange.share.take(self._held_bytes or size)
        one = InLane(self._lane.lane, client, message, EMPTY_PAYLOAD, work)
        client.retake(one)
        return one
