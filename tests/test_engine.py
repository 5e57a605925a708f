"""The policy's rules over a request: what goes upstream, how the answers come back, what is told and what refused."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.engine import Request, Step, inspected_paths, kind_of, observed, plan, replan, top_up
from proxy.errors import ProxyError
from proxy.policy import load_policy
from proxy.refusals import Failure

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def policy(rules="[]", *, presets="[]", more=""):
    text = f"version: 1\nbackends:\n  main: {{url: http://backend, presets: {presets}}}\n{more}\nrules: {rules}\n"
    return load_policy("policy.yaml", environ={}, text=text)


def request(body, path=CHAT, *, query="", strict=False, headers=(), method="POST"):
    raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    said = [*headers, ("Prefer", "handling=strict")] if strict else list(headers)
    return Request(method, path, query, said, raw)


def planned(rules, body, path=CHAT, *, strict=False, more=""):
    return plan(request(body, path, strict=strict), policy(rules, more=more))


def bodies(made):
    return [json.loads(body) for body in made.bodies]


def rules_of(made):
    return [applied.rule for applied in made.applied]


def refusal_of(made):
    """Return a refusal's status, code and parameter; nothing may go upstream beside it."""
    assert made.bodies == ()
    assert made.restore is None
    return made.refusal.status, made.refusal.code, made.refusal.param


LOOKS = "[{id: looks, when: {body: {n: {exists: true}}}, repair: [drop: [n]]}]"
MISSES = "[{id: misses, when: {body: {n: {gt: 1}}}, repair: [drop: [n]]}]"
ALWAYS = "[{id: always, repair: [default: {n: 1}]}]"


def rules_after(text):
    """Return the rules with one before them that has something to do."""
    return "[{id: before, repair: [drop: [x]]}, " + text[1:]


NESTED = b'{"n": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"

UNTOUCHED = [
    pytest.param(ALWAYS, None, id="a body that isn't read"),
    pytest.param(ALWAYS, b"", id="no body"),
    pytest.param(ALWAYS, b"hello", id="a body that is no JSON"),
    pytest.param(ALWAYS, b'{"n": 1', id="JSON that is cut"),
    pytest.param(ALWAYS, b"[1]", id="JSON that is no object"),
    pytest.param(ALWAYS, b"null", id="null"),
    pytest.param(ALWAYS, b'\xef\xbb\xbf{"m": 1}', id="a byte order mark"),
    pytest.param(LOOKS, b'{"n": NaN}', id="NaN"),
    pytest.param(LOOKS, b'{"n": -Infinity}', id="an infinite number"),
    pytest.param(LOOKS, b'{"n": "\\ud800"}', id="a lone surrogate"),
    pytest.param(LOOKS, b'{"n": "\xff"}', id="text that is no UTF-8"),
    pytest.param(LOOKS, b'{"n": 1e999}', id="a number out of range"),
    pytest.param(rules_after(LOOKS), b'{"x": 1, "n": 1e999}', id="a value that only a later rule can't read"),
    pytest.param(LOOKS, NESTED, id="a body that is nested too deeply"),
    pytest.param(MISSES, b'{"n": 1, "n": 1}', id="a name twice while no rule fires"),
    pytest.param(MISSES, b' {\n"n" : 1.0 ,"x":\t1e2 } ', id="odd spacing"),
    pytest.param(
        "[{id: a, when: {body: {n: 2}}, repair: [set: {n: 2}]}]", b'{"n": 2}', id="a repair with nothing to do"
    ),
    pytest.param("[{id: a, when: {path: /x}, repair: [set: {n: 2}]}]", b'{"n": 1}', id="a rule for another path"),
    pytest.param(
        "[{id: a, when: {model: x*}, repair: [set: {n: 2}]}]", b'{"n": 1}', id="a rule for a model, and none named"
    ),
]


@pytest.mark.parametrize(("rules", "body"), UNTOUCHED)
def test_a_request_that_no_rule_repairs_goes_on_as_it_came(rules, body):
    made = plan(request(body), policy(rules))
    assert (made.bodies, made.restore, made.applied, made.refusal) == ((), None, (), None)
    assert made.backend.name == "main"


def test_a_path_that_no_rule_names_is_no_concern_of_the_policy():
    assert planned(ALWAYS, {"x": 1}, "/v1/embeddings").bodies == ()


EFFECTS = [
    pytest.param("drop: [a, b.c]", {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3}}, "fields a, b.c", id="drop"),
    pytest.param("set: {a: 2}", {"a": 1}, {"a": 2}, "a 1 becomes 2", id="set over a value"),
    pytest.param("set: {a.b: 2}", {}, {"a": {"b": 2}}, None, id="set where nothing was"),
    pytest.param("default: {a: 2, b: 3}", {"a": 1}, {"a": 1, "b": 3}, None, id="default"),
    pytest.param("move: {a: b}", {"a": 1}, {"b": 1}, None, id="move"),
    pytest.param("map: {a: {x: y}}", {"a": "x"}, {"a": "y"}, "a x becomes y", id="map"),
    pytest.param("clamp: {a: {max: 2}}", {"a": 9}, {"a": 2}, "a 9 becomes 2", id="clamp"),
    pytest.param("coerce: {a: integer}", {"a": "2"}, {"a": 2}, None, id="coerce"),
    pytest.param("keep: {a: [x]}", {"a": {"x": 1, "y": 2}}, {"a": {"x": 1}}, "field a.y", id="keep"),
    pytest.param("stream: false", {"stream": True, "stream_options": {}}, {"stream": False}, None, id="stream: false"),
    pytest.param(
        "stream: true",
        {"a": 1},
        {"a": 1, "stream": True, "stream_options": {"include_usage": True}},
        None,
        id="stream: true",
    ),
]


