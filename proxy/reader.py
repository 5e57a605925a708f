"""Reads one branch's answer: bytes to chunks or to one JSON answer, whatever form the backend chose.

    event stream ── parse ──► chunks ── collect ──► answer
    JSON ─────── explode ──► chunks          the JSON itself

What fails before any content is a refusal (`empty`, `error`, `silent`), since another round may follow it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from proxy import sse
from proxy.allowance import Allowance, Kept
from proxy.answers import Collector, explode
from proxy.chunks import (
    decode_answer,
    decode_chunk,
    failure_of,
    indexed_choices,
    is_life,
    require_finished,
    speaks,
    with_deltas,
)
from proxy.codings import inflater
from proxy.errors import BackendFault
from proxy.exchange import Refused
from proxy.headers import get
from proxy.policy import Limits, Timeouts
from proxy.refusals import failure_from
from proxy.repairs.card import Undo
from proxy.splice import Spliced, Splicer
from proxy.upstream import Reply, empty, silent

# A backend that says neither [DONE] nor goodbye after its last finish_reason is not waited for any longer.
AFTER_FINISH_S = 5.0

_SSE_STARTS = (b"data:", b"event:", b"id:", b"retry:", b":")
_BOM = b"\xef\xbb\xbf"
_BLANKS = b"\xef\xbb\xbf \t\r\n"


def are_events(first: bytes) -> bool | None:
    """Return whether an answer that begins like this is a stream of events; None where more has to come to tell."""
    if first.startswith(b"{"):
        return False
    start = first.lstrip(_BLANKS)
    if not start or any(word.startswith(start) and word != start for word in _SSE_STARTS):
        return None
    return start.startswith(_SSE_STARTS)


class Heard(msgspec.Struct, frozen=True):
    """A chunk, and the event's data that it was decoded from, if it was."""

    chunk: dict[str, Any]
    data: bytes = b""


class Exploded(msgspec.Struct, frozen=True):
    """All events that bring a whole answer, ready to be written."""

    events: bytes


Pieces = list[Heard | Spliced | Exploded]

AtOnce = Callable[[dict[str, Any]], bytes | None]
"""A whole answer → the events that bring it; None where its chunks have to be merged."""


def _not_at_once(_answer: dict[str, Any]) -> None:
    return None


@dataclass(frozen=True, slots=True)
class _Decoded:
    pieces: Pieces
    is_last: bool = False
    fault: BackendFault | None = None

    def raise_fault(self) -> None:
        if self.fault is not None:
            raise self.fault


