"""The policy loader: any text is a policy, or faults each with a place inside the text; never anything else."""

import re
from pathlib import Path

from proxy.engine import Request, plan
from proxy.errors import PolicyFault, ProxyError
from proxy.policy import effective_text, load_policy
from proxy.policy.yaml_text import decode_text

POLICY_TESTS = Path(__file__).parent.parent / "policy"
ENVIRON = {"HOST": "h", "EMPTY": "", "KEY": "k: {a}"}
PRESETS = {"small": "preset: small\nabout: For a test.\nrules:\n  - {id: one, repair: [{drop: [top_p]}]}\n"}
RULE = "version: 1\nbackends: {m: {url: 'http://x'}}\nrules:\n- {id: r, when: {body: {a: 1}}, repair: [%s]}\n"
REPAIRS = [
    "{drop: [a, {b[*].c: {gt: 1}}]}",
    "{set: {a: {x: 1}}, }",
    "{default: {a: {field: b}}}",
    "{move: {a: b, c[*].d: {to: c[*].e, over: true}}}",
    "{map: {a: {null: 1, true: 2, '*': 3}}}",
    "{clamp: {a: {min: 0, max: {field: b}, max_length: 3}}}",
    "{coerce: {a: integer, b: {to: string, allowed: a-z, fill: x}}}",
    "{keep: {messages: {where: {role: {in: [user, system]}}}}}",
    "{stream: false}, {fan_out: {max: 3, concurrency: 1}}",
    "{split: {field: prompt, size: 2}}, {rename_model: {to: x}}, {enforce_stop: {}}",
    "{response: {both: [{drop: [x]}], chunk: [{set: {'choices[*].y': 1}}]}}",
    "{rewrite_schema: {drop: [title, {format: {in: [uri]}}], inline_refs: 1}}",
    "{merge_messages: {system: first, neighbours: [user], separator: ' '}}, {pair_tool_calls: {orphans: drop}}",
    "{degrade_format: {to: json_object, into: system}}, {rewrite_ids: {ids: {length: 9}}}",
    "{reject: {message: no, param: a}}, {warn: 'so so'}, {recode_embeddings: {}}, {flatten_content: {}}",
]
REACTIVE = """\
version: 1
backends: {m: {url: 'http://${HOST}', presets: [small], api_key: '${KEY:-}', timeouts: {idle: 5m}, max_concurrency: 2}}
limits: {body: 1MiB, branches: 4}
auth: {keys: ['${EMPTY}']}
keep_alive: 250ms
disable: [small/one]
rules:
- id: r
  about: >-
    folded
  when: {any: [{header: {x-a: {matches: '^b+$'}}}, {not: {query: {q: {exists: true}}}}], model: ['m*', a]}
  on_error: {status: [400, 422], message: "'(?P<field>\\\\w+)'", each: '(?P<f>a)', stream: [empty, error]}
  repair: [{move: {'{field}': '{f}'}}, {clamp: {a: {max: '{f}'}}}]
  loses: nothing
  mode: observe
  learn: {for: 1h}
"""
FAULTS = [text.split("--->")[0] for text in re.split(r"(?m)^### .*\n", (POLICY_TESTS / "faults.txt").read_text())[1:]]
SEEDS = [
    text.encode("utf-8", "surrogatepass")
    for text in [REACTIVE, (POLICY_TESTS / "example.yaml").read_text(), *(RULE % text for text in REPAIRS), *FAULTS]
]
WORDS = [
    word.encode() for word in ("{", "}", "[", "]", ": ", "- ", "\n", "  ", "'", '"', "&a ", "*a", "<<: ", "!!x ", "|\n")
]
WORDS += [
    word.encode() for word in ("null", "true", "1e999", "0x", "${", "${A:-", "${HOST}", "{{", "{field}", "#", "? ")
]
WORDS += [
    b"eq",
    b"any",
    b"not",
    b"every",
    b"length",
    b"matches",
    b"field",
    b"[*]",
    b"a.b",
    b"(?P<a>",
    b"\\",
    b"\xe2\x80\xa8",
]
BODY = (
    b'{"model":"m","messages":[{"role":"user","content":"hi"}],"a":1,"b":[{"c":2}],"stream":true,"n":2,"prompt":["x"]}'
)


def check(data):
    try:
        text = decode_text(data, "p.yaml")
        policy = load_policy("p.yaml", environ=ENVIRON, text=text, presets=PRESETS)
    except PolicyFault as fault:
        check_places(fault.faults, data)
        return
    for warning in policy.warnings:
        assert str(warning)
    shown = effective_text(policy)
    again = load_policy("p.yaml", environ=ENVIRON | {"A": ""}, text=shown, presets={})
    assert effective_text(again) == shown
    if "matches" not in text:  # a regex of any making may take its time over a body
        assert outcome(policy) == outcome(again)


def check_places(faults, data):
    lines = re.split("\r\n|[\n\r\x85\u2028\u2029]", data.decode("utf-8", "replace"))
    assert faults
    for fault in faults:
        assert fault.message
        assert "\n" not in fault.message, "a fault is a line"
        if fault.file == "p.yaml":
            assert 1 <= fault.line <= len(lines) + 1
            assert fault.column >= 1


def outcome(policy):
    try:
        made = plan(Request("POST", "/v1/chat/completions", "", [("x-a", "b")], BODY), policy)
    except ProxyError as error:
        return error.body()
    refusal = made.refusal.body() if made.refusal is not None else None
    return made.bodies, made.applied, made.observed, refusal, made.may_react


def test_any_text_is_a_policy_or_told_why_not(fuzz):
    fuzz(check, SEEDS, WORDS)
