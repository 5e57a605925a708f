"""What the one JSON answer of a plan becomes once it is there as a whole: the stream, or the JSON, that was asked for.

answer's bytes ── decode ─► undo ─► events_of, or merge_answers ──► head and body; None: a task tells what is wrong
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from proxy import sse
from proxy.chunks import decode_answer, failure_of
from proxy.engine import Plan
from proxy.errors import BackendFault
from proxy.exploded import events_of
from proxy.headers import Headers
from proxy.plans import Kind, Restore
from proxy.sinks import is_alone, json_body, json_head, stream_head
from proxy.spread import merge_answers


@dataclass(frozen=True, slots=True)
class Whole:
    """How the answer is restored."""

    restoring: Restore
    kind: Kind

    @classmethod
    def of(cls, plan: Plan) -> Whole | None:
        """Return how a plan's answer is, where it is asked for as one piece of JSON; None where it is not."""
        restoring = plan.restore
        if restoring is None or restoring.kind is None or not is_alone(restoring) or plan.asks_for_stream:
            return None
        return cls(restoring, restoring.kind)

    def restored(self, data: bytes, head: Headers) -> tuple[Headers, bytes] | None:
        """Return the head and the body that the client gets; None where it takes more than this to make them."""
        restoring, kind = self.restoring, self.kind
        if restoring.stream:
            events = self.events(data)
            return (stream_head(head), events) if events is not None else None
        try:
            answer = self._undone(data)
            if answer is None:
                return None
            body = json_body(merge_answers([answer], restoring.spreads, restoring.usage), restoring, kind)
        except BackendFault:
            return None
        return json_head(head, body), body

    def events(self, data: bytes) -> bytes | None:
        """Return the stream that is made of the answer; None where it takes more than this to make it."""
        try:
            answer = self._undone(data)
        except BackendFault:
            return None
        if answer is None:
            return None
        events = events_of(answer, self.kind, include_usage=self.restoring.include_usage)
        return events + sse.DONE if events is not None else None

    def _undone(self, data: bytes) -> dict[str, Any] | None:
        """Return the answer without what repairs added to it; None where it tells a failure. Raises: BackendFault."""
        answer = decode_answer(data)
        if failure_of(answer) is not None:
            return None
        for make in self.restoring.undos:
            answer = make().answer(answer)
        return answer
