"""The data port: admits a request, reads its body where a rule needs it, plans, and lets the relay answer.

Everything that comes in goes on to the backend; the proxy has no path of its own here.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import time
import weakref
from collections.abc import Callable
from typing import Protocol

import msgspec
import structlog
from aiohttp import HttpVersion11, web
from aiohttp.http import RawRequestMessage

from proxy import engine, headers
from proxy.admission import admit, ends_connection, with_authority
from proxy.allowance import Reserve, Share
from proxy.bodies import answer_expect, check_length, inflate_body, read_body, stream_body
from proxy.client import HttpClient
from proxy.direct import DirectUpstream
from proxy.direct_client import DirectClient
from proxy.engine import Request
from proxy.errors import ClientFault, ProxyError, ProxyFault, without_frames
from proxy.exchange import Exchange, Record, tell_error
from proxy.headers import HeaderList, Headers
from proxy.learn import Lessons
from proxy.metrics import PATHS, Metrics, outcome
from proxy.models import is_joined, list_models
from proxy.policy import Backend, Policy
from proxy.relay import NOT_BEGUN, Begun, carry_out
from proxy.request_log import tell_request
from proxy.tracing import Ended, Tracer
from proxy.tunnel import tunnel
from proxy.upstream import ClientLeft, Streamed, Upstream
from proxy.wire import Lane, Listener, QuickLane, Served, listen, message_of

# What a request line and a header may be long: nginx's four buffers of 8 KiB, rounded up to what browsers send.
MAX_LINE_BYTES = 64 * 1024
IDLE_CONNECTION_S = 75.0
_IDS_AT_ONCE = 64
_VARIANTS = {f"{digit:x}": "89ab"[digit & 3] for digit in range(16)}
# nginx' status, for log and metrics only, of a request whose client has left.
LEFT = 499

log = structlog.get_logger("mendproxy")


class Work(msgspec.Struct):
    """A request that is being served, and what has been done of it: what a task goes on with. A struct, as Plan is."""

    exchange: Exchange
    client: HttpClient | DirectClient
    started_s: float
    plan: engine.Plan | None = None
    error: Exception | None = None
    begun: Begun = NOT_BEGUN


class Learner(Protocol):
    """Remembers requests' heads; see quick.py."""

    def request_came(self, connection: Served, message: RawRequestMessage, exchange: Exchange) -> None:
        """Look at a request that may be served, and was read."""


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
        self._in_flight = self.metrics.in_flight
        self._lessons_told = 0
        self.lessons = lessons if lessons is not None else Lessons(time.time)
        self._policy = policy
        self._is_inspected = engine.inspected_paths(policy)
        self.upstream = upstream
        self.tracer: Tracer | None = None
        self.learner: Learner | None = None
        self.address = address
        self.reserve = Reserve(policy.limits.total_bytes)
        # Bound once: finding out how to log costs as much as the line.
        self._log: structlog.typing.FilteringBoundLogger = log.bind()
        self._listener: Listener | None = None
        self.is_closing = False
        self.in_flight = 0
        self.ids = Ids()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def policy(self) -> Policy:
        """The policy that new requests are served by."""
        return self._policy

    def use(self, policy: Policy) -> None:
        """Serve new requests by another policy."""
        self._policy, self._is_inspected = policy, engine.inspected_paths(policy)
        self.reserve.limit_bytes = policy.limits.total_bytes
        self.metrics.reloaded(policy)

    async def wait_idle(self) -> None:
        """Return when no request is being served."""
        await self._idle.wait()

    def server(self, lane: Lane | None = None, quick: QuickLane | None = None) -> web.Server:
        """Return the aiohttp server, which cancels a request whose client has left; the lanes are asked first."""
        self._listener = listen(
            self.handle,
            lane,
            lambda: self._policy.limits.connections,
            quick,
            keepalive_timeout=IDLE_CONNECTION_S,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
        )
        return self._listener

    def leave(self) -> None:
        """Let the answers that come say that their connections end with them: who keeps one has to find another."""
        if self._listener is not None:
            self._listener.leave()

    def close(self) -> None:
        """Turn away who comes on a connection that was kept alive before `leave` and that nobody used since.

        Who comes on any other is still served, and told to close: none could be told before. Its last answer had begun
        ahead of `leave`, or it had none yet.
        """
        self.is_closing = True

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request, or go on with one that the lane has begun."""
        work = self._work_of(request)
        try:
            await self._answer(request, work)
        except asyncio.CancelledError:
            # A client that has its whole answer may go; what was left to do was to tidy up.
            work.exchange.record.has_left = not work.client.is_done
            raise
        finally:
            self.end(work)
            if isinstance(request.protocol, Served):
                request.protocol.is_answered = request.content.is_eof()
        response = work.client.response
        return response if response is not None else web.Response(status=LEFT)  # type: ignore[return-value] # see wire.Sent

    def _work_of(self, request: web.BaseRequest) -> Work:
        connection, message = request.protocol, message_of(request)
        if not isinstance(connection, Served) or not isinstance(self.upstream, DirectUpstream):
            client: HttpClient | DirectClient = HttpClient(request, self.metrics.streams_open)
            return self.open(message, client, request.remote, request.scheme)
        connection.is_answered = False
        work = connection.handed_over()
        if isinstance(work, Work):
            return work
        client = DirectClient(connection, message, self.metrics.streams_open)
        return self.open(message, client, request.remote, request.scheme)

    def open(
        self, message: RawRequestMessage, client: HttpClient | DirectClient, peer: str | None, scheme: str
    ) -> Work:
        """Begin to serve a request."""
        self.came()
        work = self.work_of(message, client, peer, scheme)
        if self.tracer is not None:
            exchange = work.exchange
            exchange.trace = self.tracer.begin(exchange.request, scheme, exchange.version)
        return work

    def came(self) -> None:
        """Count a request that came."""
        self.in_flight += 1
        self._in_flight[()] += 1
        if self.in_flight == 1:
            self._idle.clear()

    def work_of(
        self,
        message: RawRequestMessage,
        client: HttpClient | DirectClient,
        peer: str | None,
        scheme: str,
        begun: tuple[float, str, HeaderList] | None = None,
    ) -> Work:
        """Return what there is to be done of a request; `begun` is when that began, its id, and its headers."""
        if begun is None:
            started_s, request_id, said = time.perf_counter(), "", headers.of_wire(message.raw_headers)
        else:
            started_s, request_id, said = begun
        is_usual = said.names.are_usual and message.method != "CONNECT"
        client.is_closing = not is_usual and ends_connection(message.method, said)
        exchange = Exchange(
            # Until the target is read, what is known of it for the log is all that comes before a query.
            request=Request(message.method, message.path.partition("?")[0], "", said, None),
            body=None,
            policy=self._policy,
            upstream=self.upstream,
            address=self.address,
            client=client,
            request_id=request_id or (None if is_usual else headers.sane_request_id(said)) or self.ids.new(),
            peer=peer,
            scheme=scheme,
            version="1.1" if message.version == HttpVersion11 else "1.0",
            share=Share(self.reserve),
        )
        return Work(exchange, client, started_s)

    def end(self, work: Work) -> None:
        """Take note that a request is served."""
        exchange, client = work.exchange, work.client
        client.close()
        exchange.share.give_back()
        status = LEFT if exchange.record.has_left else client.begun_status or LEFT
        if exchange.trace is not None:
            exchange.trace.end(_ended(exchange, status))
        record, sent_bytes, began_s = exchange.record, client.sent_bytes, client.begun_at_s
        self.went(exchange.request, exchange.request_id, record, status, sent_bytes, work.started_s, began_s)
        if record.error is not None:
            without_frames(record.error)

    def went(
        self,
        request: Request,
        request_id: str,
        record: Record,
        status: int,
        sent_bytes: int,
        started_s: float,
        begun_at_s: float | None,
    ) -> None:
        """Count a request that is over, and log it. Units: seconds of `time.perf_counter`."""
        self.in_flight -= 1
        self._in_flight[()] -= 1
        if not self.in_flight:
            self._idle.set()
        seconds = time.perf_counter() - started_s
        first_byte_s = begun_at_s - started_s if begun_at_s is not None else None
        self.metrics.answered(request.path, status, record, seconds, first_byte_s)
        tell_request(self._log, request, request_id, record, status, sent_bytes, seconds)

    async def _answer(self, request: web.BaseRequest, work: Work) -> None:
        exchange = work.exchange
        try:
            await self._serve(request, work)
        except ClientLeft:
            exchange.record.has_left = True
        except ProxyError as error:
            await _tell(exchange, error)
        except Exception as bug:  # noqa: BLE001 the outermost edge: a bug costs one request, and its text may be a prompt
            log.critical("request.bug", id=exchange.request_id, error=type(bug).__name__, where=where(bug))
            await _tell(exchange, ProxyFault("The proxy failed to serve this request.", code="internal_error"))

    async def _serve(self, request: web.BaseRequest, work: Work) -> None:
        if work.error is not None:
            raise work.error
        exchange, plan = work.exchange, work.plan or await self._plan(request, work.exchange)
        if plan is not None:
            await carry_out(exchange, plan, work.begun)
            self.learn(exchange)

    async def _plan(self, request: web.BaseRequest, exchange: Exchange) -> engine.Plan | None:
        """Return what is to be done for a request, or None where it was answered in another way."""
        self.admit(message_of(request), exchange)
        limit = exchange.policy.limits.body_bytes
        check_length(request, limit)
        if headers.get(exchange.request.headers, "upgrade") is not None and request.method == "GET":
            await tunnel(exchange, request)
            return None
        if is_joined(exchange):
            await list_models(exchange)
            return None
        await answer_expect(request)
        await self._read(request, exchange, limit)
        if self.learner is not None and isinstance(request.protocol, Served):
            self.learner.request_came(request.protocol, message_of(request), exchange)
        return engine.plan(exchange.request, exchange.policy, learned=self.lessons.rules)

    def admit(self, message: RawRequestMessage, exchange: Exchange) -> None:
        """Read a request's target, and refuse what may not be served. Raises: ClientFault, ProxyFault."""
        self._check_key(exchange)
        said = exchange.request.headers
        target = admit(message.method, message.path, said, is_http_1_1=message.version >= HttpVersion11)
        exchange.request = Request(
            message.method, target.path, target.query, with_authority(said, target.authority), None
        )

    def learn(self, exchange: Exchange) -> None:
        """Remember what a request's refusals taught, now that it is answered well."""
        self.learn_from(exchange.record, exchange.client.begun_status)

    def learn_from(self, record: Record, status: int | None) -> None:
        """Remember what the refusals taught of which `record` tells."""
        plan = record.plan
        if plan is not None and record.error is None and status is not None and status < 300:
            self.lessons.answered(plan)
            count = len(self.lessons)
            if count != self._lessons_told:
                self._lessons_told = count
                self.metrics.learned(count)

    def _check_key(self, exchange: Exchange) -> None:
        if self.is_closing and exchange.client.has_idled:
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
        if not self.reads_body(said):
            exchange.body = Streamed(stream_body(request, limit))
            return
        raw = await read_body(request, limit, exchange.share)
        exchange.body = raw
        plain = inflate_body(said.headers, raw, limit)
        if plain is not None and plain is not raw:
            exchange.share.take(len(plain))
        exchange.request = Request(said.method, said.path, said.query, said.headers, plain)

    def reads_body(self, said: Request) -> bool:
        """Return whether a request's body has to be read, since a rule may look into it."""
        if said.method == "HEAD":
            # Its body means nothing (RFC 9110 §9.3.2), and of its answer there is nothing to restore.
            return False
        content_type = (headers.get(said.headers, "content-type") or "").lower()
        return not content_type.startswith("multipart/") and self._is_inspected(said.path)


