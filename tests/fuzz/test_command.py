"""The longer run of the fuzzers, as `make fuzz` starts it."""

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = [sys.executable, str(Path(__file__).parent)]


def run(*arguments):
    return subprocess.run(  # noqa: S603 the command is this test's own
        [*FUZZ, *arguments], capture_output=True, text=True, check=False
    )


def test_without_targets_all_of_them_are_run():
    done = run("--seconds", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("---")] == [
        f"--- {target}: 1 s" for target in ("body", "http", "policy", "sse")
    ]


@pytest.mark.parametrize("unknown", ["bodies", ""])
def test_a_target_that_is_none_is_told_with_those_that_are(unknown):
    done = run(unknown)
    assert done.returncode == 2
    assert f"{unknown!r} is none of body, http, policy, sse" in done.stderr
