"""Faults that people met with proxies like this one, each played between a scripted backend and a rude client."""

import ast
import re
from pathlib import Path

import pytest

from proxy.errors import PolicyFault
from proxy.policy import load_policy

ROOT = Path(__file__).parents[2]


async def test_case(play_on, script):
    await play_on(script)


def test_policy_case(policy_case):
    try:
        load_policy("policy.yaml", environ=policy_case.environ, text=policy_case.text)
        found = []
    except PolicyFault as fault:
        found = [str(one) for one in fault.faults]
    assert len(found) == len(policy_case.faults), found
    for met, due in zip(found, policy_case.faults, strict=True):
        assert re.search(due, met), f"{met!r} is not {due!r}"


def test_a_case_that_another_test_shows_has_that_test(covered):
    path, _, name = covered.test.partition("::")
    if not (ROOT / path).is_file():
        pytest.fail(f"there is no {path}")
    names = {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if hasattr(node, "name")}
    assert name in names
