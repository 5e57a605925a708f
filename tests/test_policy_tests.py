"""An operator's cases: what holds, what is said where it doesn't, faults of the files, coverage, the command."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from proxy.cli import main
from proxy.errors import PolicyFault
from proxy.policy_tests import find_gaps, run_suite
from proxy.policy_tests.compare import is_part

POLICY = r"""
version: 1
backends: {a: {url: 'http://x'}}
limits: {branches: 4}
rules:
  - {id: fans, when: {body: {stream: true, n: {gt: 1}}}, repair: [fan_out: {max: 4}]}
  - {id: whole, when: {body: {stream: true, meta: true}}, repair: [stream: false]}
  - {id: colder, when: {body: {temperature: {gt: 1}}}, repair: [clamp: {temperature: {max: 1}}]}
  - {id: says, when: {body: {logprobs: true}}, repair: [warn: no logprobs here]}
  - {id: refuses, when: {path: /v1/chat/completions, body: {messages: {exists: false}}}, repair: [reject: no messages]}
  - {id: looks, mode: observe, when: {body: {user: {exists: true}}}, repair: [drop: [user]]}
  - {id: unknown, on_error: {status: 400, message: "unknown (?P<field>\\w+)"}, repair: [drop: ['{field}']]}
  - {id: cut, when: {body: {stream: true}}, on_error: {stream: [empty, error]}, repair: [stream: false]}
  - {id: more, when: {body: {n: {gt: 2}}}, on_error: {choices: fewer}, repair: [fan_out: {}]}
  - {id: ponders, mode: observe, on_error: {status: 503}, repair: [default: {priority: 1}]}
