"""A stream in the quick lane: its head is known, and it comes in whole chunks, so it passes without being parsed.

took ─► (proof of life) ─► the client ─► over
 └──────────┴─ whatever is not as usual ─► the lane goes on with it: from its head, or from where it stands
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from proxy.direct_client import date_now
from proxy.exchange import Record, repairs_of
from proxy.framing import LAST_CHUNK, one_chunk, whole_chunks
from proxy.going import Going
from proxy.heads import KnownStream
from proxy.lane import InLane
from proxy.life import LifeSign
from proxy.passage import AFTER_DONE_S, TAIL_BYTES, is_done
from proxy.plans import Request
from proxy.pool import Answering
from proxy.wire import READ_BYTES

# Of a chunk that ends with an event that is JSON, and so no sentinel.
_EVENT_ENDS: Final = b"}\n\n\r\n"


class Flow:
    """One stream, from its head on."""

    __slots__ = (
        "_begun_at_s",
        "_date",
        "_has_begun",
        "_head",
        "_headed_at_s",
        "_held",
        "_idle_s",
        "_is_held",
        "_is_over",
        "_is_steady",
        "_known",
        "_last",
        "_late_at_s",
        "_life",
        "_one",
        "_sent_bytes",
        "_tail",
        "_timer",
        "_timer_at_s",
    )

    def __init__(self, one: Going, known: KnownStream, head: bytes, date: bytes) -> None:
        """Answer `one`, to which this head came, dated so."""
        self._one = one
        self._known = known
        self._head = head
        self._date = date
        self._has_begun = False  # the client was sent its head, and the first chunks
        self._headed_at_s = time.monotonic()
        self._begun_at_s = 0.0
        self._life: LifeSign | None = LifeSign(one.policy.limits.event_bytes)
        # As Passage: a stream that a reactive rule could still repair has to prove life before its head goes out.
        self._is_held = one.plan.may_react
        self._held = b""
        self._tail = b""
        self._last = b""  # what came last, where the tail is to be found in it
        self._is_over = False
        self._is_steady = False  # then one event after the other passes, and nothing is to be found out
        self._sent_bytes = 0
        self._idle_s = one.plan.backend.timeouts.idle_s
        self._late_at_s = self._timer_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def took(self, data: bytes) -> bytes | None:
        """Take what came of the stream; return what has to be parsed, or None."""
        try:
            # An event of a stream: most of all that ever comes.
            size = one_chunk(data) if self._is_steady and data[-5:] == _EVENT_ENDS else 0
            client = self._one.client
            transport = client.transport
            if size < TAIL_BYTES or transport is None or transport.is_closing() or client.writing_paused:
                return self._take(data)
            client.outbox.put(transport, data)
            self._last = data
            self._sent_bytes += size
            # The timer that is set finds out by itself that it is early.
            self._late_at_s = time.monotonic() + self._idle_s
        except Exception as bug:  # noqa: BLE001 the outermost edge: a bug costs one request, and its text may be a prompt
            self._failed(bug)
        return None

    def _take(self, data: bytes) -> bytes | None:
        client, found = self._one.client, whole_chunks(data)
        if found is None or client.writing_paused or (client.is_leaving and not self._has_begun):
            return self._to_parse(data)
        contents, is_end = found
        content = b"".join(contents)
        if self._life is not None and not self._is_alive(self._life, content, is_end=is_end):
            if is_end or not self._keep(data, content):
                return self._to_parse(data)
            self.wait()
            return None
        transport = client.transport
        if transport is None or transport.is_closing():
            self._leave()
            return None
        if self._has_begun:
            client.outbox.put(transport, data)
        else:
            client.outbox.put(transport, self._told(self._held + data))
            self._note_first()
        self._sent_bytes += len(content)
        if is_end:
            self._end(is_whole=True)
        else:
            self._follow(content)
            self.wait()
        return None

    def _is_alive(self, life: LifeSign, content: bytes, *, is_end: bool) -> bool:
        """Return whether what has come may go to the client."""
        life.feed(content)
        if life.is_alive:
            self._life, self._is_held = None, False
        return not self._is_held and not (is_end and not self._has_begun and life.events == 0)

    def _keep(self, data: bytes, content: bytes) -> bool:
        """Keep back what proves nothing yet; return False where the lane has to look at it."""
        reserve, life = self._one.lane.port.reserve, self._life
        is_too_much = len(self._held) + len(data) > READ_BYTES or not reserve.has(len(data))
        if not self._is_held or life is None or life.fault is not None or is_too_much:
            return False
        self._held += data
        self._sent_bytes += len(content)
        self._tail = (self._tail + content)[-TAIL_BYTES:]
        reserve.held_bytes += len(data)
        return True

    def _follow(self, content: bytes) -> None:
        """Take note of what the stream ends in."""
        self._tail = (self._ends_in() + content)[-TAIL_BYTES:]
        self._last = b""
        self._is_over = is_done(self._tail)

    def _ends_in(self) -> bytes:
        """Return the last bytes of the stream so far."""
        return self._last[-TAIL_BYTES - 2 : -2] if self._last else self._tail

    def _told(self, chunks: bytes) -> bytes:
        """Return the head that the client is told, and the first chunks."""
        one = self._one
        repaired = repairs_of(one.plan.applied) if one.plan.applied else None
        return self._known.begun(one.request_id.encode(), repaired, chunks, self._date or date_now().encode())

    def _note_first(self) -> None:
        """Take note that the client was sent the first bytes."""
        one, plan, held = self._one, self._one.plan, self._held
        self._begun_at_s = time.perf_counter()
        self._has_begun = True
        port = one.lane.port
        one.lane.upstream.note(plan.backend.name, self._known.status)
        port.metrics.streams_open.inc()
        # As Exchange.drop_body: the answer may last for minutes.
        port.reserve.held_bytes -= len(held) + one.held_bytes
        self._held, one.held_bytes = b"", 0
        request = one.request
        one.request = Request(request.method, request.path, request.query, request.headers, None)
        one.plan = plan.without_body()

    def _end(self, *, is_whole: bool) -> None:
        """Take note that the client has got all."""
        record = self._closed()
        self._one.lane.port.learn_from(record, self._known.status)
        self._one.over(record, self._known.status, self._sent_bytes, self._begun_at_s, is_whole=is_whole)
        self._one.client.finish(is_closing=False)

    def _leave(self) -> None:
        """Take note that the client takes nothing any more, though its connection is not gone yet."""
        self.client_left()
        self._one.client.finish(is_closing=True)

    def client_left(self) -> None:
        """Stop: the client has closed its connection."""
        if not self._has_begun:
            self._widen().client_left()
            return
        record = self._closed()
        record.has_left = True
        self._one.over(record, self._known.status, self._sent_bytes, self._begun_at_s, is_whole=False)

    def _closed(self) -> Record:
        """Wait for nothing any more; return what has become of the request."""
        self._stop_timer()
        self._one.lane.port.metrics.streams_open.dec()
        return Record(self._one.plan, 1, 1, None, has_content=True)

    def wait(self) -> None:
        """Have `_look` called when nothing comes for too long. One timer serves many waits: it mostly is early."""
        now_s = time.monotonic()
        self._is_steady = self._life is None and not self._is_over
        self._late_at_s = now_s + (self._idle_s if self._is_steady else self._wait_s(now_s))
        if self._timer is None or self._timer_at_s > self._late_at_s:
            self._set_timer(now_s)

    def _wait_s(self, now_s: float) -> float:
        """Return how long the next bytes may be waited for, or the client left without any, as Passage."""
        if self._is_over:
            return min(AFTER_DONE_S, self._idle_s)
        one = self._one
        wait_s = min(self._idle_s, one.sent_at_s + one.plan.backend.timeouts.first_content_s - now_s)
        if not self._has_begun and one.policy.keep_alive_s:
            wait_s = min(wait_s, self._headed_at_s + one.policy.keep_alive_s - now_s)
        return max(0.0, wait_s)

    def _set_timer(self, now_s: float) -> None:
        self._stop_timer()
        self._timer_at_s = self._late_at_s
        self._timer = asyncio.get_running_loop().call_later(self._late_at_s - now_s, self._look)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        now_s = time.monotonic()
        if self._late_at_s > now_s:
            self._set_timer(now_s)
        elif self._is_over:
            self._finish()
        else:
            self._late()

    def _finish(self) -> None:
        """End a stream that has told its sentinel, and whose backend says no more."""
        client = self._one.client
        transport = client.transport
        if transport is None or transport.is_closing():
            self._leave()
            return
        client.outbox.put(transport, LAST_CHUNK)
        self._end(is_whole=False)

    def _late(self) -> None:
        """Let the lane tell that nothing came in time, or that the client is waited for, or wait where that is slow."""
        is_slow, one = self._one.client.writing_paused, self._widen()
        if not is_slow:
            one.is_late()

    def is_lost(self) -> None:
        """Let the lane find out what is to be done: the connection to the backend is gone."""
        if self._is_over:
            self._finish()
        else:
            self._widen()

    def _to_parse(self, data: bytes) -> bytes:
        """Let the lane go on; return what its parser has to be given."""
        self._widen()
        return data

    def _widen(self) -> InLane:
        """Go on in the lane, with a stream that is parsed as it comes: from its head, or from where it stands."""
        one, connection = self._one, self._one.connection
        in_lane = self._in_lane()
        one.connection = None
        if connection is None:
            return in_lane
        answering = Answering(one.lane.upstream.pool, one.origin, connection)
        answering.headed_at_s = self._headed_at_s
        connection.parse_for(answering)
        if self._has_begun:
            connection.data_received(self._head)
            in_lane.go_on_with(answering, one.sent_at_s, self._life, self._ends_in())
        else:
            in_lane.asked(answering, one.sent_at_s)
            connection.data_received(self._head + self._held)
        return in_lane

    def _in_lane(self) -> InLane:
        """Return the request as the lane has it."""
        self._stop_timer()
        one = self._one
        one.lane.port.reserve.held_bytes -= len(self._held)
        in_lane = one.in_lane()
        if self._has_begun:
            in_lane.client.go_on(self._known.status, self._begun_at_s, self._sent_bytes)
        return in_lane

    def _failed(self, bug: Exception) -> None:
        """Let the lane tell that a bug kept the stream from going on."""
        connection, self._one.connection = self._one.connection, None
        if connection is not None:
            self._one.lane.upstream.pool.drop(connection)
        self._in_lane().failed(bug)