@pytest.mark.parametrize(("repair", "before", "after", "loses"), EFFECTS)
def test_a_repair_edits_the_body_and_tells_what_that_costs(repair, before, after, loses):
    made = planned(f"[{{id: mends, repair: [{{{repair}}}]}}]", before)
    assert bodies(made) == [after]
    (applied,) = made.applied
    assert (applied.rule, applied.repairs) == ("mends", (repair.partition(":")[0],))
    assert applied.loses == loses


def test_what_no_repair_names_goes_on_byte_for_byte():
    raw = b'{ "x" : { "a" :1.50 } , "n":2,"y":"caf\\u00e9",  "z":[1 ,2 ]}'
    (body,) = planned("[{id: a, repair: [drop: [n]]}]", raw).bodies
    assert body == b'{"x":{ "a" :1.50 },"y":"caf\\u00e9","z":[1 ,2 ]}'


@pytest.mark.parametrize("odd", [b"1e999", b"9" * 5000, b'"\xff"'], ids=["out of range", "5000 digits", "no UTF-8"])
def test_a_value_that_can_t_be_decoded_goes_on_where_no_rule_looks_at_it(odd):
    (body,) = planned("[{id: a, repair: [drop: [n]]}]", b'{"x": ' + odd + b', "n": 2}').bodies
    assert body == b'{"x":' + odd + b"}"


def test_a_warning_is_told_and_changes_nothing():
    made = planned("[{id: a, repair: [warn: beware]}]", {"x": 1})
    assert made.bodies == ()
    (applied,) = made.applied
    assert (applied.repairs, applied.loses, applied.warning) == (("warn",), None, "beware")


def test_a_warning_is_told_of_a_request_without_a_body_too():
    made = plan(request(None, "/v1/models", method="GET"), policy("[{id: a, when: {path: /v1/*}, repair: [warn: no]}]"))
    assert rules_of(made) == ["a"]


@pytest.mark.parametrize(
    ("loses", "told"),
    [
        pytest.param("", "n 3 becomes 1, field x", id="the repairs' own words"),
        pytest.param("loses: two choices,", "two choices", id="the rule's words"),
        pytest.param("loses: nothing,", None, id="nothing"),
    ],
)
def test_a_rule_tells_what_is_lost(loses, told):
    made = planned(f"[{{id: a, {loses} repair: [{{set: {{n: 1}}}}, {{drop: [x]}}]}}]", {"n": 3, "x": 1})
    assert made.applied[0].loses == (told.replace(", field", "; field") if told else None)


def rules(*texts):
    return f"[{', '.join(texts)}]"


STREAM_OFF = "{id: off, when: {body: {stream: true}}, repair: [stream: false]}"
STREAM_ON = "{id: on, repair: [stream: true]}"
FAN = "{id: fan, when: {body: {n: {gt: 1}}}, repair: [fan_out: {}]}"
SEEN = {"model": "m", "stream": True, "n": 3}
USAGE = {"stream_options": {"include_usage": True}}


def fan(options):
    return f"[{{id: fan, repair: [fan_out: {options}]}}]"


def spread(made, choices=1):
    """Return the client's indexes of each branch's first choices."""
    return [[list(each.indexes(choice)) for choice in range(choices)] for each in made.restore.spreads]


RELAYED = [
    pytest.param("[]", {"stream": True}, id="nothing done"),
    pytest.param("[{id: a, repair: [drop: [x]]}]", {"stream": True, "x": 1}, id="a stream asked for as a stream"),
    pytest.param("[{id: a, repair: [drop: [x]]}]", {"x": 1, "n": 2}, id="JSON asked for as JSON"),
    pytest.param(
        rules(STREAM_OFF, "{id: b, repair: [set: {stream: true}]}"), {"stream": True, "x": 1}, id="off and on"
    ),
    pytest.param(
        "[{id: a, repair: [{drop: [x]}, {stream: false}]}]", {"x": 1, "stream": False}, id="no stream to turn off"
    ),
    pytest.param(rules(FAN, "{id: b, repair: [drop: [x]]}"), {"n": 1, "x": 1}, id="one choice"),
    pytest.param(rules(FAN, "{id: b, repair: [drop: [x]]}"), {"n": None, "x": 1}, id="n is null"),
]


@pytest.mark.parametrize(("given_rules", "body"), RELAYED)
def test_an_answer_in_the_shape_that_was_asked_for_is_relayed(given_rules, body):
    made = planned(given_rules, body)
    assert made.restore is None
    assert len(made.bodies) <= 1


ASKS_STREAM = {"stream": True, "stream_options": {"include_usage": True}}

RESTORED = [
    pytest.param(rules(STREAM_OFF), {"stream": True}, [{"stream": False}], (True, False), id="stream by JSON"),
    pytest.param(
        rules(STREAM_OFF), {"stream": True} | USAGE, [{"stream": False}], (True, True), id="stream with usage by JSON"
    ),
    pytest.param(rules(STREAM_ON), {"n": 1}, [{"n": 1} | ASKS_STREAM], (False, False), id="JSON by stream"),
    pytest.param(rules(STREAM_ON), {"stream": False}, [ASKS_STREAM], (False, False), id="JSON, said so, by stream"),
    pytest.param(
        rules(STREAM_OFF, STREAM_ON),
        {"stream": True},
        [ASKS_STREAM],
        (True, False),
        id="stream by stream with a usage too many",
    ),
    pytest.param(
        rules(FAN), {"stream": True, "n": 2}, [{"stream": True}] * 2, (True, False), id="stream of n by streams"
    ),
    pytest.param(
        rules(FAN), {"n": 2} | ASKS_STREAM, [ASKS_STREAM] * 2, (True, True), id="stream of n with usage by streams"
    ),
    pytest.param(
        rules(FAN, STREAM_OFF),
        {"stream": True, "n": 2},
        [{"stream": False}] * 2,
        (True, False),
        id="stream of n by JSON",
    ),
    pytest.param(
        rules(STREAM_OFF, FAN),
        {"stream": True, "n": 2} | USAGE,
        [{"stream": False}] * 2,
        (True, True),
        id="the same in turn",
    ),
    pytest.param(rules(FAN), {"n": 2}, [{}] * 2, (False, False), id="JSON of n by JSON"),
    pytest.param(rules(FAN, STREAM_ON), {"n": 2}, [ASKS_STREAM] * 2, (False, False), id="JSON of n by streams"),
]


