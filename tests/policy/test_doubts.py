"""What `check` warns of: rules that can never fire, names that name nothing. And that it is sure of what it says."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.body import Body
from proxy.matching import DEFAULT_PATHS, Facts, compile_matcher
from proxy.policy import contradictions, implications, load_policy

REFUSES = "reject: no"
HEAD = "version: 1\nbackends: {a: {url: 'http://x'}}\n"
TWO = "version: 1\nbackends: {a: {url: 'http://x', models: [m]}, b: {url: 'http://y'}}\n"
NEVER = "the rule can never fire: its `when` contradicts itself"


def rules(*written: str, head: str = HEAD) -> str:
    """Return a policy's text: each rule on a line of its own, from the fourth on, as `id when repair`."""
    return head + "rules:\n" + "".join(f"  - {{{rule}}}\n" for rule in written)


def rule(name: str, when: str, repair: str = "warn: said", more: str = "") -> str:
    return f"id: {name}, when: {when}, repair: [{repair}]{more}"


def warnings(text: str, environ: dict[str, str] | None = None) -> list[str]:
    found = load_policy("p.yaml", text=text, environ=environ or {}).warnings
    return [f"{fault.line}: {fault.message}" for fault in found]


def shadowed(by: str = "first", line: int = 4) -> str:
    return f'5: the rule can never fire: "{by}" (p.yaml:{line}:5) refuses all that it is for'


SHADOWED = {
    "a refusal without a condition": ("{}", "{body: {n: 2}}"),
    "a refusal of the same": ("{body: {n: 2}}", "{body: {n: 2}}"),
    "a refusal of more values": ("{body: {n: {gt: 1}}}", "{body: {n: 2}}"),
    "a refusal of a wider range": ("{body: {n: {ge: 2}}}", "{body: {n: {gt: 2, lt: 9}}}"),
    "a refusal whenever the field is there": ("{body: {n: {exists: true}}}", "{body: {n: {type: string}}}"),
    "a refusal with fewer conditions": ("{body: {n: 2}}", "{body: {n: 2, stream: true}, model: m}"),
    "a refusal of one of several": ("{any: [{body: {n: 2}}, {model: m}]}", "{model: m}"),
    "each of several is refused": ("{body: {n: {in: [1, 2, 3]}}}", "{any: [{body: {n: 1}}, {body: {n: 2}}]}"),
    "a refusal of all but what this is not either": ("{not: {body: {n: 2}}}", "{not: {body: {n: {ge: 1}}}}"),
    "a refusal of all but another value": ("{not: {body: {n: 2}}}", "{body: {n: 3}}"),
    "a refusal of a wider path": ("{path: /v1/*}", "{path: [/v1/embeddings, '/v1/audio/*']}"),
    "a refusal of all paths": ("{path: '*'}", "{path: /x}"),
    "a refusal by method in another case": ("{method: post}", "{method: POST, model: m}"),
    "a refusal by header in another case": ("{header: {X-A: '1'}}", "{header: {x-a: '1'}}"),
    "a refusal by query": ("{query: {a: {exists: true}}}", "{query: {a: '1'}}"),
    "a refusal of the backend that it is for": ("{backend: a}", "{}"),
    "a refusal of the same length": ("{body: {stop: {length: {gt: 4}}}}", "{body: {stop: {length: {gt: 4}}, n: 1}}"),
    "a refusal of any element": ("{body: {'a[*].b': {gt: 0}}}", "{body: {'a[*].b': 1}}"),
}


@pytest.mark.parametrize(("first", "second"), SHADOWED.values(), ids=SHADOWED.keys())
def test_a_rule_behind_a_refusal_is_doubted(first, second):
    assert warnings(rules(rule("first", first, REFUSES), rule("second", second))) == [shadowed()]


