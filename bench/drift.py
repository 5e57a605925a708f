"""The guard against drift: how many calls the proxy makes for one request and one event, against what is written down.

    python -m bench.drift            count, and compare with tests/data/drift.yaml
    python -m bench.drift --write    count, and write it down for this version of Python

Times differ from machine to machine and from run to run; calls do not, so a change that costs some is seen anywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
BASELINE = ROOT / "tests" / "data" / "drift.yaml"
COMMAND = "python -m bench.drift --write"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
COUNT_WITHIN_S = 110.0
# Repeated counts lie within half a percent, also on a busy machine. Versions of Python differ by some five percent.
TOLERANCE, NEAREST_TOLERANCE = 0.05, 0.15

_HEAD = f"""\
# How many calls, of Python functions and of C ones, the proxy makes for one request and for one event of a stream, by
# version of Python. tests/test_drift.py fails where there are more. Written by: {COMMAND}
"""

Calls = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Baseline:
    """The calls that are written down for one version of Python, and by how much they may grow."""

    python: str
    calls: Calls
    tolerance: float

    def fault(self, name: str, calls: float) -> str | None:
        """Return what is wrong with a count, None where nothing is."""
        was = self.calls.get(name)
        if was is None:
            return f"{name}: {calls:.1f} calls, and none are written down: {COMMAND}"
        if calls <= was * (1 + self.tolerance):
            return None
        return (
            f"{name}: {calls:.1f} calls, {calls / was - 1:+.1%} of the {was:.1f} that are written down for "
            f"Python {self.python}; {self.tolerance:.0%} more may be. If they are worth it: {COMMAND}"
        )


def baseline(python: str, text: str) -> Baseline:
    """Return the baseline of a version of Python, else that of the nearest version, which tolerates more."""
    written: dict[str, dict[str, float]] = yaml.safe_load(text)
    if python in written:
        return Baseline(python, written[python], TOLERANCE)
    nearest = min(written, key=lambda other: abs(_minor(other) - _minor(python)))
    return Baseline(nearest, written[nearest], NEAREST_TOLERANCE)


def _minor(python: str) -> int:
    return int(python.partition(".")[2])


def count() -> Calls:
    """Return the calls, counted in a process of their own. Raises: RuntimeError with what it said, where it fails."""
    # One hash seed, so that sets are walked in one order; whatever else is set for Python would count too.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MENDPROXY_"))}
    done = subprocess.run(
        [sys.executable, "-m", "bench.counting"],
        cwd=ROOT,
        env=own | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=COUNT_WITHIN_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"bench.counting ended with {done.returncode}:\n{done.stderr[-2000:]}")
    calls: dict[str, float] = json.loads(done.stdout)
    return calls


def written(text: str, python: str, calls: Calls) -> str:
    """Return the baselines' text with those of one version of Python replaced."""
    all_calls: dict[str, Calls] = (yaml.safe_load(text) or {}) | {python: dict(calls)}
    ordered = {python: all_calls[python] for python in sorted(all_calls, key=_minor)}
    return _HEAD + yaml.safe_dump(ordered, sort_keys=False)


def main() -> int:
    """Return the exit code: 1 where there are more calls than there may be."""
    parser = argparse.ArgumentParser(prog="python -m bench.drift", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the counts down for this version of Python")
    should_write = parser.parse_args().write
    calls, text = count(), BASELINE.read_text() if BASELINE.exists() else ""
    if should_write:
        BASELINE.write_text(written(text, PYTHON, calls))
        text = BASELINE.read_text()
    base = baseline(PYTHON, text)
    for name, now in calls.items():
        sys.stdout.write(f"{name:30}{base.calls.get(name, 0):10.1f} written down{now:10.1f} now\n")
    faults = [fault for name, now in calls.items() if (fault := base.fault(name, now))]
    sys.stdout.write("".join(f"{fault}\n" for fault in faults))
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
