"""The quick lane: a request whose head is known goes on, and an answer whose head is known comes back, unparsed.

    Served ─ data ─► head_of ─ known ─► plan ─► an idle connection ─► ask_quickly … took ─ known, whole ─► the client
                        │        │        └─────────┴─ what takes more ─► widen: parsed, and on in the lane
                        └────────┴─ None: parsed, and on in the lane, where it is looked at to know it the next time

What the quick lane does, the lane does as well; this one only leaves out what it did with the same bytes before.
"""

from __future__ import annotations

import asyncio
import time

from aiohttp import EMPTY_PAYLOAD, HttpVersion11
from aiohttp.http import RawRequestMessage, RawResponseMessage

from proxy import engine
from proxy.deadlines import Deadlines
from proxy.direct import DirectUpstream
from proxy.direct_client import DirectClient, date_now
from proxy.engine import Plan, Request
from proxy.errors import ProxyError
from proxy.exchange import Exchange, Record, repairs_of
from proxy.headers import HeaderList
from proxy.heads import (
    Heads,
    KnownAnswer,
    KnownRequest,
    answer_head_of,
    around_answer,
    around_request,
    head_of,
    is_usual,
)
from proxy.lane import MAX_BODY_BYTES, InLane, Lane
from proxy.models import is_joined
from proxy.pool import Answering, encode_call, origin_of, send_large
from proxy.server import LEFT, DataPort
from proxy.upstream import PART_BYTES, Call
from proxy.wire import READ_BYTES, Connection, Served, Taken

_OK, _LOWEST_REFUSAL = 200, 400
_WITHOUT_BODY = frozenset({204, 304})


class QuickLane:
    """Takes requests for a data port, and remembers heads as the lane's learner."""

    def __init__(self, port: DataPort, upstream: DirectUpstream) -> None:
        """Take them for `port`, which asks through `upstream`."""
        self.port = port
        self.upstream = upstream
        self.lane = Lane(port, upstream, self)
        port.learner = self
        self.heads = Heads()
        self._policy = port.policy
        self._deadlines: dict[float, Deadlines] = {}

    def __call__(self, connection: Served, data: bytes) -> Taken | None:
        """Answer a request that has come whole and whose head is known, or return None: it has to be parsed."""
        port = self.port
        connection.head_key = b""
        if port.policy is not self._policy:
            # What may be served, and what a backend is told, is the policy's to say.
            self._policy = port.policy
            self.heads.clear()
        head = head_of(data)
        if head is None or port.is_closing or port.is_leaving or port.tracer is not None:
            return None
        key, length, end = head
        size = len(data) - end
        missing = int(length) - size
        known = self.heads.requests.get(key)
        if known is None:
            connection.head_key = key if self.heads.comes_again(key) else b""
        else:
            connection.head_key = key
        if missing > 0 and connection.head_key and size + missing <= MAX_BODY_BYTES and b"xpect" not in key:
            connection.hold(data, missing, port.reserve)
        if known is None or missing or size > self._policy.limits.body_bytes or not port.reserve.has(size):
            return None
        started_s, said = time.perf_counter(), known.said(length)
        request = Request("POST", known.path, known.query, said, data[end:])
        try:
            plan = engine.plan(request, self._policy, learned=self.port.lessons.rules)
        except ProxyError:
            return None  # the lane comes to the same, and tells it
        one = Shortcut(self, connection, known, said, request, plan, started_s)
        return one if one.ask() else one.widen_unsent()

    def deadlines(self, wait_s: float) -> Deadlines:
        """Return when what waits as long as this has waited too long."""
        found = self._deadlines.get(wait_s)
        if found is None:
            found = self._deadlines[wait_s] = Deadlines(wait_s)
        return found

    def request_came(self, connection: Served, message: RawRequestMessage, exchange: Exchange) -> None:
        """Know a request's head, which came before."""
        key, said = connection.head_key, exchange.request.headers
        if (
            not key
            or exchange.request.body is None
            or key in self.heads.requests
            or exchange.policy is not self._policy
        ):
            return
        if (
            isinstance(said, HeaderList)
            and _stays(message)
            and message.method == "POST"
            and is_usual(said)
            and not is_joined(exchange)
        ):
            self.heads.keep_request(key, KnownRequest(message, exchange.request.path, exchange.request.query, said))

    def request_goes(self, connection: Served, exchange: Exchange, plan: Plan, call: Call) -> None:
        """Know what goes to a backend of a request whose head is known."""
        known = self.heads.requests.get(connection.head_key) if connection.head_key else None
        if known is None or not isinstance(call.body, bytes) or call.span is not None:
            return
        if exchange.policy is not self._policy or len(plan.bodies) > 1 or plan.restore is not None:
            return
        base = exchange.address(plan.backend)
        head = encode_call(call, origin_of(base))
        head = head[: len(head) - len(call.body)] if len(call.body) <= PART_BYTES else head
        is_edited = bool(plan.bodies)
        around = around_request(head, b"%d" % len(call.body), exchange.request_id.encode(), is_edited=is_edited)
        if around is not None:
            known.keep((exchange.peer, exchange.scheme, plan.backend.name, base, is_edited), around)

    def answer_goes(self, answering: Answering, exchange: Exchange, plan: Plan, told: bytes) -> None:
        """Know the head of an answer that passed as it came."""
        message, said, connection = answering.message, answering.said, answering.connection
        if message is None or connection is None or exchange.client.is_closing:
            return
        is_passed = _OK <= message.code < _LOWEST_REFUSAL and message.code not in _WITHOUT_BODY
        if (
            not is_passed
            or exchange.request.method != "POST"
            or not _stays(message)
            or not is_usual(said, may_have_id=True)
        ):
            return
        head = answer_head_of(connection.head_data)
        if head is None or not head[0].startswith(b"HTTP/1.1 %d " % message.code):
            return
        key, length, _ = head
        is_dated = "date" in said.names.at
        if plan.applied:
            told = told.replace(b"\r\nMendproxy-Repairs: %b" % repairs_of(plan.applied).encode(), b"", 1)
        known = around_answer(message.code, told, length, exchange.request_id.encode(), is_dated=is_dated)
        if known is not None:
            self.heads.keep_answer(key, known)


