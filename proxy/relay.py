"""Carries out a plan, in rounds: relays the backend's bytes, or restores its answers, and re-plans what it refused.

plan ─► answered
  └──► Refused ─► replan ─► plan (three times at most) ─► the first refusal goes to the client
"""

from __future__ import annotations

import time

from proxy import sse
from proxy.chunks import encode_json
from proxy.codings import Inflate, inflater
from proxy.engine import Plan, observed, replan
from proxy.errors import BackendFault, ProxyError
from proxy.exchange import Exchange, HttpRefusal, Refused, read_http_refusal, refused_by, tell_error, tell_refusal
from proxy.headers import content_coding, get
from proxy.life import LifeSign
from proxy.reader import are_events
from proxy.refusals import Failure, failure_from
from proxy.restore import restore
from proxy.upstream import Reply, empty, silent

MAX_RETRIES = 3
# A stream whose sentinel has gone by is over: a backend that keeps its connection open is not waited for any longer.
AFTER_DONE_S = 0.2
# A line's end, the sentinel, a blank line: no text of an event can look like this, since JSON escapes its line's ends.
_SENTINELS = tuple(
    before + sentinel + blank_line
    for before in (b"\n", b"\r")
    for sentinel in (b"data: [DONE]", b"data:[DONE]")
    for blank_line in (b"\n\n", b"\r\n\r\n", b"\r\r")
)
_TAIL_BYTES = max(map(len, _SENTINELS))
# How many blanks an answer may begin with while events are told from anything else.
_MAX_UNCLEAR_BYTES = 4096


async def carry_out(exchange: Exchange, plan: Plan) -> None:
    """Answer the client as the plan says.

    Raises: ClientLeft. Every other failure is told to the client.
    """
    first: Refused | None = None
    while True:
        exchange.record.plan = plan
        exchange.record.rounds += 1
        try:
            return await _round(exchange, plan)
        except Refused as refused:
            if exchange.record.has_content:
                return await tell_refusal(exchange, plan, refused)
            # What the backend itself said is told rather than what the proxy made of a dead connection.
            if first is None or (isinstance(first.answer, ProxyError) and isinstance(refused.answer, HttpRefusal)):
                first = refused
            new = _next(exchange, plan, refused)
            if new is None:
                exchange.record.plan = observed(plan, refused.failure)
                return await tell_refusal(exchange, plan, first)
            plan = new


async def _round(exchange: Exchange, plan: Plan) -> None:
    if plan.refusal is not None:
        await tell_error(exchange, plan, plan.refusal)
    elif plan.restore is not None:
        await restore(exchange, plan, plan.restore)
    else:
        await _relay(exchange, plan)


def _next(exchange: Exchange, plan: Plan, refused: Refused) -> Plan | None:
    if exchange.record.rounds > MAX_RETRIES:
        return None
    new = replan(plan, refused.failure, exchange.policy)
    if new is None or new.draft.rejection is not None:
        return new
    return new if new.refusal is None else None


async def _relay(exchange: Exchange, plan: Plan) -> None:
    backend = plan.backend
    exchange.record.branches += 1
    try:
        async with exchange.upstream.send(backend, exchange.address(backend), exchange.call(plan, 0)) as reply:
            if reply.status >= 400 and (plan.may_react or exchange.record.rounds > 1):
                raise await read_http_refusal(reply, exchange.policy.limits.response_bytes, backend.timeouts.idle_s)
            await Relay(exchange, plan, reply).run()
            await reply.finish()
    except BackendFault as fault:
        raise refused_by(fault, plan) from fault


