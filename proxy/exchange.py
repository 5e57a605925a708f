"""One client's request on its way: what is known of it, and what the relay needs of the connection to the client.

The relay speaks to a `Client`, not to aiohttp, so the data path beneath can change without it.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from proxy import headers
from proxy.admission import METHODS
from proxy.allowance import Share
from proxy.chunks import encode_json
from proxy.codings import beginning
from proxy.engine import Applied, Plan, Request
from proxy.errors import BackendFault, ProxyError
from proxy.headers import Headers
from proxy.policy import Backend, Policy
from proxy.refusals import Failure, read_refusal
from proxy.tracing import RequestTrace
from proxy.upstream import Call, Reply, Streamed, Upstream, silent

# How much of a refusal's body is read for the rules that know it by its text.
MATCHED_BYTES = 64 * 1024


class Client(Protocol):
    """The connection to the client. `begun_status` is None until the status line is written.

    `is_closing`: the connection ends with the answer. `has_idled`: it was kept alive, unused, when the drain began.
    """

    begun_status: int | None
    is_closing: bool

    @property
    def has_idled(self) -> bool:
        """See above."""

    async def begin(self, status: int, reason: str | None, headers: Headers) -> None:
        """Write the status line and headers."""

    async def write(self, data: bytes) -> None:
        """Write a part of the body, waiting while the client is slow. Raises: ClientLeft."""

    async def end(self) -> None:
        """End the answer cleanly."""

    def abort(self) -> None:
        """Close the connection so that the client sees that the answer is not whole."""


class Record(msgspec.Struct):
    """What became of a request, for its log line and the metrics. A struct, as Plan is."""

    plan: Plan | None = None
    rounds: int = 0
    branches: int = 0
    error: ProxyError | None = None
    has_content: bool = False
    is_truncated: bool = False
    has_left: bool = False


class Exchange(msgspec.Struct):
    """A request and all that it takes to answer it. `body` is what goes on where no repair made another.

    A struct, as Plan is.
    """

    request: Request
    body: bytes | Streamed | None
    policy: Policy
    upstream: Upstream
    address: Callable[[Backend], str]
    client: Client
    request_id: str
    peer: str | None
    scheme: str
    version: str
    share: Share
    record: Record = msgspec.field(default_factory=Record)
    trace: RequestTrace | None = None

    def call(self, plan: Plan, branch: int, backend: Backend | None = None) -> Call:
        """Return the upstream request of a branch, to the plan's backend unless another is given."""
        passed = headers.toward_backend(
            self.request.headers,
            peer=self.peer,
            scheme=self.scheme,
            version=self.version,
            request_id=_branch_id(self.request_id, branch),
        )
        passed = self._with_credentials(passed, backend or plan.backend)
        body = self.body
        if plan.bodies:
            body = bytes(plan.bodies[branch])
            passed = [*headers.without(headers.strip_of_the_bytes(passed), "content-type"), _JSON]
        if plan.restore is not None:
            passed = [*headers.without(passed, "accept", "accept-encoding"), ("Accept-Encoding", "identity")]
        query = f"?{self.request.query}" if self.request.query else ""
        span = None
        if self.trace is not None:
            to = backend or plan.backend
            span = self.trace.branch(plan, branch, to, self.address(to))
            passed = [*headers.without(passed, "traceparent", "tracestate"), *span.headers]
        return Call(self.request.method, self.request.path + query, passed, body, span=span)

    def _with_credentials(self, passed: list[tuple[str, str]], backend: Backend) -> list[tuple[str, str]]:
        if backend.api_key:
            return [*headers.without(passed, "authorization"), ("Authorization", f"Bearer {backend.api_key}")]
        # A key that opens the proxy is none of the backend's business.
        return headers.without(passed, "authorization") if self.policy.auth_keys else passed

    def edited_bytes(self, plan: Plan) -> int:
        """Return the size of a plan's bodies, beside the client's own."""
        return sum([len(body) for body in plan.bodies if body is not self.body])

    def drop_body(self) -> None:
        """Let go of the request's body, for which nobody asks any more: the answer may last for minutes."""
        request, plan = self.request, self.record.plan
        if isinstance(self.body, bytes):
            inflated = len(request.body) if request.body is not None and request.body is not self.body else 0
            self.share.drop(len(self.body) + inflated + (self.edited_bytes(plan) if plan is not None else 0))
            self.body = None
            self.request = Request(request.method, request.path, request.query, request.headers, None)
            self.record.plan = plan.without_body() if plan is not None else None

    def told(self, plan: Plan | None) -> list[tuple[str, str]]:
        """Return the headers by which every answer tells its id and what was repaired."""
        told = [("x-request-id", self.request_id)]
        if plan is not None and plan.applied:
            told.append(("Mendproxy-Repairs", repairs_of(plan.applied)))
        return told

    def passed_on(self, plan: Plan, reply_headers: Headers) -> list[tuple[str, str]]:
        """Return the head of a backend's answer as it goes on to the client.

        A redirect to the backend's own address would lead around the proxy, so it is told relative to ours.
        """
        passed = headers.strip_hop_by_hop(reply_headers, "x-request-id")
        if not headers.are_usual(reply_headers) and headers.get(reply_headers, "location") is not None:
            origin = self.address(plan.backend).rstrip("/")
            passed = [headers.relative_to(origin, name, value) for name, value in passed]
        return passed + self.told(plan)


