"""`mendproxy test`: what is named on the command line → case files → one report of all their cases."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import click

from proxy.errors import PolicyFault
from proxy.policy_tests import STDIN, Report, case_files, find_gaps, run_suite


def find_files(paths: tuple[Path, ...]) -> list[Path]:
    """Return the case files at these places. Raises: UsageError."""
    try:
        return case_files(list(paths))
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from error


def run_cases(files: list[Path], chosen: re.Pattern[str] | None, coverage: bool) -> Report:
    """Return what came of the cases, those whose name `chosen` is found in. Raises: UsageError."""
    suites, faults = [], []
    for file in files:
        try:
            source = sys.stdin.buffer.read() if file == STDIN else None
            suites.append(run_suite(file, os.environ, chosen, source))
        except PolicyFault as error:
            faults += error.faults
        except OSError as error:
            raise click.UsageError(f"{file}: {error.strerror or error}") from error
    return Report(suites, list(dict.fromkeys(faults)), find_gaps(suites) if coverage else None)
