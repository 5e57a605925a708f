"""Carries a relayed answer from its backend's connection to its client's, where the bytes come in: no task, no queue.

more_came ─► take ─► Passage ─► put          the client is slow: nothing is taken, and the backend has to wait
nothing for a while ─► Passage.late          it is over: done(None) · it failed, or its client left: done(error)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import aiohttp

from proxy.client import Watch
from proxy.direct import DirectReply
from proxy.direct_client import DirectClient
from proxy.engine import Plan
from proxy.errors import BackendFault
from proxy.exchange import Exchange
from proxy.framing import whole_chunks
from proxy.life import LifeSign
from proxy.passage import Passage
from proxy.pool import Answering
from proxy.upstream import ClientLeft, in_body

Learn = Callable[[Answering, Exchange, Plan, bytes], None]
"""Told of a stream, and of the head that its client gets."""

Done = Callable[[Exception | None], None]
"""Told of the end: None where the client has all that it can get, else Refused, a ProxyError, ClientLeft, or a bug."""


class Forward:
    """One answer on its way."""

    def __init__(
        self,
        exchange: Exchange,
        plan: Plan,
        reply: DirectReply,
        client: DirectClient,
        done: Done,
        learn: Learn | None = None,
    ) -> None:
        """Carry `reply` to `client`, and tell `done` of the end, once, `learn` of a stream's head."""
        self._exchange = exchange
        self._plan = plan
        self._reply = reply
        self._client = client
        self._answering = reply.answering
        self._done = done
        self._learn = learn
        is_post = exchange.request.method == "POST"
        headed_at_s = reply.answering.headed_at_s
        now_s = headed_at_s if headed_at_s is not None else time.monotonic()
        self._passage = Passage(exchange, plan, reply, is_post=is_post, now_s=now_s)
        self._idle_s = plan.backend.timeouts.idle_s
        self._is_done = False
        self._watch: Watch | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._late_at_s = 0.0

    def start(self) -> None:
        """Carry what has come, and what will."""
        self._answering.follower = self._more
        self._client.connection.resume = self._more
        self._more()

    def go_on(self, life: LifeSign | None, tail: bytes) -> None:
        """Carry on an event stream whose first bytes were carried, and which ends in `tail`, as Passage.go_on."""
        self._passage.go_on(life, tail)
        self.start()

    def is_late(self) -> None:
        """Take note that what comes next has been waited for as long as it may."""
        if self._timer is not None:
            self._timer.cancel()
        self._late_at_s = 0.0
        self._look()

    def _pass(self, chunks: bytes) -> bool:
        """Pass chunks on as they came, and return True; False where they have to be looked at, or to wait."""
        found = whole_chunks(chunks)
        if found is None or self._is_done or self._client.is_full:
            return False
        contents, is_end = found
        if is_end or not self._passage.pass_by(chunks, len(contents[-1])):
            return False
        try:
            self._client.put_chunks(chunks, sum(map(len, contents)))
        except ClientLeft as left:
            self._finish(left)
            return True
        # The timer that is set finds out by itself that it is early.
        self._late_at_s = time.monotonic() + self._idle_s
        return True

    def stop(self) -> None:
        """Carry no more, and cut off what is still to come."""
        self._is_done = True
        self._client.connection.resume = None
        self._answering.end()
        for timer in (self._timer, self._watch):
            if isinstance(timer, Watch):
                timer.stop()
            elif timer is not None:
                timer.cancel()
        self._timer = self._watch = None

    def _finish(self, error: Exception | None) -> None:
        if not self._is_done:
            # Who is told holds this, so it lets go of who is told: a cycle would keep all of a request's memory for
            # the collector, and the next request would have to do with colder.
            done, self._done = self._done, _nobody
            self.stop()
            done(error)

    def _more(self) -> None:
        """Carry what has come, as long as the client takes it."""
        try:
            while not self._is_done and not self._is_held_back():
                data = self._answering.take()
                if data:
                    self._put(self._passage.take(data))
                    if self._answering.has_all_been_taken and not self._client.is_full:
                        self._wait()
                        return
                elif self._answering.is_over:
                    self._end()
                else:
                    self._wait()
                    return
        except (aiohttp.ClientError, OSError) as error:
            self._failed(in_body(error))
        except BackendFault as fault:
            self._failed(fault)
        except Exception as news:  # noqa: BLE001 whatever it is, who asked for the answer has to tell it, and not the loop
            self._finish(news)

    def _is_held_back(self) -> bool:
        """Return whether the client is too slow for more just now; it is watched then, and the backend is not."""
        if not self._client.is_full:
            if self._watch is not None:
                self._watch.stop()
                self._watch = None
            return False
        if self._watch is None:
            self._watch = Watch(self._client.connection.transport)
        self._late_at_s = float("inf")
        return True

    def _put(self, data: bytes) -> None:
        if not data:
            return
        self._begin()
        record = self._exchange.record
        is_first, record.has_content = not record.has_content, True
        self._client.put(data)
        if is_first and self._passage.is_stream:
            self._exchange.drop_body()
            self._plan = record.plan or self._plan

    def _begin(self) -> None:
        if self._client.begun_status is None:
            reply = self._reply
            told = self._client.start(reply.status, reply.reason, self._exchange.passed_on(self._plan, reply.headers))
            if self._learn is not None and self._passage.is_stream:
                self._learn(self._answering, self._exchange, self._plan, told)

    def _end(self) -> None:
        self._put(self._passage.end())
        self._begin()
        self._client.finish()
        self._finish(None)

    def _wait(self) -> None:
        """Have `_look` called when nothing comes for too long. One timer serves many waits: it mostly is early."""
        now_s, steady_s = time.monotonic(), self._passage.steady_s
        connection = self._answering.connection
        if steady_s is not None and connection is not None and self._passage.is_stream and self._client.takes_chunks:
            connection.relay = self._pass
        wait_s = self._passage.wait_s(now_s) if steady_s is None else steady_s
        self._late_at_s = now_s + wait_s
        if self._timer is not None and self._timer_at_s > self._late_at_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer_at_s = self._late_at_s
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._late_at_s == float("inf"):
            return
        if self._late_at_s > time.monotonic():
            left_s = self._late_at_s - time.monotonic()
            self._timer_at_s = self._late_at_s
            self._timer = asyncio.get_running_loop().call_later(left_s, self._look)
            return
        try:
            self._late()
        except BackendFault as fault:
            self._failed(fault)
        except Exception as news:  # noqa: BLE001 whatever it is, who asked for the answer has to tell it, and not the loop
            self._finish(news)

    def _late(self) -> None:
        told = self._passage.late(time.monotonic())
        if told is None:
            self._end()
            return
        self._begin()
        if told:
            self._client.put(told)
        self._client.flush()
        self._wait()

    def _failed(self, fault: BackendFault) -> None:
        has_begun = self._client.begun_status is not None
        # Where only the head of an event stream has gone out, another round may still follow it.
        if not self._passage.has_content and not (has_begun and not self._passage.is_stream):
            self._finish(fault)
        elif self._passage.is_over:
            self._end()
        else:
            self._cut_off(fault)

    def _cut_off(self, fault: BackendFault) -> None:
        record = self._exchange.record
        record.error, record.is_truncated = fault, True
        if self._exchange.trace is not None:
            self._exchange.trace.failed(fault)
        last = self._passage.closing(fault)
        try:
            if last:
                self._client.put(last)
        except ClientLeft as left:
            self._finish(left)
            return
        self._client.abort()
        self._finish(None)


def _nobody(_error: Exception | None) -> None:
    """Tell nobody."""


async def forward(exchange: Exchange, plan: Plan, reply: DirectReply, client: DirectClient) -> None:
    """Carry an answer to its end, for who waits in a task. Raises: Refused, BackendFault, ClientLeft."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    carrying = Forward(exchange, plan, reply, client, done)
    carrying.start()
    try:
        await ended
    finally:
        carrying.stop()
