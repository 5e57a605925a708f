"""Policies of random rules, and requests for them. A repair's options are made from the types on its card, so that an
option which is added is tried without a word here.
"""

import json
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from annotated_types import Ge, Le, MinLen
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, RootModel

from proxy.matching import BadTest, compile_matcher
from proxy.policy.repair import compile_repairs
from proxy.repairs import REPAIRS
from proxy.repairs.options import ShortForm

NAMES = ["a", "b", "n", "stream", "messages", "tools", "prompt", "input", "stop", "seed", "model", "response_format"]
PATHS = st.sampled_from(
    [
        *NAMES,
        *"aaabbb",
        *(["n", "stream", "messages"] * 2),
        "a.b",
        "a.b.c",
        "a[*]",
        "a[*].b",
        "a[0]",
        "b[-1].c",
        "stop[*]",
        '["a.b"]',
        "stream_options.include_usage",
        "messages[*]",
        "messages[*].content",
        "messages[*].role",
        "messages[-1].content",
        "messages[*].content[*].type",
        "messages[*].tool_calls[*].function.arguments",
        "tools[*].function.parameters",
        "tools[*].type",
        "choices[*].text",
        "choices[*].message.content",
        "choices[*].delta",
        "choices[*].finish_reason",
        "usage.prompt_tokens",
        "id",
    ]
)
WORDS = st.sampled_from(
    ["a", "user", "system", "stop", "text", "a-z", "x y", "yes", "1", "1e3", "null", "", "é", "{", "-"]
)
SCALARS = st.none() | st.booleans() | st.integers(-3, 5) | st.sampled_from([0.5, 1.0, 2**63]) | WORDS
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*NAMES, "c"]), inner, max_size=2),
    max_leaves=4,
)
REFERENCES = st.builds(lambda path: {"field": path}, st.sampled_from(["a", "b", "n", "x.y", "messages"]))


def operators(tests):
    numbers = st.integers(-2, 5) | REFERENCES
    return st.one_of(
        st.builds(lambda name, value: {name: value}, st.sampled_from(["eq", "ne"]), JSON | REFERENCES),
        st.builds(lambda name, value: {name: value}, st.sampled_from(["gt", "ge", "lt", "le"]), numbers),
        st.builds(lambda name, value: {name: value}, st.sampled_from(["in", "not_in"]), st.lists(JSON, max_size=2)),
        st.builds(lambda name, value: {name: value}, st.sampled_from(["exists", "empty"]), st.booleans()),
        st.builds(lambda name: {"type": name}, st.sampled_from(["string", "integer", "array", "object", "null"])),
        st.builds(lambda regex: {"matches": regex}, st.sampled_from(["^a", "s.*t", "(?i)X", "[é]"])),
        st.builds(lambda name, test: {name: test}, st.sampled_from(["length", "not", "every"]), tests),
        st.builds(
            lambda name, given: {name: given}, st.sampled_from(["any", "all"]), st.lists(tests, min_size=1, max_size=2)
        ),
    )


TESTS = st.recursive(SCALARS, operators, max_leaves=3)
WHERE = st.dictionaries(st.sampled_from([".", "a", "b", "type", "role", "content"]), TESTS, min_size=1, max_size=2)
LONG_VALUES = st.builds(lambda value, where: {"value": value, "where": where}, JSON | REFERENCES, WHERE)
# What a validator of the options' types lets through, by its name.
VALIDATED = {
    "_field_path": PATHS,
    "_any_path": PATHS | st.just("."),
    "_condition": TESTS | st.builds(lambda where: {"where": where}, WHERE),
    "_value": JSON | REFERENCES | LONG_VALUES,
    "_scalar": SCALARS,
    "check_test": TESTS,
    "_limit": st.integers(-1, 3) | st.sampled_from([0.5, "2"]) | REFERENCES,
    "_json": JSON,
    "_sendable": st.sampled_from(["user", "assistant", "system", "tool"]),
}


