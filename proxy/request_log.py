"""The log's line of a request: one each, when it is over."""

from __future__ import annotations

import logging

import structlog

from proxy.errors import BackendFault, ProxyFault
from proxy.exchange import Record
from proxy.log import Told, tell
from proxy.plans import Request


class Line(Told, kw_only=True):
    """What is told of a request."""

    id: str
    method: str
    path: str
    model: str | None
    backend: str | None
    status: int
    rules: list[str]
    observed: list[str]
    warnings: list[str]
    branches: int
    rounds: int
    sent_bytes: int
    seconds: float
    error: str | None
    truncated: bool
    event: str = "request"


def tell_request(
    logger: structlog.typing.FilteringBoundLogger,
    request: Request,
    request_id: str,
    record: Record,
    status: int,
    sent_bytes: int,
    seconds: float,
) -> None:
    """Log a request that is over: `record` is what became of it. Units: seconds that it took."""
    error, plan = record.error, record.plan
    has_failed = record.is_truncated or (error is not None and isinstance(error, BackendFault | ProxyFault))
    if not logger.is_enabled_for(logging.WARNING if has_failed else logging.INFO):
        return
    applied = plan.applied if plan is not None else ()
    observed = plan.observed if plan is not None else ()
    line = Line(
        id=request_id,
        method=request.method,
        path=request.path,
        model=plan.facts.model if plan is not None else None,
        backend=plan.backend.name if plan is not None else None,
        status=status,
        rules=[one.rule for one in applied] if applied else [],
        observed=[one.rule for one in observed] if observed else [],
        warnings=[one.warning for one in applied if one.warning] if applied else [],
        branches=record.branches,
        rounds=record.rounds,
        sent_bytes=sent_bytes,
        seconds=round(seconds, 6),
        error=error.token if error is not None else None,
        truncated=record.is_truncated,
    )
    tell(logger, "warning" if has_failed else "info", line)