@functools.lru_cache(maxsize=256)
def repairs_of(applied: tuple[Applied, ...]) -> str:
    """Return the value of Mendproxy-Repairs."""
    return headers.repairs(tuple([(one.rule, one.loses, one.warning) for one in applied]))


def _branch_id(request_id: str, branch: int) -> str:
    """Return a branch's own id: a backend may take it for the request's identity, or take nothing but UUIDs."""
    if branch == 0:
        return request_id
    try:
        return str(uuid.uuid5(uuid.UUID(request_id), str(branch)))
    except ValueError:
        return f"{request_id}-{branch}"


_JSON = ("Content-Type", "application/json")


@dataclass(frozen=True, slots=True)
class HttpRefusal:
    """An answer with an error status, read to its end."""

    status: int
    reason: str
    headers: Headers
    body: bytes


class Refused(Exception):
    """The backend said no, or nothing, before any content: another round may follow."""

    def __init__(self, failure: Failure, answer: HttpRefusal | ProxyError, *, index: int | None = None) -> None:
        super().__init__(failure.text)
        self.failure = failure
        self.answer = answer
        self.index = index


def refused_by(fault: BackendFault, plan: Plan, *, index: int | None = None) -> Refused:
    """Return the refusal that a backend's failure is; a stream that does not even get a head is a silent one."""
    how = "empty" if fault.token == "http_response_incomplete" else None
    if fault.token == "http_response_timeout" and plan.may_react and plan.asks_for_stream:
        how = "silent"
    return Refused(Failure(None, fault.message, stream=how), fault, index=index)


async def read_http_refusal(exchange: Exchange, reply: Reply, wait_s: float | None) -> Refused:
    """Return the refusal that an answer with an error status is.

    Raises: BackendFault where its body is cut, or stops.
    """
    limit = exchange.policy.limits.response_bytes
    try:
        body, is_whole = await reply.read_up_to(limit, wait_s, exchange.share.take)
    except TimeoutError:
        raise silent("stopped in the middle of its answer") from None
    failure = read_refusal(reply.status, beginning(reply.headers, body, MATCHED_BYTES))
    if is_whole:
        return Refused(failure, HttpRefusal(reply.status, reply.reason, reply.headers, body))
    # Its head promises more than what was read of it, so it can't be passed on.
    fault = BackendFault(
        f"The backend's error is larger than the policy's limits.response ({limit} bytes).",
        status=reply.status,
        code="response_too_large",
        token="http_response_body_size",
    )
    return Refused(failure, fault)


async def tell_refusal(exchange: Exchange, plan: Plan, refused: Refused) -> None:
    """Answer the client with a refusal: byte for byte where the status line is still to come, else as an event."""
    answer = refused.answer
    if isinstance(answer, ProxyError):
        await tell_error(exchange, plan, answer, index=refused.index)
    elif exchange.client.begun_status is None:
        await exchange.client.begin(answer.status, answer.reason, exchange.passed_on(plan, answer.headers))
        await exchange.client.write(answer.body)
        await exchange.client.end()
    else:
        said = ProxyError(refused.failure.text[:1000], status=answer.status, type="backend_error")
        said.code, said.param = refused.failure.code, refused.failure.param
        await tell_error(exchange, plan, said, index=refused.index)


async def tell_error(exchange: Exchange, plan: Plan | None, error: ProxyError, *, index: int | None = None) -> None:
    """Answer the client with an error: as JSON, or, once a stream has begun, as its last event with no [DONE]."""
    exchange.record.error = error
    client = exchange.client
    body = encode_json(error.body(**({"index": index} if index is not None else {})))
    if client.begun_status is not None:
        exchange.record.is_truncated = True
        await client.write(b"data: " + body + b"\n\n")
        await client.end()
        return
    said = [_JSON, ("Content-Length", str(len(body))), *exchange.told(plan)]
    said.append(("Proxy-Status", headers.proxy_status(error.token)))
    if error.status == 503:
        said.append(("Retry-After", "1"))
    if error.code == "repair_refused":
        said.append(("Preference-Applied", "handling=strict"))
    if error.status == 408:
        # What comes next would be the rest of this request.
        client.is_closing = True
    if error.status == 405:
        said.append(("Allow", METHODS))
    if error.status == 401:
        said.append(("WWW-Authenticate", "Bearer"))
    await client.begin(error.status, None, said)
    await client.write(body)
    await client.end()