def of_type(kind, metadata=()):
    """Return the strategy of a type as pydantic reads it; what it makes may still be refused."""
    if get_origin(kind) is Annotated:
        kind, *more = get_args(kind)
        return of_type(kind, (*more, *metadata))
    names = {getattr(each.func, "__name__", "") for each in metadata if isinstance(each, AfterValidator)}
    known = next((made for name, made in VALIDATED.items() if name in names), None)
    if known is not None:
        return known
    made = _of_plain(kind, metadata)
    short = next((each.schema for each in metadata if isinstance(each, ShortForm)), None)
    return made if short is None else made | _short(short)


def _short(schema):
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    return st.lists(PATHS, max_size=2) if schema.get("type") == "array" else PATHS | WORDS


def _of_plain(kind, metadata):
    origin, inner = get_origin(kind), get_args(kind)
    least = next((each.min_length for each in metadata if isinstance(each, MinLen)), 0)
    for each in metadata:  # pydantic's Field keeps its bounds inside
        least = max([least, *(m.min_length for m in getattr(each, "metadata", ()) if isinstance(m, MinLen))])
    if origin is Literal:
        return st.sampled_from(inner)
    if origin in (Union, UnionType):
        return st.one_of(*map(of_type, inner))
    if origin is list:
        return st.lists(of_type(inner[0]), min_size=least, max_size=3)
    if origin is dict:
        return st.dictionaries(of_type(inner[0]), of_type(inner[1]), min_size=least, max_size=2)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return of_model(kind)
    if kind is int:
        low = next((each.ge for each in metadata if isinstance(each, Ge)), 0)
        high = next((each.le for each in metadata if isinstance(each, Le)), low + 9)
        return st.integers(low, high)
    return {bool: st.booleans(), str: WORDS, NoneType: st.none(), Any: JSON}[kind]


def of_model(model):
    """Return the strategy of a model's raw values: what is required, and up to three of what isn't."""
    fields = model.model_fields
    if issubclass(model, RootModel):
        return st.deferred(lambda: of_type(fields["root"].annotation, tuple(fields["root"].metadata)))
    parts = {info.alias or name: (info.annotation, tuple(info.metadata)) for name, info in fields.items()}
    required = [info.alias or name for name, info in fields.items() if info.is_required()]
    optional = [name for name in parts if name not in required]
    some = st.lists(st.sampled_from(optional), unique=True, max_size=3) if optional else st.just([])
    return some.flatmap(
        lambda more: st.fixed_dictionaries({name: of_type(*parts[name]) for name in [*required, *more]})
    )


ENTRIES = {name: of_model(card.options) for name, card in REPAIRS.items()}
ENTRIES["split"] = ENTRIES["split"].map(
    lambda options: options | {"field": "prompt" if options["size"] % 2 else "input"}
)


def is_good(entry, captures=None):
    try:
        compile_repairs([entry], REPAIRS, captures)
    except BadTest:
        return False
    return True


MATCHERS = st.fixed_dictionaries(
    {},
    optional={
        "path": st.sampled_from(["*", "/v1/*", ["/v1/embeddings", "/v1/chat/*"], "/v1/completions"]),
        "method": st.sampled_from(["POST", ["P*"]]),
        "model": st.sampled_from(["*", "m*", ["other"]]),
        "header": st.dictionaries(st.sampled_from(["x-a", "prefer"]), TESTS, max_size=1),
        "query": st.dictionaries(st.sampled_from(["q", "r"]), TESTS, max_size=1),
        "body": st.dictionaries(PATHS, TESTS, max_size=2),
    },
)
WHENS = st.recursive(
    MATCHERS,
    lambda inner: st.builds(
        lambda matcher, more: matcher | more,
        MATCHERS,
        inner.map(lambda one: {"not": one}) | st.lists(inner, min_size=1, max_size=2).map(lambda some: {"any": some}),
    ),
    max_leaves=3,
)


def is_matcher(when):
    try:
        compile_matcher(when)
    except BadTest:
        return False
    return True


