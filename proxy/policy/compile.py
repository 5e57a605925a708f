"""Checked file and compiled rules → Policy."""

from __future__ import annotations

from collections.abc import Mapping

from proxy.matching import compile_globs
from proxy.policy import schema
from proxy.policy.doubts import find_doubts
from proxy.policy.effective import effective_values
from proxy.policy.index import RuleIndex
from proxy.policy.model import Backend, Limits, Policy, Timeouts
from proxy.policy.packs import Arrangement, Pack, arrange
from proxy.policy.source import Source


def compile_policy(
    file: schema.PolicyFile, main: Pack, packs: Mapping[str, Pack], source: Source, sha256: str
) -> Policy:
    """Return the policy of a file without faults."""
    arrangement = arrange(main, packs, file.disable)
    return Policy(
        backends=tuple(_backend(name, backend, arrangement) for name, backend in file.backends.items()),
        limits=_limits(file.limits),
        auth_keys=frozenset(filter(None, file.auth.keys)),
        keep_alive_s=file.keep_alive,
        sha256=sha256,
        warnings=tuple(source.fault(place, message) for place, message in find_doubts(file, main, packs)),
        effective=effective_values(file, source.value, arrangement),
    )


def _backend(name: str, raw: schema.Backend, arrangement: Arrangement) -> Backend:
    models, takes_model = compile_globs(list(raw.models))
    return Backend(
        name=name,
        url=raw.url,
        models=models,
        takes_model=takes_model,
        api_key=raw.api_key or None,
        timeouts=_timeouts(raw.timeouts),
        max_concurrency=raw.max_concurrency,
        presets=tuple(raw.presets),
        index=RuleIndex([written.rule for written in arrangement.for_backend(raw.presets)]),
    )


def _timeouts(raw: schema.Timeouts) -> Timeouts:
    return Timeouts(connect_s=raw.connect, first_content_s=raw.first_content, idle_s=raw.idle)


def _limits(raw: schema.Limits) -> Limits:
    return Limits(
        body_bytes=raw.body,
        response_bytes=raw.response,
        event_bytes=raw.event,
        branches=raw.branches,
        total_bytes=raw.total,
        connections=raw.connections,
    )
