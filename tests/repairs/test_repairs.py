"""One strict tester for all repairs: the tables in cases/, one a repair, and what holds for every repair and body.

A case: `name`, `options`, `before`; then `after` or `unchanged: true`; of a change `loses: sentence` or `exact: true`;
and `given`, `draft`, `warning` where the repair leaves more than a body (of `undos` how many). A body may be JSON text.
"""

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from pydantic import ValidationError

from proxy.body import Body
from proxy.repairs import REPAIRS
from proxy.repairs.card import Act, Answer, Change, Draft, Fan, Rejection, Split

FOLDER = Path(__file__).parent / "cases"
MADE_OF = {"answer": Answer, "fan": Fan, "rejection": Rejection, "split": Split}
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
        return structs.replace(Draft(body), **made(self.given))

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
    after, parts = change.draft, dict(case.draft)
    assert len(after.undos) - len(draft.undos) == parts.pop("undos", 0)
    assert exactly(dict(after.body)) == exactly(case.expected)
    assert (change.loses, change.warning) == (case.loses, case.warning)
    assert structs.replace(after, body=draft.body, undos=()) == structs.replace(draft, undos=(), **made(parts))
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
    change = Change(structs.replace(draft, body=draft.body.put(("n",), 2)))
    draft.body["deep"]["list"][0] = True
    return change


def without_end(draft: Draft) -> Change | None:
    return Change(structs.replace(draft, body=draft.body.put(("n",), draft.body["n"] + 1)))


def written_anew(draft: Draft) -> Change | None:
    body = draft.body.put(("n",), 2).put(("deep",), draft.body["deep"])
    return None if draft.body["n"] == 2 else Change(structs.replace(draft, body=body))


def to_the_end(draft: Draft) -> Change | None:
    body = draft.body.cut(("n",)).put(("n",), 2)
    return None if draft.body["n"] == 2 else Change(structs.replace(draft, body=body))


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
    if repair not in ("warn", "reject", "response", "split"):
        assert exactly(dict(change.draft.body)) != exactly(EXAMPLE_BODY)


EXAMPLE_BODY = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": [{"type": "input_text", "text": "a"}], "id": "x", "reasoning_content": "b"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "call-1", "function": {"arguments": {}}}]},
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
    "encoding_format": "base64",
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": 1, "pattern": "a"}}},
    "input": ["a"] * 40,
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
KEYWORDS = ["type", "properties", "anyOf", "const", "pattern", "required", "$ref", "$defs", "minimum", "nullable"]
SCHEMAS = st.recursive(
    VALUES | st.sampled_from(["object", "null", "#/$defs/a", "#"]),
    lambda inner: st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4) | st.lists(inner, max_size=2),
    max_leaves=6,
)
FORMATS = st.sampled_from(["json_schema", "json_object", "text", "xml"])
FUNCTIONS = st.fixed_dictionaries({"name": SCALARS}, optional={"parameters": SCHEMAS, "strict": SCALARS})
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
        "stop": VALUES,
        "prompt": VALUES,
        "echo": SCALARS,
        "encoding_format": SCALARS | st.sampled_from(["float", "base64"]),
        "dimensions": SCALARS,
        "model": SCALARS,
        "response_format": VALUES | st.fixed_dictionaries({"type": FORMATS}, optional={"schema": SCHEMAS}),
        "guided_json": SCHEMAS,
        "tools": VALUES | st.lists(st.fixed_dictionaries({"function": FUNCTIONS}), max_size=2),
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
    {"min": st.sampled_from([2, 0.5, "0.5"]), "max_length": st.none() | st.integers(0, 2)},
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
ANSWERED = long(
    {"drop": st.lists(PATHS, min_size=1, max_size=2)},
    {"set": mappings(WRITTEN)},
    {"clamp": mappings(LIMITS)},
    {"echo_prompt": st.just(True)},
    {"finish_with_calls": st.just("tool_calls")},
    {"skip_chunks": WHERES},
)
# Chats and Responses' items, for the repairs of messages.

