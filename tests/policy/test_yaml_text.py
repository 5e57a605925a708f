"""What YAML means in a policy, and where its parts stand."""

from __future__ import annotations

import pytest

from proxy.errors import PolicyFault
from proxy.matching import KEY
from proxy.policy.yaml_text import decode_text, parse_yaml

VALUES = [
    ("true", True, "true is a boolean"),
    ("False", False, "False is a boolean"),
    ("yes", "yes", "yes is a string"),
    ("on", "on", "on is a string"),
    ("010", 10, "a leading zero is no octal"),
    ("0o10", 8, "0o is octal"),
    ("0x1F", 31, "0x is hexadecimal"),
    ("1e3", 1000.0, "an exponent makes a float"),
    ("1_000", "1_000", "underscores make a string"),
    ("12:30:45", "12:30:45", "sexagesimal is a string"),
    ("2024-01-02", "2024-01-02", "a date is a string"),
    ("~", None, "a tilde is null"),
    ("", None, "nothing is null"),
    ("'1'", "1", "quoted is a string"),
    ("|-\n  1", "1", "a block is a string"),
    ("=", "=", "an equals sign is a string"),
]
FAULTS = [
    ("", 1, 1, "the file is empty", "an empty file"),
    ("# nothing\n", 1, 1, "the file is empty", "only comments"),
    ("a: 1\nb: 2\na: 3\n", 3, 1, "first on line 1", "a key twice"),
    ("a:\n  1: x\n  1.0: y\n", 3, 3, "first on line 2", "one number in two spellings"),
    ("a: {true: x, 1: y}\n", 1, 14, "can't be keys of one table", "true beside 1"),
    ("a: &x {b: 1}\nc: {<<: *x}\n", 2, 5, "merge keys", "a merge key"),
    ("? [a]\n: b\n", 1, 3, "can't be a list or mapping", "a list as a key"),
    ("a: !!python/name:os.system x\n", 1, 4, "tags", "a Python tag"),
    ("a: !!str 5\n", 1, 4, "tags", "a core tag"),
    ("a: 1\n---\nb: 2\n", 2, 1, "a second document", "two documents"),
    ("a:\n\tb: 1\n", 2, 1, "a tab can't indent", "a tab"),
    ("a: [1, 2\n", 2, 1, "not YAML", "an open list"),
    ("a: *x\n", 1, 4, "undefined alias", "an alias of nothing"),
    ("a: &x [*x]\n", 1, 4, "inside the value that it names", "an alias of itself"),
    ("a: x\x00\n", 1, 5, "U+0000", "a control character"),
    ('a: "\\ud83d"\n', 1, 4, "lone surrogate", "half a character"),
    ('a: "\\U00110000"\n', 1, 7, "not YAML", "no Unicode character"),
    ("a: .nan\n", 1, 4, "no JSON number", "not a number"),
    ("a: 1e999\n", 1, 4, "too large", "a float without end"),
    ("a: " + "9" * 5000, 1, 4, "digits", "an integer without end"),
    ("a: " + "[" * 200, 1, 68, "nested more than", "a deep nest"),
    ("\ufeffa: 1\n", 1, 1, "byte order mark", "a byte order mark"),
    ("a: {url: ${X}}\n", 1, 11, "in quotes", "a bare variable in braces"),
]


@pytest.mark.parametrize(("text", "value"), [case[:2] for case in VALUES], ids=[case[2] for case in VALUES])
def test_scalars_are_those_of_the_core_schema(text, value):
    read = parse_yaml(f"a: {text}\n", "f").value["a"]
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "line", "column", "words"), [case[:4] for case in FAULTS], ids=[case[4] for case in FAULTS]
)
def test_what_is_no_policy_s_yaml_is_refused_at_its_place(text, line, column, words):
    with pytest.raises(PolicyFault) as caught:
        parse_yaml(text, "f")
    fault = caught.value.faults[0]
    assert (fault.line, fault.column) == (line, column)
    assert words in fault.message


def test_faults_of_one_text_are_told_together():
    with pytest.raises(PolicyFault) as caught:
        parse_yaml("a: 1\na: 2\nb: !x 1\nc: {<<: 1}\n", "f")
    assert [fault.line for fault in caught.value.faults] == [2, 3, 4]


def test_keys_keep_their_types():
    assert list(parse_yaml("{null: a, true: b, 2: c, 0.5: d, '3': e}", "f").value) == [None, True, 2, 0.5, "3"]


def test_places_of_keys_and_values_are_known():
    document = parse_yaml("rules:\n  - id: x\n    when: {path: [/a, /b]}\n", "f")
    assert document.position(("rules", 0, "when", "path", 1)) == (3, 23)
    assert document.position(("rules", 0, "when", KEY)) == (3, 5)
    assert document.position(("rules", 0, "when", "missing", 7)) == (3, 11)


def test_an_alias_is_its_anchor_s_value_and_stands_there():
    document = parse_yaml("a: &x [1]\nb: *x\n", "f")
    assert document.value == {"a": [1], "b": [1]}
    assert document.position(("b", 0)) == (1, 8)


def test_aliases_that_grow_without_end_are_refused():
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 20)]
    with pytest.raises(PolicyFault, match="too large"):
        parse_yaml("\n".join(lines), "f")


def test_bytes_that_are_no_utf_8_are_refused_at_their_place():
    with pytest.raises(PolicyFault) as caught:
        decode_text(b"a: 1\nb: \xff\n", "f")
    assert str(caught.value) == "f:2:4: not UTF-8: save the file in that encoding"
