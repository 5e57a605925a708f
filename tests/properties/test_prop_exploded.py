"""Whole answers of any shape: the events made of one at once are those that chunks and a merger make, to the byte."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy import sse
from proxy.answers import explode
from proxy.chunks import encode_json, indexed_choices, require_finished
from proxy.errors import BackendFault
from proxy.exploded import events_of
from proxy.merge import Merger
from proxy.spread import Spread

WORDS = st.text("aé\n\\\ud800", max_size=3)
SCALARS = st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from([1.0, 0.0, 10**30]) | WORDS
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
    max_leaves=3,
)
FUNCTIONS = st.fixed_dictionaries(
    {}, optional={"name": SCALARS, "arguments": JSON, "id": WORDS, "type": WORDS, "function": JSON, "x": JSON}
)
CALLS = st.fixed_dictionaries(
    {},
    optional={
        "index": SCALARS,
        "id": SCALARS,
        "type": SCALARS,
        "name": WORDS,
        "arguments": JSON,
        "function": FUNCTIONS | JSON,
        "custom": FUNCTIONS,
        "x": JSON,
    },
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "role": st.just("assistant") | SCALARS,
        "content": WORDS | JSON,
        "refusal": JSON,
        "reasoning_content": JSON,
        "vendor": JSON,
        "tool_calls": st.lists(CALLS, max_size=2) | JSON,
        "function_call": st.none() | FUNCTIONS | JSON,
    },
)


def choices(index):
    """Return the strategy of a choice, mostly in its place and mostly ended."""
    return st.fixed_dictionaries(
        {"index": st.just(index) | st.just(index) | SCALARS, "finish_reason": st.just("stop") | SCALARS | WORDS},
        optional={
            "message": MESSAGES | MESSAGES | MESSAGES | JSON,
            "text": WORDS | JSON,
            "logprobs": JSON,
            "matched_stop": JSON,
            "meta_info": JSON,
            "delta": JSON,
            "error": JSON,
        },
    )


LISTS = st.lists(st.none(), max_size=3).flatmap(lambda some: st.tuples(*map(choices, range(len(some)))).map(list))
USAGES = st.fixed_dictionaries({"total_tokens": st.integers(0, 2)}, optional={"x": JSON})
ANSWERS = st.fixed_dictionaries(
    {
        "id": st.just("a") | st.just("a") | SCALARS,
        "object": st.sampled_from(["chat.completion", "chat.completion", "text_completion", "error", "", None, 1]),
        "created": st.just(1) | st.just(1) | SCALARS,
        "model": st.just("m") | st.just("m") | SCALARS,
        "choices": LISTS | LISTS | LISTS | JSON,
    },
    optional={
        "usage": USAGES | USAGES | JSON,
        "system_fingerprint": JSON,
        "metadata": JSON,
        "service_tier": JSON,
        "error": JSON,
    },
)


def merged(answer, kind, *, include_usage):
    """Return the events that chunks and a merger make, None where there is no stream of them."""
    merger = Merger(
        spreads=(Spread(1),),
        total=None,
        kind=kind,
        include_usage=include_usage,
        usage="once",
        fallback_id="made up",
        created=9,
        model="made up",
    )
    try:
        require_finished([choice for _, choice in indexed_choices(answer)])
        chunks = [new for chunk in explode(answer, include_usage=include_usage) for new in merger.feed(0, chunk)]
        return b"".join(sse.encode(encode_json(chunk)) for chunk in [*chunks, *merger.end(0)])
    except BackendFault:
        return None


@settings(max_examples=300)
@given(ANSWERS, st.sampled_from(["chat", "text"]), st.booleans())
def test_what_is_made_at_once_is_what_a_merger_makes(answer, kind, include_usage):
    before = copy.deepcopy(answer)
    events = events_of(answer, kind, include_usage=include_usage)
    assert answer == before
    if events is not None:
        assert events == merged(answer, kind, include_usage=include_usage)


MESSAGE = {"role": "assistant", "content": "Hi."}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USUAL = [
    pytest.param("chat", {"message": MESSAGE}, id="text"),
    pytest.param("chat", {"message": MESSAGE | {"reasoning_content": "So.", "refusal": None}}, id="thoughts"),
    pytest.param("chat", {"message": {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]}}, id="calls"),
    pytest.param("chat", {"message": MESSAGE, "logprobs": {"content": [{"token": "Hi"}]}}, id="logprobs"),
    pytest.param("chat", {"message": MESSAGE, "meta_info": {"id": "x"}, "matched_stop": None}, id="further fields"),
    pytest.param("text", {"text": "Hi.", "logprobs": None}, id="a completion"),
    pytest.param("text", {"text": ""}, id="an empty completion"),
]


@pytest.mark.parametrize("include_usage", [False, True], ids=["without usage", "with usage"])
@pytest.mark.parametrize("count", [1, 2], ids=["one choice", "two choices"])
@pytest.mark.parametrize(("kind", "choice"), USUAL)
def test_usual_answers_are_made_at_once(kind, choice, count, include_usage):
    answer = {
        "id": "a",
        "object": "chat.completion" if kind == "chat" else "text_completion",
        "created": 1,
        "model": "m",
        "system_fingerprint": "f",
        "choices": [{"index": index, **choice, "finish_reason": "stop"} for index in range(count)],
        "usage": {"total_tokens": 3},
        "metadata": {"weight_version": "default"},
    }
    events = events_of(answer, kind, include_usage=include_usage)
    assert events is not None
    assert events == merged(answer, kind, include_usage=include_usage)
