"""A request that went on by a head that is known: all that it takes to end it, or to go on with it in the lane.

shortcut.py sends it and answers it whole; flow.py answers it with a stream.
"""

from __future__ import annotations

from typing import Protocol

from aiohttp import EMPTY_PAYLOAD

from proxy.deadlines import Deadlines
from proxy.direct import DirectUpstream
from proxy.direct_client import DirectClient
from proxy.engine import Plan, Request
from proxy.exchange import Record
from proxy.headers import HeaderList
from proxy.heads import Heads, KnownRequest
from proxy.lane import InLane, Lane
from proxy.pool import Origin
from proxy.server import LEFT, DataPort
from proxy.wire import Connection, Served


class Around(Protocol):
    """What all requests in the quick lane share."""

    port: DataPort
    upstream: DirectUpstream
    lane: Lane
    heads: Heads

    def deadlines(self, wait_s: float) -> Deadlines:
        """Return when what waits as long as this has waited too long."""


class Going:
    """One request in the quick lane."""

    __slots__ = (
        "client",
        "connection",
        "held_bytes",
        "known",
        "lane",
        "origin",
        "plan",
        "policy",
        "request",
        "request_id",
        "said",
        "sent_at_s",
        "started_s",
    )

    origin: Origin
    sent_at_s: float

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
        self.lane = lane
        self.client = client
        self.known = known
        self.said = said
        self.request = request
        self.plan = plan
        self.started_s = started_s
        self.policy = lane.port.policy
        self.request_id = request_id
        self.connection: Connection | None = None
        self.held_bytes = 0

    def over(self, record: Record, status: int, size: int, begun_at_s: float, *, is_whole: bool) -> None:
        """End it; `is_whole`: its answer was read to its end. Where its client has left, that is gone by itself."""
        port, connection = self.lane.port, self.connection
        self.connection = None
        if connection is not None:
            if is_whole:
                self.lane.upstream.pool.give_back(self.origin, connection)
            else:
                self.lane.upstream.pool.drop(connection)
        port.reserve.held_bytes -= self.held_bytes
        status = LEFT if record.has_left else status
        port.went(self.request, self.request_id, record, status, size, self.started_s, begun_at_s)

    def in_lane(self) -> InLane:
        """Return the request as the lane has it. Its body was taken, so there is nothing to be read of it."""
        port, client, request, message = self.lane.port, self.client, self.request, self.known.message
        told = DirectClient(client, message, port.metrics.streams_open)
        work = port.work_of(message, told, client.peer, client.scheme, (self.started_s, self.request_id, self.said))
        exchange, work.plan, size = work.exchange, self.plan, len(request.body or b"")
        exchange.policy, exchange.request, exchange.body = self.policy, request, request.body
        port.reserve.held_bytes -= self.held_bytes
        exchange.share.take(self.held_bytes or size)
        self.held_bytes = 0
        one = InLane(self.lane.lane, client, message, EMPTY_PAYLOAD, work)
        client.retake(one)
        return one
