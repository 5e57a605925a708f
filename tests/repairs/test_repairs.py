"""One strict tester for all repairs: the tables in cases/, one a repair, and what holds for every repair and body.

A case: `name`, `options`, `before`; then `after` or `unchanged: true`; of a change `loses: sentence` or `exact: true`;
and `given`, `draft`, `warning` where the repair leaves more than a body. A body may be written as JSON text.
"""

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from proxy.body import Body
from proxy.repairs import REPAIRS
from proxy.repairs.card import Act, Answer, Change, Draft, Fan, Rejection

FOLDER = Path(__file__).parent / "cases"
MADE_OF = {"answer": Answer, "fan": Fan, "rejection": Rejection}
RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True)
class Case:
    """One row of a table."""

    name: str
    options: Any
    before: Any
    after: Any = None
    unchanged: bool = False
    loses: str | None = None
    exact: bool = False
    warning: str | None = None
    given: dict[str, Any] = field(default_factory=dict)
    draft: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> bytes:
        """The body as a client might write it: with blanks that no encoder would put there."""
        if isinstance(self.before, str):
            return self.before.encode()
        return (
            "{ " + " ,".join(f"{json.dumps(k)} :  {json.dumps(v, indent=1)}" for k, v in self.before.items()) + "}"
        ).encode()

    @property
    def start(self) -> Draft:
        body = Body.parse(self.source)
        assert body is not None, "the case's body is no JSON object"
        return replace(Draft(body), **made(self.given))

    @property
    def expected(self) -> Any:
        if self.unchanged or (self.after is None and (self.draft or self.warning)):
            return json.loads(self.source)
        return json.loads(self.after) if isinstance(self.after, str) else self.after


def made(parts: dict[str, Any]) -> dict[str, Any]:
    return {name: MADE_OF[name](**value) if name in MADE_OF else value for name, value in parts.items()}


def exactly(value: Any) -> str:
    """Return a text that is the same only for the same JSON, order and kinds of number included."""
    return json.dumps(value)


def load(table: Path) -> list[Case]:
    return [Case(**row) for row in yaml.safe_load(table.read_text())]


TABLES = {table.stem: load(table) for table in sorted(FOLDER.glob("*.yaml"))}
ROWS = [pytest.param(repair, case, id=f"{repair}: {case.name}") for repair, cases in TABLES.items() for case in cases]


def built(repair: str, options: Any) -> Act:
    card = REPAIRS[repair]
    return card.build(card.options.model_validate(options))


def check_table(cases: list[Case]) -> None:
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), "two cases have the same name"
    asked = [exactly([repr(case.options), case.source.decode(), case.given]) for case in cases]
    assert len(set(asked)) == len(asked), "two cases ask the same"
    for case in cases:
        check_case(case)


def check_case(case: Case) -> None:
    if case.unchanged:
        assert (case.after, case.loses, case.exact, case.warning, case.draft) == (None, None, False, None, {}), (
            case.name
        )
        return
    assert case.exact != (case.loses is not None), f"{case.name}: say either exact or loses"
    assert case.after is not None or case.draft or case.warning, f"{case.name}: nothing is expected"
    same = case.after is not None and exactly(case.expected) == exactly(json.loads(case.source))
    assert not same, f"{case.name}: after is before"


def check_act(act: Act, case: Case) -> None:
    draft = case.start
    change = act(draft)
    assert draft.body.encode() == case.source, "the repair changed the bytes of its input"
    assert exactly(dict(draft.body)) == exactly(json.loads(case.source)), "the repair changed a value of its input"
    if case.unchanged:
        assert change is None
        return
    assert change is not None, "the repair found nothing to do"
    check_change(change, draft, case)
    check_again(act, change)


def check_change(change: Change, draft: Draft, case: Case) -> None:
    after = change.draft
    assert exactly(dict(after.body)) == exactly(case.expected)
    assert (change.loses, change.warning) == (case.loses, case.warning)
    assert replace(after, body=draft.body) == replace(draft, **made(case.draft))
    check_untouched(draft.body, after.body)