REACHED = {
    "a refusal of less": (rule("first", "{body: {n: 2}}", REFUSES), rule("second", "{body: {n: {gt: 1}}}")),
    "a refusal of another field": (rule("first", "{body: {n: 2}}", REFUSES), rule("second", "{body: {m: 2}}")),
    "a refusal of a narrower path": (rule("first", "{}", REFUSES), rule("second", "{path: '/v1/*'}")),
    "a refusal of a model": (rule("first", "{model: '*'}", REFUSES), rule("second", "{}")),
    "a refusal that is only observed": (
        rule("first", "{}", REFUSES, ", mode: observe"),
        rule("second", "{}"),
    ),
    "a refusal that waits for one": (
        rule("first", "{}", REFUSES, ", on_error: {status: 400}"),
        rule("second", "{}"),
    ),
    "a repair that is none": (rule("first", "{}"), rule("second", "{}")),
    "a refusal of a part by length": (
        rule("first", "{body: {stop: {length: {gt: 4}}}}", REFUSES),
        rule("second", "{body: {stop: {length: 5}}}"),
    ),
    "one element of many passes each": (
        rule("first", "{body: {'a[*]': {gt: 1, lt: 3}}}", REFUSES),
        rule("second", "{body: {'a[*]': {gt: 1}}, any: [{body: {'a[*]': {lt: 3}}}]}"),
    ),
}


@pytest.mark.parametrize("written", REACHED.values(), ids=REACHED.keys())
def test_a_rule_that_can_be_reached_is_not_doubted(written):
    assert warnings(rules(*written)) == []


def test_a_rule_in_between_may_edit_what_the_refusal_looked_at():
    first, last = rule("first", "{body: {n: 2}}", REFUSES), rule("last", "{body: {n: 2}}")
    assert warnings(rules(first, rule("edits", "{}", "set: {n: 2}"), last)) == []
    assert len(warnings(rules(first, rule("warns", "{}"), last))) == 1


def test_what_is_refused_whatever_its_body_stays_refused_after_an_edit():
    first, last = rule("first", "{model: m}", REFUSES), rule("last", "{model: m}")
    assert len(warnings(rules(first, rule("edits", "{}", "set: {n: 2}"), last))) == 1


def test_a_reactive_rule_behind_a_refusal_is_doubted():
    late = rule("late", "{body: {n: 2}}", "'drop': [n]", ", on_error: {status: 400}")
    assert warnings(rules(rule("first", "{body: {n: 2}}", REFUSES), late)) == [shadowed()]
    assert warnings(rules(rule("first", "{body: {n: 2}}", REFUSES), late, rule("edits", "{}", "set: {n: 2}"))) == []


def test_a_rule_that_one_of_two_backends_refuses_is_not_doubted():
    first = rule("first", "{backend: a}", REFUSES)
    assert warnings(rules(first, rule("second", "{}"), head=TWO)) == []
    assert warnings(rules(first, rule("second", "{backend: a}"), head=TWO)) == [shadowed()]


CONTRADICTIONS = {
    "a test and its denial": "{body: {stream: true}, not: {body: {stream: true}}}",
    "a test and a wider denial": "{body: {n: {gt: 2}}, not: {body: {n: {gt: 1}}}}",
    "a test and no way to pass": "{body: {n: 1}, any: [{body: {n: 2}}, {body: {n: 3}}]}",
    "two models": "{model: a, any: [{model: b}, {model: 'c*'}]}",
    "a path and its denial": "{path: /v1/x, not: {path: '/v1/*'}}",
    "a field inside of none": "{body: {a: {exists: false}, a.b: 1}}",
    "a field inside of text": "{body: {a: {type: string}, a.b: {exists: true}}}",
    "an element of an object": "{body: {a: {type: object}, 'a[0]': 1}}",
    "a header that is two things": "{header: {x: a}, any: [{header: {X: b}}]}",
    "a denial of everything": "{not: {path: '*'}}",
    "a contradiction inside of a denial's denial": "{body: {n: 1}, not: {not: {body: {n: 2}}}}",
}
FINE = {
    "a test and the denial of another": "{body: {stream: true}, not: {body: {n: 1}}}",
    "a denial of a part": "{body: {n: {gt: 1}}, not: {body: {n: {gt: 2}}}}",
    "elements of which one passes and one does not": "{body: {'a[*]': 1}, any: [{body: {'a[*]': 2}}]}",
    "a parameter given twice": "{query: {a: '1'}, any: [{query: {a: '2'}}]}",
    "a field that may be inside of none": "{body: {a: {exists: false}, a.b: {exists: false}}}",
    "wildcards in a field that is no text": "{body: {a: {not: {type: string}}, 'a[*].b': 1}}",
    "globs that may meet": "{model: 'a*', any: [{model: '*b'}]}",
    "a length": "{body: {a: {length: 1}}, not: {body: {a: {length: 2}}}}",
}


