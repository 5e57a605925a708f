"""What of a relayed answer may go to the client, and when: bytes and times in, bytes out. Knows no socket and no clock.

    backend's bytes ── take ──► bytes for the client (none while nothing proves that the answer is one)
    its end ── end ──► the last of them            nothing for wait_s ── late ──► a comment, the end, or a fault

Who carries it out begins the answer before the first bytes, or where `late` says so.
"""

from __future__ import annotations

from proxy import sse
from proxy.chunks import encode_json
from proxy.codings import Inflate, inflater
from proxy.engine import Plan
from proxy.errors import BackendFault
from proxy.exchange import Exchange, Refused
from proxy.headers import Headers, content_coding, get
from proxy.life import LifeSign
from proxy.reader import are_events
from proxy.refusals import Failure, failure_from
from proxy.upstream import Reply, empty, silent

# A stream whose sentinel has gone by is over: a backend that keeps its connection open is not waited for any longer.
AFTER_DONE_S = 0.2
# A line's end, the sentinel, a blank line: no text of an event can look like this, since JSON escapes its line's ends.
_SENTINELS = tuple(
    before + sentinel + blank_line
    for before in (b"\n", b"\r")
    for sentinel in (b"data: [DONE]", b"data:[DONE]")
    for blank_line in (b"\n\n", b"\r\n\r\n", b"\r\r")
)
TAIL_BYTES = max(map(len, _SENTINELS))
# How many blanks an answer may begin with while events are told from anything else.
_MAX_UNCLEAR_BYTES = 4096
_FOREVER_S = float("inf")