# A test of a header or query that only a number could pass is refused; the rule is then for all requests.
WHENS = st.sampled_from([{}, {"path": "*"}]) | WHENS.map(lambda when: when if is_matcher(when) else {})
ON_ERRORS = st.fixed_dictionaries(
    {},
    optional={
        "status": st.sampled_from([400, [400, 422, 500]]),
        "message": st.sampled_from(["'(?P<f>[^']*)'", "(?P<f>n|stop|tools|a)", "."]),
        "each": st.sampled_from([r"(?P<g>\w+)", "(?P<g>.)"]),
        "stream": st.sampled_from(["empty", ["error", "silent"]]),
        "code": st.sampled_from(["x", 7]),
        "choices": st.just("fewer"),
    },
)
TEMPLATED = st.sampled_from(
    [
        {"drop": ["{f}"]},
        {"move": {"{f}": "x.y"}},
        {"set": {"{f}": "{g}"}},
        {"clamp": {"{f}": {"max": "{g}"}}},
        {"keep": {"messages": {"where": {"{f}": {"exists": True}}}}},
        {"warn": "{f} {{g}}"},
    ]
)


@st.composite
def rules(draw, names, number):
    """Return a rule with the repairs named, as far as their options mean something; None where none of them does."""
    entries = [{name: draw(ENTRIES[name])} for name in names]
    on_error = draw(st.none() | st.none() | st.sampled_from([{}, {"status": 400}]) | ON_ERRORS)
    captures = None
    if on_error is not None:
        text = f"{on_error.get('message', '')}{on_error.get('each', '')}"
        captures = frozenset(name for name in "fg" if f"?P<{name}>" in text)
        entries += draw(st.lists(TEMPLATED, max_size=2))
    good = [entry for entry in entries if is_good(entry, captures)]
    more = draw(
        st.fixed_dictionaries({}, optional={"mode": st.just("observe"), "loses": st.sampled_from(["nothing", "x"])})
    )
    when = draw(WHENS)
    reactive = {} if on_error is None else {"on_error": on_error}
    return {"id": f"r{number}", "when": when, **reactive, "repair": good, **more} if good else None


