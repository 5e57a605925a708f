"""The page of results in Markdown: where the proxy wins and loses, each scenario's table, how it was measured."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.candidates import nginx_binary
from bench.stats import Ratio, Summary
from proxy import __version__

PACKAGES = ("aiohttp", "msgspec", "uvloop")
_HEAD = """\
# Benchmarks

Written by `make bench`; a number that was measured on another machine, or on another day, compares with nothing here.

Only **ratios of one run** are worth quoting. *CPU x* is the main one: work per second of CPU time, the reference being
1 and more being better. CPU time is the kernel's (`/proc/PID/task/*/schedstat`), over all requests of a slice. *rate x*
is the same per second on the clock: 1 in paced scenarios, unless a candidate can't keep up. A ratio is taken within a
round, the median over the rounds is shown, and in brackets the interval which order statistics give it: at least 95 %
sure, but under six rounds it is the whole range, and less so.
"""
_COLUMNS = ("candidate", "rate/s", "rate x", "CPU us", "CPU x", "p50 us", "p99 us", "whole", "bad", "rounds")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the proxy's work per CPU second is, the reference's being 1, in one scenario."""

    scenario: str
    about: str
    ratio: Ratio

    @property
    def text(self) -> str:
        """How it is to be read."""
        if self.ratio.low > 1:
            return "wins"
        return "loses" if self.ratio.high < 1 else "can't be told apart"


def page(sections: Sequence[str], command: str) -> str:
    """Return the whole page; `command` is what measured it."""
    return "\n".join([_HEAD, *sections, *_setting(command)]).rstrip() + "\n"


def verdicts(found: Sequence[Verdict], reference: str) -> str:
    """Return the table of wins and losses, the losses first."""
    ordered = sorted(found, key=lambda verdict: verdict.ratio.median)
    rows = [[one.scenario, one.about, one.text, ratio(one.ratio)] for one in ordered]
    return f"## Against {reference}, by CPU time\n\n{table(('scenario', 'what', 'it', 'CPU x'), rows, words=3)}\n"


def scenario(name: str, about: str, unit: str, summaries: Mapping[str, Summary]) -> str:
    """Return one scenario's table."""
    rows = [[candidate, *_cells(summary)] for candidate, summary in summaries.items()]
    return f"## {name}\n\n{about}; the unit is an {unit}.\n\n{table(_COLUMNS, rows)}\n"


def memory(kib: Mapping[str, tuple[float, float]], streams: int) -> str:
    """Return the table of memory."""
    rows = [[name, f"{base / 1024:.1f}", f"{each:.1f}"] for name, (base, each) in kib.items()]
    text = f"Resident memory of a fresh process, and what each of {streams} open streams adds."
    return f"## memory\n\n{text}\n\n{table(('candidate', 'MiB', 'KiB a stream'), rows)}\n"


def _cells(summary: Summary) -> list[str]:
    added = [f"{us:+.0f}" if us is not None else "" for us in (summary.added_p50_us, summary.added_p99_us)]
    times = [ratio(summary.rate_ratio), f"{summary.cpu_us:.1f}", ratio(summary.cpu_ratio), *added]
    return [f"{summary.rate:.0f}", *times, str(summary.whole), str(summary.bad), str(summary.rounds)]


def ratio(value: Ratio | None) -> str:
    """Return a ratio with its interval."""
    return f"{value.median:.3g} [{value.low:.3g}..{value.high:.3g}]" if value is not None else ""


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """Return a table in Markdown: the first columns, those of `words`, to the left, numbers to the right."""
    lines = [columns, ["---"] * words + ["---:"] * (len(columns) - words), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _setting(command: str) -> Iterator[str]:
    yield "## On what, and how\n"
    yield f"- {datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {_cpu()}, {len(os.sched_getaffinity(0))} CPUs"
    yield f"- {platform.system()} {platform.release()}, {platform.python_implementation()} {platform.python_version()}"
    yield f"- {', '.join(_versions())}"
    yield f"- `{command}`"
    yield "- Everything on 127.0.0.1, no TLS, HTTP/1.1. The candidates have one CPU, the load and the backend another."
    yield "- *p50* and *p99* are what a candidate adds to the backend's own time, in the same round. With 64 busy"
    yield "  connections most of that is queueing."


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _versions() -> Iterator[str]:
    yield f"mendproxy {__version__}"
    for package in PACKAGES:
        try:
            yield f"{package} {version(package)}"
        except PackageNotFoundError:
            yield f"no {package}"
    if binary := nginx_binary():
        said = subprocess.run([binary, "-v"], capture_output=True, text=True, check=False)  # noqa: S603 found on the path
        yield f"nginx {said.stderr.strip().rpartition('/')[2]}"