class Reader:
    """Reads one branch's answer, whatever its form: event stream or JSON, compressed or labelled wrongly."""

    def __init__(
        self,
        reply: Reply,
        limits: Limits,
        timeouts: Timeouts,
        allowance: Allowance,
        choices: int | None,
        undos: Sequence[Undo] = (),
    ) -> None:
        """Read `reply`; `choices` is how many the branch will give, where that is known.

        What has to be held is taken from `allowance`, which all branches share.
        """
        self._allowance = allowance
        self._kept = Kept(allowance)
        self._is_collected = False
        self._rest = b""  # of compressed bytes that have come, and are not inflated yet
        self._reply = reply
        self._undos = undos
        self._limits = limits
        self._timeouts = timeouts
        self._inflate = inflater(reply.headers)
        self._finished: set[int] = set()
        self._spoken: set[int] = set()
        self._expected = choices
        self.is_alive = False
        self.is_whole = False  # nothing follows what was yielded last, and nothing has failed
        self.raw: bytes | None = None  # of an answer that came as JSON

    async def answer(self) -> dict[str, Any]:
        """Return the branch's whole answer. Raises: Refused, since nothing of it can have gone to the client."""
        try:
            first = await self._first()
            if not self.is_event_stream(first):
                return await self._json(first)
            self._is_collected = True
            collector = Collector(None)
            async for pieces in self._pieces(first, None):
                for piece in pieces:
                    if isinstance(piece, Heard):
                        collector.feed(piece.chunk)
            return collector.result()
        except BackendFault as fault:
            raise Refused(failure_from(fault, "error"), fault) from fault

    async def pieces(
        self, *, include_usage: bool, splicer: Splicer | None = None, at_once: AtOnce = _not_at_once
    ) -> AsyncIterator[Pieces]:
        """Yield the branch's chunks as they come; a JSON answer's all at once, by `at_once` where that knows how.

        What `splicer` knows how to write is not decoded once the answer is alive.

        Raises: Refused while no content has come, BackendFault afterwards.
        """
        try:
            first = await self._first()
            if self.is_event_stream(first):
                async for pieces in self._pieces(first, splicer):
                    yield pieces
            else:
                answer = await self._json(first)
                events = at_once(answer)
                pieces = [Exploded(events)] if events is not None else self._exploded(answer, include_usage)
                self.is_alive = self.is_whole = True
                yield pieces
        except BackendFault as fault:
            if self.is_alive:
                raise
            raise Refused(failure_from(fault, _how(fault)), fault) from fault

    def _exploded(self, answer: dict[str, Any], include_usage: bool) -> Pieces:
        # What is whole can be judged before any of it goes to the client.
        require_finished([choice for _, choice in indexed_choices(answer)])
        return [Heard(chunk) for chunk in explode(answer, include_usage=include_usage)]

    @property
    def status(self) -> tuple[int, str | None]:
        """The status of the backend's answer, and its reason."""
        return self._reply.status, self._reply.reason

    async def first(self) -> bytes:
        """Return the first bytes of the answer, enough to tell its form; none where it has nothing but blanks."""
        data = b""
        while are_events(data) is None:
            start = data.lstrip(_BLANKS)
            more = await self._read()
            if not more:
                return data if start else b""
            data = (data if start else data[-len(_BOM) :]) + more
        return data

    async def _first(self) -> bytes:
        first = await self.first()
        if not first:
            raise empty()
        return first

    def is_event_stream(self, first: bytes) -> bool:
        """Return whether the answer is a stream of events, by its label or else by its first bytes."""
        # Some gateways send events labelled as JSON, and JSON labelled as events; no line of these begins with a brace.
        label = (get(self._reply.headers, "content-type") or "").lower()
        return are_events(first) or (label.startswith("text/event-stream") and first.lstrip(_BLANKS)[:1] != b"{")

    async def events(self, first: bytes) -> AsyncIterator[list[sse.Event]]:
        """Yield the events of an answer that is not made of chunks, its first bytes given; any of them is life.

        Where the backend sent nothing but a comment, no events are yielded, so that it can be passed on.
        """
        parser = sse.Parser(self._limits.event_bytes)
        data = first
        while data:
            comments, events = parser.comments, parser.feed(data)
            self.is_alive = self.is_alive or bool(events)
            if events or parser.comments > comments:
                yield events
            data = await self._read()
        if last := parser.close():
            yield last

    async def whole(self, first: bytes) -> bytes:
        """Return the bytes of a whole answer, its first ones given.

        Raises: BackendFault where it is larger than the policy's limits.response.
        """
        whole, data = bytearray(), first
        while data:
            self._allowance.take(len(data))
            whole += data
            data = await self._read()
        return bytes(whole)

    async def _json(self, first: bytes) -> dict[str, Any]:
        self.raw = await self.whole(first)
        answer = decode_answer(self.raw)
        fault = failure_of(answer)
        if fault is not None:
            raise fault
        for undo in self._undos:
            answer = undo.answer(answer)
        return answer

    async def _pieces(self, first: bytes, splicer: Splicer | None) -> AsyncIterator[Pieces]:
        parser = sse.Parser(self._limits.event_bytes)
        data = first
        while data:
            decoded = self._decoded(parser.feed(data), splicer)
            self.is_whole = self.is_alive and decoded.is_last and decoded.fault is None
            if decoded.pieces:
                yield decoded.pieces
            if decoded.is_last:
                break
            data = await self._read()
        else:
            decoded = self._decoded(parser.close(), splicer)
            if decoded.pieces:
                yield decoded.pieces
        decoded.raise_fault()
        if not self.is_alive:
            raise empty()

    def _decoded(self, events: list[sse.Event], splicer: Splicer | None) -> _Decoded:
        """Return the events' chunks, up to the sentinel, a failure, or what an undo wants no more of."""
        pieces: Pieces = []
        try:
            for event in events:
                spliced = splicer.splice(event) if splicer is not None else None
                if spliced is not None:
                    pieces.append(spliced)
                elif self._is_last(event, pieces):
                    return _Decoded(pieces, is_last=True)
        except BackendFault as fault:
            return _Decoded(pieces, is_last=True, fault=fault)
        return _Decoded(pieces)

    def _is_last(self, event: sse.Event, pieces: Pieces) -> bool:
        """Add the event's chunk, and return whether no more is to be read."""
        if event.is_done:
            return True
        if event.is_blank:
            return False
        chunk = self._chunk(event)
        if chunk:  # an undo may leave nothing of it
            pieces.append(Heard(chunk, event.data))
        return any(undo.is_done for undo in self._undos)

    def _chunk(self, event: sse.Event) -> dict[str, Any]:
        chunk = decode_chunk(event.data)
        fault = failure_of(chunk, event.event)
        if fault is not None:
            raise fault
        chunk = with_deltas(chunk, self._spoken)
        self.is_alive = self.is_alive or is_life(chunk)
        self._kept.chunk(chunk, is_collected=self._is_collected)
        if not self.is_alive:
            # Until there is life nothing goes to the client, so it is held.
            self._allowance.take(len(event.data))
        self._spoken |= {index for index, choice in indexed_choices(chunk) if speaks(choice)}
        for undo in self._undos:
            chunk = undo.chunk(chunk)
        self.is_alive = self.is_alive or is_life(chunk)
        for index, choice in indexed_choices(chunk):
            if choice.get("finish_reason"):
                self._finished.add(index)
        return chunk

    async def _read(self) -> bytes:
        while data := self._rest or await self._next():
            plain, self._rest = self._inflate(data)
            if plain:
                return plain
        return b""

    async def _next(self) -> bytes:
        try:
            return await self._reply.read(self._wait_s())
        except TimeoutError:
            if self._is_finished():
                return b""
            raise self._silent() from None

    def _is_finished(self) -> bool:
        return self._expected is not None and len(self._finished) >= self._expected

    def _wait_s(self) -> float:
        if self._is_finished():
            return min(AFTER_FINISH_S, self._timeouts.idle_s)
        if self.is_alive:
            return self._timeouts.idle_s
        left_s = self._reply.sent_at_s + self._timeouts.first_content_s - time.monotonic()
        return max(0.0, min(self._timeouts.idle_s, left_s))

    def _silent(self) -> BackendFault:
        return silent("stopped in the middle of its answer" if self.is_alive else "sent no content in time")


def _how(fault: BackendFault) -> str:
    if fault.token == "connection_read_timeout":
        return "silent"
    return "empty" if fault.token == "http_response_incomplete" else "error"
