"""The guard against drift: a request and an event cost no more calls than are written down in tests/data/drift.yaml."""

import pytest
import yaml

from bench import drift

# Both of the proxy's ends wait for it at each step, which takes its time where others have the CPU.
pytestmark = pytest.mark.timeout(drift.COUNT_WITHIN_S + 10)

WRITTEN = """
"3.11": {one: 100.0, two: 10.0}
"3.13": {one: 80.0, two: 8.0}
"""


@pytest.fixture(scope="module")
def counted():
    """Return the calls of each workload, counted once for all tests."""
    return drift.count()


@pytest.mark.parametrize("name", sorted(drift.baseline(drift.PYTHON, drift.BASELINE.read_text()).calls))
def test_it_costs_no_more_calls_than_are_written_down(name, counted):
    base = drift.baseline(drift.PYTHON, drift.BASELINE.read_text())
    assert base.fault(name, counted[name]) is None


def test_what_is_counted_is_what_is_written_down(counted):
    base = drift.baseline(drift.PYTHON, drift.BASELINE.read_text())
    assert set(counted) == set(base.calls)
    assert min(counted.values()) > 1


@pytest.mark.parametrize(
    ("python", "name", "calls", "told"),
    [
        pytest.param("3.11", "one", 105.0, None, id="a little more is let pass"),
        pytest.param("3.11", "one", 50.0, None, id="less is always welcome"),
        pytest.param(
            "3.11",
            "one",
            112.0,
            "one: 112.0 calls, +12.0% of the 100.0 that are written down for Python 3.11; 5% more may be. "
            "If they are worth it: python -m bench.drift --write",
            id="more is a fault that says by how much and what to do",
        ),
        pytest.param("3.12", "one", 112.0, None, id="a version that has no baseline is let pass more"),
        pytest.param(
            "3.14",
            "one",
            94.0,
            "one: 94.0 calls, +17.5% of the 80.0 that are written down for Python 3.13; 15% more may be. "
            "If they are worth it: python -m bench.drift --write",
            id="a version that has no baseline is measured by the nearest",
        ),
        pytest.param(
            "3.11",
            "three",
            5.0,
            "three: 5.0 calls, and none are written down: python -m bench.drift --write",
            id="what was never counted is a fault",
        ),
    ],
)
def test_a_count_is_judged_by_its_baseline(python, name, calls, told):
    assert drift.baseline(python, WRITTEN).fault(name, calls) == told


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", {"3.11": {"one": 90.5}}, id="the first of all"),
        pytest.param(
            WRITTEN, {"3.11": {"one": 90.5}, "3.13": {"one": 80.0, "two": 8.0}}, id="the others stay as they are"
        ),
    ],
)
def test_a_count_is_written_down_for_its_version_of_python(text, expected):
    said = drift.written(text, "3.11", {"one": 90.5})
    assert yaml.safe_load(said) == expected
    assert said.startswith("# How many calls")


def test_a_count_that_fails_says_why(monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho this is why >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(drift.sys, "executable", str(python))
    with pytest.raises(RuntimeError, match=r"ended with 1:\nthis is why"):
        drift.count()