@pytest.mark.parametrize(("given_rules", "body", "asked", "shape"), RESTORED)
@pytest.mark.parametrize(("path", "kind"), [(CHAT, "chat"), (TEXT, "text")], ids=["chat", "completions"])
def test_an_answer_in_another_shape_is_restored(given_rules, body, asked, shape, path, kind):
    made = planned(given_rules, {"model": "m", **body}, path)
    assert bodies(made) == [{"model": "m"} | each for each in asked]
    restoring = made.restore
    assert (restoring.stream, restoring.include_usage) == shape
    assert (restoring.kind, restoring.model) == (kind, "m")
    if len(asked) == 1:
        assert restoring.total is None
        assert spread(made, 3) == [[[0], [1], [2]]]
    else:
        assert restoring.total == len(asked)
        assert spread(made) == [[[index]] for index in range(len(asked))]


FANNED = [
    pytest.param("{}", SEEN, 3, [[[0]], [[1]], [[2]]], 3, id="a branch for each choice"),
    pytest.param("{}", SEEN | {"n": 3.0}, 3, [[[0]], [[1]], [[2]]], 3, id="n without a fraction"),
    pytest.param(
        "{}", SEEN | {"temperature": 0}, 1, [[[0, 1, 2]]], 3, id="a greedy answer is asked for once and copied"
    ),
    pytest.param("{greedy: ask}", SEEN | {"temperature": 0}, 3, [[[0]], [[1]], [[2]]], 3, id="or asked for n times"),
    pytest.param("{max: 3}", SEEN, 3, [[[0]], [[1]], [[2]]], 3, id="as many as allowed"),
]


@pytest.mark.parametrize(("options", "body", "count", "indexes", "total"), FANNED)
def test_a_fan_out_spreads_the_choices(options, body, count, indexes, total):
    made = planned(fan(options), body)
    assert len(made.bodies) == count
    assert all("n" not in each for each in bodies(made))
    assert spread(made) == indexes
    assert made.restore.total == total


PROMPTS = [
    pytest.param("one", 1, [[[0]], [[1]]], id="a text"),
    pytest.param(["one", "two", "three"], 3, [[[0], [2], [4]], [[1], [3], [5]]], id="three texts"),
    pytest.param([1, 2, 3], 1, [[[0]], [[1]]], id="token ids are one prompt"),
    pytest.param([[1, 2], [3]], 2, [[[0], [2]], [[1], [3]]], id="two lists of token ids"),
    pytest.param([], 1, [[[0]], [[1]]], id="an empty list"),
    pytest.param(None, 1, [[[0]], [[1]]], id="none"),
]


@pytest.mark.parametrize(("prompt", "count", "indexes"), PROMPTS)
def test_a_choice_of_a_completion_is_its_prompt_times_n_and_its_branch(prompt, count, indexes):
    made = planned(fan("{}"), {"model": "m", "prompt": prompt, "n": 2}, TEXT)
    assert bodies(made) == [{"model": "m", "prompt": prompt}] * 2
    assert spread(made, count) == indexes
    assert made.restore.total == 2 * count


def test_a_list_called_prompt_means_nothing_to_chat():
    assert planned(fan("{}"), {"n": 2, "prompt": ["a", "b"]}).restore.total == 2


def test_a_greedy_answer_to_prompts_is_copied_prompt_by_prompt():
    made = planned(fan("{}"), {"prompt": ["a", "b"], "n": 2, "temperature": 0}, TEXT)
    assert spread(made, 2) == [[[0, 1], [2, 3]]]


@pytest.mark.parametrize(
    ("options", "concurrency", "usage"),
    [("{}", 0, "once"), ("{concurrency: 1, usage: sum}", 1, "sum")],
    ids=["all at once, prompts counted once", "one after another, prompts counted each"],
)
def test_how_branches_run_and_are_counted(options, concurrency, usage):
    restoring = planned(fan(options), SEEN).restore
    assert (restoring.concurrency, restoring.usage) == (concurrency, usage)


def test_branches_get_their_own_seeds_and_ids():
    made = planned(fan("{}"), SEEN | {"seed": 7, "rid": "r"})
    assert [(each["seed"], each["rid"]) for each in bodies(made)] == [(7, "r"), (8, "r-1"), (9, "r-2")]