def flow(value):
    """Return a value as YAML on one line; keys may be of any scalar type."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(flow, value))}]"
    return json.dumps(value, ensure_ascii=False)


@st.composite
def policy_texts(draw, name):
    """Return a policy in which the repair is used, and its rules."""
    some = st.lists(st.sampled_from(sorted(ENTRIES)), max_size=2)
    first = [draw(ENTRIES[name]) for _ in range(4)]
    sure = next(({name: options} for options in first if is_good({name: options})), None)
    made = [draw(rules(draw(some), number)) for number in range(draw(st.integers(0, 3)))]
    if sure is not None:
        reactive = draw(st.sampled_from([{}, {}, {"on_error": {"status": [400, 422]}}]))
        made.insert(
            draw(st.integers(0, len(made))), {"id": "sure", "when": {"path": "*"}, **reactive, "repair": [sure]}
        )
    kept = [rule for rule in made if rule is not None]
    branches = draw(st.integers(1, 4))
    return (
        (
            f"version: 1\nbackends: {{main: {{url: 'http://x', models: ['m*', a]}}}}\n"
            f"limits: {{branches: {branches}}}\nrules: {flow(kept)}\n"
        ),
        kept,
    )


PARTS = st.builds(
    lambda kind, text: {"type": kind, "text": text, "image_url": {"url": text}},
    st.sampled_from(["text", "image_url", 1]),
    WORDS,
)
CALLS = st.builds(
    lambda told, name, args: {"id": told, "function": {"name": name, "arguments": args}}, SCALARS, WORDS, JSON
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer", 1])},
    optional={
        "content": WORDS | st.lists(PARTS, max_size=2) | JSON,
        "tool_calls": st.lists(CALLS, max_size=2) | JSON,
        "tool_call_id": SCALARS,
        "name": WORDS,
    },
)
SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "string", ["string", "null"], 1]),
            "$ref": st.sampled_from(["#/$defs/a", "#", "x", 1]),
            "enum": st.lists(SCALARS, max_size=2),
            "minLength": SCALARS,
            "pattern": WORDS,
            "const": SCALARS,
        },
    )
    | st.booleans(),
    lambda inner: st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2) | JSON},
        optional={
            "required": st.lists(st.sampled_from("abc"), max_size=2) | JSON,
            "$defs": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            "anyOf": st.lists(inner, max_size=2),
            "oneOf": st.lists(inner, max_size=2),
            "allOf": st.lists(inner, max_size=2) | JSON,
            "items": inner,
            "additionalProperties": inner,
        },
    ),
    max_leaves=4,
)
TOOLS = st.builds(
    lambda name, schema: {"type": "function", "function": {"name": name, "parameters": schema}}, WORDS, SCHEMAS | JSON
)
FORMATS = (
    st.builds(lambda schema: {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}, SCHEMAS) | JSON
)
BODIES = st.fixed_dictionaries(
    {
        "a": JSON,
        "b": JSON | st.lists(st.dictionaries(st.sampled_from("abc"), JSON, max_size=2), max_size=2),
        "messages": st.lists(MESSAGES, min_size=1, max_size=4) | st.lists(MESSAGES, max_size=4) | JSON,
        "n": st.integers(0, 4) | st.integers(0, 4) | SCALARS,
        "stream": st.booleans() | st.booleans() | SCALARS,
        "model": st.sampled_from(["m", "m", "m", "a", "m:x", "other", None]),
    },
    optional={
        "tools": st.lists(TOOLS, min_size=1, max_size=2) | JSON,
        "response_format": FORMATS,
        "prompt": st.lists(WORDS, max_size=3) | st.just([[1, 2], [3]]) | JSON,
        "input": st.lists(WORDS, max_size=3) | JSON,
        "stream_options": JSON | st.just({"include_usage": True}),
        "temperature": st.sampled_from([0, 0.0, 1, None]),
        "seed": SCALARS,
        "rid": SCALARS | st.just(["x"]),
        "stop": WORDS | st.lists(WORDS, max_size=2) | JSON,
        "best_of": SCALARS,
        "encoding_format": st.sampled_from(["base64", "float", 1]),
        "a.b": JSON,
        "x": JSON,
    },
)
# Spellings that no encoder would choose: where they come back, the bytes were not touched.
ODD = {"zz-odd": '{ "k" :1.50,"\\u0041": [1e2 , -0 ]}', "zz-text": '"\\u00e9\\/"', "zz-number": "12345678901234567890"}
GARBAGE = st.sampled_from(
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"a":NaN}',
        b'{"a":"\\ud800","messages":[]}',
        b'{"n":1,"n":2,"a":1}',
        b'{"a":' + b"[" * 3000 + b"]" * 3000 + b"}",
        b"\xff\xfe",
        b'{"messages":"\xff"}',
        b'{"a":1e999,"b":1}',
    ]
)


@st.composite
def raw_bodies(draw):
    """Return the bytes of a body, odd spellings among its fields."""
    members = [(name, json.dumps(value)) for name, value in draw(BODIES).items()]
    for name, text in ODD.items():
        if draw(st.booleans()):
            members.insert(draw(st.integers(0, len(members))), (name, text))
    blank = draw(st.sampled_from(["", " ", "\n"]))
    return ("{" + ",".join(f'{blank}"{name}"{blank}:{blank}{text}' for name, text in members) + "}").encode()


@pytest.fixture(scope="session")
def policies():
    """Return the strategy of policies in which a repair is used: (text, rules)."""
    return policy_texts


@pytest.fixture(scope="session")
def raw_requests():
    """Return the strategy of requests: (path, query, headers, body)."""
    return st.tuples(
        st.sampled_from(["/v1/chat/completions"] * 3 + ["/v1/completions", "/v1/embeddings", "/v1/other"]),
        st.sampled_from(["", "q=1&q=2", "q=%ff&&=", "r"]),
        st.just([])
        | st.lists(st.sampled_from([("x-a", "b"), ("Prefer", "handling=strict"), ("X-A", "\udcff")]), max_size=2),
        st.one_of(*[raw_bodies()] * 6, GARBAGE),
    )
