"""Restores the JSON answer of a single branch where its bytes come in, without a task, once it is there as a whole.

    ask ──► head ──► body … whole ─► the client: done
     └────────┴────────┴───────┴─ whatever else comes, or does not come in time ─► go_on: a task waits, and restores

What is made of an answer here, restore.py makes of it as well, to the byte.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import aiohttp

from proxy.begun import Asked, Begun, cut_off
from proxy.direct import DirectUpstream
from proxy.direct_client import DirectClient
from proxy.engine import Plan
from proxy.errors import ProxyFault
from proxy.exchange import Exchange
from proxy.forward import Done
from proxy.headers import content_coding
from proxy.pool import Answering
from proxy.upstream import ClientLeft
from proxy.whole import Whole

Learn = Callable[[Answering, Exchange, Plan, bytes], None]
"""Told of an answer, and of the head of the stream that was made of it."""

GoOn = Callable[[Begun], None]
"""Told of what has become of the request, where a task has to go on with it."""

# What is larger may not go out at once, so that the client has to be waited for.
MAX_BYTES = 48 * 1024
_NEVER_S = float("inf")


class Restoring:
    """One request, and its answer on its way."""

    __slots__ = (
        "_asking",
        "_began_s",
        "_client",
        "_comment_s",
        "_data",
        "_done",
        "_exchange",
        "_go_on",
        "_is_noted",
        "_is_old",
        "_learn",
        "_most_bytes",
        "_plan",
        "_timer",
        "_timer_at_s",
        "_until_s",
        "_whole",
    )

    def __init__(
        self,
        exchange: Exchange,
        plan: Plan,
        whole: Whole,
        client: DirectClient,
        done: Done,
        go_on: GoOn,
        learn: Learn | None = None,
    ) -> None:
        """Answer `client`; one of `done` and `go_on` is told of the end, once, `learn` of a stream's head."""
        self._exchange = exchange
        self._plan = plan
        self._whole = whole
        self._learn = learn
        self._client = client
        self._done = done
        self._go_on = go_on
        self._asking: Answering | asyncio.Task[Answering] | None = None
        self._is_old = False  # the connection: one that was idle may have been closed
        self._data = b""
        self._most_bytes = min(MAX_BYTES, exchange.policy.limits.response_bytes)
        self._is_noted = False  # that the answer has come
        self._began_s = time.monotonic()
        every_s = exchange.policy.keep_alive_s if whole.restoring.stream else 0.0
        self._comment_s = self._began_s + (every_s or _NEVER_S)  # when the client is told that it is waited for
        self._until_s = _NEVER_S  # how long the next bytes may be waited for
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = _NEVER_S

    def ask(self, upstream: DirectUpstream) -> None:
        """Send the request, on a new connection where there is no idle one."""
        exchange, plan = self._exchange, self._plan
        exchange.record.rounds += 1
        exchange.record.branches += 1
        base, call = exchange.address(plan.backend), exchange.call(plan, 0)
        answering = upstream.ask_idle(base, call)
        if answering is not None:
            self._is_old = True
            self._asked(answering, self._began_s)
            return
        asking = upstream.ask_fresh(base, call, plan.backend.timeouts.connect_s)
        self._asking = connecting = asyncio.get_running_loop().create_task(asking)
        connecting.add_done_callback(self._connected)
        self._set_timer(self._began_s)

    def asked(self, answering: Answering, began_s: float) -> None:
        """Follow a request that was sent, and counted, at `began_s`, on a connection that had been idle."""
        self._comment_s += began_s - self._began_s
        self._began_s, self._is_old = began_s, True
        self._exchange.record.rounds += 1
        self._exchange.record.branches += 1
        self._asked(answering, began_s)

    def _asked(self, answering: Answering, now_s: float) -> None:
        self._asking = answering
        answering.sent_at_s, answering.follower = self._began_s, self._news
        self._until_s = now_s + self._plan.backend.timeouts.first_content_s
        self._set_timer(now_s)

    def _connected(self, connecting: asyncio.Task[Answering]) -> None:
        """Take note that there is a connection, or that there will be none."""
        if self._asking is not connecting:
            return
        if connecting.cancelled() or connecting.exception() is not None:
            self._hand_over()
            return
        self._asked(connecting.result(), time.monotonic())
        self._news()

    def stop(self) -> None:
        """Wait no more, and cut off what is still to come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        asking, self._asking = self._asking, None
        if asking is not None:
            cut_off(asking)

    def _finish(self, error: Exception | None) -> None:
        # Who is told holds this, so it lets go of who is told: see Forward.
        done, self._done, self._go_on = self._done, _nobody, _nobody
        self.stop()
        done(error)

    def _hand_over(self) -> None:
        """Let a task wait for what is still to come, and make what it can of all."""
        asking, self._asking = self._asking, None
        if asking is None:
            return
        if isinstance(asking, Answering):
            asking.follower = None
        go_on, self._done, self._go_on = self._go_on, _nobody, _nobody
        self.stop()
        asked = Asked(asking, self._began_s, self._is_old, self._is_noted, self._data, self._until_s)
        go_on(Begun(asked=asked))

    def _news(self) -> None:
        """Look at what has come: of the answer, or that there will be none."""
        answering = self._asking
        if not isinstance(answering, Answering):
            return
        try:
            self._look(answering)
        except Exception as bug:  # noqa: BLE001 whatever it is, who asked for the answer has to tell it, and not the loop
            self._finish(bug)

    def _look(self, answering: Answering) -> None:
        if answering.message is None:
            if answering.error is not None:
                self._hand_over()
            return
        if not self._is_noted:
            self._is_noted = True
            self._exchange.upstream.note(self._plan.backend.name, answering.message.code)
        if not 200 <= answering.message.code < 300 or content_coding(answering.said) != "identity":
            self._hand_over()
            return
        try:
            while data := answering.take():
                self._data = self._data + data if self._data else data
        except (aiohttp.ClientError, OSError):
            self._hand_over()
            return
        if self._data and not (self._data.startswith(b"{") and len(self._data) <= self._most_bytes):
            self._hand_over()
        elif answering.is_whole:
            self._tell(answering)
        else:
            self._wait()

    def _tell(self, answering: Answering) -> None:
        """Tell the client the whole answer, where it can be told at once."""
        exchange, client, left = self._exchange, self._client, None
        restored = self._whole.restored(self._data, answering.said)
        if restored is None or len(restored[1]) > MAX_BYTES or client.is_full:
            self._hand_over()
            return
        try:
            exchange.share.take(len(self._data))
        except ProxyFault:
            self._hand_over()
            return
        exchange.record.has_content = True
        try:
            told = client.tell(200, None, exchange.passed_on(self._plan, restored[0]), restored[1])
            if self._learn is not None and self._whole.restoring.stream:
                self._learn(answering, exchange, self._plan, told)
        except ClientLeft as gone:
            left = gone
        self._finish(left)

    def _wait(self) -> None:
        now_s, timeouts = time.monotonic(), self._plan.backend.timeouts
        self._until_s = min(now_s + timeouts.idle_s, self._began_s + timeouts.first_content_s)
        self._set_timer(now_s)

    def _set_timer(self, now_s: float) -> None:
        """Have `_late` called when nothing comes for too long. One timer serves many waits: it mostly is early."""
        due_s = min(self._comment_s, self._until_s)
        if self._timer is not None:
            if self._timer_at_s <= due_s:
                return
            self._timer.cancel()
            self._timer = None
        self._timer_at_s = due_s
        if due_s == _NEVER_S:
            return
        self._timer = asyncio.get_running_loop().call_later(due_s - now_s, self._late)

    def _late(self) -> None:
        self._timer = None
        now_s = time.monotonic()
        if now_s < min(self._comment_s, self._until_s):
            self._set_timer(now_s)
        else:
            self._hand_over()


def begin_restoring(
    exchange: Exchange,
    plan: Plan,
    upstream: DirectUpstream,
    client: DirectClient,
    done: Done,
    go_on: GoOn,
    learn: Learn | None = None,
) -> Restoring | None:
    """Return what asks, and answers the client, once it has begun to; None where nothing was done: it takes a task."""
    whole = Whole.of(plan)
    if whole is None or exchange.trace is not None:
        return None
    try:
        exchange.share.take(exchange.edited_bytes(plan))
    except ProxyFault:
        return None
    one = Restoring(exchange, plan, whole, client, done, go_on, learn)
    one.ask(upstream)
    return one


def _nobody(_news: object) -> None:
    """Tell nobody."""
