"""Learns heads from what the lane and the data port's tasks make of them: see heads.py."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import HttpVersion11
from aiohttp.http import RawRequestMessage, RawResponseMessage

from proxy.engine import Plan
from proxy.exchange import Exchange, repairs_of
from proxy.headers import HeaderList
from proxy.heads import (
    Heads,
    KnownRequest,
    answer_head_of,
    around_answer,
    around_request,
    around_stream,
    is_usual,
    is_usual_stream,
    request_head_of,
    stream_head_of,
)
from proxy.models import is_joined
from proxy.policy import Policy
from proxy.pool import Answering, encode_call, origin_of
from proxy.upstream import PART_BYTES, Call
from proxy.wire import Served

_OK, _LOWEST_REDIRECT, _LOWEST_REFUSAL = 200, 300, 400
_WITHOUT_BODY = frozenset({204, 304})


class HeadLearner:
    """Has heads known. What may be served, and what a backend is told, is the policy's to say: each has its own."""

    def __init__(self, policy: Policy) -> None:
        """Know no head yet."""
        self.heads = Heads()
        self.policy = policy

    def use(self, policy: Policy) -> None:
        """Forget all that was made by another policy."""
        self.policy = policy
        self.heads.clear()

    def request_came(self, connection: Served, message: RawRequestMessage, exchange: Exchange) -> None:
        """Know a request's head, where one that came lately came before."""
        said = exchange.request.headers
        if not connection.head_comes_again or exchange.request.body is None or exchange.policy is not self.policy:
            return
        if not (isinstance(said, HeaderList) and _stays(message) and message.method == "POST" and is_usual(said)):
            return
        # Told by the message, and not by the bytes that came last: it may have waited behind another one.
        head = request_head_of(_sent(f"POST {message.path} HTTP/1.1", message.raw_headers))
        if head is None or ("x-request-id" in said.names.at) != (head[2] != b"") or is_joined(exchange):
            return
        if head[0] not in self.heads.requests:
            request = exchange.request
            self.heads.keep_request(head[0], KnownRequest(message, request.path, request.query, said))

    def request_goes(
        self, connection: Served, message: RawRequestMessage, exchange: Exchange, plan: Plan, call: Call
    ) -> None:
        """Know what goes to a backend of a request whose head is known."""
        known = self.heads.requests.get(connection.head_key)
        if known is None or known.message is not message or not isinstance(call.body, bytes) or call.span is not None:
            return
        if exchange.policy is not self.policy or len(plan.bodies) > 1:
            return
        base = exchange.address(plan.backend)
        head = encode_call(call, origin_of(base))
        head = head[: len(head) - len(call.body)] if len(call.body) <= PART_BYTES else head
        is_edited = bool(plan.bodies)
        around = around_request(head, b"%d" % len(call.body), exchange.request_id.encode(), is_edited=is_edited)
        if around is not None:
            way = (exchange.peer, exchange.scheme, plan.backend.name, base, is_edited, plan.restore is not None)
            known.keep(way, around)

    def answer_goes(self, answering: Answering, exchange: Exchange, plan: Plan, told: bytes) -> None:
        """Know the head of an answer that passed as it came."""
        key, length, date = self._key_of(answering, exchange)
        if key:
            own, status = _without_repairs(told, plan), answering.message.code if answering.message is not None else 0
            known = around_answer(status, own, length, exchange.request_id.encode(), date)
            if known is not None:
                self.heads.keep_answer(key, known)

    def stream_goes(self, answering: Answering, exchange: Exchange, plan: Plan, told: bytes) -> None:
        """Know the head of a JSON answer of which a stream was made."""
        key, _, date = self._key_of(answering, exchange)
        status = answering.message.code if answering.message is not None else 0
        if key and status < _LOWEST_REDIRECT:
            own = _without_repairs(told, plan)
            known = around_stream(status, own, exchange.request_id.encode(), date)
            if known is not None:
                self.heads.keep_stream(key, known)

    def flow_goes(self, answering: Answering, exchange: Exchange, plan: Plan, told: bytes) -> None:
        """Know the head of a stream that passes as it comes."""
        message, said = answering.message, answering.said
        if message is None or exchange.client.is_closing or exchange.request.method != "POST" or plan.kind is None:
            return
        if message.code != _OK or message.version != HttpVersion11 or message.should_close or message.upgrade:
            return
        head = stream_head_of(_sent(f"HTTP/1.1 {message.code} {message.reason}", message.raw_headers))
        if head is None or not is_usual_stream(said):
            return
        known = around_stream(message.code, _without_repairs(told, plan), exchange.request_id.encode(), head[1])
        if known is not None:
            self.heads.keep_flow(head[0], known)

    def _key_of(self, answering: Answering, exchange: Exchange) -> tuple[bytes, bytes, bytes]:
        """Return what an answer's head is known by, its length and its date; b"" where it can't be known."""
        message, said = answering.message, answering.said
        if message is None or exchange.client.is_closing or exchange.request.method != "POST":
            return b"", b"", b""
        is_passed = _OK <= message.code < _LOWEST_REFUSAL and message.code not in _WITHOUT_BODY
        if not (is_passed and _stays(message) and is_usual(said)):
            return b"", b"", b""
        head = answer_head_of(_sent(f"HTTP/1.1 {message.code} {message.reason}", message.raw_headers))
        return head[:3] if head is not None else (b"", b"", b"")


def _sent(first_line: str, raw_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a head as nearly all send it; of another form, nothing that comes will be like it."""
    lines = [first_line.encode("utf-8", "surrogateescape"), *(name + b": " + value for name, value in raw_headers)]
    return b"\r\n".join([*lines, b"", b""])


def _without_repairs(told: bytes, plan: Plan) -> bytes:
    if not plan.applied:
        return told
    return told.replace(b"\r\nMendproxy-Repairs: %b" % repairs_of(plan.applied).encode(), b"", 1)


def _stays(message: RawRequestMessage | RawResponseMessage) -> bool:
    """Return whether a message is of a length that its head tells, and its connection stays as it is."""
    return message.version == HttpVersion11 and not (message.should_close or message.chunked or message.upgrade)