REFUSED = [
    pytest.param(fan("{max: 2}"), SEEN, "", (400, "too_many_choices", "n"), id="more choices than the rule allows"),
    pytest.param(
        fan("{}"), SEEN, "limits: {branches: 2}", (400, "too_many_choices", "n"), id="more than limits.branches"
    ),
    pytest.param(
        fan("{max: 9}"), SEEN, "limits: {branches: 2}", (400, "too_many_choices", "n"), id="the lower limit holds"
    ),
    pytest.param("[{id: a, repair: [reject: no]}]", {"x": 1}, "", (400, "request_rejected", None), id="rejected"),
    pytest.param(
        "[{id: a, repair: [reject: {message: no, param: x, code: odd}]}]", {"x": 1}, "", (400, "odd", "x"), id="by name"
    ),
    pytest.param(
        rules("{id: a, repair: [reject: no]}", "{id: b, repair: [drop: [x]]}"),
        {"x": 1},
        "",
        (400, "request_rejected", None),
        id="rejected before a repair",
    ),
    pytest.param(
        rules("{id: b, repair: [drop: [x]]}", "{id: a, repair: [reject: no]}"),
        {"x": 1},
        "",
        (400, "request_rejected", None),
        id="rejected after a repair",
    ),
    pytest.param(
        "[{id: a, repair: [drop: [x]]}]",
        b'{"x": 1, "y": 2, "y": 3}',
        "",
        (400, "duplicate_name", "y"),
        id="a name twice",
    ),
]


@pytest.mark.parametrize(("given_rules", "body", "more", "expected"), REFUSED)
def test_a_request_is_refused(given_rules, body, more, expected):
    assert refusal_of(planned(given_rules, body, more=more)) == expected


def test_a_clamp_before_it_keeps_a_fan_out_from_refusing():
    made = planned(rules("{id: a, repair: [clamp: {n: {max: 2}}]}", "{id: b, repair: [fan_out: {max: 2}]}"), {"n": 9})
    assert made.refusal is None
    assert len(made.bodies) == 2


def test_a_rejection_names_its_rule_and_ends_the_run():
    trace = []
    made = plan(
        request({"x": 1}), policy(rules("{id: a, repair: [reject: Not so.]}", "{id: b, repair: [drop: [x]]}")), trace
    )
    assert made.refusal.message == "Not so. (rule 'a')"
    assert [(step.rule.id, step.note) for step in trace] == [
        ("a", ""),
        ("b", "not reached: the rule 'a' refuses the request"),
    ]


@pytest.mark.parametrize("repair", ["stream: false", "fan_out: {}"])
def test_a_path_that_has_no_chunks_can_t_change_its_shape(repair):
    made = planned(f"[{{id: odd, when: {{path: '*'}}, repair: [{{{repair}}}]}}]", SEEN, "/v1/embeddings")
    assert refusal_of(made) == (500, "policy_error", None)
    assert "'odd'" in made.refusal.message


ORDERED = [
    pytest.param(
        rules("{id: a, repair: [set: {n: 2}]}", "{id: b, when: {body: {n: 2}}, repair: [drop: [x]]}"),
        {"n": 1, "x": 1},
        (["a", "b"], {"n": 2}),
        id="a rule sees what one before it wrote",
    ),
    pytest.param(
        rules("{id: a, repair: [drop: [x]]}", "{id: b, when: {body: {x: {exists: true}}}, repair: [set: {n: 2}]}"),
        {"n": 1, "x": 1},
        (["a"], {"n": 1}),
        id="a rule misses what one before it took",
    ),
    pytest.param(
        rules("{id: b, when: {body: {n: 2}}, repair: [drop: [x]]}", "{id: a, repair: [set: {n: 2}]}"),
        {"n": 1, "x": 1},
        (["a"], {"n": 2, "x": 1}),
        id="a rule doesn't see what one after it writes",
    ),
    pytest.param(
        "[{id: a, repair: [{move: {x: y}}, {set: {z: {field: y}}}]}]",
        {"x": 1},
        (["a"], {"y": 1, "z": 1}),
        id="a rule's repairs run in turn",
    ),
    pytest.param(
        rules("{id: a, mode: observe, repair: [drop: [x]]}", "{id: b, when: {body: {x: 1}}, repair: [set: {n: 2}]}"),
        {"x": 1},
        (["b"], {"x": 1, "n": 2}),
        id="a rule that only observes changes nothing for the next",
    ),
]


@pytest.mark.parametrize(("given_rules", "body", "expected"), ORDERED)
def test_each_rule_sees_the_body_as_those_before_left_it(given_rules, body, expected):
    made = planned(given_rules, body)
    assert (rules_of(made), bodies(made)[0]) == expected


def test_presets_run_before_the_policy_s_rules_and_one_of_the_same_id_takes_its_place():
    own = rules("{id: own, when: {body: {top_p: 1}}, repair: [set: {seen: true}]}")
    replaced = rules("{id: sglang/top-p-above-one, when: {body: {top_p: {gt: 1}}}, repair: [drop: [top_p]]}")
    assert rules_of(plan(request({"top_p": 2}), policy(own, presets="[sglang]"))) == ["sglang/top-p-above-one", "own"]
    made = plan(request({"top_p": 2}), policy(replaced, presets="[sglang]"))
    assert (rules_of(made), bodies(made)) == (["sglang/top-p-above-one"], [{}])


@pytest.mark.parametrize("repair", ["drop: [x]", "reject: no", "fan_out: {max: 1}", "stream: false", "warn: hm"])
def test_a_rule_that_only_observes_changes_nothing_and_is_noted(repair):
    made = planned(f"[{{id: a, mode: observe, repair: [{{{repair}}}]}}]", SEEN | {"x": 1})
    assert (made.bodies, made.restore, made.refusal, made.applied) == ((), None, None, ())
    assert [(seen.rule, seen.repairs) for seen in made.observed] == [("a", (repair.partition(":")[0],))]


STRICT = [
    pytest.param("[{id: a, repair: [drop: [x]]}]", {"x": 1}, ["a", "field x"], id="a field would be lost"),
    pytest.param(
        rules("{id: e, repair: [default: {y: 1}]}", "{id: a, loses: a choice, repair: [set: {n: 1}]}"),
        {"n": 2},
        ["a", "a choice"],
        id="in the rule's own words",
    ),
]