class Passage:
    """One answer on its way. `has_content`: something of it may have gone to the client.

    `steady_s`: how long the next bytes may be waited for, each time alike, where nothing else is to be waited for.
    """

    def __init__(self, exchange: Exchange, plan: Plan, reply: Reply, *, is_post: bool, now_s: float) -> None:
        """Let `reply` pass, whose head has come; `now_s` is the time, on the clock of `reply.sent_at_s`."""
        policy = exchange.policy
        self._hold_bytes = exchange.share.take
        self._reply = reply
        self._timeouts = plan.backend.timeouts
        self._keep_alive_s = policy.keep_alive_s or _FOREVER_S
        content_type = (get(reply.headers, "content-type") or "").lower()
        self.is_stream = content_type.startswith("text/event-stream")
        is_readable = is_post and plan.kind is not None and reply.status < 300
        self._inflate: Inflate | None = _inflater_of(reply) if is_readable else None
        is_readable = self._inflate is not None
        is_completion = self.is_stream and is_readable
        # Where a rule could react to a stream, one whose label is wrong is known by its first bytes.
        self._is_unclear = (
            is_readable
            and not self.is_stream
            and plan.may_react
            and plan.asks_for_stream
            and content_coding(reply.headers) == "identity"
        )
        self._max_held_bytes = policy.limits.event_bytes
        self._life = LifeSign(self._max_held_bytes) if is_completion else None
        # A stream that a reactive rule could still repair has to prove life before its head goes out.
        self._is_held = is_completion and plan.may_react
        self._held = bytearray()
        self._tail = b""
        self._comment_at_s = now_s + self._keep_alive_s
        self.has_content = False
        self.is_over = False
        self.steady_s: float | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the rest may pass without being looked at."""
        return self.has_content and not self.is_stream and self._life is None and not self._is_unclear

    def take(self, data: bytes) -> bytes:
        """Return what may go to the client now that these bytes have come. Raises: Refused."""
        if self._is_unclear and not (data := self._told_apart(data)):
            return b""
        if self._life is not None:
            self._watch(self._life, data)
        if self._is_held and self._hold(data):
            return b""
        if self._held:
            data, self._held = bytes(self._held) + data, bytearray()
        self.has_content = True
        if self.is_stream:
            self._tail = data[-TAIL_BYTES:] if len(data) >= TAIL_BYTES else (self._tail + data)[-TAIL_BYTES:]
            self.is_over = is_done(self._tail) and not self._reply.has_length
        self.steady_s = None if self._life is not None or self.is_over else self._timeouts.idle_s
        return data

    def pass_by(self, chunks: bytes, last: int) -> bool:
        """Return whether chunks of an event stream may go to the client as they are on the wire, unread.

        The last one has `last` bytes of the stream, and a line's end after them.
        """
        if self.steady_s is None or last < TAIL_BYTES:
            return False
        tail = chunks[-TAIL_BYTES - 2 : -2]
        if b"[DONE]" in tail:
            return False
        self._tail = tail
        return True

    def go_on(self, life: LifeSign | None, tail: bytes) -> None:
        """Go on with an event stream whose first bytes have passed already: they end in `tail`.

        `life` watches for what proves life, where that is still to come.
        """
        self._life, self._is_held, self.has_content = life, False, True
        self._tail, self.is_over = tail, is_done(tail)
        self.steady_s = None if life is not None or self.is_over else self._timeouts.idle_s

    def end(self) -> bytes:
        """Return what may go to the client now that the answer has ended.

        Raises: Refused, BackendFault where a stream ended before its content.
        """
        self._is_unclear = False
        if self._life is not None:
            self._life.close()
            self._watch(self._life, b"")
            if self._is_held or not self.has_content:
                raise empty()
        return self.take(b"") if self._held else b""

    def wait_s(self, now_s: float) -> float:
        """Return how long from now on the next bytes may be waited for, before `late` has to be asked."""
        return min(self._silence_s(now_s), self._comment_s(now_s))

    def late(self, now_s: float) -> bytes | None:
        """Return what the client is told while it waits, b"" where that is the answer's head alone; None: it is over.

        Raises: Refused or BackendFault where the backend was silent for too long.
        """
        if self.is_over:
            return None
        if self._silence_s(now_s) <= self._comment_s(now_s):
            raise self._silence()
        self._comment_at_s = now_s + self._keep_alive_s if self._is_held else _FOREVER_S
        return sse.comment(b"waiting") if self._is_held else b""

    def closing(self, fault: BackendFault) -> bytes:
        """Return the last bytes of an answer that was cut off after it had begun: an event that says so, or nothing."""
        is_readable = self.is_stream and get(self._reply.headers, "content-encoding") is None
        if not is_readable or self._reply.has_length:
            return b""
        # An event that was cut in the middle is closed first, so that it does not swallow the error's.
        gap = b"" if self._tail.endswith((b"\n\n", b"\r\r", b"\r\n\r\n")) else b"\n\n"
        return gap + b"data: " + encode_json(fault.body()) + b"\n\n"

    def _silence_s(self, now_s: float) -> float:
        """Return how long the backend may stay silent from now on."""
        if self.is_over:
            return min(AFTER_DONE_S, self._timeouts.idle_s)
        if self._life is None:
            return self._timeouts.idle_s
        left_s = self._reply.sent_at_s + self._timeouts.first_content_s - now_s
        return max(0.0, min(self._timeouts.idle_s, left_s))

    def _comment_s(self, now_s: float) -> float:
        """Return how long the client may still be left without a byte."""
        return _FOREVER_S if self.has_content else max(0.0, self._comment_at_s - now_s)

    def _silence(self) -> BackendFault | Refused:
        fault = silent("sent no content in time" if self._life is not None else "stopped in the middle of its answer")
        if self._life is None or self.has_content:
            return fault
        return Refused(Failure(None, fault.message, stream="silent"), fault)

    def _told_apart(self, data: bytes) -> bytes:
        """Return the bytes so far once they are known to be events, or not to be; none before."""
        data, self._held = bytes(self._held) + data, bytearray()
        told = are_events(data)
        if told is None and len(data) <= _MAX_UNCLEAR_BYTES:
            self._held += data
            return b""
        self._is_unclear = False
        if told:
            self.is_stream = self._is_held = True
            self._life = LifeSign(self._max_held_bytes)
        return data

    def _hold(self, data: bytes) -> bool:
        """Keep bytes back that prove nothing yet; False when there are too many of them to keep."""
        self._is_held = len(self._held) + len(data) <= self._max_held_bytes
        if self._is_held:
            self._hold_bytes(len(data))
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


def is_done(tail: bytes) -> bool:
    """Return whether a stream that ends in these bytes has told its sentinel; TAIL_BYTES of them are enough."""
    return b"[DONE]" in tail and tail.endswith(_SENTINELS)


def is_looked_at(plan: Plan, headers: Headers) -> bool:
    """Return whether what comes of an answer may have to be held back or watched: if not, it passes as it is."""
    content_type = get(headers, "content-type")
    if content_type is not None and content_type.lower().startswith("text/event-stream"):
        return True
    return plan.may_react and plan.asks_for_stream


def _inflater_of(reply: Reply) -> Inflate | None:
    """Return what makes the answer's bytes plain; None where it can't be read, and so is not watched."""
    try:
        return inflater(reply.headers)
    except BackendFault:
        return None
