"""Faulty policies and all that is said of each, from faults.txt; no text makes anything but a policy or faults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.errors import PolicyFault
from proxy.policy import effective_text, load_policy

HERE = Path(__file__).parent
TABLE = (HERE / "faults.txt").read_text("utf-8")
CASES = re.findall(r"^### (.*?)\n(.*?)--->\n(.*?)\n\n", TABLE, re.DOTALL | re.MULTILINE)
ENVIRON = {"SECRET": "hunter2", "OPEN": "hunter("}
GOOD = (HERE / "example.yaml").read_text("utf-8")
SNIPPETS = [
    *("{", "}", "[", "]", ": ", "- ", "\n", "  ", "'", '"', "|", "\t", "#", "---\n", "? ", "%YAML 1.3\n"),
    *("&a ", "*a", "<<", "!!int ", "${X}", "${", "(?P<", "[*]", "\ud800"),
    *("null", "true", "yes", "1e999", "0x", "-1", ".nan"),
]
RELAXED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)


def test_the_table_is_read_whole():
    assert len(CASES) == TABLE.count("### ") >= 90


@pytest.mark.parametrize(("text", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_every_fault_is_told_with_its_place(text, expected, load):
    with pytest.raises(PolicyFault) as caught:
        load(text, environ=ENVIRON)
    assert [str(fault) for fault in caught.value.faults] == [f"p.yaml:{line}" for line in expected.split("\n")]


@pytest.mark.parametrize("text", [case[1] for case in CASES], ids=[case[0] for case in CASES])
def test_no_fault_tells_a_variable_s_value(text, load):
    with pytest.raises(PolicyFault) as caught:
        load(text, environ=ENVIRON)
    assert "hunter" not in str(caught.value)


def loads_or_is_faulty(load, text):
    faults = []
    try:
        shown = effective_text(load(text, environ={"X": "1"}))
    except PolicyFault as fault:
        faults = fault.faults
        shown = None
    assert faults or shown
    assert all(fault.line >= 1 and fault.column >= 1 and fault.message.isprintable() for fault in faults)
    assert all(fault.message for fault in faults)
    if shown:
        assert effective_text(load(shown, environ={"X": "1"})) == shown


@RELAXED
@given(text=st.text(max_size=60))
def test_any_text_is_a_policy_or_faults(load, text):
    loads_or_is_faulty(load, text)


@RELAXED
@given(data=st.data())
def test_any_mutation_of_a_policy_is_a_policy_or_faults(load, data):
    text = GOOD
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 8)))
        text = text[:start] + data.draw(st.sampled_from(SNIPPETS)) + text[end:]
    loads_or_is_faulty(load, text)


def test_a_fault_of_a_value_with_many_words_stays_short():
    words = " ".join(f"word{number}" for number in range(40))
    with pytest.raises(PolicyFault) as caught:
        load_policy(
            "p.yaml",
            environ={"SECRET": "hush-hush " + words},
            text=f'version: 1\nbackends: {{a: {{url: "http://b", presets: ["{words} ${{SECRET}} {words}"]}}}}\n',
        )
    told = str(caught.value)
    assert "hush" not in told
    assert len(told) < 2000