"""


@pytest.fixture
def run(tmp_path):
    """Return what runs the text of cases (with `tests:` before them) against the policy, and gives the suite."""

    def run_text(cases, policy=POLICY, head="policy: policy.yaml\n"):
        (tmp_path / "policy.yaml").write_text(policy, "utf-8")
        file = tmp_path / "cases.yaml"
        file.write_text(head + "tests:\n" + cases, "utf-8")
        return run_suite(file, {})

    return run_text


def case(request, expect, more=""):
    return f"  - {{name: it, request: {request}, expect: {expect}{more}}}\n"


STREAM = "{body: {model: m, messages: [], stream: true}}"
FANNED = "{body: {model: m, messages: [], stream: true, n: 2, seed: 1}}"
PLAIN = "{body: {model: m, messages: []}}"
HOT = "{body: {messages: [], temperature: 3}}"

HOLD = {
    "no rule fires": (PLAIN, "{rules: [], untouched: true, branches: 1, backend: a, refused: false}", ""),
    "the rules in order": (
        "{body: {stream: true, meta: true, temperature: 3, messages: []}}",
        "{rules: [whole, colder]}",
        "",
    ),
    "a part of every branch": (FANNED, "{branches: 2, body: {stream: true, messages: []}, absent: [n, tools]}", ""),
    "a part of each branch": (FANNED, "{bodies: [{seed: 1}, {seed: 2.0}]}", ""),
    "the shape of the answer": (FANNED, "{answer: {stream: true, choices: 2, relayed: false}}", ""),
    "the shape of a restored answer": (
        "{body: {stream: true, meta: true, messages: []}}",
        "{body: {stream: false}, untouched: false, answer: {stream: true, choices: 1, relayed: false}}",
        "",
    ),
    "the shape of a relayed answer": (
        "{body: {messages: [], n: 2}}",
        "{answer: {stream: false, choices: 2, relayed: true}}",
        "",
    ),
    "what is lost": (HOT, "{loses: {colder: temperature 3 becomes 1}}", ""),
    "that nothing is lost": (FANNED, "{loses: {fans: nothing}}", ""),
    "a warning": (
        "{body: {messages: [], logprobs: true}}",
        "{rules: [says], untouched: true, warns: {says: no logprobs here}}",
        "",
    ),
    "no warning": (FANNED, "{warns: {fans: nothing}}", ""),
    "a refusal": ("{body: {}}", "{rules: [refuses], branches: 0, refused: true}", ""),
    "how it is refused": (
        "{body: {}}",
        "{refused: {status: 400, code: request_rejected, param: null, message: NO MESS}}",
        "",
    ),
    "a refusal of what is lossy": (
        f"{{headers: {{prefer: handling=strict}}, {HOT[1:]}",
        "{refused: {code: repair_refused, message: colder}}",
        "",
    ),
    "a refusal of too many branches": ("{body: {messages: [], stream: true, n: 9}}", "{refused: {status: 400}}", ""),
    "what would be done": ("{body: {messages: [], user: u}}", "{rules: [], observed: [looks], untouched: true}", ""),
    "bytes that are no JSON": ('{text: "{no"}', "{untouched: true}", ""),
    "no body": ("{method: GET, path: /v1/models}", "{untouched: true}", ""),
    "a body that is no object": ("{body: [1]}", "{untouched: true, body: [1]}", ""),
    "a rule that knows the refusal": (
        "{body: {messages: [], top_k: 1}}",
        "{rules: [unknown], absent: [top_k], retried: true}",
        ", after: {status: 400, text: unknown top_k}",
    ),
    "a refusal in JSON": (
        "{body: {messages: [], top_k: 1}}",
        "{rules: [unknown], absent: [top_k]}",
        ", after: {status: 400, body: {error: {message: Unknown top_k.}}}",
    ),
    "a refusal that no rule knows": (PLAIN, "{rules: [], retried: false}", ", after: {status: 500}"),
    "two rounds": (
        "{body: {messages: [], top_k: 1, stream: true}}",
        "{rules: [unknown, cut], absent: [top_k], body: {stream: false}, answer: {stream: true}}",
        ", after: [{status: 400, text: unknown top_k}, {stream: empty}]",
    ),
    "the second round is the last": (
        STREAM,
        "{rules: [cut], retried: false}",
        ", after: [{stream: error, body: {error: {message: out of memory, code: 500}}}, {status: 500}]",
    ),
    "an error in plain words": (STREAM, "{rules: [cut]}", ', after: {stream: error, text: \'{"error": "no"}\'}'),
    "a stream of silence": (STREAM, "{retried: false}", ", after: {stream: silent}"),
    "fewer choices than were asked for": (
        "{body: {messages: [], n: 3, seed: 5}}",
        "{rules: [more], branches: 3, bodies: [{n: 3}, {seed: 6}, {seed: 7}], answer: {choices: 3}}",
        ", after: {choices: fewer, got: 1}",
    ),
    "as many choices as were asked for": (
        "{body: {messages: [], n: 3}}",
        "{rules: [], retried: false}",
        ", after: {choices: fewer, got: 3}",
    ),
    "a rule that only looks at a refusal": (PLAIN, "{observed: [ponders], retried: false}", ", after: {status: 503}"),
    "an answer that is the backend's": (
        PLAIN,
        "{answer: {body: {id: x}, absent: [usage]}}",
        ", answered: {id: x, n: 1}",
    ),
    "chunks that are the backend's": (STREAM, "{answer: {body: [{id: x}, {}]}}", ", answered: [{id: x}, {id: y}]"),
}


@pytest.mark.parametrize(("request_", "expect", "more"), HOLD.values(), ids=HOLD.keys())
def test_a_case_holds(request_, expect, more, run):
    (verdict,) = run(case(request_, expect, more)).verdicts
    assert verdict.complaints == ()
    assert verdict.is_good


MEANT = "so it goes to the client (`retried: false`, where that is meant)"


def diff(what, expected, came):
    """Return what is said of an object with one field that is another."""
    return f"{what}:\n  --- expected\n  +++ came\n  @@ -1,3 +1,3 @@\n   {{\n  -  {expected}\n  +  {came}\n   }}"


FAIL = {
    "a rule that did not fire": (
        PLAIN,
        "{rules: [fans]}",
        "",
        ['rules: expected ["fans"], came []\n  fans: body.stream: true met absent'],
    ),
    "a rule too many": (HOT, "{rules: []}", "", ['rules: expected [], came ["colder"]']),
    "another order": (
        "{body: {stream: true, meta: true, temperature: 3, messages: []}}",
        "{rules: [colder, whole]}",
        "",
        ['rules: expected ["colder", "whole"], came ["whole", "colder"]'],
    ),
    "another number of branches": (FANNED, "{branches: 1}", "", ["branches: expected 1, came 2"]),
    "another backend": (PLAIN, "{backend: b}", "", ["backend: expected b, came a"]),
    "a body that was touched": (HOT, "{untouched: true}", "", ["untouched: expected true, came false"]),
    "a body that was not touched": (PLAIN, "{untouched: false}", "", ["untouched: expected false, came true"]),
    "a value that is another": (
        HOT,
        "{body: {temperature: 2}}",
        "",
        [
            diff("the body of branch 0", '"temperature": 2', '"temperature": 1'),
        ],
    ),
    "another number of bodies": (PLAIN, "{bodies: [{}, {}]}", "", ["bodies: expected 2 branches, came 1"]),
    "a field that is there": (
        "{body: {messages: [{name: a}, {name: b}]}}",
        "{absent: ['messages[*].name']}",
        "",
        ["the body of branch 0: expected no messages[*].name, but there is messages[0].name, messages[1].name"],
    ),
    "no refusal": (PLAIN, "{refused: true}", "", ["refused: expected true, came false"]),
    "no refusal of a kind": (
        PLAIN,
        "{refused: {status: 400}}",
        "",
        ["refused: expected, but the request goes upstream"],
    ),
    "a refusal": (
        "{body: {}}",
        "{refused: false}",
        "",
        ["refused: expected false, came 400 \"no messages (rule 'refuses')\""],
    ),
    "a refusal where a body was expected": (
        "{body: {}}",
        "{body: {}}",
        "",
        ["refused: nothing goes upstream, the proxy answers 400 \"no messages (rule 'refuses')\""],
    ),
    "another refusal": (
        "{body: {}}",
        "{refused: {status: 422, param: n, message: none}}",
        "",
        [
            'refused.param: expected "n", came null',
            "refused.status: expected 422, came 400",
            'refused.message: expected "none" in it, came "no messages (rule \'refuses\')"',
        ],
    ),
    "another loss": (
        HOT,
        "{loses: {colder: all}}",
        "",
        ['loses.colder: expected "all", came "temperature 3 becomes 1"'],
    ),
    "a loss of a rule that did not fire": (
        PLAIN,
        "{loses: {colder: all}}",
        "",
        ["loses: the rule colder did not fire"],
    ),
    "another warning": (HOT, "{warns: {colder: all}}", "", ['warns.colder: expected "all", came "nothing"']),
    "another shape": (
        FANNED,
        "{answer: {stream: false, choices: 3, relayed: true}}",
        "",
        [
            "answer.stream: expected false, came true",
            "answer.choices: expected 3, came 2",
            "answer.relayed: expected true, came false",
        ],
    ),
    "another answer": (
        PLAIN,
        "{answer: {body: {id: y}, absent: [id]}}",
        ", answered: {id: x}",
        [
            diff("the client's answer", '"id": "y"', '"id": "x"'),
            "the client's answer: expected no id, but there is id",
        ],
    ),
    "a refusal that no rule knows": (
        PLAIN,
        "{rules: []}",
        ", after: {status: 500}",
        [f"after: no rule knows the answer of `after`, {MEANT}"],
    ),
    "a second round that never comes": (
        PLAIN,
        "{retried: false}",
        ", after: [{status: 500}, {status: 500}]",
        ["retried: expected that no rule knows the last answer, but no rule knew answer 1 already"],
    ),
    "a refusal that is known after all": (
        "{body: {messages: [], k: 1}}",
        "{retried: false}",
        ", after: {status: 400, text: unknown k}",
        ["retried: expected that no rule knows the last answer, but a rule knew it"],
    ),
    "an answer that never comes": (
        "{body: {}}",
        "{rules: [refuses]}",
        ", after: {status: 400}",
        ["after: the proxy refuses the request itself, so the backend never answers"],
    ),
}


@pytest.mark.parametrize(("request_", "expect", "more", "said"), FAIL.values(), ids=FAIL.keys())
def test_a_case_fails_and_says_why(request_, expect, more, said, run):
    (verdict,) = run(case(request_, expect, more)).verdicts
    assert list(verdict.complaints) == said


PARTS = {
    "all of it": ({"a": 1}, {"a": 1}, True),
    "some of it": ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}, "d": 3}, True),
    "more than it": ({"a": 1, "b": 2}, {"a": 1}, False),
    "null for nothing": ({"a": None}, {}, False),
    "a number for a boolean": ({"a": 1}, {"a": True}, False),
    "1 for 1.0": ({"a": 1}, {"a": 1.0}, True),
    "a shorter list": ([1], [1, 2], False),
    "a part of each element": ([{"a": 1}, {}], [{"a": 1, "b": 2}, {"c": 3}], True),
    "a list for an object": ([], {}, False),
    "an empty object for any": ({}, {"a": 1}, True),
}


@pytest.mark.parametrize(("expected", "came", "holds"), PARTS.values(), ids=PARTS.keys())
def test_a_part_is_one(expected, came, holds):
    assert is_part(expected, came) is holds


FAULTS = {
    "an unknown key": (
        case(PLAIN, "{rule: []}"),
        [("rule:", 'unknown key "rule": did you mean "rules"?')],
    ),
    "a rule that is none": (
        case(PLAIN, "{rules: [fan], loses: {colde: x}}"),
        [
            ("fan]", 'the policy has no rule "fan": did you mean "fans"?'),
            ("x}", 'the policy has no rule "colde": did you mean "colder"?'),
        ],
    ),
    "nothing expected": (
        case(PLAIN, "{}"),
        [("{}", "nothing is expected: a case that can't fail is none")],
    ),
    "no request": (
        "  - {name: it, expect: {rules: []}}\n",
        [("{name", '"request" is missing')],
    ),
    "no name": (
        f"  - {{request: {PLAIN}, expect: {{rules: []}}}}\n",
        [("{request", '"name" is missing')],
    ),
    "a name twice": (
        case(PLAIN, "{rules: []}") * 2,
        [("it,", "a case of this name stands already on line 3")],
    ),
    "two bodies": (
        case("{body: {}, text: x}", "{rules: []}"),
        [("text:", "a request has a `body` or a `text`, not both")],
    ),
    "a path that is none": (
        case(PLAIN, "{absent: ['a..b']}"),
        [("'a..b'", "'a..b' is not a field path: unexpected '.' at character 3")],
    ),
    "a key that JSON can't have": (
        case("{body: {logit_bias: {1: 2}}}", "{rules: []}"),
        [("1: 2", "a key of JSON is a string, not an integer: put it in quotes")],
    ),
    "an answer of no kind": (
        case(PLAIN, "{rules: []}", ", after: {text: x}"),
        [("{text", "an answer has a `status`, or a `stream` that failed, or `choices: fewer`: name one of them")],
    ),
    "no answers": (
        case(PLAIN, "{rules: []}", ", after: []"),
        [("[]}", "an empty list says nothing: leave the key out")],
    ),
    "an event that tells of no failure": (
        case(STREAM, "{rules: []}", ", after: {stream: error, body: {choices: []}}"),
        [("{stream: error", "this event tells of no failure: begin it with an `error`")],
    ),
    "an empty stream that says something": (
        case(PLAIN, "{rules: []}", ", after: {stream: empty, text: x}"),
        [("text: x", "only a refusal and `stream: error` have a `text`")],
    ),
    "an answer that nothing is expected of": (
        case(PLAIN, "{rules: []}", ", answered: {}"),
        [("answered:", "nothing is expected of it: say so in expect.answer.body or .absent")],
    ),
    "what the client reads of no answer": (
        case(PLAIN, "{answer: {body: {}}}"),
        [("{body: {}}}", "what the client reads is made of `answered`, which is not given")],
    ),
    "a retry after no answer": (
        case(PLAIN, "{retried: false}"),
        [("retried:", "`retried` is about the answers of `after`, and there are none")],
    ),
    "a refusal with a body": (
        case(PLAIN, "{refused: true, body: {}}"),
        [("body: {}}", "what is refused doesn't go upstream: it has no body")],
    ),
    "an impossible row without a row": (
        "  - {impossible: why}\n",
        [("{impossible", '"row" is missing: what is it that is impossible?')],
    ),
    "an impossible row with a request": (
        f"  - {{row: r, impossible: why, request: {PLAIN}}}\n",
        [("request:", "an impossible row has no request")],
    ),
}


@pytest.mark.parametrize(("cases", "said"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_of_a_case_is_told_with_its_place(cases, said, run):
    with pytest.raises(PolicyFault) as caught:
        run(cases)
    lines = ["", "", *cases.splitlines()]
    found = [(lines[fault.line - 1][fault.column - 1 :], fault.message) for fault in caught.value.faults]
    assert [message for _, message in found] == [message for _, message in said]
    assert all(text.startswith(at) for (text, _), (at, _) in zip(found, said, strict=True)), found
    assert all(Path(fault.file).name == "cases.yaml" for fault in caught.value.faults)


HEADS = {
    "no policy": (
        "env: {}\n",
        "1:1: the cases are for a `policy` (its file) or a `preset` (its name): name one of them",
    ),
    "two": (
        "policy: p.yaml\npreset: sglang\n",
        "1:1: the cases are for a `policy` (its file) or a `preset` (its name): name one of them",
    ),
    "an unknown preset": ("preset: sgland\n", '1:9: unknown preset "sgland": did you mean "sglang"?'),
}


@pytest.mark.parametrize(("head", "said"), HEADS.values(), ids=HEADS.keys())
def test_a_file_is_for_one_policy(head, said, run):
    with pytest.raises(PolicyFault) as caught:
        run(case(PLAIN, "{rules: []}"), head=head)
    (fault,) = caught.value.faults
    assert f"{fault.line}:{fault.column}: {fault.message}" == said


def test_a_policy_that_is_not_there_is_a_fault_of_the_file(run):
    with pytest.raises(PolicyFault, match=r"cases\.yaml:1:9: .*other\.yaml can't be read: No such file or directory"):
        run(case(PLAIN, "{rules: []}"), head="policy: other.yaml\n")


def test_variables_of_the_file_are_the_policy_s(run):
    policy = (
        POLICY.replace("http://x", "${WHERE}")
        .replace("{gt: 1}}}, repair", "{gt: ${N}}}}, repair")
        .replace("${N}", '"${N}"')
    )
    head = 'policy: policy.yaml\nenv: {WHERE: "http://y", N: "5"}\n'
    suite = run(case(FANNED, "{rules: []}"), policy, head)
    assert suite.policy.backends[0].url == "http://y"
    assert suite.verdicts[0].is_good


def test_a_model_that_no_backend_has_is_refused(run):
    policy = POLICY.replace("{a: {url: 'http://x'}}", "{a: {url: 'http://x', models: [m]}}")
    expect = "{rules: [], branches: 0, refused: {status: 404, code: model_not_found}}"
    (verdict,) = run(case("{body: {model: other}}", expect), policy).verdicts
    assert verdict.complaints == ()


COVERED = (
    case(FANNED, "{rules: [fans]}")
    + case("{body: {stream: true, meta: true, messages: []}}", "{rules: [whole]}")
    + case("{body: {messages: [], temperature: 3, logprobs: true}}", "{rules: [colder, says]}")
    + case("{body: {}}", "{refused: true}")
    + case("{body: {messages: [], user: u}}", "{observed: [looks]}")
    + case("{body: {messages: [], k: 1}}", "{rules: [unknown]}", ", after: {status: 400, text: unknown k}")
    + case(STREAM, "{rules: [cut]}", ", after: {stream: empty}")
    + case("{body: {messages: [], n: 3}}", "{rules: [more]}", ", after: {choices: fewer}")
    + case(PLAIN, "{observed: [ponders], retried: false}", ", after: {status: 503}")
)


def named(cases):
    """Return the cases, each with a name of its own."""
    lines = cases.splitlines()
    return "\n".join(line.replace("name: it", f"name: it {index}") for index, line in enumerate(lines)) + "\n"


def gaps(suites):
    return [f"{gap.rule} {gap.why}" for gap in find_gaps(suites)]


def test_cases_that_try_every_rule_both_ways_leave_no_gap(run):
    suite = run(named(COVERED))
    assert [verdict.complaints for verdict in suite.verdicts if not verdict.is_good] == []
    assert gaps([suite]) == []


@pytest.mark.parametrize("index", range(len(COVERED.splitlines())))
def test_a_case_that_is_missing_leaves_its_rules_uncovered(index, run):
    lines = COVERED.splitlines()
    rules = set(re.findall(r"(?<!\w)(?:rules|observed): \[([^]]+)\]", lines[index])) or {"refuses"}
    suite = run(named("\n".join(lines[:index] + lines[index + 1 :])))
    missing = {rule.strip() for group in rules for rule in group.split(",")}
    assert {f"{rule} never fired in any case" for rule in missing} <= set(gaps([suite]))


def test_a_rule_that_always_fires_was_never_passed_over(run):
    assert "fans was never passed over: no case has it let a request be" in gaps([run(case(FANNED, "{rules: [fans]}"))])


def test_a_rule_behind_a_refusal_was_not_passed_over(run):
    assert "looks was never passed over: no case has it let a request be" in gaps(
        [run(case("{body: {}}", "{refused: true}"))]
    )


def test_a_reactive_rule_is_passed_over_by_an_answer_only(run):
    said = "unknown was never passed over: no case has it let an answer of `after` be"
    assert said in gaps([run(case(PLAIN, "{rules: []}"))])
    assert said not in gaps([run(case(PLAIN, "{retried: false}", ", after: {status: 500}"))])


def test_the_rules_of_a_policy_s_preset_need_no_cases_but_its_own_do(run):
    policy = "version: 1\nbackends: {a: {url: 'http://x', presets: [sglang]}}\nrules: [{id: r, repair: [warn: said]}]\n"
    assert gaps([run(case(PLAIN, "{rules: [r]}"), policy)]) == [
        "r was never passed over: no case has it let a request be"
    ]


def test_the_rules_of_a_preset_need_the_preset_s_cases(run):
    found = gaps([run(case(PLAIN, "{rules: []}"), head="preset: sglang\n")])
    assert "sglang/top-p-zero never fired in any case" in found
    assert "sglang/top-p-zero was never passed over: no case has it let a request be" not in found


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Return what runs `mendproxy test` in a directory with the given files: exit code, output."""

    def run_command(*arguments, **files):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "config" / "tests").mkdir(parents=True, exist_ok=True)
        (tmp_path / "config" / "policy.yaml").write_text(POLICY, "utf-8")
        for name, text in files.items():
            (tmp_path / "config" / "tests" / f"{name}.yaml").write_text(
                f"policy: ../policy.yaml\ntests:\n{text}", "utf-8"
            )
        result = CliRunner().invoke(main, ["test", *arguments], catch_exceptions=False)
        return result.exit_code, result.output

    return run_command


