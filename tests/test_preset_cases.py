"""The presets' cases, tests/presets: they hold, they try every rule both ways, and every preset has some."""

from pathlib import Path

import pytest

from proxy.policy import preset_names
from proxy.policy_tests import find_gaps, run_suite

HERE = Path(__file__).parent / "presets"
FILES = sorted(HERE.glob("*.yaml"))


def test_every_preset_has_cases():
    assert [file.stem for file in FILES] == list(preset_names())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_cases_hold_and_cover_the_preset(file):
    suite = run_suite(file, {})
    assert suite.file.preset == file.stem
    assert {verdict.case.name: verdict.complaints for verdict in suite.verdicts if not verdict.is_good} == {}
    assert [str(gap) for gap in find_gaps([suite])] == []
