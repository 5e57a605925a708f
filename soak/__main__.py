"""`python -m soak`: hundreds of streams, faults, clients that leave, policies that change; then nothing may be left."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import sys
import tempfile
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from soak import page
from soak.run import Settings, soak
from soak.scripts import Fault, Shape
from soak.subject import CannotStart, Died

Named = TypeVar("Named", bound=StrEnum)


def main(words: Sequence[str]) -> int:
    """Return the exit code: 1 where something was wrong, is left, grew or died, 3 where the proxy could not start."""
    given, arguments = _parser().parse_known_args(words)
    settings = Settings(
        given.seconds,
        given.streams,
        secrets.randbelow(1_000_000) if given.seed is None else given.seed,
        given.pace,
        _some(Shape, given.shapes),
        _some(Fault, given.faults),
        arguments,
    )
    report, code = None, 3
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        try:
            report = asyncio.run(soak(settings, Path(folder)))
        except* CannotStart as group:
            sys.stderr.write(f"soak: {_first(group)}\n")
        except* Died as group:
            sys.stderr.write(f"soak: {_first(group)}\n")
            code = 1
    if report is None:
        return code
    sys.stdout.write(page.as_json(report) + "\n" if given.json else page.as_text(report))
    return int(bool(report.findings))


def _first(error: BaseException) -> BaseException:
    """Return what a group is about."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m soak",
        description=__doc__,
        epilog="All other flags are the proxy's: --workers 2.",
        allow_abbrev=False,
    )
    parser.add_argument("--seconds", type=float, default=900.0, help="how long the load lasts; 900 unless told")
    parser.add_argument("--streams", type=int, default=500, help="clients at a time; 500 unless told")
    parser.add_argument("--seed", type=int, help="ask what an earlier run asked; the times differ")
    parser.add_argument("--pace", type=float, default=1.0, help="stretch all pauses; 0.1 is ten times the load")
    parser.add_argument("--shapes", help=f"some of {', '.join(_names(Shape))}, with commas between them")
    parser.add_argument("--faults", help=f"some of {', '.join(_names(Fault))}, with commas between them")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser


def _names(kind: type[Named]) -> list[str]:
    return [one.name.lower() for one in kind]


def _some(kind: type[Named], names: str | None) -> tuple[Named, ...]:
    return tuple(kind) if names is None else tuple(kind[name.strip().upper()] for name in names.split(","))


if __name__ == "__main__":
    # The proxy is ended on the way out, and so on SIGTERM too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