GOOD_CASE, BAD_CASE = case(PLAIN, "{rules: []}"), case(PLAIN, "{branches: 2}").replace("it,", "bad one,")


def test_cases_that_hold_exit_with_0(command):
    assert command(one=GOOD_CASE, two=GOOD_CASE) == (0, "2 cases, none failed\n")


def test_a_case_that_fails_exits_with_1_and_is_told_with_its_place(command):
    expected = "config/tests/one.yaml:4:5: failed: bad one\n  branches: expected 2, came 1\n2 cases, 1 failed\n"
    assert command("config/tests/one.yaml", one=GOOD_CASE + BAD_CASE) == (1, expected)


@pytest.mark.parametrize(
    "cases", ["  - {row: r, impossible: why}\n", "  []\n"], ids=["only impossible rows", "an empty list"]
)
def test_no_case_at_all_is_a_failure(cases, command):
    assert command(one=cases) == (1, "no case was run: nothing is tested\n")


def test_a_dash_stands_for_stdin(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.yaml").write_text(POLICY, "utf-8")
    text = f"policy: policy.yaml\ntests:\n{GOOD_CASE}{BAD_CASE}"
    result = CliRunner().invoke(main, ["test", "-"], input=text, catch_exceptions=False)
    assert result.exit_code == 1
    assert result.output == "-:4:5: failed: bad one\n  branches: expected 2, came 1\n2 cases, 1 failed\n"


def test_a_directory_without_cases_is_a_failure(command):
    assert command("config/tests") == (1, "no case was run: nothing is tested\n")


def test_faults_of_files_exit_with_1_and_the_other_files_are_run(command):
    code, output = command(one=case(PLAIN, "{rule: []}"), two=BAD_CASE)
    assert code == 1
    assert 'config/tests/one.yaml:3:68: unknown key "rule"' in output
    assert "config/tests/two.yaml:3:5: failed: bad one" in output
    assert output.endswith("1 case, 1 failed; 1 fault in the files\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["nowhere"], "nowhere: No such file or directory", id="a file that is not there"),
        pytest.param(["--run", "("], "is no regular expression", id="a bad regular expression"),
        pytest.param(["--run", "x", "--coverage"], "it can't be had with --run", id="coverage of some of the cases"),
        pytest.param(["--format", "xml"], "'xml' is not one of", id="an unknown format"),
    ],
)
def test_a_wrong_call_exits_with_2(arguments, said, command):
    code, output = command(*arguments, one=GOOD_CASE)
    assert code == 2
    assert said in output


