"""Policies that load: what they compile to, variables, presets, warnings, captures."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.body import Body
from proxy.errors import PolicyFault
from proxy.matching import BadTest
from proxy.policy import load_policy, preset_names, preset_text
from proxy.repairs.card import Draft

EXAMPLE = (Path(__file__).parent / "example.yaml").read_text("utf-8")
HEAD = "version: 1\nbackends: {a: {url: 'http://x'}}\n"
WITH_PRESET = "version: 1\nbackends: {a: {url: 'http://x', presets: [sglang]}}\n"


def told(act):
    return act(Draft(Body.of({}))).loses


def ids(backend):
    return [rule.id for rule in backend.rules]


def test_defaults_are_filled_in(load):
    policy = load(HEAD)
    backend = policy.backends[0]
    assert (backend.models, backend.api_key, backend.max_concurrency, backend.rules) == (("*",), None, 0, ())
    assert (backend.timeouts.connect_s, backend.timeouts.first_content_s, backend.timeouts.idle_s) == (5, 600, 300)
    assert (policy.limits.body_bytes, policy.limits.event_bytes, policy.limits.branches) == (64 << 20, 8 << 20, 16)
    assert (policy.auth_keys, policy.keep_alive_s, policy.warnings) == (frozenset(), 15, ())


def test_the_documented_example_loads(load):
    policy = load(EXAMPLE)
    assert policy.backends[0].url == "standin://sglang"
    assert ids(policy.backends[0]) == ["sglang/meta-info", "meta-info-streamed", "n-streamed", "max-tokens-renamed"]
    on_error = policy.backends[0].rules[-1].on_error
    assert on_error.status == {400, 422}
    assert on_error.message.search("…\nunsupported parameter: 'max_tokens'.\nUse 'max_completion_tokens'")
    assert policy.backends[0].rules[-1].learn_for_s == 3600


def test_the_documented_example_loads_with_the_real_repairs():
    presets = {"sglang": "preset: sglang\nabout: x\nrules: [{id: top-p-zero, repair: [{drop: [top_p]}]}]\n"}
    policy = load_policy("p.yaml", text=EXAMPLE, environ={}, presets=presets)
    rename = policy.backends[0].rules[-1].repairs[0].instantiate({"field": "max_tokens", "new": "max_output"})
    assert rename(Draft(Body.of({"max_tokens": 3}))).draft.body.encode() == b'{"max_output":3}'


def test_the_shipped_presets_are_listed_and_others_are_not_there():
    assert all(preset_text(name) for name in preset_names())
    with pytest.raises(KeyError):
        preset_text("no-such-preset")


def test_a_file_is_read_and_its_digest_is_that_of_its_text(load, tmp_path):
    (tmp_path / "p.yaml").write_text(HEAD, "utf-8")
    assert load_policy(tmp_path / "p.yaml", environ={}).sha256 == load(HEAD).sha256
    with pytest.raises(FileNotFoundError):
        load_policy(tmp_path / "q.yaml", environ={})


def test_the_first_backend_whose_models_match_serves_a_model(load):
    policy = load(
        "version: 1\nbackends:\n  a: {url: 'http://x', models: [qwen/*]}\n  b: {url: 'http://y', models: ['*7b']}\n"
    )
    names = {model: (found := policy.backend_for(model)) and found.name for model in ("qwen/x/7b", "l-7b", "gpt", None)}
    assert names == {"qwen/x/7b": "a", "l-7b": "b", "gpt": None, None: "a"}


VARIABLES = [
    ("${V}", {"V": "http://y"}, "http://y", "a variable"),
    ("http://${V}:1", {"V": "y"}, "http://y:1", "a variable inside a text"),
    ("${V:-http://d}", {}, "http://d", "a default"),
    ("${V:-http://d}", {"V": ""}, "http://d", "a default for an empty variable"),
    ("${V:-http://d}", {"V": "http://y"}, "http://y", "no default where the variable is set"),
    ("http://x/$5", {}, "http://x/$5", "a lone dollar"),
    ("http://x/$${V}", {}, "http://x/${V}", "an escaped variable"),
    ("http://${V}", {"V": "${W}"}, "http://${W}", "a variable's text is not expanded again"),
]


@pytest.mark.parametrize(
    ("text", "environ", "url"), [case[:3] for case in VARIABLES], ids=[case[3] for case in VARIABLES]
)
def test_variables_are_expanded(text, environ, url, load):
    assert load(f"version: 1\nbackends: {{a: {{url: '{text}'}}}}\n", environ=environ).backends[0].url == url


def test_a_variable_can_stand_for_a_number_or_boolean_but_not_change_the_structure(load):
    policy = load(
        HEAD
        + "limits: {branches: '${N}', body: '${S}'}\nkeep_alive: ${N}\nauth: {keys: ['${K}', '', '${EMPTY}']}\n"
        + "rules:\n- id: r\n  when: {body: {n: {gt: '${N}'}, m: '${N}'}}\n"
        + "  repair: [{fan_out: {max: '${N}', greedy: '${B}'}}]\n",
        environ={"N": "4", "S": "1MiB", "K": "[a, b]", "EMPTY": "", "B": "true"},
    )
    assert (policy.limits.branches, policy.limits.body_bytes, policy.keep_alive_s) == (4, 1 << 20, 4)
    assert policy.auth_keys == {"[a, b]"}
    rule = policy.backends[0].rules[0]
    assert told(rule.repairs[0].instantiate({})) == "fan_out {'max': 4, 'greedy': True, 'seed': 'increment'}"
    assert [check.label for check in rule.matcher.checks[1:]] == ["body.n: {gt: 4}", "body.m: ${N}"]


def test_a_backend_given_by_hand_replaces_the_first_one_s_url_and_its_unset_variable(load):
    text = "version: 1\nbackends: {a: {url: '${NOPE}'}, b: {url: 'http://y', models: [z]}}\n"
    policy = load(text, backend_url="http://z/${x}")
    assert [backend.url for backend in policy.backends] == ["http://z/${x}", "http://y"]
    with pytest.raises(PolicyFault, match=r"--backend:1:1: expected http://host"):
        load(text, backend_url="z")


ORDERS = [
    ("", ["sglang/top-p-zero", "sglang/meta-info"], "a preset's rules in its order"),
    ("disable: [sglang/meta-info]", ["sglang/top-p-zero"], "without a disabled one"),
    ("rules: [{id: own, repair: [{drop: [x]}]}]", ["sglang/top-p-zero", "sglang/meta-info", "own"], "before the own"),
    (
        "rules: [{id: own, repair: [{drop: [x]}]}, {id: sglang/top-p-zero, repair: [{drop: [y]}]}]",
        ["sglang/top-p-zero", "sglang/meta-info", "own"],
        "a replaced one in its place",
    ),
]


@pytest.mark.parametrize(("more", "order"), [case[:2] for case in ORDERS], ids=[case[2] for case in ORDERS])
def test_rules_run_in_order(more, order, load):
    assert ids(load(WITH_PRESET + more).backends[0]) == order


def test_a_replacing_rule_is_the_policy_s(load):
    policy = load(WITH_PRESET + "rules: [{id: sglang/top-p-zero, repair: [{drop: [y]}]}]")
    assert [rule.place for rule in policy.backends[0].rules] == ["p.yaml:3:9", "presets/sglang.yaml:7:5"]


def test_a_fault_in_a_preset_is_told_with_the_policy_s_own(load):
    with pytest.raises(PolicyFault) as caught:
        load(
            "version: 2\nbackends: {a: {url: 'http://x', presets: [p]}}\n",
            presets={"p": "preset: q\nabout: x\nrules: 1\n"},
        )
    assert [str(fault) for fault in caught.value.faults] == [
        "p.yaml:1:10: this mendproxy reads policies of `version: 1`",
        "presets/p.yaml:3:8: expected a list, got the integer 1",
    ]


RULE = "rules: [{id: r, repair: [{drop: [x]}], "
WARNINGS = [
    (WITH_PRESET + "disable: [sglang/top-p]", "3:11: there is no rule", "disabling nothing"),
    (WITH_PRESET + RULE.replace("r,", "sglang/meta,") + "}]", "3:14: the preset has no rule", "replacing nothing"),
    (HEAD + RULE + "when: {backend: b}}]", "3:56: the rule can never fire: no backend", "another backend"),
    (HEAD + RULE + "when: {body: {n: {gt: 5, lt: 3}}}}]", "3:57: the rule can never fire: no value", "a contradiction"),
    (
        "version: 1\nbackends:\n  a: {url: 'http://x'}\n  b: {url: 'http://y'}\n",
        "4:6: no request comes to this backend",
        "a backend behind one that takes all",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "warning"), [case[:2] for case in WARNINGS], ids=[case[2] for case in WARNINGS])
def test_what_can_t_be_meant_is_warned_of(text, warning, load):
    assert [str(each).startswith(f"p.yaml:{warning}") for each in load(text).warnings] == [True]


def reactive(load, message, repair):
    rule = f"rules: [{{id: r, on_error: {{message: '{message}'}}, repair: [{repair}]}}]"
    return load(HEAD + rule).backends[0].rules[0].repairs[0]


def test_captures_are_filled_in_at_run_time(load):
    repair = reactive(load, "(?P<field>x) (?P<new>y)", "{move: {'a.{field}': '{new}', 'b': '{{new}}'}}")
    assert told(repair.instantiate({"field": "f", "new": "n"})) == "move {'a.f': 'n', 'b': '{new}'}"


def test_a_capture_can_stand_for_a_number(load):
    repair = reactive(load, "at most (?P<limit>\\d+)", "{fan_out: {max: '{limit}'}}")
    assert told(repair.instantiate({"limit": "3"})) == "fan_out {'max': 3, 'greedy': False, 'seed': 'increment'}"
    with pytest.raises(BadTest, match="expected an integer") as caught:
        repair.instantiate({"limit": "secret"})
    assert "secret" not in str(caught.value)


def test_a_capture_that_took_no_part_is_told(load):
    with pytest.raises(BadTest, match=r"gave nothing for \{b\}"):
        reactive(load, "(?P<a>x)|(?P<b>y)", "{drop: ['{b}']}").instantiate({"a": "x"})


def test_without_on_error_braces_are_what_they_are(load):
    repair = load(HEAD + "rules: [{id: r, repair: [{drop: ['{a}']}]}]").backends[0].rules[0].repairs[0]
    assert told(repair.instantiate({})) == "drop ['{a}']"


def test_a_table_s_keys_may_be_of_any_scalar_type(load):
    load(HEAD + "rules: [{id: r, repair: [{map: {n: {null: 1, true: 2, 7: 3, 0.5: 4}}}]}]")