def _stays(message: RawRequestMessage | RawResponseMessage) -> bool:
    """Return whether a message is of a length that its head tells, and its connection stays as it is."""
    return message.version == HttpVersion11 and not (message.should_close or message.chunked or message.upgrade)


class Shortcut:
    """One request in the quick lane: sent to its backend, or about to be."""

    __slots__ = (
        "_came",
        "_client",
        "_connection",
        "_deadlines",
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
    )

    def __init__(
        self,
        lane: QuickLane,
        client: Served,
        known: KnownRequest,
        said: HeaderList,
        request: Request,
        plan: Plan,
        started_s: float,
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
        self._request_id = lane.port.ids.new()
        self._connection: Connection | None = None
        self._came = b""

    def ask(self) -> bool:
        """Return whether the request was sent on."""
        lane, plan, request = self._lane, self._plan, self._request
        port, backend, bodies = lane.port, plan.backend, plan.bodies
        if plan.refusal is not None or plan.restore is not None or backend.max_concurrency or len(bodies) > 1:
            return False
        client = self._client
        base = port.address(backend)
        around = self._known.goes.get((client.peer, client.scheme, backend.name, base, bool(bodies)))
        body = bodies[0] if bodies else request.body
        if around is None or body is None:
            return False
        self._origin = origin = origin_of(base)
        connection = lane.upstream.pool.take(origin)
        if connection is None:
            return False
        if request.body is not None:
            port.reserve.held_bytes += len(request.body)
        self._connection = connection
        self._sent_at_s = time.monotonic()
        self._deadlines = lane.deadlines(backend.timeouts.first_content_s)
        self._deadlines.add(self, self._sent_at_s)
        length, request_id = b"%d" % len(body), self._request_id.encode()
        one, other = (request_id, length) if bodies else (length, request_id)
        head = b"%b%b%b%b%b" % (around.first, one, around.second, other, around.third)
        if len(body) <= PART_BYTES:
            connection.ask_quickly(self, head + body)
        else:
            connection.ask_quickly(self, head)
            send_large(connection, body)
        if plan.asks_for_stream:
            # Its answer will have to be looked at, so what that takes is done while the backend is at work.
            asyncio.get_running_loop().call_soon(self._widen_early)
        return True

    def _widen_early(self) -> None:
        if self._connection is not None and not self._came:
            self.widen()

    def took(self, data: bytes) -> bytes | None:
        """Take what came of the answer; return what has to be parsed, or None."""
        is_second = bool(self._came)
        data = self._came + data if is_second else data
        head = answer_head_of(data)
        if head is None:
            return self._to_parse(data)
        key, length, at = head
        known = self._lane.heads.answers.get(key)
        if known is None or len(data) > READ_BYTES or self._client.writing_paused:
            return self._to_parse(data)
        if self._plan.may_react and self._plan.asks_for_stream:
            return self._to_parse(data)  # as passage.is_looked_at
        missing = at + int(length) - len(data)
        if missing == 0:
            self._tell(known, data[at:])
        elif missing < 0 or is_second:
            return self._to_parse(data)
        else:
            self._came = data  # its head: the body is a part of its own with most servers
        return None

    def _to_parse(self, data: bytes) -> bytes:
        self._came = b""
        self.widen()
        return data

    def _tell(self, known: KnownAnswer, body: bytes) -> None:
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
            transport.write(known.told(self._request_id.encode(), repaired, body, date_now()))
            port.learn_from(record, known.status)
        connection, self._connection = self._connection, None
        if connection is not None:
            lane.upstream.pool.give_back(self._origin, connection)
        port.reserve.held_bytes -= len(request.body or b"")
        status = LEFT if record.has_left else known.status
        port.went(request, self._request_id, record, status, size, self._started_s, begun_at_s)
        self._client.finish(is_closing=record.has_left)

    def is_lost(self) -> None:
        """Let the lane find out what is to be done: the connection to the backend is gone."""
        self.widen()

    def is_late(self) -> None:
        """Let the lane tell that there is no answer in time; one that has begun has a time of its own."""
        has_begun, one = bool(self._came), self.widen()
        if not has_begun:
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
            one.asked(answering, self._sent_at_s)
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
        if self._connection is not None:
            port.reserve.held_bytes -= size
        exchange.share.take(size)
        one = InLane(self._lane.lane, client, message, EMPTY_PAYLOAD, work)
        client.retake(one)
        return one
