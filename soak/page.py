"""What came of a soak, as a small table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from soak.ledger import Outcome
from soak.run import Report
from soak.scripts import Fault
from soak.watch import MIB, at_share, growth

SHARES: Final = (0.1, 0.25, 0.5, 0.75, 1.0)


def as_json(report: Report) -> str:
    """Return all figures for scripts. Units: as the names say."""
    return json.dumps(figures(report), indent=2)


def figures(report: Report) -> dict[str, Any]:
    """Return the figures. Shape: {"verdict", "findings", "seed", "seconds", "streams", "requests", …}."""
    ledger, samples = report.ledger, report.samples
    memory = growth(samples)
    return {
        "verdict": "bad" if report.findings else "good",
        "findings": report.findings,
        "seed": report.settings.seed,
        "seconds": report.settings.seconds,
        "streams": report.settings.streams,
        "requests": {"begun": ledger.begun.total()} | {str(one): ledger.ended[one] for one in Outcome},
        "shapes": dict(ledger.begun),
        "streams_finished": ledger.streams_finished,
        "faults": {str(fault): ledger.injected[fault] for fault in Fault if fault is not Fault.NONE},
        "reloads": report.reloads,
        "rss_mib": {f"{share:.0%}": round(at_share(samples, share).rss_bytes / MIB, 1) for share in SHARES},
        "rss_mib_after": round(report.after.rss_bytes / MIB, 1) if report.after else None,
        "growth_mib": round(memory.bytes / MIB, 2),
        "growth_mib_allowed": round(memory.allowed_bytes / MIB, 2),
        "growth_mib_per_minute": round(memory.bytes_per_minute / MIB, 3),
        "peak": {
            name: max(getattr(sample, name) for sample in samples)
            for name in ("descriptors", "threads", "in_flight", "streams_open", "upstream")
        },
        "before": asdict(report.before),
        "after": asdict(report.after) if report.after else None,
        "lag_ms": round(report.lag_s * 1000, 1),
        "own_lag_ms": round(report.own_lag_s * 1000, 1),
        "cpu_share": round(report.cpu_s / report.took_s, 3) if report.took_s else 0.0,
        "drained_s": round(report.drained_s, 1),
        "settled_s": round(report.settled_s, 1),
    }


def as_text(report: Report) -> str:
    """Return the table."""
    told = figures(report)
    rows = [(name, str(value)) for name, value in _rows(told)]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:{width}}  {value}" for name, value in rows]
    lines += [f"  - {finding}" for finding in report.findings]
    return "\n".join(lines) + "\n"


def _rows(told: dict[str, Any]) -> Iterator[tuple[str, object]]:
    yield "load", f"{told['streams']} clients for {told['seconds']:g} s, seed {told['seed']}"
    yield "requests", _list(told["requests"])
    yield "asked for", _list(told["shapes"])
    yield "streams finished", told["streams_finished"]
    yield "faults injected", _list({fault: count for fault, count in told["faults"].items() if count})
    yield "reloads", _list(told["reloads"])
    yield "RSS in MiB", f"{_list(told['rss_mib'])}, after {told['rss_mib_after']}"
    grown = f"{told['growth_mib']:+} MiB, {told['growth_mib_per_minute']:+} a minute"
    yield "RSS, second half", f"{grown}; {told['growth_mib_allowed']} MiB in this time are allowed"
    for name in ("descriptors", "threads", "in_flight", "streams_open", "upstream"):
        after = told["after"][name] if told["after"] else "?"
        yield name.replace("_", " "), f"{told['before'][name]} before, {told['peak'][name]} at most, {after} after"
    yield "max lag", f"{told['lag_ms']} ms of the proxy's loop, {told['own_lag_ms']} ms of this one's"
    yield "CPU", f"{told['cpu_share']:.0%} of one"
    yield "end", f"last answer after {told['drained_s']} s, nothing left over {told['settled_s']} s later"
    yield "verdict", told["verdict"]


def _list(counts: dict[str, object]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