def test_run_picks_cases_by_their_names(command):
    assert command("--run", "^it$", one=GOOD_CASE + BAD_CASE) == (0, "1 case, none failed\n")
    assert command("--run", "none", one=GOOD_CASE) == (1, "no case was run: nothing is tested\n")


def test_coverage_counts_all_files_of_a_policy_together(command):
    lines = named(COVERED).splitlines(keepends=True)
    assert command("--coverage", one="".join(lines[:4]), two="".join(lines[4:])) == (
        0,
        "9 cases, none failed; 10 rules covered\n",
    )


def test_coverage_fails_and_lists_the_rules(command):
    code, output = command("--coverage", one=named("".join(COVERED.splitlines(keepends=True)[1:])))
    assert code == 1
    assert output.splitlines() == [
        "config/policy.yaml:6:5: the rule fans never fired in any case",
        "8 cases, none failed; 1 of 10 rules not covered",
    ]


def test_json_tells_the_same_to_scripts(command):
    code, output = command("--format", "json", "--coverage", one=BAD_CASE)
    told = json.loads(output)
    assert code == 1
    assert told["good"] is False
    assert told["cases"] == [
        {
            "file": "config/tests/one.yaml",
            "line": 3,
            "column": 5,
            "name": "bad one",
            "row": None,
            "good": False,
            "complaints": ["branches: expected 2, came 1"],
            "rules": [],
        }
    ]
    assert told["gaps"][0] == {"rule": "fans", "place": "config/policy.yaml:6:5", "why": "never fired in any case"}


def test_junit_tells_the_same_to_a_ci_server(command):
    code, output = command("--format", "junit", one=GOOD_CASE + BAD_CASE, two=case(PLAIN, "{rule: []}"))
    root = ElementTree.fromstring(output)  # noqa: S314 its own output
    assert code == 1
    suites = {suite.get("name"): suite for suite in root}
    assert suites["config/tests/one.yaml"].attrib == {"name": "config/tests/one.yaml", "tests": "2", "failures": "1"}
    assert [each.get("name") for each in root.iter("testcase")][:2] == ["it", "bad one"]
    assert [each.get("message") for each in root.iter("failure")] == ["branches: expected 2, came 1"]
    assert len(list(root.iter("error"))) == 1


def test_the_shipped_cases_hold(monkeypatch):
    monkeypatch.chdir(Path(__file__).parent.parent)
    result = CliRunner().invoke(main, ["test", "--coverage"])
    assert (result.exit_code, result.output.partition(";")[0]) == (0, "10 cases, none failed")