class Ids:
    """Makes random UUIDs, many at once: asking for random bytes is a system call. Source: RFC 9562 §5.4."""

    __slots__ = ("__weakref__", "_ids")

    def __init__(self) -> None:
        self._ids: list[str] = []
        mine = weakref.ref(self)

        def forget() -> None:
            ids = mine()
            if ids is not None:
                ids.forget()

        # To ask each time which process this is would be a system call as well.
        os.register_at_fork(after_in_child=forget)

    def forget(self) -> None:
        """Forget what was made ahead: a process that was forked would return the same."""
        self._ids = []

    def new(self) -> str:
        """Return one that was not returned before, in no process that was forked from this."""
        if not self._ids:
            self._ids = _random_ids(_IDS_AT_ONCE)
        return self._ids.pop()


def _random_ids(count: int) -> list[str]:
    digits = os.urandom(16 * count).hex()
    return [_as_uuid(digits[at : at + 32]) for at in range(0, len(digits), 32)]


def _as_uuid(digits: str) -> str:
    variant = _VARIANTS[digits[16]]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


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


def where(bug: BaseException) -> str:
    """Return the function and line that a bug comes from."""
    trace = bug.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}" if trace is not None else ""


def _ended(exchange: Exchange, status: int) -> Ended:
    request, record, plan = exchange.request, exchange.record, exchange.record.plan
    return Ended(
        request,
        request.path if request.path in PATHS else None,
        status,
        outcome(status, record),
        tuple(applied.rule for applied in plan.applied) if plan is not None else (),
        record.error,
        record.has_left,
    )