@pytest.mark.parametrize(("given_rules", "body", "named"), STRICT)
def test_a_strict_client_is_refused_rather_than_served_at_a_loss(given_rules, body, named):
    made = planned(given_rules, body, strict=True)
    assert refusal_of(made) == (400, "repair_refused", None)
    assert all(word in made.refusal.message for word in named)
    assert planned(given_rules, body).refusal is None


@pytest.mark.parametrize(
    ("given_rules", "body"),
    [
        pytest.param("[{id: a, repair: [default: {y: 1}]}]", {"x": 1}, id="an exact repair"),
        pytest.param("[{id: a, loses: nothing, repair: [drop: [x]]}]", {"x": 1, "y": 1}, id="a loss that is none"),
        pytest.param("[{id: a, repair: [fan_out: {}]}]", {"n": 2}, id="a fan-out"),
    ],
)
def test_a_strict_client_gets_exact_repairs(given_rules, body):
    made = planned(given_rules, body, strict=True)
    assert made.refusal is None
    assert made.bodies


TWO = """
version: 1
backends:
  small: {url: "http://small", models: ["tiny*", mini]}
  large: {url: "http://large", models: ["big/*"]}
rules:
  - {id: small-only, when: {backend: small, path: "*"}, repair: [drop: [x]]}
  - {id: big-only, when: {model: "big/*"}, repair: [set: {y: 1}]}
"""


@pytest.mark.parametrize(
    ("body", "backend", "fired"),
    [
        pytest.param({"model": "tiny-1", "x": 1}, "small", ["small-only"], id="by a glob"),
        pytest.param({"model": "big/a/b", "x": 1}, "large", ["big-only"], id="by a glob across slashes"),
        pytest.param({"x": 1}, "small", ["small-only"], id="without a model the first"),
        pytest.param({"model": 7, "x": 1}, "small", ["small-only"], id="with a model that is no name the first"),
        pytest.param(None, "small", [], id="without a body the first"),
        pytest.param(b'{"model": "\\ud800"}', "small", [], id="with a model that can't be read the first"),
    ],
)
def test_a_backend_is_chosen_by_the_model(body, backend, fired):
    made = plan(request(body), load_policy("p", environ={}, text=TWO))
    assert (made.backend.name, rules_of(made)) == (backend, fired)


def test_a_body_that_a_rule_can_t_read_is_still_sent_where_its_model_is():
    text = TWO + '  - {id: looks, when: {body: {z: "?"}}, repair: [drop: [z]]}\n'
    made = plan(request(b'{"model": "big/1", "z": 1e999}'), load_policy("p", environ={}, text=text))
    assert (made.backend.name, made.facts.model, made.bodies) == ("large", "big/1", ())


def test_a_model_that_no_backend_has_does_not_exist():
    with pytest.raises(ProxyError, match="'other'") as caught:
        plan(request({"model": "other"}), load_policy("p", environ={}, text=TWO))
    assert (caught.value.status, caught.value.code, caught.value.param) == (404, "model_not_found", "model")


FACTS = [
    pytest.param("{header: {x-key: '1'}}", {"headers": [("X-Key", "1")]}, id="a header in any case"),
    pytest.param("{header: {x-key: '1, 2'}}", {"headers": [("X-Key", "1"), ("x-key", "2")]}, id="a repeated header"),
    pytest.param("{query: {beta: '1'}}", {"query": "beta=1&x"}, id="a parameter"),
    pytest.param("{query: {beta: '2'}}", {"query": "beta=1&beta=2"}, id="a repeated parameter"),
    pytest.param("{query: {x: ''}}", {"query": "beta=1&x="}, id="an empty parameter"),
    pytest.param("{method: post}", {}, id="the method in any case"),
    pytest.param("{path: /v1/*}", {}, id="the path"),
]


@pytest.mark.parametrize(("when", "given_"), FACTS)
def test_a_rule_may_look_at_more_than_the_body(when, given_):
    made = plan(request({"x": 1}, **given_), policy(f"[{{id: a, when: {when}, repair: [drop: [x]]}}]"))
    assert rules_of(made) == ["a"]


@pytest.mark.parametrize(
    ("given_rules", "path", "expected"),
    [
        pytest.param("[]", CHAT, False, id="no rules, no look"),
        pytest.param(ALWAYS, CHAT, True, id="the paths that rules are for by default"),
        pytest.param(ALWAYS, "/v1/embeddings", False, id="another path"),
        pytest.param("[{id: a, when: {path: /v1/e*}, repair: [drop: [x]]}]", "/v1/embeddings", True, id="a named path"),
    ],
)
def test_a_body_is_read_only_where_a_rule_may_look_into_it(given_rules, path, expected):
    assert inspected_paths(policy(given_rules))(path) is expected


def test_every_body_is_read_where_its_model_routes_it():
    assert inspected_paths(load_policy("p", environ={}, text=TWO))("/v1/audio/speech")


@pytest.mark.parametrize(
    ("path", "kind"),
    [(CHAT, "chat"), (TEXT, "text"), ("/openai/v1/chat/completions", "chat"), ("/v1/embeddings", None), ("/", None)],
)
def test_the_kind_of_completion_that_a_path_answers_with(path, kind):
    assert kind_of(path) == kind


