"""One request in the quick lane: it goes to its backend, and the answer to the client, and neither is parsed.

ask ──► took ─ known, whole ─► the client
 └────────┴─ what takes more ─► widen: it goes on in the lane
"""

from __future__ import annotations

import asyncio
import time

from proxy.body import Pieces
from proxy.direct_client import date_now
from proxy.engine import Plan
from proxy.exchange import Record, repairs_of
from proxy.flow import Flow
from proxy.going import Going
from proxy.heads import KnownAnswer, KnownStream, answer_head_of, stream_head_of
from proxy.lane import InLane
from proxy.plans import Restore
from proxy.pool import Answering, origin_of, send_large
from proxy.restoring import MAX_BYTES
from proxy.upstream import PART_BYTES
from proxy.whole import Whole
from proxy.wire import HOLD_S, READ_BYTES


class Shortcut(Going):
    """One request in the quick lane: sent to its backend, or about to be."""

    __slots__ = ("_came", "_deadlines", "_whole")

    def ask(self) -> bool:
        """Return whether the request was sent on."""
        self._whole: Whole | None = None
        self._came = b""
        lane, plan, request = self.lane, self.plan, self.request
        port, backend, bodies = lane.port, plan.backend, plan.bodies
        if plan.refusal is not None or backend.max_concurrency or len(bodies) > 1:
            return False
        if plan.restore is not None and not self._is_to_be_streamed(plan, plan.restore):
            return False
        client = self.client
        base, is_edited, is_restored = port.address(backend), bool(bodies), plan.restore is not None
        around = self.known.goes.get((client.peer, client.scheme, backend.name, base, is_edited, is_restored))
        body = bodies[0] if bodies else request.body
        held_bytes = len(body or b"") + (len(request.body or b"") if body is not request.body else 0)
        if around is None or body is None or not port.reserve.has(held_bytes):
            return False
        self.origin = origin = origin_of(base)
        connection = lane.upstream.pool.take(origin)
        transport = connection.transport if connection is not None else None
        if connection is None or transport is None:
            return False
        self.connection = connection
        wait_s, asks_for_stream = backend.timeouts.first_content_s, plan.asks_for_stream
        if is_restored or asks_for_stream:
            # Then the client is told that it is waited for.
            wait_s = min(wait_s, self.policy.keep_alive_s or wait_s)
        self._deadlines = lane.deadlines(wait_s)
        length, request_id = b"%d" % len(body), self.request_id.encode()
        one, other = (request_id, length) if is_edited else (length, request_id)
        head = b"%b%b%b%b%b" % (around.first, one, around.second, other, around.third)
        connection.show(self)
        if len(body) > PART_BYTES:
            transport.write(head)
            send_large(connection, *(body.pieces if isinstance(body, Pieces) else (body,)))
        else:
            client.outbox.put(transport, b"".join((head, *body.pieces)) if isinstance(body, Pieces) else head + body)
        # Now that the backend is at work.
        self.sent_at_s = time.monotonic()
        self._deadlines.add(self, self.sent_at_s)
        port.reserve.held_bytes += held_bytes
        self.held_bytes = held_bytes
        if asks_for_stream and not lane.heads.flows:
            # Its answer will have to be looked at, so what that takes is done while the backend is at work.
            asyncio.get_running_loop().call_soon(self._widen_early)
        return True

    def _is_to_be_streamed(self, plan: Plan, restoring: Restore) -> bool:
        """Return whether one JSON answer is asked for, of which a stream is to be made."""
        self._whole = Whole.of(plan) if restoring.stream else None
        return self._whole is not None

    def _widen_early(self) -> None:
        if self.connection is not None and not self._came:
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
        connection, self.connection = self.connection, None
        if connection is not None:
            self._deadlines.remove(self)
            self.lane.upstream.pool.drop(connection)
        self.in_lane().failed(bug)

    def _take(self, data: bytes) -> bytes | None:
        is_second = bool(self._came)
        data = self._came + data if is_second else data
        head = answer_head_of(data)
        if head is None:
            return self._flows(data)
        key, length, date, at = head
        heads, plan = self.lane.heads, self.plan
        known = heads.answers.get(key) if self._whole is None else heads.streams.get(key)
        if known is None or len(data) > READ_BYTES or self.client.writing_paused or self.client.is_leaving:
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
            self._deadlines = self.lane.deadlines(HOLD_S)
            self._deadlines.add(self, time.monotonic())
        return None

    def _flows(self, data: bytes) -> bytes | None:
        """Let a stream whose head is known go on by itself; return what has to be parsed, or None."""
        plan, connection = self.plan, self.connection
        head = stream_head_of(data) if plan.asks_for_stream and self._whole is None else None
        known = self.lane.heads.flows.get(head[0]) if head is not None else None
        if head is None or known is None or connection is None or plan.kind is None:
            return self._to_parse(data)
        _, date, at = head
        self._deadlines.remove(self)
        flow = Flow(self, known, data[:at], date)
        connection.show(flow)
        self.client.retake(flow)
        if len(data) > at:
            return flow.took(data[at:])
        flow.wait()
        return None

    def _events(self, whole: Whole, data: bytes) -> bytes | None:
        """Return the stream that is made of an answer; None where it takes more than the quick lane has."""
        if (
            not data.startswith(b"{")
            or len(data) > self.policy.limits.response_bytes
            or not self.lane.port.reserve.has(len(data))
        ):
            return None
        events = whole.events(data)
        return events if events is not None and len(events) <= MAX_BYTES else None

    def _to_parse(self, data: bytes) -> bytes:
        self._came = b""
        self.widen()
        return data

    def _tell(self, known: KnownAnswer | KnownStream, body: bytes, date: bytes) -> None:
        plan, transport = self.plan, self.client.transport
        self._deadlines.remove(self)
        self.lane.upstream.note(plan.backend.name, known.status)
        record = Record(plan, 1, 1, None, len(body) > 0)
        begun_at_s = time.perf_counter()
        if transport is None or transport.is_closing():
            record.has_left = True
        else:
            repaired = repairs_of(plan.applied) if plan.applied else None
            self.client.outbox.put(
                transport, known.told(self.request_id.encode(), repaired, body, date or date_now().encode())
            )
            self.lane.port.learn_from(record, known.status)
        self.over(record, known.status, len(body), begun_at_s, is_whole=True)
        self.client.finish(is_closing=record.has_left)

    def is_lost(self) -> None:
        """Let the lane find out what is to be done: the connection to the backend is gone."""
        self.widen()

    def is_late(self) -> None:
        """Let the lane tell that there is no answer in time; one that has begun has a time of its own."""
        is_told, one = bool(self._came) or self._whole is not None or self.plan.asks_for_stream, self.widen()
        if not is_told:
            one.is_late()

    def client_left(self) -> None:
        """Stop: the client has closed its connection."""
        self.widen().client_left()

    def widen(self) -> InLane:
        """Go on in the lane, with an answer that is parsed as it comes."""
        connection, came = self.connection, self._came
        one = self.in_lane()
        self.connection = None
        if connection is not None:
            self._deadlines.remove(self)
            answering = Answering(self.lane.upstream.pool, self.origin, connection)
            connection.parse_for(answering)
            if self._whole is None:
                one.asked(answering, self.sent_at_s)
            else:
                one.asked_to_restore(answering, self.sent_at_s, self._whole)
            if came:
                connection.data_received(came)
        return one

    def widen_unsent(self) -> InLane:
        """Go on in the lane, with a request that is still to be sent."""
        one = self.in_lane()
        one.go_on()
        return one