class Relay:
    """Passes one answer's bytes on as they come, its head once there is something behind it."""

    def __init__(self, exchange: Exchange, plan: Plan, reply: Reply) -> None:
        self._exchange = exchange
        self._client = exchange.client
        self._plan = plan
        self._reply = reply
        self._timeouts = plan.backend.timeouts
        content_type = (get(reply.headers, "content-type") or "").lower()
        self._is_stream = content_type.startswith("text/event-stream")
        self._inflate = _inflater_of(reply)
        is_post = exchange.request.method == "POST"
        is_readable = self._inflate is not None and is_post and plan.kind is not None and reply.status < 300
        is_completion = self._is_stream and is_readable
        # Where a rule could react to a stream, one whose label is wrong is known by its first bytes.
        is_plain = content_coding(reply.headers) == "identity"
        self._is_unclear = is_readable and is_plain and not self._is_stream and plan.may_react and plan.asks_for_stream
        self._max_held_bytes = exchange.policy.limits.event_bytes
        self._life = LifeSign(self._max_held_bytes) if is_completion else None
        # A stream that a reactive rule could still repair has to prove life before its head goes out.
        self._is_held = is_completion and plan.may_react
        self._held = bytearray()
        self._tail = b""
        self._is_over = False
        self._comment_at_s = time.monotonic() + (exchange.policy.keep_alive_s or float("inf"))

    async def run(self) -> None:
        """Relay the answer to its end.

        Raises: Refused or BackendFault while nothing but comments has gone to the client, ClientLeft.
        """
        try:
            while data := await self._next():
                await self._pass_on(data)
            await self._end()
        except BackendFault as fault:
            # Where only the head of an event stream has gone out, another round may still follow it.
            if self._exchange.record.has_content or (self._client.begun_status is not None and not self._is_stream):
                await self._cut_off(fault)
            else:
                raise

    async def _next(self) -> bytes:
        while True:
            silence_s, comment_s = self._silence_s(), self._comment_s()
            try:
                return await self._reply.read(min(silence_s, comment_s))
            except TimeoutError:
                if self._is_over:
                    return b""
                if silence_s <= comment_s:
                    raise self._silence() from None
                await self._keep_alive()
            except BackendFault:
                if self._is_over:
                    return b""
                raise

    def _silence_s(self) -> float:
        """Return how long the backend may stay silent from now on."""
        if self._is_over:
            return min(AFTER_DONE_S, self._timeouts.idle_s)
        if self._life is None:
            return self._timeouts.idle_s
        left_s = self._reply.sent_at_s + self._timeouts.first_content_s - time.monotonic()
        return max(0.0, min(self._timeouts.idle_s, left_s))

    def _comment_s(self) -> float:
        """Return how long the client may still be left without a byte."""
        if self._exchange.record.has_content:
            return float("inf")
        return max(0.0, self._comment_at_s - time.monotonic())

    def _silence(self) -> BackendFault | Refused:
        fault = silent("sent no content in time" if self._life is not None else "stopped in the middle of its answer")
        if self._life is None or self._exchange.record.has_content:
            return fault
        return Refused(Failure(None, fault.message, stream="silent"), fault)

    async def _keep_alive(self) -> None:
        await self._begin()
        self._comment_at_s = float("inf")
        if self._is_held:
            self._comment_at_s = time.monotonic() + self._exchange.policy.keep_alive_s
            await self._client.write(sse.comment(b"waiting"))

    async def _begin(self) -> None:
        if self._client.begun_status is None:
            reply = self._reply
            await self._client.begin(reply.status, reply.reason, self._exchange.passed_on(self._plan, reply.headers))

    async def _pass_on(self, data: bytes) -> None:
        if self._is_unclear and not (data := self._told_apart(data)):
            return
        if self._life is not None:
            self._watch(self._life, data)
        if self._is_held and self._hold(data):
            return
        if self._held:
            data, self._held = bytes(self._held) + data, bytearray()
        await self._begin()
        self._exchange.record.has_content = True
        if self._is_stream:
            self._tail = (self._tail + data[-_TAIL_BYTES:])[-_TAIL_BYTES:]
            self._is_over = self._tail.endswith(_SENTINELS) and not self._reply.has_length
        await self._client.write(data)

    def _told_apart(self, data: bytes) -> bytes:
        """Return the bytes so far once they are known to be events, or not to be; none before."""
        data, self._held = bytes(self._held) + data, bytearray()
        told = are_events(data)
        if told is None and len(data) <= _MAX_UNCLEAR_BYTES:
            self._held += data
            return b""
        self._is_unclear = False
        if told:
            self._is_stream = self._is_held = True
            self._life = LifeSign(self._max_held_bytes)
        return data

    def _hold(self, data: bytes) -> bool:
        """Keep bytes back that prove nothing yet; False when there are too many of them to keep."""
        self._is_held = len(self._held) + len(data) <= self._max_held_bytes
        if self._is_held:
            self._held += data
        return self._is_held

    def _watch(self, life: LifeSign, data: bytes) -> None:
        is_alive = self._is_alive(life, data)
        if self._is_held and life.fault is not None:
            raise Refused(failure_from(life.fault, "error"), life.fault)
        if is_alive:
            self._life, self._is_held = None, False

    def _is_alive(self, life: LifeSign, data: bytes) -> bool:
        try:
            while data and self._inflate is not None and not life.is_alive:
                plain, data = self._inflate(data)
                life.feed(plain)
        except BackendFault:
            return True  # what can't be judged isn't held back
        return life.is_alive

    async def _end(self) -> None:
        self._is_unclear = False
        if self._life is not None:
            self._life.close()
            self._watch(self._life, b"")
            if self._is_held or not self._exchange.record.has_content:
                raise empty()
        if self._held:
            await self._pass_on(b"")
        await self._begin()
        await self._client.end()

    async def _cut_off(self, fault: BackendFault) -> None:
        self._exchange.record.error = fault
        self._exchange.record.is_truncated = True
        if self._is_stream and get(self._reply.headers, "content-encoding") is None and not self._reply.has_length:
            # An event that was cut in the middle is closed first, so that it does not swallow the error's.
            gap = b"" if self._tail.endswith((b"\n\n", b"\r\r", b"\r\n\r\n")) else b"\n\n"
            await self._client.write(gap + b"data: " + encode_json(fault.body()) + b"\n\n")
        self._client.abort()


def _inflater_of(reply: Reply) -> Inflate | None:
    """Return what makes the answer's bytes plain; None where it can't be read, and so is not watched."""
    try:
        return inflater(reply.headers)
    except BackendFault:
        return None
