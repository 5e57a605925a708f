"""The quick lane: a request whose head is known goes on, and an answer whose head is known comes back, unparsed.

    Served ─ data ─► head_of ─ known ─► plan ─► an idle connection ─► ask_quickly … took ─ known, whole ─► the client
                        │        │        └─────────┴─ what takes more ─► widen: parsed, and on in the lane
                        └────────┴─ None: parsed, and on in the lane, where it is looked at to know it the next time

What the quick lane does, the lane does as well; this one only leaves out what it did with the same bytes before.
"""

from __future__ import annotations

import time

from proxy import engine
from proxy.deadlines import Deadlines
from proxy.direct import DirectUpstream
from proxy.engine import Request
from proxy.errors import ProxyError
from proxy.head_learner import HeadLearner
from proxy.heads import request_head_of
from proxy.lane import MAX_BODY_BYTES, Lane
from proxy.server import DataPort
from proxy.shortcut import Shortcut
from proxy.wire import Served, Taken

# Policies come and go, and each may wait for another time.
_MOST_DEADLINES = 16


class QuickLane:
    """Takes requests for a data port."""

    def __init__(self, port: DataPort, upstream: DirectUpstream) -> None:
        """Take them for `port`, which asks through `upstream`."""
        self.port = port
        self.upstream = upstream
        self.learner = HeadLearner(port.policy)
        self.heads = self.learner.heads
        self.lane = Lane(port, upstream, self.learner)
        port.learner = self.learner
        self._deadlines: dict[float, Deadlines] = {}

    def __call__(self, connection: Served, data: bytes, body: bytes | None) -> Taken | None:
        """Answer a request that has come whole and whose head is known, or return None: it has to be parsed.

        `body` is what came after the head, where that came by itself.
        """
        port = self.port
        connection.head_key, connection.head_comes_again = b"", False
        policy = port.policy
        if policy is not self.learner.policy:
            self.learner.use(policy)
        head = request_head_of(data)
        if head is None or connection.is_leaving or port.tracer is not None:
            return None
        key, length, given_id, end = head
        size = len(data) - end if body is None else len(body)
        missing = int(length) - size
        known = self.heads.requests.get(key)
        connection.head_key = key
        connection.head_comes_again = known is not None or self.heads.comes_again(key)
        if missing > 0 and connection.head_comes_again and size + missing <= MAX_BODY_BYTES and b"xpect" not in key:
            connection.hold(data[:end], data[end:], missing, port.reserve)
        if known is None or missing or size > policy.limits.body_bytes or not port.reserve.has(size):
            return None
        started_s, said = time.perf_counter(), known.said(length, given_id)
        request = Request("POST", known.path, known.query, said, data[end:] if body is None else body)
        try:
            plan = engine.plan(request, policy, learned=self.port.lessons.rules)
        except ProxyError:
            return None  # the lane comes to the same, and tells it
        one = Shortcut(self, connection, known, said, request, plan, started_s, given_id.decode() or port.ids.new())
        try:
            return one if one.ask() else one.widen_unsent()
        except Exception as bug:  # noqa: BLE001 as in Shortcut.took
            one.failed(bug)
            return one

    def deadlines(self, wait_s: float) -> Deadlines:
        """Return when what waits as long as this has waited too long."""
        found = self._deadlines.get(wait_s)
        if found is None:
            if len(self._deadlines) >= _MOST_DEADLINES:
                self._deadlines.clear()  # who waits holds its own
            found = self._deadlines[wait_s] = Deadlines(wait_s)
        return found