def check_untouched(before: Body, after: Body) -> None:
    old, new = RAW.decode(before.encode()), RAW.decode(after.encode())
    kept = [name for name in old if name in new]
    assert kept == [name for name in new if name in old], f"the fields stood in another order: {kept}"
    for name in old.keys() & new.keys():
        if exactly(before[name]) == exactly(after[name]):
            assert bytes(old[name]) == bytes(new[name]), f"{name} was written anew"


def check_again(act: Act, change: Change) -> None:
    again = act(change.draft)
    assert again is None or again.draft is change.draft, "run again, the repair changes its own output"


@pytest.mark.parametrize("repair", TABLES)
def test_a_table_says_everything_once(repair):
    check_table(TABLES[repair])


@pytest.mark.parametrize(("repair", "case"), ROWS)
def test_case(repair, case):
    check_act(built(repair, case.options), case)


def test_every_repair_has_a_table_and_the_registry_is_in_order():
    assert list(REPAIRS) == sorted(REPAIRS) == list(TABLES)
    assert all(name == card.name for name, card in REPAIRS.items())


@pytest.mark.parametrize("repair", REPAIRS)
def test_a_table_has_a_case_that_fires_and_one_that_does_not_unless_it_always_does(repair):
    kinds = {case.unchanged for case in TABLES[repair]}
    assert kinds == ({False} if repair == "warn" else {True, False})


@pytest.mark.parametrize("repair", REPAIRS)
def test_what_a_card_says_of_its_losses_is_what_its_cases_show(repair):
    losses = {case.loses is None for case in TABLES[repair] if not case.unchanged}
    is_exact = REPAIRS[repair].is_exact
    assert losses == ({True, False} if is_exact is None else {is_exact})


# The tester is tested: each way in which a repair or a table can be bad is found.

PLAIN = Case("a", {}, {"n": 1, "deep": {"list": [1]}}, after={"n": 2, "deep": {"list": [1]}}, exact=True)


REORDERED = replace(PLAIN, after={"deep": {"list": [1]}, "n": 2})


def in_place(draft: Draft) -> Change | None:
    draft.body["deep"]["list"].append(2)
    return None


def in_place_and_back(draft: Draft) -> Change | None:
    change = Change(replace(draft, body=draft.body.put(("n",), 2)))
    draft.body["deep"]["list"][0] = True
    return change


def without_end(draft: Draft) -> Change | None:
    return Change(replace(draft, body=draft.body.put(("n",), draft.body["n"] + 1)))


def written_anew(draft: Draft) -> Change | None:
    body = draft.body.put(("n",), 2).put(("deep",), draft.body["deep"])
    return None if draft.body["n"] == 2 else Change(replace(draft, body=body))


def to_the_end(draft: Draft) -> Change | None:
    body = draft.body.cut(("n",)).put(("n",), 2)
    return None if draft.body["n"] == 2 else Change(replace(draft, body=body))


BAD_ACTS = [
    pytest.param(in_place, PLAIN, "a value of its input", id="mutates its input and says that it did nothing"),
    pytest.param(in_place_and_back, PLAIN, "a value of its input", id="mutates a value deep in its input"),
    pytest.param(without_end, PLAIN, "changes its own output", id="changes its own output"),
    pytest.param(written_anew, PLAIN, "deep was written anew", id="writes a field anew that it did not change"),
    pytest.param(to_the_end, REORDERED, "another order", id="changes the order of the fields"),
    pytest.param(lambda draft: None, PLAIN, "nothing to do", id="does nothing where a change is due"),
    pytest.param(without_end, replace(PLAIN, loses="a", exact=False), "'a'", id="is silent about a loss"),
]


@pytest.mark.parametrize(("act", "case", "why"), BAD_ACTS)
def test_the_tester_finds_a_repair_that(act, case, why):
    with pytest.raises(AssertionError, match=why):
        check_act(act, case)


BAD_TABLES = [
    pytest.param([PLAIN, PLAIN], "same name", id="holds a name twice"),
    pytest.param([PLAIN, replace(PLAIN, name="b")], "ask the same", id="asks the same twice"),
    pytest.param([replace(PLAIN, after=PLAIN.before)], "after is before", id="has an after that is the before"),
    pytest.param([replace(PLAIN, exact=False)], "exact or loses", id="does not say what is lost"),
    pytest.param([replace(PLAIN, loses="a")], "exact or loses", id="says both exact and loses"),
    pytest.param([replace(PLAIN, unchanged=True)], "a", id="has an after of what is unchanged"),
    pytest.param([replace(PLAIN, after=None)], "nothing is expected", id="expects nothing"),
]


