"""Cases as data: gives a test its part of what the case files beside it hold.

*.yaml ── read ──► Script | FaultyPolicy | Covered ──► the tests that ask for `script`, `policy_case`, `covered`
"""

from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.cases.runner")

from tests.cases.runner.play import play  # noqa: E402 its assertions are to be rewritten first
from tests.cases.runner.reading import Covered, FaultyPolicy, Script, read_cases  # noqa: E402

FOLDER = Path(__file__).parent
KINDS = {"script": Script, "policy_case": FaultyPolicy, "covered": Covered}


def pytest_generate_tests(metafunc):
    """Run a test that asks for a kind of case once for each of them."""
    for name, kind in KINDS.items():
        if name in metafunc.fixturenames:
            found = [case for case in read_cases(FOLDER) if isinstance(case, kind)]
            metafunc.parametrize(name, found, ids=[case.id for case in found])


@pytest.fixture
def play_on(stage):
    """Return what plays a script on the stage."""

    async def run(script):
        await play(stage, script)

    return run
