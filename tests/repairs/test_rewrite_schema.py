"""Schemas of any kind, by all options together: nothing raises, a second run changes nothing, what is kept is kept."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.body import Body, UnreadableBody
from proxy.repairs import REPAIRS
from proxy.repairs.card import Draft
from proxy.repairs.schemas import MAX_NESTING, is_deeper

NAMES = st.sampled_from(["a", "b", "type", "properties", "$ref"])
TYPES = st.sampled_from(["object", "array", "string", "integer", "number", "null", "OBJECT", "nonsense"])
SCALARS = st.sampled_from([None, True, False, 0, 1, 2.5, "", "a", "^a$", "a|b", "#", "#/$defs/a", "#/$defs/b"])


def keywords(inner):
    """Return schemas of those inside, most of them well made."""
    maps = st.dictionaries(NAMES, inner, max_size=2)
    lists = st.lists(inner, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, max_size=3) | SCALARS,
            "properties": maps | SCALARS,
            "required": st.lists(NAMES, max_size=2) | SCALARS,
            "items": inner | lists,
            "anyOf": lists,
            "oneOf": lists,
            "allOf": lists,
            "not": inner,
            "additionalProperties": inner,
            "$defs": st.fixed_dictionaries({}, optional={"a": inner, "b": inner}),
            "$ref": SCALARS,
            "const": SCALARS,
            "enum": st.lists(SCALARS, max_size=3),
            "pattern": SCALARS,
            "minimum": SCALARS,
            "exclusiveMinimum": SCALARS,
            "minLength": SCALARS,
            "nullable": SCALARS,
            "description": SCALARS,
        },
    )


SCHEMAS = st.recursive(keywords(st.booleans()), keywords, max_leaves=5)
CHANGES = {
    "parameters": ["fill", "drop"],
    "invalid": ["drop"],
    "inline_refs": [1, 3],
    "all_of": ["merge"],
    "one_of": ["any_of", "first", "merge"],
    "any_of": ["first", "merge"],
    "const": ["enum"],
    "bounds": ["inclusive"],
    "pattern": ["anchor"],
    "max_depth": [1, 2],
    "misplaced": ["drop"],
    "placeholder": ["unused"],
    "additional_properties": [False, True],
    "required": ["all"],
    "nulls": ["nullable", "any_of", "type"],
    "types": ["upper", "lower"],
}
FILTERS = [
    {},
    {"drop": ["pattern", "minimum", {"minLength": {"gt": 0}}], "describe": True},
    {
        "keep": [
            "type",
            "properties",
            "required",
            "items",
            "anyOf",
            "enum",
            "nullable",
            "description",
            "additionalProperties",
        ]
    },
]
OPTIONS = st.tuples(
    st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in CHANGES.items()}),
    st.sampled_from(FILTERS),
).map(lambda parts: {"drop": ["format"]} | parts[0] | parts[1] if "keep" not in parts[1] else parts[0] | parts[1])


def act_of(options):
    card = REPAIRS["rewrite_schema"]
    return card.build(card.options.model_validate(options))


def rewritten(schema, **options):
    """Return the schema that goes upstream, and what is lost."""
    draft = Draft(Body.of({"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]}))
    change = act_of(options)(draft)
    return (schema, None) if change is None else (parameters_of(change.draft.body), change.loses)


def parameters_of(body):
    return body["tools"][0]["function"].get("parameters")


def keyword_places(schema):
    """Yield each (keyword, value) of a schema, found without the code under test."""
    for word, value in schema.items():
        yield word, value
        if word in ("properties", "$defs"):
            inner = list(value.values()) if isinstance(value, dict) else []
        elif word in ("items", "anyOf", "oneOf", "allOf", "not", "additionalProperties"):
            inner = value if isinstance(value, list) else [value]
        else:
            inner = []
        for one in inner:
            yield from keyword_places(one) if isinstance(one, dict) else ()


@settings(deadline=None)  # making a schema up can take longer than rewriting it
@example(
    schema={"anyOf": [], "description": None, "nullable": None, "type": "object", "properties": None},
    options={"drop": ["format"], "parameters": "fill", "invalid": "drop"},
)
@given(schema=SCHEMAS, options=OPTIONS)
def test_any_schema_is_rewritten_once_and_stays_as_it_was_handed_in(schema, options):
    act = act_of(options)
    body = {"tools": [{"function": {"parameters": schema}}], "response_format": {"json_schema": {"schema": schema}}}
    before = json.dumps(body)
    change = act(Draft(Body.of(body)))
    assert json.dumps(body) == before
    if change is not None:
        assert json.dumps(dict(change.draft.body)) != before
        assert change.loses is None or (change.loses.isascii() and change.loses.isprintable())
        assert act(change.draft) is None


@given(schema=SCHEMAS)
def test_no_dropped_keyword_is_left_at_any_depth(schema):
    new, loses = rewritten(schema, drop=["pattern", "minimum"])
    found = [word for word, _ in keyword_places(schema) if word in ("pattern", "minimum")]
    assert not [word for word, _ in keyword_places(new) if word in ("pattern", "minimum")]
    assert (loses is not None) == bool(found)


@given(schema=SCHEMAS)
def test_no_reference_is_left_when_all_are_written_out(schema):
    new, _ = rewritten(schema, inline_refs=2)
    assert not [value for word, value in keyword_places(new) if word == "$ref" and isinstance(value, str)]
    assert not [value for word, value in keyword_places(new) if word in ("$defs", "definitions")]


def nested(levels, inner):
    for _ in range(levels):
        inner = {"not": inner}
    return inner


def test_as_deep_as_a_schema_is_looked_into_nothing_overflows():
    deepest = nested(MAX_NESTING - 1, {"format": "x"})
    assert not is_deeper(deepest, MAX_NESTING)
    new, loses = rewritten(deepest, inline_refs=4, all_of="merge", drop=["format"], nulls="type", required="all")
    assert new == nested(MAX_NESTING - 1, {})
    assert loses == "keyword format of 1 schema"


@pytest.mark.parametrize("levels", [MAX_NESTING, 200])
def test_a_deeper_schema_is_left_alone_unless_what_is_invalid_is_replaced(levels):
    schema = nested(levels, {"format": "x"})
    assert rewritten(schema, drop=["format"]) == (schema, None)
    assert rewritten(schema, drop=["format"], invalid="drop") == ({"type": "object"}, "all of 1 schema")


@pytest.mark.parametrize("levels", [300, 900, 2000])
def test_a_body_as_deep_as_its_decoder_goes_is_left_alone(levels):
    raw = b'{"tools":[{"function":{"parameters":' + b'{"not":' * levels + b"{}" + b"}" * levels + b"}}]}"
    body = Body.parse(raw)
    try:
        tools = body["tools"] if body is not None else None
    except UnreadableBody:
        tools = None
    if tools is not None:
        assert act_of({"drop": ["format"], "types": "upper"})(Draft(body)) is None
        assert body.encode() == raw
    assert tools is not None or levels > 300


def test_definitions_that_double_each_other_do_not_grow_beyond_bounds():
    doubling = {
        f"d{level}": {"properties": {side: {"$ref": f"#/$defs/d{level + 1}"} for side in "ab"}} for level in range(22)
    }
    new, loses = rewritten({"$ref": "#/$defs/d0", "$defs": doubling | {"d22": {"type": "string"}}}, inline_refs=1)
    assert loses == "recursion of 1 schema"
    assert len(json.dumps(new)) < 200_000


def test_a_definition_that_is_only_a_reference_to_itself_ends():
    assert rewritten({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, inline_refs=4) == (
        {},
        "recursion of 1 schema",
    )


def test_references_deep_inside_references_end_before_the_stack_does():
    chain = {f"d{level}": nested(40, {"$ref": f"#/$defs/d{level + 1}"}) for level in range(30)}
    new, loses = rewritten({"$ref": "#/$defs/d0", "$defs": chain}, inline_refs=1, all_of="merge", nulls="any_of")
    assert loses == "recursion of 1 schema"
    assert not is_deeper(new, 3 * MAX_NESTING)


def test_more_keywords_than_a_sentence_can_tell():
    schema = {f"x-{number}": 1 for number in range(15)}
    _, loses = rewritten(schema, keep=["type"])
    assert loses == f"keywords {', '.join(f'x-{number}' for number in range(12))} and 3 more of 1 schema"