PARTS = st.sampled_from(
    [
        "a",
        {"type": "text", "text": "a"},
        {"type": "text", "text": "", "cache_control": {"type": "ephemeral"}},
        {"type": "text"},
        {"text": "b"},
        {"type": "input_text", "text": "b", "annotations": [1]},
        {"type": "refusal", "refusal": "no"},
        {"type": "thinking", "thinking": "hm"},
        {"type": "image_url", "image_url": "data:image/png;base64,AA=="},
        {"type": "image_url", "image_url": {"url": "http://x/a.png", "detail": "low"}},
        {"type": "input_image", "image_url": "http://x/b.png", "detail": "high"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "mp3"}},
        {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AA=="}},
        {"type": "file", "file": {"file_data": "data:image/png;base64,AA=="}},
        {"type": 5},
        {},
        7,
        None,
    ]
)
CONTENTS = st.sampled_from([None, "", "a", "b c", "Continue.", {}, 5]) | st.lists(PARTS, max_size=3)
CALL_IDS = st.sampled_from(["c1", "c2", "call_1", "", None, 5])
FUNCTIONS = st.sampled_from([{"name": "f", "arguments": "{}"}, {"name": "g", "arguments": {"a": 1}}, {}, None, "f"])
CALLS = st.fixed_dictionaries({}, optional={"id": CALL_IDS, "function": FUNCTIONS}) | st.sampled_from([None, 5])
ROLES = st.sampled_from(
    ["system", "developer", "user", "assistant", "assistant", "tool", "tool", "function", "bot", None]
)
MESSAGES = st.fixed_dictionaries(
    {"role": ROLES},
    optional={
        "content": CONTENTS,
        "tool_calls": st.lists(CALLS, max_size=3) | st.none(),
        "tool_call_id": CALL_IDS,
        "name": st.sampled_from(["n", "m", 5]),
        "reasoning_content": st.sampled_from(["", "r", None]),
        "function_call": FUNCTIONS,
    },
)
ITEMS = (
    st.fixed_dictionaries(
        {"type": st.sampled_from(["function_call", "function_call", "custom_tool_call", "web_search_call"])},
        optional={"call_id": CALL_IDS, "name": st.just("f"), "arguments": st.just("{}")},
    )
    | st.fixed_dictionaries(
        {"type": st.sampled_from(["function_call_output", "custom_tool_call_output"])},
        optional={"call_id": CALL_IDS, "output": CONTENTS},
    )
    | st.fixed_dictionaries({"type": st.just("message"), "role": ROLES, "content": CONTENTS})
    | st.just({"type": "reasoning", "summary": []})
)
INPUTS = st.lists(st.sampled_from(["a", "b", "", [1, 2], [], ["a", "b"], [True], 5]), max_size=4)
CHATS = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(MESSAGES | st.sampled_from([None, "a", {}]), max_size=6) | VALUES,
        "input": st.lists(ITEMS, max_size=6) | INPUTS | VALUES,
        "n": SCALARS,
    },
)
ON_CHATS = ("convert_part", "flatten_content", "insert_message", "merge_messages", "pair_tool_calls", "split")
PART_TYPES = st.sampled_from(
    [
        "text",
        "input_text",
        "refusal",
        "thinking",
        "image_url",
        "input_image",
        "image",
        "input_audio",
        "audio_url",
        "file",
        "string",
        "*",
    ]
)
PART_TARGETS = st.sampled_from(
    [
        "text",
        "input_text",
        "output_text",
        "image_url",
        "video_url",
        "audio_url",
        "input_image",
        "input_audio",
        "placeholder",
        "user",
        "drop",
        "keep",
    ]
)
CONVERSIONS = PART_TARGETS | long(
    {"to": PART_TARGETS, "keep_last": st.integers(0, 2)},
    {
        "to": PART_TARGETS,
        "where": st.just({"text": {"exists": False}}),
        "message": st.none() | st.just({"role": "tool"}),
    },
    {"to": st.sampled_from(["placeholder", "user"]), "text": st.sampled_from(["", "x"])},
)
NEIGHBOURS = st.none() | st.lists(
    st.sampled_from(["start", "end", "system", "user", "assistant", "tool"]), min_size=1, max_size=3
)

