"""Runs another program that measures proxies side by side, in place of our own, and makes our page of what it found.

The program takes `--proxy NAME=COMMAND`, `--out FILE` and `--markdown`, and any flag that it is given beyond these. It
prints a table for each scenario, and writes all numbers as JSON:

    {"run": {"reference": NAME}, "scenarios": {S: {"about": …, "candidates": {NAME: {"cpu_ratio", "cpu_ratio_95"}}}}}
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import page
from bench.candidates import PRODUCT, RULES
from bench.rounds import CannotMeasure
from bench.stats import Ratio


def run(program: Path, folder: Path, flags: Sequence[str]) -> tuple[list[str], int]:
    """Return the page's sections, and 1 where answers were bad. Raises: CannotMeasure where the program fails."""
    policy, found = folder / "policy.yaml", folder / "result.json"
    policy.write_text(RULES)
    served = [sys.executable, "-m", "proxy", "serve", "-c", str(policy)]
    command = f"{shlex.join(served)} --port {{port}} --admin-port {{admin_port}} --backend {{backend}}"
    words = [sys.executable, str(program), "--markdown", "--out", str(found), "--proxy", f"{PRODUCT}={command}", *flags]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603 named by who runs it
    if not found.exists():
        raise CannotMeasure(f"{program.name} ended with {done.returncode} and wrote no numbers.")
    result = json.loads(found.read_text())
    sections = [
        page.verdicts(list(verdicts(result)), result["run"]["reference"]),
        done.stdout.replace("\n### ", "\n## ").lstrip("\n"),
    ]
    if done.returncode:
        sections.append(f"{program.name} ended with {done.returncode}: some answers were bad.\n")
    return sections, int(done.returncode != 0)


def verdicts(result: dict[str, Any]) -> Iterator[page.Verdict]:
    """Yield what the numbers say about the proxy, for each scenario in which it has a ratio."""
    for name, numbers in result["scenarios"].items():
        summary = numbers["candidates"].get(PRODUCT, {})
        if summary.get("cpu_ratio") and summary.get("cpu_ratio_95"):
            low, high = summary["cpu_ratio_95"]
            yield page.Verdict(name, numbers["about"], Ratio(summary["cpu_ratio"], low, high, 0.95))
