"""What a case says that the backend answered, read as the proxy reads it from the wire."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from proxy.life import LifeSign
from proxy.matching import BadTest
from proxy.policy_tests.schema import MetAnswer
from proxy.refusals import Failure, failure_from, read_refusal


@dataclass(frozen=True, slots=True)
class Fewer:
    """An answer with fewer choices than were asked for."""

    got: int


def met_answer(answer: MetAnswer) -> Failure | Fewer:
    """Return what the proxy makes of an answer.

    Raises: BadTest where the event of `stream: error` tells of none.
    """
    if answer.choices is not None:
        return Fewer(answer.got)
    body = msgspec.json.encode(answer.body) if answer.text is None else answer.text.encode()
    if answer.stream == "error":
        return _first_event(body)
    if answer.stream is not None:
        return Failure(None, stream=answer.stream)
    if answer.text is None and "body" not in answer.model_fields_set:
        body = b""
    return read_refusal(answer.status, body)


def _first_event(data: bytes) -> Failure:
    sign = LifeSign()
    sign.feed(b"".join(b"data: " + line + b"\n" for line in data.splitlines() or [b""]) + b"\n")
    if sign.fault is None:
        raise BadTest.at("this event tells of no failure: begin it with an `error`", "after")
    return failure_from(sign.fault, "error")
