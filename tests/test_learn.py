"""What refusals teach: which rules are kept, when they are left out, when they are forgotten, and the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from proxy.engine import Plan, Request, plan, replan
from proxy.errors import PolicyFault
from proxy.learn import MAX_RULES, PROBE_EVERY, Lessons
from proxy.lessons import as_text, read_lessons
from proxy.policy import load_policy
from proxy.refusals import Failure

CHAT = "/v1/chat/completions"
POLICY = load_policy(
    "policy.yaml",
    environ={},
    text=r"""
version: 1
backends: {main: {url: "http://backend"}}
rules:
  - id: unexpected-fields
    on_error: {status: 422, message: "Unexpected fields.*", each: "'(?P<field>[^']+)'"}
    repair: [drop: ["{field}"]]
    learn: {for: 1h}
  - id: renamed
    on_error: {status: 400, message: "use '(?P<new>\\w+)'"}
    repair: [move: {max_tokens: "{new}"}]
    learn: {for: 1h, approve: true}
  - id: not-kept
    on_error: {status: 400, message: "too hot"}
    repair: [clamp: {temperature: {max: 1}}]
""",
)
UNEXPECTED = Failure(422, "Unexpected fields in the request: {'top_k', 'min_p'}")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lessons(clock: Clock) -> Lessons:
    return Lessons(clock)


def asked(lessons: Lessons, **fields: object) -> Plan:
    body = json.dumps({"model": "m", "messages": []} | fields).encode()
    return plan(Request("POST", CHAT, "", [], body), POLICY, learned=lessons.rules)


def taught(lessons: Lessons, failure: Failure = UNEXPECTED, **fields: object) -> Plan:
    """Return the plan that a refusal led to, and that was answered."""
    new = replan(asked(lessons, **fields), failure, POLICY)
    assert new is not None
    lessons.answered(new)
    return new


def test_what_was_refused_is_repaired_beforehand_the_next_time(lessons: Lessons) -> None:
    assert taught(lessons, top_k=1, min_p=0.5).bodies == (b'{"model":"m","messages":[]}',)
    made = asked(lessons, top_k=2, min_p=1, seed=3)
    assert made.bodies == (b'{"model":"m","messages":[],"seed":3}',)
    assert [applied.loses for applied in made.applied] == ["field top_k", "field min_p"]
    assert all(applied.rule.startswith("learned/unexpected-fields-") for applied in made.applied)


def test_each_field_is_a_lesson_of_its_own(lessons: Lessons) -> None:
    taught(lessons, top_k=1, min_p=0.5)
    assert asked(lessons, top_k=2).bodies == (b'{"model":"m","messages":[]}',)


def test_the_order_in_which_fields_are_named_makes_no_other_lesson(lessons: Lessons) -> None:
    taught(lessons, top_k=1, min_p=0.5)
    again = replan(
        asked(Lessons(Clock()), top_k=1, min_p=0.5), Failure(422, "Unexpected fields 'min_p', 'top_k'"), POLICY
    )
    assert again is not None
    lessons.answered(again)
    assert len(lessons) == 2


OTHERS = [
    pytest.param({"top_p": 1}, id="without the fields"),
    pytest.param({"top_k": 1, "min_p": 0.5, "model": "another"}, id="for another model"),
]


@pytest.mark.parametrize("fields", OTHERS)
def test_other_requests_go_as_they_are(lessons: Lessons, fields: dict[str, object]) -> None:
    taught(lessons, top_k=1, min_p=0.5)
    assert asked(lessons, **fields).applied == ()


def test_a_model_s_name_is_no_glob(lessons: Lessons) -> None:
    taught(lessons, top_k=1, model="m*")
    assert asked(lessons, top_k=1, model="mm").applied == ()
    assert len(asked(lessons, top_k=1, model="m*").applied) == 1


def test_a_rule_that_says_nothing_of_learning_is_not_kept(lessons: Lessons) -> None:
    taught(lessons, Failure(400, "too hot"), temperature=2)
    assert len(lessons) == 0


def test_a_proposal_only_observes_until_it_is_approved(lessons: Lessons) -> None:
    taught(lessons, Failure(400, "use 'max_completion_tokens'"), max_tokens=5)
    made = asked(lessons, max_tokens=5)
    assert (made.bodies, made.applied) == ((), ())
    assert [applied.repairs for applied in made.observed] == [("move",)]


def test_it_is_forgotten_when_its_time_is_over(lessons: Lessons, clock: Clock) -> None:
    taught(lessons, top_k=1)
    clock.now_s += 3600
    assert len(asked(lessons, top_k=1).applied) == 1
    clock.now_s += 1
    assert asked(lessons, top_k=1).applied == ()


def repaired_until_probed(lessons: Lessons) -> Plan:
    """Return the first plan that leaves the learned rule out."""
    for _ in range(PROBE_EVERY + 1):
        made = asked(lessons, top_k=1)
        if made.skipped:
            return made
        lessons.answered(made)
    raise AssertionError("no request was a probe")


def test_one_request_in_a_hundred_goes_without_and_a_success_forgets(lessons: Lessons) -> None:
    taught(lessons, top_k=1)
    probe = repaired_until_probed(lessons)
    assert probe.bodies == ()
    lessons.answered(probe)
    assert len(lessons) == 0


def test_a_probe_that_is_refused_keeps_the_lesson(lessons: Lessons) -> None:
    taught(lessons, top_k=1)
    again = replan(repaired_until_probed(lessons), UNEXPECTED, POLICY)
    assert again is not None
    lessons.answered(again)
    assert len(lessons) == 1
    assert asked(lessons, top_k=1).skipped == frozenset()


def test_a_backend_that_was_away_is_tried_without(lessons: Lessons) -> None:
    taught(lessons, top_k=1)
    lessons.note("main", is_up=True)
    assert asked(lessons, top_k=1).skipped == frozenset()
    lessons.note("main", is_up=False)
    lessons.note("main", is_up=True)
    assert len(asked(lessons, top_k=1).skipped) == 1


def test_there_is_an_end_to_what_is_remembered(lessons: Lessons, clock: Clock) -> None:
    for number in range(MAX_RULES + 5):
        clock.now_s += 1
        taught(lessons, top_k=1, model=f"m{number}")
    assert len(lessons) == MAX_RULES
    assert asked(lessons, top_k=1, model="m0").applied == ()
    assert len(asked(lessons, top_k=1, model=f"m{MAX_RULES}").applied) == 1


def test_the_file_is_a_list_of_rules_that_a_policy_takes(lessons: Lessons) -> None:
    taught(lessons, top_k=1)
    rules = yaml.safe_load(as_text(lessons.all()))
    text = yaml.safe_dump({"version": 1, "backends": {"main": {"url": "http://backend"}}, "rules": rules})
    pasted = load_policy("policy.yaml", environ={}, text=text)
    made = plan(Request("POST", CHAT, "", [], b'{"model":"m","top_k":1}'), pasted)
    assert made.bodies == (b'{"model":"m"}',)


BAD_FILES = [
    pytest.param("a: b", "1:1: expected a list of learned rules", id="no list"),
    pytest.param("- {id: x, repair: [drop: [a]]}", "1:3: this rule was not learned", id="a rule of somebody's own"),
    pytest.param("- {id: x, repair: [dorp: [a]]}", '1:20: unknown repair "dorp"', id="a bad rule"),
]


@pytest.mark.parametrize(("text", "fault"), BAD_FILES)
def test_a_file_that_can_t_be_read_says_where(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "learned.yaml"
    path.write_text(text)
    with pytest.raises(PolicyFault) as caught:
        read_lessons(path)
    assert str(caught.value.faults[0]).startswith(f"{path}:{fault}")