@pytest.mark.parametrize(("table", "why"), BAD_TABLES)
def test_the_tester_finds_a_table_that(table, why):
    with pytest.raises(AssertionError, match=why):
        check_table(table)


# The docs: the fixed headings, and an example that works.

HEADINGS = ["What it does", "When a backend needs it", "What the client loses", "Options", "Example"]


@pytest.mark.parametrize("repair", REPAIRS)
def test_a_repair_is_documented_under_the_fixed_headings(repair):
    card = REPAIRS[repair]
    assert re.findall(r"^## (.+)$", card.doc, re.MULTILINE) == HEADINGS
    assert card.loses


@pytest.mark.parametrize("repair", REPAIRS)
def test_the_example_of_a_repair_can_be_built_and_run(repair):
    (example,) = re.findall(r"^```yaml\n(.*?)^```", REPAIRS[repair].doc, re.DOTALL | re.MULTILINE)
    options = yaml.safe_load(example)
    assert list(options) == [repair]
    act = built(repair, options[repair])
    change = act(Draft(Body.of(EXAMPLE_BODY)))
    assert change is not None
    if repair not in ("warn", "reject"):
        assert exactly(dict(change.draft.body)) != exactly(EXAMPLE_BODY)


EXAMPLE_BODY = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": "a", "id": "x", "reasoning_content": "b"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": {}}}]},
        {"role": "user", "content": None, "id": "y"},
    ],
    "store": True,
    "tools": [],
    "stop": "x",
    "n": 2,
    "stream": True,
    "temperature": 3,
    "max_completion_tokens": 50,
    "reasoning_effort": "max",
}


@pytest.mark.parametrize("repair", REPAIRS)
def test_the_schema_of_a_repair_describes_its_options(repair):
    schema = REPAIRS[repair].options.model_json_schema()
    assert json.dumps(schema)
    models = [schema, *schema.get("$defs", {}).values()]
    fields = [spec for model in models for spec in model.get("properties", {}).values()]
    assert schema.get("description")
    assert all(spec.get("description") for spec in fields)


# What holds for every repair, all options of its kind and any JSON body.

NAMES = st.sampled_from(["a", "b", "n", "*"])
NUMBERS = st.sampled_from([0, 1, 2, 3, -1, 1.0, 1.5, 0.0, -2.5, 2**63, 1e300])
SCALARS = NUMBERS | st.sampled_from([None, True, False, "", "a", "é ü", "2", "1.5", "true", "{}", "[1"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "a": VALUES,
        "b": VALUES | st.lists(st.fixed_dictionaries({"a": VALUES}, optional={"b": VALUES}), max_size=3),
        "n": SCALARS | st.integers(0, 20),
        "seed": SCALARS,
        "rid": SCALARS,
        "best_of": SCALARS,
        "temperature": SCALARS,
        "stream": SCALARS,
        "stream_options": VALUES,
        "é": VALUES,
    },
)
PATHS = st.sampled_from(
    ["a", "b", "n", "*", "a.b", "b.n", "a[*]", "b[*].a", "b[*].b", "a[*].b[*]", "b[-1].a", "a.*", "a[0].b.n", '["é"]']
)
TESTS = st.sampled_from(
    [None, 1, "a", {"exists": True}, {"exists": False}, {"empty": True}, {"gt": 0}, {"type": "string"}, {"not": 1}]
)
WHERES = st.dictionaries(st.sampled_from([".", "a", "b.n", "a[*]"]), TESTS, min_size=1, max_size=2)


def mappings(values: st.SearchStrategy[Any], paths: st.SearchStrategy[str] = PATHS) -> st.SearchStrategy[Any]:
    return st.dictionaries(paths, values, min_size=1, max_size=2)


