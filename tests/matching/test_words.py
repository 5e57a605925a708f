"""Values of a policy as messages and labels tell them: on one line, and a variable as it was written."""

import pytest

from proxy.matching.words import Expanded, flow

TOLD = [
    pytest.param({"a": [1, None, True], "b": {"c": "é"}}, '{a: [1, null, true], b: {c: "é"}}', id="a tree"),
    pytest.param({"a": Expanded("hunter2", "${SECRET}")}, "{a: ${SECRET}}", id="a variable"),
    pytest.param(Expanded("a\nhunter2", "a\n${SECRET}"), r'"a\n${SECRET}"', id="a variable in a text of two lines"),
    pytest.param({"a\nb": {"c\u2028": 1}}, r'{"a\nb": {"c\u2028": 1}}', id="names of two lines"),
    pytest.param("a\nb", r'"a\nb"', id="a text of two lines"),
]


@pytest.mark.parametrize(("value", "told"), TOLD)
def test_a_value_is_told_on_one_line(value, told):
    assert flow(value) == told
