"""The policy file's JSON Schema: takes what the loader takes, refuses what is seen to be wrong, offers names."""

import json
import re
from pathlib import Path

import jsonschema
import pytest

from proxy.errors import PolicyFault
from proxy.matching import OPERATORS
from proxy.policy import load_policy, preset_names, preset_text
from proxy.policy.schema_json import policy_schema, schema_text
from proxy.policy.yaml_text import parse_yaml
from proxy.repairs import REPAIRS

ROOT = Path(__file__).parent.parent
SCHEMA = json.loads(schema_text())
WHOLE = jsonschema.Draft202012Validator(SCHEMA)
HEAD = "version: 1\nbackends: {a: {url: 'http://x'}}\n"
SMALL = policy_schema(REPAIRS, ["lax", "sglang"])

# Kinds of faults that only the loader can see: what a regular expression, a url, a variable or a capture says, and
# what stands in two places.
UNSEEN = {
    "a url with a password",
    "a url with a bad port",
    "a timeout of nothing",
    "a rule's id twice",
    "a table's key that is a number",
    "a bad regex",
    "a bad regex in on_error",
    "a field of many",
    "a capture of no group",
    "a capture in a key",
    "a capture that can't be a boolean",
    "an unset variable",
    "an unset variable in a rule",
    "a variable that is no number",
    "a variable that is no url",
    "a variable that is no regex",
    "a variable that is no option",
    "a variable that is no type",
}
TABLE = (ROOT / "tests" / "policy" / "faults.txt").read_text("utf-8")
FAULTS = dict(re.findall(r"^### (.*?)\n(.*?)--->\n", TABLE, re.DOTALL | re.MULTILINE))


def value_of(text):
    return parse_yaml(text, "p.yaml").value


def is_yaml(text):
    try:
        parse_yaml(text, "p.yaml")
    except PolicyFault:
        return False
    return True


def part(name):
    """Return what validates a part of a policy."""
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]})


def told(validator, text):
    return [f"{list(error.absolute_path)}: {error.message}" for error in validator.iter_errors(value_of(text))]


def test_it_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_every_reference_leads_somewhere():
    names = set(re.findall(r'"#/\$defs/([^"]+)"', schema_text()))
    assert names - set(SCHEMA["$defs"]) == set()
    assert set(SCHEMA["$defs"]) - names == {"PresetFile"}


def test_the_committed_file_is_what_the_command_prints():
    assert (ROOT / "config" / "policy.schema.json").read_text("utf-8") == schema_text(), "run make gen"


def design_example():
    return (ROOT / "tests" / "policy" / "example.yaml").read_text("utf-8")


GOOD = {
    "the policy that is shipped": (ROOT / "config" / "policy.yaml").read_text("utf-8"),
    "an example of everything": design_example(),
    "variables wherever a value is checked": """
version: 1
backends:
  a: {url: "${URL:-http://x}", max_concurrency: "${MAX}", presets: ["${P:-sglang}"], timeouts: {idle: "${IDLE:-5s}"}}
limits: {branches: "${N}"}
rules:
  - id: r
    when: {body: {n: {gt: "${N}", exists: "${B}"}}}
    on_error: {status: ["${S}"], stream: "${E:-empty}"}
    mode: "${M}"
    repair: [fan_out: {max: "${N}"}]
""",
    "captures wherever an option is checked": HEAD
    + r"""rules:
  - id: r
    on_error: {message: '(?P<n>\d+)'}
    repair: [clamp: {n: {max: '{n}', max_length: '{n}'}}, fan_out: {max: '{n}'}]
""",
    "a repair without options": HEAD + "rules: [{id: r, repair: [fan_out: ]}]",
    "a matcher without any": HEAD + "rules: [{id: r, when: , repair: [fan_out: {}]}]",
    "every kind of path": HEAD
    + """rules:
  - id: r
    when: {body: {".": 1, "a": 1, "a.b[0][*]": 1, '["a.b"].c': 1, "*": 1, "a[-1]": 1}}
    repair: [stream: true]
""",
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD.keys())
def test_a_good_policy_is_valid(text):
    assert told(WHOLE, text) == []


@pytest.mark.parametrize("text", [text for name, text in GOOD.items() if "wherever" not in name])
def test_what_is_called_good_here_loads(text):
    assert load_policy("p.yaml", text=text, environ={}).backends


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_valid(name):
    assert told(part("PresetFile"), preset_text(name)) == []


SEEN = {name: text for name, text in FAULTS.items() if name not in UNSEEN and is_yaml(text)}


def test_the_faults_that_it_cannot_see_are_faults_of_the_table():
    assert UNSEEN - set(FAULTS) == set()
    assert len(SEEN) >= 60


@pytest.mark.parametrize("text", SEEN.values(), ids=SEEN.keys())
def test_a_fault_is_refused(text):
    assert not jsonschema.Draft202012Validator(SMALL).is_valid(value_of(text))


BAD_OPTIONS = {
    "an unknown repair": "dorp: [n]",
    "two repairs in one entry": "{drop: [n], stream: false}",
    "options of another kind": "drop: n",
    "an option misspelt": "fan_out: {mx: 3}",
    "a word that is none of the words": "fan_out: {seed: different}",
    "a number out of range": "fan_out: {max: 0}",
    "a limit that is no number": "clamp: {n: {max: many}}",
    "a test that means nothing": "keep: {tools: {where: {type: {equal: function}}}}",
    "a repair that needs its options": "split: ",
}


@pytest.mark.parametrize("entry", BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_a_repair_that_means_nothing_is_refused(entry):
    text = HEAD + f"rules:\n  - id: r\n    repair:\n      - {entry}\n"
    with pytest.raises(PolicyFault):
        load_policy("p.yaml", text=text, environ={})
    assert told(WHOLE, text)


def test_every_repair_is_offered_with_its_options_and_what_it_does():
    offered = SCHEMA["$defs"]["Repair"]["oneOf"]
    assert [entry["title"] for entry in offered] == list(REPAIRS)
    for entry, card in zip(offered, REPAIRS.values(), strict=True):
        assert entry["required"] == [card.name]
        assert entry["properties"][card.name]["description"] == card.doc.strip().splitlines()[0]
        fields = card.options.model_fields
        named = set() if "root" in fields else {field.alias or name for name, field in fields.items()}
        assert named <= set(SCHEMA["$defs"][card.name].get("properties", {})) | {"root"}


def test_every_operator_is_offered_and_described():
    operators = SCHEMA["$defs"]["Operators"]["properties"]
    assert list(operators) == list(OPERATORS)
    assert all(each["description"] for each in operators.values())


def test_presets_and_their_rules_are_offered_by_name():
    assert SCHEMA["$defs"]["Backend"]["properties"]["presets"]["items"]["anyOf"][0]["enum"] == list(preset_names())
    assert "sglang/top-p-zero" in SCHEMA["properties"]["disable"]["items"]["anyOf"][0]["enum"]


def test_everything_that_a_policy_may_say_is_described():
    for name in ("Auth", "Backend", "Learn", "Limits", "Matcher", "OnError", "Rule", "Timeouts"):
        for key, field in SCHEMA["$defs"][name]["properties"].items():
            assert field.get("description"), f"{name}.{key}"
