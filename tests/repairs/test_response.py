"""The repairs that `response` lists: each fault at its place in the policy, in the policy's words."""

import json

import pytest

from proxy.matching import KEY, BadTest
from proxy.policy.validate import validated
from proxy.repairs import REPAIRS
from proxy.repairs.answer_options import AnswerRepair
from proxy.repairs.response import ANSWER_EDITS, CARD, FIELD_REPAIRS

BAD = [
    ("an empty list", [], (), "repairs nothing"),
    ("an empty mapping", {}, (), "both, answer and chunk"),
    ("empty lists", {"both": []}, (), "both, answer and chunk"),
    ("a number", 5, (), "a list or a mapping"),
    ("a name alone", ["drop"], (0,), "expected a mapping"),
    ("a misspelt repair", [{"dorp": ["a"]}], (0, "dorp", KEY), 'did you mean "drop"'),
    ("a repair of requests only", [{"fan_out": {}}], (0, "fan_out", KEY), "unknown key"),
    ("itself", [{"response": [{"drop": ["a"]}]}], (0, "response", KEY), "unknown key"),
    ("a misspelt shape", {"chunks": []}, ("chunks", KEY), 'did you mean "chunk"'),
    ("two repairs in one entry", [{"drop": ["a"], "set": {"b": 1}}], (0,), "this one has 2"),
    ("an entry of nothing", [{"drop": ["a"]}, {}], (1,), "this one has 0"),
    ("a repair without options", [{"join_parts": None}], (0, "join_parts"), "say its options"),
    ("a bad path, deep inside", {"chunk": [{"drop": ["a", "b..c"]}]}, ("chunk", 0, "drop", 1, KEY), "at character 3"),
    ("a bad limit", [{"clamp": {"a": {"max": "x"}}}], (0, "clamp", "a", "max"), "a limit is"),
    ("a chain", [{"set": {"a": {"field": "b"}, "b": 1}}], (0, "set", "a"), "reads 'b'"),
    ("a finish_reason of its own", [{"finish_with_calls": "calls"}], (0, "finish_with_calls"), "tool_calls"),
    ("no echo", [{"echo_prompt": False}], (0, "echo_prompt"), "expected True"),
    ("a bad test", [{"skip_chunks": {"a": {"gtt": 1}}}], (0, "skip_chunks", "a", "gtt", KEY), "did you mean"),
]


@pytest.mark.parametrize(("options", "place", "why"), [pytest.param(*row[1:], id=row[0]) for row in BAD])
def test_is_a_fault(options, place, why):
    with pytest.raises(BadTest) as bad:
        validated(CARD.options, options)
    ((where, message),) = bad.value.problems
    assert where == place
    assert why in message


def test_every_repair_that_may_stand_there_is_known_by_its_own_name():
    assert {*FIELD_REPAIRS, *ANSWER_EDITS, "echo_prompt"} == set(AnswerRepair.model_fields)
    assert all(REPAIRS[name] is card for name, card in FIELD_REPAIRS.items())
    assert not ANSWER_EDITS.keys() & REPAIRS.keys()


def test_an_editor_completes_what_may_stand_there():
    text = json.dumps(CARD.options.model_json_schema())
    assert all(json.dumps(name) in text for name in AnswerRepair.model_fields)
