"""The lane: a request that is there as a whole, and needs but one upstream request, is answered without a task.

    Served ─ take ─► admit ─► plan ─► an idle connection ─► ask … head_came ─► Forward … done ─► finish
               │        └─────────┴───────────┴───────────────┴─ whatever takes waiting ─► a task goes on with it
               └─ None: a task does it all

What the lane does, the data port's task does as well and in the same order; the lane only never waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol, cast

import structlog
from aiohttp.http import RawRequestMessage, RawResponseMessage
from aiohttp.streams import StreamReader

from proxy import engine
from proxy.bodies import too_large
from proxy.direct import DirectReply, DirectUpstream
from proxy.direct_client import DirectClient
from proxy.engine import Plan, Request
from proxy.errors import BackendFault, ProxyError, ProxyFault
from proxy.exchange import Exchange, Record, Refused
from proxy.forward import Forward
from proxy.headers import content_coding
from proxy.life import LifeSign
from proxy.models import is_joined
from proxy.passage import is_looked_at
from proxy.pool import Answering, is_stale
from proxy.relay import Begun
from proxy.restoring import Restoring, begin_restoring
from proxy.server import DataPort, Learner, Work, where
from proxy.tracing import BranchSpan
from proxy.upstream import Call, ClientLeft, before_head
from proxy.whole import Whole
from proxy.wire import Served, is_spoken

# Above this a body is read by a task, which streams it on where no rule looks into it.
MAX_BODY_BYTES = 4 * 1024 * 1024
_LOWEST_REFUSAL = int(HTTPStatus.BAD_REQUEST)

log = structlog.get_logger("mendproxy")


class LaneLearner(Learner, Protocol):
    """Remembers what becomes of heads."""

    def request_goes(
        self, connection: Served, message: RawRequestMessage, exchange: Exchange, plan: Plan, call: Call
    ) -> None:
        """Look at what is sent to the backend."""

    def answer_goes(self, answering: Answering, exchange: Exchange, plan: Plan, told: bytes) -> None:
        """Look at an answer that came as a whole, and at the head that the client is told."""

    def flow_goes(self, answering: Answering, exchange: Exchange, plan: Plan, told: bytes) -> None:
        """Look at a stream that passes as it comes, and at the head that the client is told."""

    def stream_goes(self, answering: Answering, exchange: Exchange, plan: Plan, told: bytes) -> None:
        """Look at an answer of which a stream was made, and at the head that the client is told."""


class Lane:
    """Takes requests for a data port."""

    def __init__(self, port: DataPort, upstream: DirectUpstream, learner: LaneLearner) -> None:
        """Take them for `port`, which asks through `upstream`; `learner` sees what comes and goes."""
        self.port = port
        self.upstream = upstream
        self.learner = learner

    def __call__(self, connection: Served, message: RawRequestMessage, body: StreamReader) -> InLane | None:
        """Answer a request that has come whole, or return None: it takes a task."""
        if not is_spoken(message) or message.upgrade or "Expect" in message.headers or "Upgrade" in message.headers:
            return None
        if body.total_bytes > MAX_BODY_BYTES:
            return None
        client = DirectClient(connection, message, self.port.metrics.streams_open)
        work = self.port.open(message, client, connection.peer, connection.scheme)
        one = InLane(self, connection, message, body, work)
        one.begin()
        return one


class InLane:
    """One request in the lane."""

    __slots__ = (
        "_answering",
        "_body",
        "_connecting",
        "_connection",
        "_forward",
        "_is_counted",
        "_is_old",
        "_lane",
        "_message",
        "_span",
        "_timer",
        "_work",
        "client",
    )

    def __init__(
        self, lane: Lane, connection: Served, message: RawRequestMessage, body: StreamReader, work: Work
    ) -> None:
        """Serve a request; `work` holds it, and a DirectClient."""
        self._lane = lane
        self._connection = connection
        self._message = message
        self._body = body
        self._work = work
        self.client = cast("DirectClient", work.client)
        self._answering: Answering | None = None
        self._forward: Forward | Restoring | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._span: BranchSpan | None = None
        self._is_counted = False  # what is sent, where it is not the client's own body
        self._is_old = False  # the connection to the backend: one that was idle may have been closed

    def begin(self) -> None:
        """Send the request on, or hand it over."""
        self._begin(self._ask)

    def go_on(self) -> None:
        """Send on a request whose plan is known, or hand it over."""
        self._begin(self._send)

    def _begin(self, how: Callable[[], bool]) -> None:
        try:
            if not how():
                self._hand_over()
        except ProxyError as error:
            self._hand_over(error)
        except Exception as bug:  # noqa: BLE001 the outermost edge: a bug costs one request, and its text may be a prompt
            self.failed(bug)

    def failed(self, bug: Exception) -> None:
        """Let a task tell that a bug kept the request from being served."""
        log.critical("request.bug", id=self._work.exchange.request_id, error=type(bug).__name__, where=where(bug))
        self._hand_over(ProxyFault("The proxy failed to serve this request.", code="internal_error"))

    def _ask(self) -> bool:
        """Return whether the request was sent on. Raises: ProxyError."""
        port, exchange, body = self._lane.port, self._work.exchange, self._body
        port.admit(self._message, exchange)
        said = exchange.request
        if is_joined(exchange) or content_coding(said.headers) != "identity":
            return False
        if body.total_bytes > exchange.policy.limits.body_bytes:
            raise too_large(exchange.policy.limits.body_bytes)
        if self._message.chunked or body.total_bytes:
            if not port.reads_body(said):
                return False
            exchange.share.take(body.total_bytes)
            raw = body.read_nowait()
            exchange.body = raw
            exchange.request = said = Request(said.method, said.path, said.query, said.headers, raw)
        self._lane.learner.request_came(self._connection, self._message, exchange)
        self._work.plan = engine.plan(said, exchange.policy, learned=port.lessons.rules)
        return self._send()

    def _send(self) -> bool:
        """Return whether the request was sent on, by its plan."""
        exchange, plan = self._work.exchange, self._work.plan
        exchange.record.plan = plan
        if plan is None or plan.refusal is not None or plan.backend.max_concurrency:
            return False
        if plan.restore is not None:
            return self._restore(plan)
        backend = plan.backend
        exchange.share.take(exchange.edited_bytes(plan))
        self._is_counted = True
        base, call = exchange.address(backend), exchange.call(plan, 0)
        self._lane.learner.request_goes(self._connection, self._message, exchange, plan, call)
        self._span = call.span
        if self._span is not None:
            self._span.sent()
        answering = self._lane.upstream.ask_idle(base, call)
        if answering is None:
            self._connecting = asyncio.get_running_loop().create_task(self._ask_fresh(plan, base, call))
        else:
            self._is_old = True
            self._asked(plan, answering, time.monotonic())
        return True

    def _restore(self, plan: Plan) -> bool:
        """Return whether a request is sent on whose answer is made into another."""
        exchange, lane = self._work.exchange, self._lane
        learn = lane.learner.stream_goes
        one = begin_restoring(exchange, plan, lane.upstream, self.client, self._done, self._go_on, learn)
        self._forward = one
        if one is not None and len(plan.bodies) == 1:
            lane.learner.request_goes(self._connection, self._message, exchange, plan, exchange.call(plan, 0))
        return one is not None

    def asked_to_restore(self, answering: Answering, sent_at_s: float, whole: Whole) -> None:
        """Follow a request that was sent on a connection that had been idle, and make its answer into another."""
        exchange, plan = self._work.exchange, self._work.plan
        if plan is not None:
            exchange.record.plan = plan
            learn = self._lane.learner.stream_goes
            self._forward = one = Restoring(exchange, plan, whole, self.client, self._done, self._go_on, learn)
            one.asked(answering, sent_at_s)

    def _go_on(self, begun: Begun) -> None:
        self._forward = None
        self._hand_over(begun=begun)

    async def _ask_fresh(self, plan: Plan, base: str, call: Call) -> None:
        """Send the request on a new connection."""
        sent_at_s = time.monotonic()
        try:
            answering = await self._lane.upstream.ask_fresh(base, call, plan.backend.timeouts.connect_s)
            self._connecting = None
            self._asked(plan, answering, sent_at_s)
        except BackendFault as fault:
            self._connecting = None
            self._trace_failure(fault)
            self._lane.upstream.note(plan.backend.name, fault)
            self._hand_over(begun=Begun(failure=fault))
        except Exception as bug:  # noqa: BLE001 as in begin
            self._connecting = None
            self._drop()
            self.failed(bug)

    def asked(self, answering: Answering, sent_at_s: float) -> None:
        """Follow a request that was sent on a connection that had been idle."""
        if self._work.plan is not None:
            self._work.exchange.record.plan = self._work.plan
            self._is_old = self._is_counted = True
            self._asked(self._work.plan, answering, sent_at_s)

    def go_on_with(self, answering: Answering, sent_at_s: float, life: LifeSign | None, tail: bytes) -> None:
        """Carry on a stream that the client has been sent a part of; its head was parsed. As Forward.go_on."""
        plan = self._work.plan
        if plan is not None:
            self._work.exchange.record = Record(plan, 1, 1, None, has_content=True)
            self._answering, self._is_old = answering, True
            answering.sent_at_s = sent_at_s
            self._forwarded(plan, answering).go_on(life, tail)

    def is_late(self) -> None:
        """Take note that the answer's head, or what comes next of a stream, did not come in time."""
        if isinstance(self._forward, Forward):
            self._forward.is_late()
        else:
            self._late()

    def _asked(self, plan: Plan, answering: Answering, sent_at_s: float) -> None:
        self._answering = answering
        answering.sent_at_s = sent_at_s
        answering.follower = self._news
        wait_s = max(0.0, sent_at_s + plan.backend.timeouts.first_content_s - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._late)

    def _news(self) -> None:
        """Look at what came of the request: its answer's head, or that there will be none."""
        try:
            self._look()
        except Exception as bug:  # noqa: BLE001 as in begin
            self._drop()
            self.failed(bug)

    def _look(self) -> None:
        answering, plan = self._answering, self._work.plan
        if answering is None or plan is None:
            return
        if answering.message is None:
            if answering.error is not None:
                self._fail(answering.error)
            return
        self._stop_timer()
        answering.follower = None
        status = answering.message.code
        self._lane.upstream.note(plan.backend.name, status)
        if self._span is not None:
            self._span.answered(status)
        if status >= _LOWEST_REFUSAL and plan.may_react:
            self._answering = None
            self._hand_over(begun=Begun(reply=DirectReply(answering, answering.sent_at_s)))
            return
        record = self._work.exchange.record
        record.rounds, record.branches = record.rounds + 1, record.branches + 1
        if answering.is_whole and not self.client.is_full and not is_looked_at(plan, answering.said):
            self._pass_on(plan, answering, answering.message)
            return
        self._forwarded(plan, answering).start()

    def _forwarded(self, plan: Plan, answering: Answering) -> Forward:
        """Return what carries an answer to its client."""
        reply, learn = DirectReply(answering, answering.sent_at_s), self._lane.learner.flow_goes
        self._forward = forward = Forward(self._work.exchange, plan, reply, self.client, self._done, learn)
        self._work.plan = None  # it holds the request's body
        return forward

    def _pass_on(self, plan: Plan, answering: Answering, message: RawResponseMessage) -> None:
        """Tell the client an answer that has come as a whole."""
        exchange, body, left = self._work.exchange, answering.take(), None
        exchange.record.has_content = bool(body)
        try:
            told = self.client.tell(message.code, message.reason, exchange.passed_on(plan, answering.said), body)
            self._lane.learner.answer_goes(answering, exchange, plan, told)
        except ClientLeft as gone:
            left = gone
        answering.end()
        self._done(left)

    def _late(self) -> None:
        self._timer = None
        self._fail(TimeoutError())

    def _fail(self, error: BaseException) -> None:
        """Let a task tell, or try again, what has got no answer."""
        self._drop()
        if self._is_old and is_stale(error):
            self._trace_failure(error)
            self._hand_over(begun=Begun(takes_fresh=True))
            return
        fault = before_head(error)
        self._trace_failure(fault)
        if self._work.plan is not None:
            self._lane.upstream.note(self._work.plan.backend.name, fault)
        self._hand_over(begun=Begun(failure=fault))

    def _trace_failure(self, error: BaseException) -> None:
        if self._span is not None:
            self._span.failed(error)
            self._span.end()

    def _done(self, error: Exception | None) -> None:
        self._forward = None
        record = self._work.exchange.record
        if isinstance(error, Refused | BackendFault):
            record.rounds, record.branches = record.rounds - 1, record.branches - 1
            self._trace_failure(error)
            self._answering, self._work.plan = None, record.plan
            self._hand_over(begun=Begun(failure=error))
            return
        if error is not None and not isinstance(error, ClientLeft):
            self._answering = None
            self._hand_over(error)
            return
        record.has_left = error is not None
        if error is None:
            self._lane.port.learn(self._work.exchange)
        self._lane.port.end(self._work)
        self._connection.finish(is_closing=self.client.is_closing or error is not None)

    def client_left(self) -> None:
        """Stop: the client has closed its connection."""
        self._drop()
        self._work.exchange.record.has_left = not self.client.is_done
        self._lane.port.end(self._work)

    def _drop(self) -> None:
        self._stop_timer()
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._forward is not None:
            self._forward.stop()
            self._forward = None
        if self._answering is not None:
            self._answering.end()
            self._answering = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hand_over(self, error: Exception | None = None, begun: Begun | None = None) -> None:
        self._stop_timer()
        self._work.error = error
        if begun is not None:
            self._work.begun = begun
        if self._is_counted and self._work.plan is not None:
            # A task counts it anew.
            self._work.exchange.share.drop(self._work.exchange.edited_bytes(self._work.plan))
        self._connection.hand_over(self._message, self._body, self._work, self._abandon)

    def _abandon(self) -> None:
        """Take note that the client left before a task could go on."""
        self._work.begun.drop()
        self.client_left()