def test_a_trace_tells_of_every_rule():
    trace: list[Step] = []
    given_rules = rules(
        "{id: misses, when: {body: {x: 2}}, repair: [drop: [x]]}",
        "{id: idle, when: {body: {x: 1}}, repair: [drop: [y]]}",
        "{id: waits, on_error: {status: 400}, repair: [drop: [x]]}",
        "{id: watches, mode: observe, repair: [drop: [x]]}",
        "{id: acts, repair: [drop: [x]]}",
    )
    plan(request({"x": 1}), policy(given_rules), trace)
    assert [(step.rule.id, step.miss, step.note) for step in trace] == [
        ("misses", ("body.x: 2", 1), ""),
        ("idle", None, "matched, and found nothing to do"),
        ("waits", None, "waits for a refusal"),
        ("watches", None, "only observes"),
        ("acts", None, ""),
    ]


# Reactive rules

REFUSAL = Failure(400, "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.")
RENAMED = (
    "{id: renamed, on_error: {message: \"Unsupported parameter: '(?P<old>\\\\w+)'.*use '(?P<new>\\\\w+)'\"},"
    ' repair: [move: {"{old}": "{new}"}]}'
)


def replanned(given_rules, body, failure, *, strict=False):
    known = policy(given_rules)
    return replan(plan(request(body, strict=strict), known), failure, known)


def reactive(on_error, repair="drop: [x]", name="r"):
    return f"{{id: {name}, on_error: {on_error}, repair: [{{{repair}}}]}}"


def failed(status=400, text="", **more):
    return Failure(status, text, **more)


KNOWN = [
    pytest.param("{status: 400}", failed(400), True, id="the status"),
    pytest.param("{status: [400, 422]}", failed(422), True, id="one of the statuses"),
    pytest.param("{status: 400}", failed(500), False, id="another status"),
    pytest.param("{status: 400}", failed(None), False, id="no status"),
    pytest.param("{message: bad}", failed(text="this is BAD"), True, id="a text, in any case, anywhere"),
    pytest.param("{message: 'one.*two'}", failed(text="one\ntwo"), True, id="a text over lines"),
    pytest.param("{message: ^two}", failed(text="one\ntwo"), True, id="the beginning of a line"),
    pytest.param("{message: bad}", failed(text="good"), False, id="another text"),
    pytest.param("{code: bad}", failed(code="bad"), True, id="the code"),
    pytest.param("{code: 400}", failed(code="400"), True, id="a code that is a number"),
    pytest.param("{code: bad}", failed(), False, id="no code"),
    pytest.param("{param: x}", failed(param="x"), True, id="the parameter"),
    pytest.param("{param: x}", failed(param="y"), False, id="another parameter"),
    pytest.param("{stream: empty}", failed(None, stream="empty"), True, id="a stream that was empty"),
    pytest.param(
        "{stream: [empty, silent]}", failed(None, stream="silent"), True, id="one of the ways of a stream to fail"
    ),
    pytest.param("{stream: error}", failed(None, stream="empty"), False, id="another way"),
    pytest.param("{stream: empty}", failed(400), False, id="a refusal that is no stream"),
    pytest.param("{status: 400, message: bad, code: c}", failed(400, "bad", code="c"), True, id="all that is asked"),
    pytest.param("{status: 400, message: bad, code: c}", failed(400, "bad", code="d"), False, id="all but one"),
    pytest.param("{status: 400}", failed(400, stream="error"), True, id="an error event that claims a status"),
]


@pytest.mark.parametrize(("on_error", "failure", "is_known"), KNOWN)
def test_a_reactive_rule_knows_a_refusal_by(on_error, failure, is_known):
    made = replanned(f"[{reactive(on_error)}]", {"x": 1, "y": 2}, failure)
    assert (bodies(made) if made else None) == ([{"y": 2}] if is_known else None)


REACTIONS = [
    pytest.param(RENAMED, {"max_tokens": 5}, REFUSAL, {"max_completion_tokens": 5}, id="captures name the fields"),
    pytest.param(
        reactive("{message: 'at most (?P<max>\\d+)'}", 'clamp: {n: {max: "{max}"}}'),
        {"n": 9},
        failed(text="n is at most 4"),
        {"n": 4},
        id="a capture is a limit",
    ),
    pytest.param(
        reactive('{message: "Unexpected.*", each: "\'(?P<field>[^\']+)\'"}', 'drop: ["{field}"]'),
        {"a": 1, "b": 2, "c": 3},
        failed(422, "Unexpected fields in the request: {'a', 'c'}"),
        {"b": 2},
        id="one repair for each field that is named",
    ),
    pytest.param(
        ", ".join([reactive("{status: 400}", "drop: [a]", "one"), reactive("{message: b}", "drop: [b]", "two")]),
        {"a": 1, "b": 2, "c": 3},
        failed(400, "b"),
        {"c": 3},
        id="all rules that know it, in one round",
    ),
]


@pytest.mark.parametrize(("given_rules", "body", "failure", "after"), REACTIONS)
def test_a_refusal_is_repaired(given_rules, body, failure, after):
    assert bodies(replanned(f"[{given_rules}]", body, failure)) == [after]


def test_in_a_round_too_each_rule_sees_the_body_as_those_before_left_it():
    second = "{id: two, when: {body: {a: 2}}, on_error: {status: 400}, repair: [drop: [b]]}"
    made = replanned(rules(reactive("{status: 400}", "set: {a: 2}"), second), {"a": 1, "b": 2}, failed(400))
    assert bodies(made) == [{"a": 2}]