@pytest.mark.parametrize("when", CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_a_matcher_that_contradicts_itself_is_doubted(when):
    assert warnings(rules(rule("r", when))) == [f"4: {NEVER}"]


@pytest.mark.parametrize("when", FINE.values(), ids=FINE.keys())
def test_a_matcher_that_can_hold_is_not_doubted(when):
    assert warnings(rules(rule("r", when))) == []


def test_a_matcher_that_contradicts_itself_is_not_called_shadowed_as_well():
    never = rule("never", "{body: {n: 1}, not: {body: {n: 1}}}")
    assert warnings(rules(rule("first", "{}", REFUSES), never)) == [f"5: {NEVER}"]


def test_matchers_too_large_to_think_through_are_let_be_and_soon():
    either = ", ".join(f"{{any: [{{body: {{f{index}: 1}}}}, {{body: {{f{index}: 2}}}}]}}" for index in range(40))
    nested = f"{{not: {{any: [{either}]}}, any: [{either}]}}"
    assert warnings(rules(rule("first", nested, REFUSES), rule("second", nested.replace("f1:", "g:")))) == []


OTHERS = {
    "a stream that is empty has no status": (
        rules(rule("r", "{}", more=", on_error: {status: 400, stream: empty}")),
        ["4: the rule can never fire: a stream that is empty has no status"],
    ),
    "an error event may have one": (
        rules(rule("r", "{}", more=", on_error: {status: 400, stream: [empty, error]}")),
        [],
    ),
    "fewer choices have no status": (
        rules(rule("r", "{}", "fan_out: {}", ", on_error: {status: 400, choices: fewer}")),
        ["4: the rule can never fire: an answer of fewer choices has no status"],
    ),
    "fewer choices are asked for by fan_out only": (
        rules(rule("r", "{}", "stream: false", ", on_error: {choices: fewer}")),
        ["4: the rule can never fire: only `fan_out` asks for the choices that are missing"],
    ),
    "fewer choices are asked for": (rules(rule("r", "{}", "fan_out: {}", ", on_error: {choices: fewer}")), []),
    "a variable that stands for nothing in a rule": (
        rules(rule("r", '{model: "${MODEL:-}"}')),
        ["4: ${MODEL:-} stands for nothing here: the variable is not set, or empty"],
    ),
    "a variable whose default stands for something": (rules(rule("r", '{model: "${MODEL:-m}"}')), []),
    "a key that is not set is no key": (HEAD + 'auth: {keys: ["${KEY:-}"]}\n', []),
    "a preset's rule of no name": (
        "version: 1\nbackends: {a: {url: 'http://x', presets: [sglang]}}\ndisable: [sglang/top-p-zer]\n",
        ['3: there is no rule "sglang/top-p-zer" to switch off: did you mean "sglang/top-p-zero"?'],
    ),
    "a rule of a preset of no name": (
        "version: 1\nbackends: {a: {url: 'http://x', presets: [sglang]}}\ndisable: [sgland/ranges]\n",
        ['3: no backend has a preset "sgland" whose rules could be switched off: did you mean "sglang"?'],
    ),
    "a rule of a preset that no backend has": (
        HEAD + "disable: [sglang/ranges]\n",
        ['3: no backend has a preset "sglang" whose rules could be switched off'],
    ),
    "a whole preset": (
        "version: 1\nbackends: {a: {url: 'http://x', presets: [sglang]}}\ndisable: [sglang]\n",
        ['3: "sglang" is a preset, not a rule: to do without it leave it out of `presets`'],
    ),
}


@pytest.mark.parametrize(("text", "expected"), OTHERS.values(), ids=OTHERS.keys())
def test_a_doubt_is_told_where_it_is(text, expected):
    assert warnings(text) == expected


def test_a_variable_that_is_set_to_nothing_is_doubted_as_well():
    text = rules(rule("r", '{model: "${MODEL}"}'))
    assert warnings(text, {"MODEL": ""}) == ["4: ${MODEL} stands for nothing here: the variable is not set, or empty"]


SCALARS = st.sampled_from([None, True, False, 0, 1, 2, 1.5, "", "a", [], [1], {}, {"b": 1}, {"b": 2}])
TESTS = st.recursive(
    st.one_of(
        st.sampled_from([True, 1, 2, "a"]),
        st.dictionaries(st.sampled_from(["gt", "ge", "lt", "le"]), st.sampled_from([0, 1, 1.5, 2]), min_size=1),
        st.builds(lambda name, value: {name: value}, st.sampled_from(["eq", "ne"]), SCALARS),
        st.builds(
            lambda name, values: {name: values}, st.sampled_from(["in", "not_in"]), st.lists(SCALARS, max_size=3)
        ),
        st.builds(lambda name, flag: {name: flag}, st.sampled_from(["exists", "empty"]), st.booleans()),
        st.builds(lambda kind: {"type": kind}, st.sampled_from(["integer", "number", "string", "array", "object"])),
    ),
    lambda inner: st.one_of(
        st.builds(lambda test: {"not": test}, inner),
        st.builds(
            lambda name, tests: {name: tests}, st.sampled_from(["any", "all"]), st.lists(inner, min_size=1, max_size=2)
        ),
    ),
    max_leaves=3,
)
FIELDS = st.dictionaries(st.sampled_from(["a", "a.b", "a[0]", "a[*]", "c"]), TESTS, min_size=1, max_size=2)
GLOBS = st.sampled_from(["*", "m", "m*", "n", ["m", "n"]])
MATCHERS = st.recursive(
    st.one_of(st.builds(lambda body: {"body": body}, FIELDS), st.builds(lambda glob: {"model": glob}, GLOBS)),
    lambda inner: st.one_of(
        st.builds(lambda one, two: one | {"not": two}, inner, inner),
        st.builds(lambda one, two, three: one | {"any": [two, three]}, inner, inner, inner),
    ),
    max_leaves=4,
)
BODIES = st.dictionaries(st.sampled_from(["a", "c"]), SCALARS)
MODELS = st.sampled_from([None, "m", "mm", "n"])


def holds(when, model, body):
    facts = Facts("POST", DEFAULT_PATHS[0], {}, {}, model, "x", Body.parse(msgspec.json.encode(body)))
    return compile_matcher(when).holds(facts)


@settings(deadline=None)
@given(when=MATCHERS, wanted=MATCHERS, requests=st.lists(st.tuples(MODELS, BODIES), min_size=5, max_size=20))
def test_what_is_said_to_follow_does(when, wanted, requests):
    follows, never = implications.implies(when, wanted), implications.never_holds(when)
    for model, body in requests:
        held = holds(when, model, body)
        assert not (never and held)
        assert not (follows and held and not holds(wanted, model, body))


@settings(deadline=None)
@given(one=TESTS, two=TESTS, values=st.lists(SCALARS, min_size=5))
def test_what_is_said_of_tests_is_so(one, two, values):
    follows, never = contradictions.implies([one], two), contradictions.never_holds(one, two)
    for value in values:
        first, second = (holds({"body": {"f": test}}, None, {"f": value}) for test in (one, two))
        assert not (follows and first and not second)
        assert not (never and first and second)


@given(when=MATCHERS)
def test_a_matcher_follows_from_itself(when):
    assert implications.implies(when, when)
