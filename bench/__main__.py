"""`python -m bench`: measure the proxy beside nginx, and beside itself without rules, and print the tables."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import harness, page
from bench.candidates import BARE, DIRECT, NGINX, PRODUCT, WORKERS, Contender, contenders
from bench.processes import Processes
from bench.rounds import STREAMS, Bench, Candidate, CannotMeasure, Slices, measure, takers
from bench.scenarios import MEMORY, QUICK, Scenario, scenarios
from bench.stats import Summary, summarise

BUDGET_S, QUICK_BUDGET_S = 90.0, 30.0
MEMORY_S = 9.0


def main(words: Sequence[str]) -> int:
    """Return the exit code: 1 where an answer was bad, 3 where nothing could be measured."""
    own, rest = _own_parser().parse_known_args(words)
    given = _parser().parse_args(words) if own.harness is None else None
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        try:
            sections, bad = _run(given, Path(folder)) if given else harness.run(own.harness, Path(folder), rest)
        except CannotMeasure as error:
            sys.stderr.write(f"bench: {error}\n")
            return 3
    text = page.page(sections, shlex.join(["python", "-m", "bench", *_shown(words)]))
    sys.stdout.write(text)
    if own.write is not None:
        own.write.write_text(text)
    return int(bad > 0)


def _own_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags that hold whoever measures."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page here too")
    parser.add_argument(
        "--harness", type=Path, metavar="FILE", help="let this program measure; it gets all other flags"
    )
    return parser


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, parents=[_own_parser()], allow_abbrev=False
    )
    parser.add_argument("--quick", action="store_true", help="30 s, fewer scenarios")
    parser.add_argument("--seconds", type=float, help=f"how long all of it may take; {BUDGET_S:.0f} unless told")
    parser.add_argument("--scenarios", help=f"some of {', '.join([*scenarios(), MEMORY])}, with commas between them")
    parser.add_argument(
        "--proxy",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="measure another proxy too; {port}, {admin_port}, {backend} and {policy} are filled in",
    )
    return parser


def _shown(words: Sequence[str]) -> list[str]:
    """Return the words of a command as the page shows them: where a file lies is nobody's business."""
    return [Path(word).name if word.startswith(("/", "../")) else word for word in words]


def _chosen(given: argparse.Namespace) -> list[str]:
    known = [*scenarios(), MEMORY]
    chosen = given.scenarios.split(",") if given.scenarios else QUICK if given.quick else known
    if unknown := [name for name in chosen if name not in known]:
        raise CannotMeasure(f"There is no scenario {', '.join(unknown)}; there are {', '.join(known)}.")
    return list(chosen)


def _run(given: argparse.Namespace, folder: Path) -> tuple[list[str], int]:
    """Return the page's sections, and how many answers were bad. Raises: CannotMeasure."""
    names, began_s = _chosen(given), time.monotonic()
    budget_s = given.seconds or (QUICK_BUDGET_S if given.quick else BUDGET_S)
    deadline_s = began_s + budget_s - (MEMORY_S if MEMORY in names else 0)
    field = contenders(given.proxy)
    table = {name: one for name, one in scenarios().items() if name in names}
    with Processes(folder) as processes:
        bench = Bench(folder, processes)
        running = [bench.direct, *(bench.start(contender) for contender in field)]
        # One worker beside itself is no news.
        table = {n: one for n, one in table.items() if not one.is_for_workers or len(takers(running, one)) > 1}
        slices = _slices(bench, running, table, deadline_s)
        processes.stop(*(candidate.pid for candidate in running[1:]))
        kib = bench.memory([one for one in field if one.name != WORKERS]) if MEMORY in names else {}
    sections, bad = _sections(slices, table, _reference(field))
    return [*sections, *([page.memory(kib, STREAMS)] if kib else [])], bad


def _reference(field: Sequence[Contender]) -> str:
    return NGINX if any(contender.name == NGINX for contender in field) else BARE


def _slices(bench: Bench, running: list[Candidate], table: dict[str, Scenario], deadline_s: float) -> Slices:
    slices: Slices = {name: {one.name: [] for one in takers(running, table[name])} for name in table}
    for name, candidate, one, complaint in measure(bench, running, table, deadline_s):
        slices[name][candidate].append(one)
        if complaint:
            sys.stderr.write(f"{name}: {candidate}: {complaint}\n")
    return slices


def _sections(slices: Slices, table: dict[str, Scenario], reference: str) -> tuple[list[str], int]:
    found, sections, bad = [], [], 0
    for name, own in slices.items():
        scenario = table[name]
        summaries = summarise(own, PRODUCT if scenario.is_for_workers else reference, DIRECT)
        sections.append(page.scenario(name, scenario.about, scenario.unit, summaries))
        bad += sum(summary.bad for summary in summaries.values())
        found += _verdict(name, scenario, summaries)
    return [page.verdicts(found, reference), *sections], bad


def _verdict(name: str, scenario: Scenario, summaries: dict[str, Summary]) -> list[page.Verdict]:
    own = summaries.get(PRODUCT)
    if own is None or own.cpu_ratio is None or scenario.is_for_workers:
        return []
    return [page.Verdict(name, scenario.about, own.cpu_ratio)]


if __name__ == "__main__":
    # The processes are ended on the way out, and so on SIGTERM too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
