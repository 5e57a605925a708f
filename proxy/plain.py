"""Restored answers of paths that have no chunks (embeddings, responses …): what the repairs did is undone, no more.

event stream → each event's JSON edited, its name kept; errors and other events as they came, and comments once it began
JSON → edited, and joined with the other branches'         anything else, and what needs no edit → as it came
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from proxy import sse
from proxy.chunks import decode_answer, decode_chunk, encode_json, failure_of
from proxy.engine import Plan, Restore
from proxy.errors import BackendFault
from proxy.exchange import Exchange
from proxy.headers import Headers, get, strip_of_the_bytes, without
from proxy.reader import Reader
from proxy.repairs.card import Undo
from proxy.spread import merge_data
from proxy.upstream import empty


class PlainSink:
    """Takes the answers of the branches; an event stream can only be that of a single one."""

    def __init__(self, exchange: Exchange, plan: Plan, restoring: Restore) -> None:
        self._exchange = exchange
        self._plan = plan
        self._restoring = restoring
        self._head: Headers = ()
        self._status: tuple[int, str | None] = (200, None)
        self._answers: dict[int, dict[str, Any]] = {}

    def start(self, group: object, waited_s: float) -> None:
        """Do nothing: the answer begins with the backend's."""

    def stop(self) -> None:
        """Do nothing: there is nothing beside the branches."""

    def heard(self, headers: Headers) -> None:
        """Note the head of the first branch that answers."""
        self._head = self._head or headers

    async def take(self, branch: int, reader: Reader, _more: object) -> None:
        """Take a branch's answer, to its end."""
        undos = [make() for make in self._restoring.undos]
        self._status = reader.status
        first = await reader.first()
        if reader.is_event_stream(first):
            await self._stream(reader, first, undos)
        else:
            await self._whole(branch, await reader.whole(first), undos)

    async def _stream(self, reader: Reader, first: bytes, undos: Sequence[Undo]) -> None:
        if len(self._plan.bodies) > 1:
            raise BackendFault("The backend streams answers that have to be joined.", code="invalid_answer")
        async for events in reader.events(first):
            data = b"".join(_edited(event, undos) for event in events)
            # A comment before the first event proves no life, and must not keep another round from being tried.
            if data or (not events and self._is_begun):
                await self._write(data or sse.comment(b"waiting"))
            if any(event.is_done for event in events) or any(undo.is_done for undo in undos):
                break
        if not self._is_begun:
            raise empty()
        await self._exchange.client.end()

    async def _whole(self, branch: int, data: bytes, undos: Sequence[Undo]) -> None:
        is_alone = len(self._plan.bodies) == 1
        try:
            told = decode_answer(data)
        except BackendFault:
            if not is_alone:
                raise
            await self._finish(data)
            return
        fault = _failure_of(told)
        if fault is not None:
            raise fault
        answer = told
        for undo in undos:
            answer = undo.answer(answer)
        self._answers[branch] = answer
        if is_alone:
            await self._finish(data if answer is told else encode_json(answer))
        elif len(self._answers) == len(self._plan.bodies):
            await self._finish(encode_json(self._joined()))

    def _joined(self) -> dict[str, Any]:
        answers = [self._answers[branch] for branch in sorted(self._answers)]
        return merge_data(answers, self._restoring.spreads, self._restoring.usage)

    async def _finish(self, body: bytes) -> None:
        await self._write(body, len(body))
        await self._exchange.client.end()

    @property
    def _is_begun(self) -> bool:
        return self._exchange.client.begun_status is not None

    async def _write(self, data: bytes, length: int | None = None) -> None:
        if not self._is_begun:
            await self._begin(length)
        self._exchange.record.has_content = True
        await self._exchange.client.write(data)

    async def _begin(self, length: int | None) -> None:
        usual, label = "text/event-stream" if length is None else "application/json", get(self._head, "content-type")
        # A label that says the other of the two is wrong: the answer was known by its first bytes.
        is_fit = label is not None and label.lower().startswith("text/event-stream") is (length is None)
        kept = [
            *without(strip_of_the_bytes(self._head), "content-type"),
            ("Content-Type", label if label and is_fit else usual),
        ]
        if length is not None and self._status[0] != HTTPStatus.NO_CONTENT:
            kept.append(("Content-Length", str(length)))
        await self._exchange.client.begin(*self._status, self._exchange.passed_on(self._plan, kept))


def _failure_of(answer: dict[str, Any]) -> BackendFault | None:
    """Return the failure that an answer is; one that says what it is (`object: response`) may hold an `error` too."""
    return failure_of(answer) if answer.get("object") in (None, "error") else None


def _edited(event: sse.Event, undos: Sequence[Undo]) -> bytes:
    """Return the event as it goes to the client; nothing where an undo leaves nothing of it."""
    if event.is_done:
        return sse.DONE
    as_it_came = sse.encode(event.data, event.event)
    try:
        told = decode_chunk(event.data)
    except BackendFault:
        return as_it_came
    if failure_of(told, event.event) is not None:
        return as_it_came
    value = told
    for undo in undos:
        value = undo.chunk(value)
    if value is told:
        return as_it_came
    return sse.encode(encode_json(value), event.event) if value else b""
