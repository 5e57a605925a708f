"""Traces by OpenTelemetry, sent by OTLP over HTTP to where the OTEL_EXPORTER_OTLP_* variables say; the extra `otel`.

Source: W3C Trace Context (what goes from the client, and on to the backend), conventions.py (names).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace import Tracer as Writer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from proxy import __version__, conventions
from proxy.headers import Headers
from proxy.plans import Plan, Request
from proxy.policy import Backend
from proxy.tracing import Ended
from proxy.upstream import ClientLeft

_PROPAGATOR = TraceContextTextMapPropagator()


class OtelBranch:
    """The CLIENT span of an upstream request."""

    def __init__(self, span: Span, open_branches: list[OtelBranch]) -> None:
        """Write to `span`; it stands among `open_branches` from when it is sent until it ends."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(span, Context()))
        self.headers: Headers = list(carrier.items())
        self._span = span
        self._open = open_branches
        self._is_error = False

    def sent(self) -> None:
        """Take note that the request is sent."""
        self._open.append(self)

    def answered(self, status: int) -> None:
        """Take note of the answer's head. An error to a client is any from 400 on."""
        self._span.set_attribute(conventions.HTTP_STATUS, status)
        if status >= 400:
            self._error(str(status))

    def failed(self, error: BaseException) -> None:
        """Take note that there is no whole answer, and why: its kind, and none of its words."""
        self._error(conventions.error_type(error))

    def _error(self, kind: str) -> None:
        """Write down what went wrong first; the rest comes of that."""
        if not self._is_error:
            self._is_error = True
            self._span.set_attribute(conventions.ERROR_TYPE, kind)
            self._span.set_status(StatusCode.ERROR)

    def end(self) -> None:
        """Take note that it is over; the first time counts."""
        if self in self._open:
            self._open.remove(self)
            self._span.end()


class OtelRequest:
    """The SERVER span of a client's request."""

    def __init__(self, writer: Writer, span: Span, method: str) -> None:
        """Write to `span`, and by `writer` to those of its branches."""
        self._writer = writer
        self._span = span
        self._context = set_span_in_context(span, Context())
        self._method = method
        self._open: list[OtelBranch] = []

    def branch(self, plan: Plan, branch: int, backend: Backend, base: str) -> OtelBranch:
        """Return the span of an upstream request that is to be sent to `base`."""
        parts = urlsplit(base)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        told = conventions.of_branch(plan, branch, backend, self._method, (parts.hostname or "", port))
        name = conventions.branch_name(plan, self._method)
        return OtelBranch(self._writer.start_span(name, self._context, SpanKind.CLIENT, told), self._open)

    def failed(self, error: BaseException) -> None:
        """Take note that what is still being answered has failed."""
        for branch in self._open:
            branch.failed(error)

    def end_branches(self) -> None:
        """Take note that a round is over."""
        for branch in list(self._open):
            branch.end()

    def end(self, ended: Ended) -> None:
        """Take note that the request is served."""
        if ended.has_left:
            self.failed(ClientLeft())
        self.end_branches()
        span, request = self._span, ended.request
        span.update_name(conventions.request_name(request.method, ended.route))
        span.set_attribute(conventions.URL_PATH, conventions.bounded(request.path))
        if ended.route is not None:
            span.set_attribute(conventions.HTTP_ROUTE, ended.route)
        span.set_attribute(conventions.HTTP_STATUS, ended.status)
        span.set_attribute(conventions.OUTCOME, ended.outcome)
        span.set_attribute(conventions.RULES, ended.rules)
        kind = _kind_of(ended)
        if kind is not None:
            span.set_attribute(conventions.ERROR_TYPE, kind)
        # A server's span is an error where the server is at fault: neither a refused request nor a client that left.
        if ended.outcome == "failed" and not ended.has_left:
            span.set_status(StatusCode.ERROR)
        span.end()


def _kind_of(ended: Ended) -> str | None:
    if ended.has_left:
        return ClientLeft.__name__
    if ended.error is not None:
        return conventions.error_type(ended.error)
    return str(ended.status) if ended.status >= 500 else None


class OtelTracer:
    """Writes spans by a provider of OpenTelemetry's."""

    def __init__(self, provider: TracerProvider) -> None:
        """Write by `provider`."""
        self._writer = provider.get_tracer("mendproxy", __version__, schema_url=conventions.SCHEMA_URL)

    def begin(self, request: Request, scheme: str, version: str) -> OtelRequest:
        """Begin to trace a request, as part of the client's trace where it has one."""
        parent = _PROPAGATOR.extract(_carrier(request.headers), Context())
        name = conventions.request_name(request.method, None)
        told = conventions.of_request(request.method, request.path, scheme, version)
        span = self._writer.start_span(name, parent, SpanKind.SERVER, told)
        return OtelRequest(self._writer, span, request.method)


def _carrier(said: Headers) -> dict[str, str]:
    """Return what a client says of its trace. Source: W3C Trace Context §3.2.1 (one traceparent), §3.3.1 (a list)."""
    parents = [value for name, value in said if name.lower() == "traceparent"]
    states = [value for name, value in said if name.lower() == "tracestate"]
    return {"traceparent": parents[0], "tracestate": ",".join(states)} if len(parents) == 1 else {}


@asynccontextmanager
async def open_tracer() -> AsyncIterator[OtelTracer]:
    """Give a tracer that sends spans in the background; what waits at the end is still sent."""
    own = {"service.name": "mendproxy", "service.version": __version__}
    resource = Resource.create(own | dict(OTELResourceDetector().detect().attributes))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield OtelTracer(provider)
    finally:
        # Sending waits for the network.
        await asyncio.to_thread(provider.shutdown)
