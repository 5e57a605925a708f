"""How requests are traced, as the data path sees it: it tells what happens, and knows nothing of who writes it down.

    Tracer ─ begin ─► RequestTrace ─ branch ─► BranchSpan: sent ─► answered, failed ─► end
                           └─ end

Where nothing is traced there is no Tracer: `exchange.trace is None`, and a client's `traceparent` goes on untouched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from proxy.errors import ProxyError
from proxy.headers import Headers
from proxy.plans import Plan, Request
from proxy.policy import Backend


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a request. `route` is its path where that is one of the API's."""

    request: Request
    route: str | None
    status: int
    outcome: str
    rules: tuple[str, ...] = ()
    error: ProxyError | None = None
    has_left: bool = False


class BranchSpan(Protocol):
    """One upstream request. What is never sent is never told."""

    headers: Headers
    """Those that go upstream in place of the client's `traceparent` and `tracestate`."""

    def sent(self) -> None:
        """Take note that the request is sent."""

    def answered(self, status: int) -> None:
        """Take note of the answer's head."""

    def failed(self, error: BaseException) -> None:
        """Take note that there is no whole answer, and why."""

    def end(self) -> None:
        """Take note that it is over; the first time counts."""


class RequestTrace(Protocol):
    """One client's request."""

    def branch(self, plan: Plan, branch: int, backend: Backend, base: str) -> BranchSpan:
        """Return the span of an upstream request that is to be sent to `base`."""

    def failed(self, error: BaseException) -> None:
        """Take note that what is still being answered has failed."""

    def end_branches(self) -> None:
        """Take note that a round is over."""

    def end(self, ended: Ended) -> None:
        """Take note that the request is served."""


class Tracer(Protocol):
    """Writes down what becomes of requests."""

    def begin(self, request: Request, scheme: str, version: str) -> RequestTrace:
        """Begin to trace a request, as part of the client's trace where it has one."""


@contextmanager
def watched(span: BranchSpan) -> Iterator[None]:
    """Tell a span that it is sent, and how it ends."""
    span.sent()
    try:
        yield
    except BaseException as error:
        span.failed(error)
        raise
    finally:
        span.end()