def long(*options: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return mappings with the options of any of the given forms; None in a form leaves that option out."""
    return st.one_of([st.fixed_dictionaries(form) for form in options]).map(
        lambda form: {name: value for name, value in form.items() if value is not None}
    )


WRITTEN = VALUES | long(
    {"field": st.sampled_from(["a", "b", "n", "a.b", "a[0]"])},
    {"value": VALUES.filter(lambda value: value is not None), "where": st.none() | WHERES},
)
COERCIONS = long(
    {"to": st.sampled_from(["string", "number", "integer", "boolean", "array", "object", "json"])},
    {"to": st.just("integer"), "round": st.sampled_from(["floor", "nearest"])},
    {"to": st.sampled_from(["object", "json"]), "key": st.sampled_from(["a", "b"]), "where": st.none() | WHERES},
    {"to": st.just("string"), "allowed": st.sampled_from(["a-z_0-9", "_-", "^]\\_"]), "where": st.none() | WHERES},
    {"to": st.just("json"), "otherwise": st.just("empty")},
)
LIMITS = long(
    {"min": st.sampled_from([0, -1, -1.5, "0", None]), "max": st.sampled_from([1, 1.5, 2.0, "2", {"field": "seed"}])},
    {"min": st.sampled_from([2, 0.5, "{limit}"]), "max_length": st.none() | st.integers(0, 2)},
    {"max_length": st.integers(0, 2)},
)
TARGETS = {
    "a": ["b", "c.d", "a.b", "n"],
    "n": ["a", "a.b", "b.n"],
    "b[*].a": ["b[*].b", "b[*].b.n", "a[*].c", "a[*]"],
    "a[*]": ["b[*].n", "c[*]", "a[*].b"],
    "a.b": ["a", "b"],
    "*": ["extra.*"],
    "a.*": ["b.*"],
}
MOVES = st.sampled_from([(source, to) for source, targets in TARGETS.items() for to in targets])
OPTIONS = {
    "clamp": mappings(LIMITS),
    "coerce": mappings(COERCIONS),
    "default": mappings(WRITTEN),
    "drop": st.lists(PATHS | mappings(TESTS | long({"where": WHERES})), min_size=1, max_size=2),
    "fan_out": long(
        {
            "max": st.none() | st.integers(1, 5),
            "concurrency": st.integers(0, 3),
            "seed": st.sampled_from(["increment", "same", None]),
            "usage": st.sampled_from(["once", "sum", None]),
            "greedy": st.sampled_from(["replicate", "ask", None]),
        }
    ),
    "keep": mappings(st.lists(NAMES, max_size=3) | long({"keys": TESTS}, {"where": WHERES}), PATHS | st.just(".")),
    "map": mappings(st.dictionaries(SCALARS | st.just("*"), st.sampled_from(["x", 7, [1], {"a": 1}, "a"]), min_size=1)),
    "move": st.tuples(MOVES, st.booleans()).map(lambda move: {move[0][0]: {"to": move[0][1], "over": move[1]}})
    | st.lists(MOVES, min_size=1, max_size=2).map(dict),
    "reject": st.just("no") | st.just({"message": "no", "param": "n"}),
    "set": mappings(WRITTEN),
    "stream": st.booleans(),
    "warn": st.just("hm"),
}


@pytest.mark.parametrize("repair", REPAIRS)
@given(data=st.data())
def test_no_body_makes_a_repair_raise_mutate_its_input_or_change_its_own_output(repair, data):
    options = data.draw(OPTIONS[repair], label="options")
    body = data.draw(BODIES, label="body")
    try:
        act = built(repair, options)
    except ValidationError:
        return
    source = json.dumps(body, indent=1).encode()
    draft = Draft(parsed(source))
    change = act(draft)
    assert draft.body.encode() == source
    assert exactly(dict(draft.body)) == exactly(body)
    if change is not None:
        assert repair == "warn" or change.draft != draft or exactly(dict(change.draft.body)) != exactly(body)
        assert exactly(json.loads(change.draft.body.encode())) == exactly(dict(change.draft.body))
        assert change.loses is None or (change.loses and change.loses.isascii() and change.loses.isprintable())
        check_untouched(draft.body, change.draft.body)
        check_again(act, change)


def parsed(source: bytes) -> Body:
    body = Body.parse(source)
    assert body is not None
    return body