NOTHING = [
    pytest.param(reactive("{status: 400}"), {"y": 1}, failed(400), id="there is nothing to do"),
    pytest.param(reactive("{status: 400}"), b"no json", failed(400), id="there is no body"),
    pytest.param(
        "{id: r, when: {body: {z: 1}}, on_error: {status: 400}, repair: [drop: [x]]}",
        {"x": 1},
        failed(400),
        id="the request is not one that the rule is for",
    ),
    pytest.param(
        "{id: r, mode: observe, on_error: {status: 400}, repair: [drop: [x]]}",
        {"x": 1},
        failed(400),
        id="it only observes",
    ),
    pytest.param(
        reactive("{message: 'at most (?P<max>\\w+)'}", 'clamp: {n: {max: "{max}"}}'),
        {"n": 9},
        failed(text="at most several"),
        id="what was captured means nothing",
    ),
    pytest.param(
        reactive("{message: 'bad (?P<x>a)?'}", 'drop: ["{x}"]'),
        {"a": 1},
        failed(text="bad "),
        id="nothing was captured",
    ),
    pytest.param(
        reactive("{message: '^(?P<path>.*)$'}", 'drop: ["{path}"]'),
        {"x": 1},
        failed(text="x..y["),
        id="no path was captured",
    ),
    pytest.param(
        reactive("{message: fields, each: \"'(?P<f>\\\\w+)'\"}", 'drop: ["{f}"]'),
        {"x": 1},
        failed(text="fields"),
        id="none is named",
    ),
    pytest.param("{id: r, repair: [default: {y: 1}]}", {"x": 1}, failed(400), id="no rule reacts"),
]


@pytest.mark.parametrize(("rule", "body", "failure"), NOTHING)
def test_no_other_round_follows_where(rule, body, failure):
    assert replanned(f"[{rule}]", body, failure) is None


def test_a_rule_fires_once_a_request():
    known = policy(
        rules(reactive("{status: 400}", "clamp: {n: {max: 5}}", "a"), reactive("{status: 400}", "drop: [x]", "b"))
    )
    first = plan(request({"n": 9}), known)
    assert first.may_react
    second = replan(first, failed(400), known)
    assert (bodies(second), second.tried) == ([{"n": 5}], {"a"})
    assert replan(second, failed(400), known) is None


def test_what_was_repaired_before_stays_repaired_and_told():
    known = policy(rules("{id: first, repair: [drop: [a]]}", reactive("{status: 400}", "drop: [b]", "then")))
    made = replan(plan(request({"a": 1, "b": 2, "c": 3}), known), failed(400), known)
    assert (rules_of(made), bodies(made)) == (["first", "then"], [{"c": 3}])


def test_a_value_that_can_t_be_decoded_is_no_hindrance_to_a_repair_after_a_refusal():
    made = replanned(f"[{reactive('{status: 400}')}]", b'{"x": 1, "z": 1e999}', failed(400))
    assert made.bodies == (b'{"z":1e999}',)


def test_stream_options_that_ask_for_usage_already_are_sent_as_they_came():
    made = plan(
        request(b'{"stream_options": { "include_usage" :true}, "n":1}'), policy("[{id: r, repair: [stream: true]}]")
    )
    assert made.bodies == (b'{"stream_options":{ "include_usage" :true},"n":1,"stream":true}',)


def test_a_refusal_can_be_told_in_the_policy_s_own_words():
    made = replanned(
        f"[{reactive('{status: 400}', 'reject: {message: Too long., code: too_long}')}]", SEEN, failed(400)
    )
    assert refusal_of(made) == (400, "too_long", None)
    assert made.refusal.message == "Too long. (rule 'r')"


def test_a_refusal_can_lead_to_a_fan_out():
    made = replanned(f"[{reactive('{status: 400}', 'fan_out: {}')}]", SEEN, failed(400))
    assert len(made.bodies) == 3
    assert made.restore.stream


def test_a_strict_client_s_request_is_not_repaired_at_a_loss_after_a_refusal():
    lossy, exact = reactive("{status: 400}", "drop: [x]", "lossy"), reactive("{status: 400}", "move: {y: z}", "exact")
    assert replanned(f"[{lossy}]", {"x": 1}, failed(400), strict=True) is None
    made = replanned(rules(lossy, exact), {"x": 1, "y": 2}, failed(400), strict=True)
    assert (rules_of(made), bodies(made)) == (["exact"], [{"x": 1, "z": 2}])


@pytest.mark.parametrize(
    ("rule", "may"),
    [
        pytest.param(reactive("{status: 400}"), True, id="a rule that could"),
        pytest.param(
            "{id: r, when: {body: {z: 1}}, on_error: {status: 400}, repair: [drop: [x]]}", False, id="for others"
        ),
        pytest.param("{id: r, repair: [drop: [x]]}", False, id="a rule that acts beforehand"),
    ],
)
def test_a_plan_knows_whether_a_rule_may_still_react(rule, may):
    assert planned(f"[{rule}]", {"x": 1}).may_react is may


FEWER = reactive("{choices: fewer}", "fan_out: {}")


@pytest.mark.parametrize(
    ("body", "path", "asked"),
    [
        pytest.param({"n": 3}, CHAT, 3, id="three choices"),
        pytest.param({"n": 3, "prompt": "one"}, TEXT, 3, id="three completions"),
        pytest.param({"n": 1}, CHAT, None, id="one choice can't be fewer"),
        pytest.param({"n": 3, "prompt": ["a", "b"]}, TEXT, None, id="of several prompts nobody knows"),
    ],
)
def test_choices_are_counted_where_a_rule_knows_what_to_do_about_fewer(body, path, asked):
    made = planned(f"[{FEWER}]", body, path)
    assert (made.restore.asked if made.restore else None) == asked
    assert planned("[]", body, path).restore is None


