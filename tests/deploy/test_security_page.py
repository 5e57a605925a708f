"""SECURITY.md claims nothing without a test that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "SECURITY.md").read_text()
ROWS = [row for row in re.findall(r"^\| (.*) \|$", PAGE.split("## Boundaries")[1], re.MULTILINE) if "`tests/" in row]
NAMED = sorted(set(re.findall(r"`(tests/[^`]+)`", PAGE)))


@pytest.mark.parametrize("name", NAMED)
def test_a_test_that_is_named_is_there_and_has_tests(name):
    assert re.search(r"^(?:async )?def test_", (ROOT / name).read_text(), re.MULTILINE)


def test_every_danger_names_what_holds_it_and_a_test():
    tables = re.findall(r"(?:^\|.*\n)+", PAGE.split("## Boundaries")[1], re.MULTILINE)
    told = [row for table in tables for row in table.splitlines()[2:]]
    assert len(told) == len(ROWS) > 20
    assert [row for row in told if len(row.strip("|").split(" | ")) != 3] == []


def test_every_boundary_is_told():
    boundaries = re.findall(r"^### (.*)$", PAGE, re.MULTILINE)
    assert boundaries == [
        "Client → data port",
        "Proxy → backend",
        "Backend → client",
        "Operator → admin port",
        "Policy file and learned file",
        "Log and metrics",
        "Container",
        "Supply chain",
    ]


def test_every_file_that_is_linked_is_there():
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert [link for link in links if not (ROOT / link).exists()] == []
