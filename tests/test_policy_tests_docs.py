"""The examples of docs/policy-tests.md hold."""

import re
from pathlib import Path

import pytest

from proxy.policy_tests import find_gaps, run_suite

DOC = (Path(__file__).parent.parent / "docs" / "policy-tests.md").read_text("utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", DOC, re.DOTALL | re.MULTILINE)
POLICY = next(block for block in BLOCKS if block.startswith("version:"))
EXAMPLES = [block for block in BLOCKS if block is not POLICY]


@pytest.fixture
def write(tmp_path):
    """Return what writes examples beside their policy, and gives their files."""

    def write_all(examples):
        (tmp_path / "policy.yaml").write_text(POLICY, "utf-8")
        files = [tmp_path / f"example-{index}.yaml" for index in range(len(examples))]
        for file, example in zip(files, examples, strict=True):
            file.write_text(example, "utf-8")
        return files

    return write_all


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_holds(example, write):
    (file,) = write([example])
    verdicts = run_suite(file, {}).verdicts
    assert verdicts
    assert [verdict.complaints for verdict in verdicts if not verdict.is_good] == []


def test_the_examples_cover_the_policy_together(write):
    suites = [run_suite(file, {}) for file in write([each for each in EXAMPLES if each.startswith("policy:")])]
    assert len(suites) == 2
    assert find_gaps(suites) == []
