"""The data port: admits a request, reads its body where a rule needs it, plans, and lets the relay answer.

Everything that comes in goes on to the backend; the proxy has no path of its own here.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
import uuid
from collections.abc import Callable

import structlog
from aiohttp import HttpVersion11, web

from proxy import engine, headers
from proxy.admission import admit, ends_connection, with_authority
from proxy.bodies import answer_expect, check_length, inflate_body, read_body, stream_body
from proxy.client import HttpClient
from proxy.engine import Request
from proxy.errors import BackendFault, ClientFault, ProxyError, ProxyFault
from proxy.exchange import ClientLeft, Exchange, tell_error
from proxy.headers import Headers
from proxy.learn import Lessons
from proxy.listener import listen
from proxy.metrics import Metrics
from proxy.models import is_joined, list_models
from proxy.policy import Backend, Policy
from proxy.relay import carry_out
from proxy.tunnel import tunnel
from proxy.upstream import Streamed, Upstream

# What a request line and a header may be long: nginx's four buffers of 8 KiB, rounded up to what browsers send.
MAX_LINE_BYTES = 64 * 1024
IDLE_CONNECTION_S = 75.0
# nginx' status, for log and metrics only, of a request whose client has left.
LEFT = 499

log = structlog.get_logger("mendproxy")


class DataPort:
    """Serves clients. The policy is one value, replaced whole by `use`; a request keeps the one that it began with."""

    def __init__(
        self,
        policy: Policy,
        upstream: Upstream,
        address: Callable[[Backend], str],
        metrics: Metrics | None = None,
        lessons: Lessons | None = None,
    ) -> None:
        """Serve by `policy`; `address` is where a backend is reached."""
        self.metrics = metrics if metrics is not None else Metrics()
        self.metrics.reloaded(policy)
        self.lessons = lessons if lessons is not None else Lessons(time.time)
        self._policy = policy
        self._is_inspected = engine.inspected_paths(policy)
        self._upstream = upstream
        self._address = address
        self.is_closing = False
        self.in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def policy(self) -> Policy:
        """The policy that new requests are served by."""
        return self._policy

    def use(self, policy: Policy) -> None:
        """Serve new requests by another policy."""
        self._policy, self._is_inspected = policy, engine.inspected_paths(policy)
        self.metrics.reloaded(policy)

    async def wait_idle(self) -> None:
        """Return when no request is being served."""
        await self._idle.wait()

    def server(self) -> web.Server:
        """Return the aiohttp server; it cancels a request whose client has left."""
        return listen(
            self.handle,
            keepalive_timeout=IDLE_CONNECTION_S,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
        )

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        started_s = time.perf_counter()
        self.in_flight += 1
        self.metrics.in_flight.inc()
        self._idle.clear()
        client = HttpClient(request, self.metrics.streams_open)
        exchange = self._exchange(request, client)
        client.is_closing = self.is_closing or ends_connection(request.method, exchange.request.headers)
        try:
            await self._answer(request, exchange)
        except asyncio.CancelledError:
            # A client that has its whole answer may go; what was left to do was to tidy up.
            exchange.record.has_left = not client.is_done
            raise
        finally:
            client.close()
            self.in_flight -= 1
            self.metrics.in_flight.dec()
            if not self.in_flight:
                self._idle.set()
            self._record(exchange, client, started_s)
        return client.response if client.response is not None else web.Response(status=LEFT)

    def _record(self, exchange: Exchange, client: HttpClient, started_s: float) -> None:
        seconds = time.perf_counter() - started_s
        first_byte_s = client.begun_at_s - started_s if client.begun_at_s is not None else None
        status = LEFT if exchange.record.has_left else client.begun_status or LEFT
        self.metrics.answered(exchange.request.path, status, exchange.record, seconds, first_byte_s)
        _log(exchange, client, status, seconds)

    def _exchange(self, request: web.BaseRequest, client: HttpClient) -> Exchange:
        said = headers.of_wire(request.raw_headers)
        return Exchange(
            # Until the target is read, what is known of it for the log is all that comes before a query.
            request=Request(request.method, request.raw_path.partition("?")[0], "", said, None),
            body=None,
            policy=self._policy,
            upstream=self._upstream,
            address=self._address,
            client=client,
            request_id=headers.sane_request_id(said) or str(uuid.uuid4()),
            peer=request.remote,
            scheme=request.scheme,
            version=f"{request.version.major}.{request.version.minor}",
        )

    async def _answer(self, request: web.BaseRequest, exchange: Exchange) -> None:
        try:
            await self._serve(request, exchange)
        except ClientLeft:
            exchange.record.has_left = True
        except ProxyError as error:
            await _tell(exchange, error)
        except Exception as bug:  # noqa: BLE001 the outermost edge: a bug costs one request, and its text may be a prompt
            log.critical("request.bug", id=exchange.request_id, error=type(bug).__name__, where=_where(bug))
            await _tell(exchange, ProxyFault("The proxy failed to serve this request.", code="internal_error"))

    async def _serve(self, request: web.BaseRequest, exchange: Exchange) -> None:
        self._admit(exchange)
        said, is_http_1_1 = exchange.request.headers, request.version >= HttpVersion11
        target = admit(request.method, request.raw_path, said, is_http_1_1=is_http_1_1)
        said = with_authority(said, target.authority)
        exchange.request = Request(request.method, target.path, target.query, said, None)
        limit = exchange.policy.limits.body_bytes
        check_length(request, limit)
        if headers.get(exchange.request.headers, "upgrade") is not None and request.method == "GET":
            await tunnel(exchange, request)
            return
        if is_joined(exchange):
            await list_models(exchange)
            return
        await answer_expect(request)
        await self._read(request, exchange, limit)
        await carry_out(exchange, engine.plan(exchange.request, exchange.policy, learned=self.lessons.rules))
        self._learn(exchange)

    def _learn(self, exchange: Exchange) -> None:
        record, status = exchange.record, exchange.client.begun_status
        if record.plan is not None and record.error is None and status is not None and status < 300:
            self.lessons.answered(record.plan)
            self.metrics.learned(len(self.lessons))

    def _admit(self, exchange: Exchange) -> None:
        if self.is_closing:
            raise ProxyFault(
                "The proxy is shutting down.", status=503, code="draining", token="proxy_internal_response"
            )
        keys = exchange.policy.auth_keys
        # A browser's preflight carries no credentials by specification.
        if keys and exchange.request.method != "OPTIONS" and not _has_key(exchange.request.headers, keys):
            raise ClientFault(
                "Incorrect API key provided: the proxy's policy asks for one of its auth.keys.",
                status=401,
                code="invalid_api_key",
            )

    async def _read(self, request: web.BaseRequest, exchange: Exchange, limit: int) -> None:
        """Fill in the body: read where a rule may look into it, else streamed on."""
        said = exchange.request
        if not request.body_exists:
            return
        content_type = (headers.get(said.headers, "content-type") or "").lower()
        if content_type.startswith("multipart/") or not self._is_inspected(said.path):
            exchange.body = Streamed(stream_body(request, limit))
            return
        raw = await read_body(request, limit)
        exchange.body = raw
        plain = inflate_body(said.headers, raw, limit)
        exchange.request = Request(said.method, said.path, said.query, said.headers, plain)


def _has_key(said_headers: Headers, keys: frozenset[str]) -> bool:
    scheme, _, given = (headers.get(said_headers, "authorization") or "").partition(" ")
    if scheme.lower() != "bearer":
        return False
    said_bytes = given.strip().encode("utf-8", "surrogateescape")
    # Every key is compared, so that the time taken tells nothing.
    return sum(hmac.compare_digest(said_bytes, key.encode()) for key in keys) > 0


async def _tell(exchange: Exchange, error: ProxyError) -> None:
    exchange.record.error = error
    try:
        if exchange.client.begun_status is None:
            await tell_error(exchange, exchange.record.plan, error)
        else:
            exchange.record.is_truncated = True
            exchange.client.abort()
    except ClientLeft:
        exchange.record.has_left = True


def _where(bug: BaseException) -> str:
    trace = bug.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}" if trace is not None else ""


def _log(exchange: Exchange, client: HttpClient, status: int, seconds: float) -> None:
    record, plan = exchange.record, exchange.record.plan
    has_failed = record.is_truncated or isinstance(record.error, BackendFault | ProxyFault)
    log.log(
        logging.WARNING if has_failed else logging.INFO,
        "request",
        id=exchange.request_id,
        method=exchange.request.method,
        path=exchange.request.path,
        model=plan.facts.model if plan is not None else None,
        backend=plan.backend.name if plan is not None else None,
        status=status,
        rules=[applied.rule for applied in plan.applied] if plan is not None else [],
        observed=[applied.rule for applied in plan.observed] if plan is not None else [],
        warnings=[applied.warning for applied in plan.applied if applied.warning] if plan is not None else [],
        branches=record.branches,
        rounds=record.rounds,
        sent_bytes=client.sent_bytes,
        seconds=round(seconds, 6),
        error=record.error.token if record.error is not None else None,
        truncated=record.is_truncated,
    )
