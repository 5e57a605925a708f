"""`GET /status`: all that the operator's page shows, as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from proxy import __version__
from proxy.health import Belief
from proxy.lessons import Lesson, rule_text
from proxy.numbers import Numbers, RuleCount
from proxy.policy import Backend, Policy, Rule
from proxy.reload import Status
from proxy.snapshot import Operated, Picture

OUTCOMES = ("untouched", "repaired", "refused", "failed")


def status_of(
    operated: Operated, status: Status, config: str, picture: Picture, beliefs: Mapping[str, Belief]
) -> dict[str, Any]:
    """Return the status of all processes as one.

    Shape: {"version", "started", "draining", "workers", "policy", "backends", "requests", "fanouts", "rules",
    "learned"}.
    """
    policy, numbers = operated.policy, picture.numbers
    return {
        "version": __version__,
        "started": _time(status.started_s),
        "draining": status.is_draining,
        "workers": [
            {"pid": process.pid, "started": _time(process.started_s), "in_flight": process.in_flight}
            for process in picture.processes
        ],
        "policy": {
            "sha256": policy.sha256,
            "file": config,
            "loaded": _time(status.loaded_s),
            "faults": list(status.faults),
        },
        "backends": [_backend(backend, beliefs[backend.name]) for backend in policy.backends],
        "requests": _requests(numbers),
        "fanouts": _fanouts(numbers),
        "rules": _rules(policy, numbers.rules),
        "learned": [_lesson(lesson) for lesson in operated.learned()],
    }


def _backend(backend: Backend, belief: Belief) -> dict[str, Any]:
    # The policy takes no url that holds a user or password.
    return {"name": backend.name, "url": backend.url, "up": belief.is_up, "why": belief.why}


def _requests(numbers: Numbers) -> dict[str, int]:
    answered = numbers.counters["requests_total"]
    told = {
        outcome: int(sum(value for (_, _, known), value in answered.items() if known == outcome))
        for outcome in OUTCOMES
    }
    gauges = numbers.gauges
    told["in_flight"] = int(gauges["requests_in_flight"].get((), 0))
    told["streams_open"] = int(gauges["streams_open"].get((), 0))
    return told


def _fanouts(numbers: Numbers) -> dict[str, int]:
    cells = numbers.histograms["fanout_branches"]
    return {"requests": sum(cells.counts), "branches": int(cells.total)}


def _rules(policy: Policy, counts: Mapping[str, RuleCount]) -> list[dict[str, Any]]:
    """Return every rule once, in the order of evaluation, which is the same at all backends that have the rule."""
    order: list[Rule] = []
    backends: dict[str, list[str]] = {}
    for backend in policy.backends:
        after = 0
        for rule in backend.rules:
            if rule.id in backends:
                after = max(after, _position(order, rule) + 1)
            else:
                order.insert(after, rule)
                after += 1
            backends.setdefault(rule.id, []).append(backend.name)
    return [_rule(rule, backends[rule.id], counts.get(rule.id, RuleCount())) for rule in order]


def _position(order: list[Rule], rule: Rule) -> int:
    return next(index for index, known in enumerate(order) if known.id == rule.id)


def _rule(rule: Rule, backends: list[str], count: RuleCount) -> dict[str, Any]:
    return {
        "id": rule.id,
        "backends": backends,
        "about": rule.about,
        "repairs": list(dict.fromkeys(_names(rule))),
        "mode": rule.mode,
        "on_error": rule.on_error is not None,
        "exact": count.exact,
        "lossy": count.lossy,
        "observed": count.observed,
        "last_seen": _time(count.last_s) if count.last_s else None,
    }


def _names(rule: Rule) -> Iterable[str]:
    return (repair.name for repair in rule.repairs)


def _lesson(lesson: Lesson) -> dict[str, Any]:
    return {
        "id": lesson.rule.id,
        "backend": lesson.backend,
        "source": lesson.source,
        "status": lesson.status,
        "first": _time(lesson.first_s),
        "last": _time(lesson.last_s),
        "ttl_s": lesson.ttl_s,
        "hits": lesson.hits,
        "yaml": rule_text(lesson),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