@pytest.mark.parametrize(
    ("have", "seeds", "indexes"),
    [pytest.param(1, [5, 6, 7], [[0], [1], [2]], id="one came"), pytest.param(2, [5, 7], [[0], [2]], id="two came")],
)
def test_only_the_choices_that_are_missing_are_asked_for(have, seeds, indexes):
    first = planned(f"[{FEWER}]", {"n": 3, "seed": 5, "temperature": 0})
    made = top_up(first, have)
    assert made.bodies[0] == first.bodies[0]
    assert [each["seed"] for each in bodies(made)] == seeds
    assert [list(each.indexes(0)) for each in made.restore.spreads] == indexes
    assert rules_of(made) == ["r"]
    assert top_up(made, have) is None


def test_fewer_choices_are_no_refusal_and_a_refusal_is_no_lack_of_choices():
    assert replanned(f"[{FEWER}]", {"n": 3}, failed(400)) is None
    assert top_up(planned(f"[{reactive('{status: 400}', 'fan_out: {}')}]", {"n": 3}), 1) is None


# Properties, with the presets as they are shipped

PRESETS = {name: policy(presets=f"[{name}]") for name in ("sglang", "llamafactory")}
SAMPLING = ["n", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "best_of", "logprobs", "top_logprobs"]
SAMPLING += ["presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "regex"]
LENGTHS = ["max_tokens", "max_completion_tokens", "min_tokens"]
TOOLS = ["tools", "tool_choice", "parallel_tool_calls", "functions", "response_format", "reasoning_effort", "reasoning"]
SGLANG = ["return_meta_info", "return_hidden_states", "return_prompt_token_ids", "return_sampling_mask", "rid"]
NAMES = ["model", "messages", "prompt", "user", "stream", "stream_options", *SAMPLING, *LENGTHS, *TOOLS, *SGLANG]
INNER = ["role", "content", "type", "function", "name", "parameters", "tool_calls", "arguments", "include_usage"]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-2, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        ["", "true", "2", "2.5", "user", "developer", "any", "required", "none", "json_schema", "function"]
    )
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(INNER), inner, max_size=4),
    max_leaves=8,
)
BODIES = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8)
PATHS = st.sampled_from([CHAT, TEXT, "/v1/score/evaluation", "/v1/embeddings"])
KINDS = st.sampled_from(sorted(PRESETS))
# What a client may write and a JSON library would write otherwise.
RAW = st.sampled_from([b"1.50e+2", b'{ "a" : [ 1 ,2 ] }', b'"\\u00e9\\/"', b"-0.0", b'"\xc3\xa9"', b"[ ]"])


@given(KINDS, PATHS, st.booleans(), BODIES, RAW)
@example("sglang", CHAT, False, {"n": 2, "top_p": 0, "stream": "true"}, b"1.0")
def test_any_json_is_planned_and_what_no_rule_names_stays_as_it_is(kind, path, strict, body, raw):
    sent = json.dumps(body).encode()[:-1] + (b', "own": ' if body else b'"own": ') + raw + b"}"
    made = plan(request(sent, path, strict=strict), PRESETS[kind])
    for branch in made.bodies:
        assert isinstance(json.loads(branch), dict)
        assert branch == sent or b'"own":' + raw in branch
    assert made.refusal is None or isinstance(made.refusal, ProxyError)


@given(KINDS, st.binary() | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_planned(kind, raw):
    made = plan(request(raw), PRESETS[kind])
    assert made.backend.name == "main"


def outcome(made):
    refusal = made.refusal.body() if made.refusal else None
    return made.bodies, made.restore, made.applied, made.observed, refusal


@given(KINDS, PATHS, BODIES)
def test_the_same_request_gets_the_same_plan(kind, path, body):
    sent = request(body, path)
    assert outcome(plan(sent, PRESETS[kind])) == outcome(plan(sent, PRESETS[kind]))


@given(KINDS, PATHS, BODIES)
def test_a_body_that_was_repaired_needs_no_more_repair(kind, path, body):
    made = plan(request(body, path), PRESETS[kind])
    for branch in made.bodies:
        again = plan(request(branch, path), PRESETS[kind])
        assert again.refusal is None
        assert [json.loads(each) for each in again.bodies] in ([], [json.loads(branch)])


TEXTS = st.sampled_from(
    [
        "min_new_tokens must be in [0, max_new_tokens({})], got 9.",
        "logit_bias must has keys in [0, 99], got {}.",
        "invalid literal for int() with base 10: '{}'",
        "Tool {} function has invalid 'parameters' schema",
        "max_completion_tokens is too large",
        "{}",
    ]
)


@given(KINDS, BODIES, TEXTS, st.text(max_size=8) | st.integers().map(str), st.sampled_from([None, "empty", "error"]))
@example("sglang", {"logit_bias": {'"]': 1}}, "invalid literal for int() with base 10: '{}'", '"]', None)
@example("sglang", {"tools": [1]}, "Tool {} function has invalid 'parameters' schema", "9" * 5000, None)
@example("sglang", {"min_tokens": 7}, "min_new_tokens must be in [0, max_new_tokens({})], got 9.", "9" * 5000, None)
def test_any_refusal_leads_to_another_plan_or_to_none(kind, body, text, word, stream):
    first = plan(request(body), PRESETS[kind])
    made = replan(first, Failure(400, text.replace("{}", word), stream=stream), PRESETS[kind])
    assert made is None or made.tried > first.tried


def test_a_reactive_rule_that_only_observes_leaves_its_trace():
    text = """
version: 1
backends: {main: {url: "http://b"}}
rules: [{id: seen, mode: observe, on_error: {status: 400}, repair: [drop: [stop]]}]
"""
    made_policy = load_policy("p.yaml", environ={}, text=text)
    made = plan(Request("POST", "/v1/chat/completions", "", [], b'{"stop": "x"}'), made_policy)
    failure = Failure(400, "no")
    assert replan(made, failure, made_policy) is None
    assert [applied.rule for applied in observed(made, failure).observed] == ["seen"]