OPTIONS = {
    "clamp": mappings(LIMITS),
    "coerce": mappings(COERCIONS),
    "convert_part": st.dictionaries(PART_TYPES, CONVERSIONS, min_size=1, max_size=4),
    "default": mappings(WRITTEN),
    "degrade_format": long(
        {"as": st.sampled_from(["openai", "sglang", "vllm", "vllm_guided"])},
        {"to": st.sampled_from(["none", "json_object"]), "into": st.sampled_from(["system", "user", "none"])},
        {"to": st.just("json_schema"), "as": st.just("openai")},
        {"to": st.just("json_object"), "schema": st.just("keep")},
    ),
    "drop": st.lists(PATHS | mappings(TESTS | long({"where": WHERES})), min_size=1, max_size=2),
    "enforce_stop": long(
        {"drop": st.booleans(), "reasoning": st.booleans(), "close": st.booleans()}, {"after": st.integers(1, 2)}
    ),
    "fan_out": long(
        {
            "max": st.none() | st.integers(1, 5),
            "concurrency": st.integers(0, 3),
            "seed": st.sampled_from(["increment", "same", None]),
            "usage": st.sampled_from(["once", "sum", None]),
            "greedy": st.sampled_from(["replicate", "ask", None]),
        }
    ),
    "flatten_content": long(
        {
            "in": st.sampled_from(["messages[*].content", "input[*].content", "input[*].output", "input", "*[*].*"]),
            "separator": st.sampled_from(["", "\n", None]),
            "others": st.sampled_from(["leave", "beside", "drop", "placeholder"]),
            "where": st.none() | st.just({"role": {"ne": "user"}}),
        }
    ),
    "insert_message": long(
        {
            "role": st.sampled_from(["system", "user", "assistant"]),
            "content": st.sampled_from(["Continue.", "", "a"]),
            "field": st.sampled_from([None, None, "n", "input"]),
            "after": NEIGHBOURS,
            "before": NEIGHBOURS,
        }
    ),
    "keep": mappings(st.lists(NAMES, max_size=3) | long({"keys": TESTS}, {"where": WHERES}), PATHS | st.just(".")),
    "map": mappings(st.dictionaries(SCALARS | st.just("*"), st.sampled_from(["x", 7, [1], {"a": 1}, "a"]), min_size=1)),
    "merge_messages": long(
        {
            "system": st.sampled_from(["keep", "first", "user"]),
            "neighbours": st.sampled_from(
                [None, ["user", "assistant"], [["user", "tool"], ["assistant", "function"]], [["system", "user"]]]
            ),
            "separator": st.sampled_from(["", " ", None]),
            "drop_empty": st.booleans(),
            "leading_assistant": st.sampled_from(["keep", "system"]),
            "only_system": st.sampled_from(["keep", "user"]),
        }
    ),
    "move": st.tuples(MOVES, st.booleans()).map(lambda move: {move[0][0]: {"to": move[0][1], "over": move[1]}})
    | st.lists(MOVES, min_size=1, max_size=2).map(dict),
    "recode_embeddings": st.fixed_dictionaries(
        {"ask": st.sampled_from(["float", "base64", "nothing"]), "dimensions": st.sampled_from(["keep", "cut"])}
    ),
    "pair_tool_calls": long(
        {
            "orphans": st.sampled_from(["keep", "drop", "user"]),
            "missing": st.sampled_from(["keep", "drop", "stub"]),
            "ids": st.sampled_from(["keep", "make"]),
            "order": st.sampled_from(["keep", "fix"]),
        },
        {"as_text": st.just(True)},
    ),
    "reject": st.just("no") | st.just({"message": "no", "param": "n"}),
    "rename_model": long(
        {"to": st.sampled_from(["a", "m"])},
        {"strip_after": st.sampled_from(["1", ":"])},
        {"map": st.dictionaries(st.sampled_from(["a", "*", "?"]), st.sampled_from(["a", "mm"]), min_size=1)},
        {"drop": st.just(True)},
    ),
    "response": st.lists(ANSWERED, min_size=1, max_size=3)
    | st.dictionaries(st.sampled_from(["both", "answer", "chunk"]), st.lists(ANSWERED, max_size=2), min_size=1),
    "rewrite_ids": long(
        {"names": st.sampled_from([{"allowed": "a-zA-Z_", "max": 8}, {"allowed": "a-z", "length": 9}])}
    ),
    "rewrite_schema": long(
        {
            "parameters": st.sampled_from(["fill", "drop", None]),
            "invalid": st.sampled_from(["drop", None]),
            "inline_refs": st.sampled_from([1, 2, None]),
            "any_of": st.sampled_from(["first", "merge", None]),
            "const": st.sampled_from(["enum", None]),
            "pattern": st.sampled_from(["anchor", None]),
            "drop": st.sampled_from([["minimum", "a"], None]),
            "max_depth": st.sampled_from([1, None]),
            "misplaced": st.sampled_from(["drop", None]),
            "required": st.sampled_from(["all", None]),
            "nulls": st.sampled_from(["nullable", "any_of", "type", None]),
        }
    ),
    "set": mappings(WRITTEN),
    "split": long(
        {"field": st.just("input"), "size": st.integers(1, 3), "list": st.booleans(), "concurrency": st.integers(0, 2)}
    ),
    "stream": st.booleans(),
    "warn": st.just("hm"),
}


@pytest.mark.parametrize("repair", REPAIRS)
@settings(deadline=None)  # the drawing is within the test, and takes longer than the repair
@given(data=st.data())
def test_no_body_makes_a_repair_raise_mutate_its_input_or_change_its_own_output(repair, data):
    options = data.draw(OPTIONS[repair], label="options")
    body = data.draw(CHATS if repair in ON_CHATS else BODIES, label="body")
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
