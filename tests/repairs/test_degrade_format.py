"""Forms of answers, degraded in any way: nothing raises, a second run changes nothing, prompts keep their words."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from proxy.body import Body
from proxy.repairs import REPAIRS
from proxy.repairs.card import Draft

WORDS = st.sampled_from(["", "Be brief.", "a {constraint} b"])
CONTENTS = WORDS | st.sampled_from([None, 5, {}, []]) | st.lists(st.fixed_dictionaries({"text": WORDS}), max_size=2)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", None])},
    optional={"content": CONTENTS},
)
SCHEMAS = st.sampled_from(
    [None, {}, True, "{}", '{"type":"object"}', "{", {"type": "object"}, {"type": "string"}, 7, []]
)
FORMATS = st.sampled_from([None, "json_object", 5, []]) | st.fixed_dictionaries(
    {"type": st.sampled_from(["json_schema", "json_object", "text", "xml", None])},
    optional={"json_schema": st.fixed_dictionaries({}, optional={"schema": SCHEMAS}) | SCHEMAS, "schema": SCHEMAS},
)
PATTERNS = st.sampled_from([None, "a+", "", 5, {}])
CHOICES = st.sampled_from([None, ["a", "b"], ["a.b"], [], [1], "a"])
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(MESSAGES | st.sampled_from([None, "x"]), max_size=3) | st.none(),
        "prompt": WORDS | st.lists(WORDS, max_size=2) | st.just([1, 2]),
        "input": WORDS | st.lists(MESSAGES, max_size=2) | st.none(),
        "instructions": CONTENTS,
        "response_format": FORMATS,
        "text": st.fixed_dictionaries({}, optional={"format": FORMATS, "verbosity": st.just("low")}) | st.just("x"),
        "guided_json": SCHEMAS,
        "guided_json_object": st.sampled_from([True, False, None]),
        "guided_regex": PATTERNS,
        "guided_choice": CHOICES,
        "structured_outputs": st.fixed_dictionaries(
            {}, optional={"json": SCHEMAS, "regex": PATTERNS, "grammar": PATTERNS, "choice": CHOICES}
        )
        | st.sampled_from([None, "x", []]),
        "regex": PATTERNS,
        "ebnf": PATTERNS,
        "structural_tag": PATTERNS,
    },
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "as": st.sampled_from(["openai", "sglang", "vllm", "vllm_guided"]),
        "to": st.sampled_from(["json_object", "json_schema", "none"]),
        "from": st.lists(
            st.sampled_from(["json_schema", "json_object", "regex", "choice", "text"]), min_size=1, max_size=2
        ),
        "schema": st.just("keep"),
        "into": st.sampled_from(["system", "user", "none"]),
        "text": st.just("As {constraint}"),
    },
)


def words_of(value):
    """Return every text that a prompt holds."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [word for item in inner for word in words_of(item)]


@settings(deadline=None)  # making a body up can take longer than degrading it
@given(body=BODIES, options=OPTIONS, path=st.sampled_from(["/v1/chat/completions", "/v1/responses"]))
def test_any_form_is_degraded_once_and_the_prompt_keeps_its_words(body, options, path):
    card = REPAIRS["degrade_format"]
    try:
        act = card.build(card.options.model_validate(options))
    except ValidationError:
        return
    before = json.dumps(body)
    change = act(Draft(Body.of(body), path=path))
    assert json.dumps(body) == before
    if change is None:
        return
    after = dict(change.draft.body)
    assert json.dumps(after) != before
    assert change.loses is None or "to" in options
    assert act(change.draft) is None
    for name in ("messages", "prompt", "input", "instructions"):
        left = "\n".join(words_of(after.get(name)))
        assert all(word in left for word in words_of(body.get(name)))


@given(body=BODIES)
def test_nothing_is_asked_of_the_form_when_all_is_dropped(body):
    card = REPAIRS["degrade_format"]
    change = card.build(card.options.model_validate({"to": "none"}))(Draft(Body.of(body)))
    after = body if change is None else dict(change.draft.body)
    assert not isinstance(after.get("response_format"), dict)
    for name in ("guided_json", "guided_regex", "guided_choice", "regex", "ebnf", "structural_tag"):
        assert after.get(name) is None
