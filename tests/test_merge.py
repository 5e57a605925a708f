"""Branches merged into one stream: what passes, what is told once, and that real clients can read it."""

import copy
import json
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from proxy.answers import Collector, explode
from proxy.chunks import decode_chunk, encode_json
from proxy.errors import BackendFault
from proxy.merge import Merger, Spread
from proxy.spread import merge_answers
from proxy.sse import Parser

STREAMS = Path(__file__).parent / "data" / "streams"


def chunks_of(name):
    parser = Parser(1 << 20)
    events = parser.feed((STREAMS / f"{name}.sse").read_bytes()) + parser.close()
    return [decode_chunk(event.data) for event in events if not event.is_done]


def collect(chunks, kind=None):
    collector = Collector(kind)
    for chunk in chunks:
        collector.feed(chunk)
    return collector.result()


def fan(count):
    return [Spread(count, branch) for branch in range(count)]


def merger_of(spreads, total=None, **options):
    settings = {
        "kind": "chat",
        "include_usage": True,
        "usage": "once",
        "fallback_id": "made-up",
        "created": 7,
        "model": "asked",
    }
    return Merger(spreads=spreads, total=total, **settings | options)


def merge(branches, spreads=None, total=None, order=None, **options):
    """Return the merged chunks; `order` says whose chunk comes next, and what it leaves comes branch by branch."""
    merger = merger_of(spreads or fan(len(branches)), total, **options)
    waiting = [list(branch) for branch in branches]
    out = []
    for branch in chain(order or (), *([branch] * len(chunks) for branch, chunks in enumerate(branches))):
        if waiting[branch]:
            out += merger.feed(branch, waiting[branch].pop(0))
            if not waiting[branch]:
                out += merger.end(branch)
    return out


def chat(*deltas, finish="stop", index=0, **fields):
    """Return a branch of one choice; `fields` come with its finish."""
    return [{"choices": [{"index": index, "delta": delta, "finish_reason": None}]} for delta in deltas] + [
        {"choices": [{"index": index, "delta": {}, "finish_reason": finish, **fields}]}
    ]


def usage_chunk(completion, **fields):
    usage = {"prompt_tokens": 10, "completion_tokens": completion, "total_tokens": 10 + completion}
    return {"choices": [], "usage": usage, **fields}


def choices_of(chunks, index=None):
    found = [choice for chunk in chunks for choice in chunk["choices"]]
    return [choice for choice in found if index is None or choice["index"] == index]


def text_of(chunks, index):
    return "".join(choice["delta"].get("content") or "" for choice in choices_of(chunks, index))


def read_with_openai(chunks):
    """Return what the SDK's accumulator makes of the chunks."""
    state = ChatCompletionStreamState()
    for chunk in chunks:
        list(state.handle_chunk(ChatCompletionChunk.construct(**copy.deepcopy(chunk))))
    return state.current_completion_snapshot.to_dict()


def calls_of(choice):
    """Return what a client would call."""
    calls = choice["message"].get("tool_calls") or ()
    return [(call["id"], call["type"], call["function"]["name"], call["function"]["arguments"]) for call in calls]


ROLE = {"role": "assistant", "content": ""}


def test_letters_of_three_branches_keep_to_their_own_index():
    branches = [chat(ROLE, *({"content": letter} for letter in word)) for word in ("aaa", "bbb", "ccc")]
    merged = merge(branches, total=3, order=[2, 1, 0] * 5)
    assert [text_of(merged, index) for index in range(3)] == ["aaa", "bbb", "ccc"]


def test_choices_are_introduced_in_order_with_the_first_chunk_of_any_branch():
    native = {"role": "assistant", "content": "", "reasoning_content": None}
    role = {"choices": [{"index": 0, "delta": native, "logprobs": None, "finish_reason": None, "matched_stop": None}]}
    introduced = merger_of(fan(3), 3).feed(2, role)
    assert choices_of(introduced) == [role["choices"][0] | {"index": index} for index in range(3)]
    assert len(introduced) == 3


def test_an_introduction_is_made_up_where_the_backend_has_none():
    chunk = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}, "logprobs": {"content": [1]}}]}
    made = {"delta": ROLE, "logprobs": None, "finish_reason": None}
    assert choices_of(merger_of(fan(2), 2).feed(1, chunk)) == [
        {"index": 0, **made},
        {"index": 1, **made},
        {"index": 1, "delta": {"content": "a"}, "logprobs": {"content": [1]}, "finish_reason": None},
    ]


def test_choices_of_one_branch_are_introduced_without_a_gap():
    merged = merge([[*chat({"content": "b"}, index=1), *chat({"content": "a"}, index=0)]], [Spread(1)])
    assert [(choice["index"], *choice["delta"].values()) for choice in choices_of(merged)] == [
        (0, "assistant", ""),
        (1, "assistant", ""),
        (1, "b"),
        (1,),
        (0, "a"),
        (0,),
    ]


ROLES = [
    pytest.param(
        chat({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}), "ab", id="in every chunk"
    ),
    pytest.param(chat({"content": "a"}), "a", id="in none"),
    pytest.param(chat(), "", id="none, and only a finish"),
    pytest.param(chat({"role": "", "content": "a"}, {"role": None, "content": "b"}), "ab", id="empty"),
]


@pytest.mark.parametrize("total", [1, None])
@pytest.mark.parametrize(("branch", "text"), ROLES)
def test_each_choice_has_its_role_once_and_first(branch, text, total):
    merged = merge([branch], [Spread(1)], total)
    roles = [choice["delta"].get("role", "absent") for choice in choices_of(merged)]
    assert roles == ["assistant"] + ["absent"] * (len(roles) - 1)
    assert text_of(merged, 0) == text
    assert choices_of(merged)[0]["delta"].get("content") == ""


IDENTITIES = [
    pytest.param(
        {"id": "x", "created": 5, "model": "m"}, {"id": "x", "created": 5, "model": "m"}, id="the first branch's"
    ),
    pytest.param({}, {"id": "made-up", "created": 7, "model": "asked"}, id="the proxy's own"),
    pytest.param(
        {"id": "", "created": None, "model": "m"}, {"id": "made-up", "created": 7, "model": "m"}, id="empty ones"
    ),
    pytest.param(
        {"id": "x", "system_fingerprint": ""},
        {"id": "x", "created": 7, "model": "asked", "system_fingerprint": ""},
        id="a fingerprint where the first has one",
    ),
]


@pytest.mark.parametrize(("first", "identity"), IDENTITIES)
def test_all_chunks_bear_one_identity(first, identity):
    branches = [
        [first | chunk for chunk in [*chat(ROLE, {"content": "a"}), usage_chunk(1)]],
        [
            {"id": "y", "created": 9, "model": "z", "system_fingerprint": "f"} | chunk
            for chunk in chat(ROLE, {"content": "b"})
        ],
    ]
    merged = merge(branches, total=2, order=[0, 1, 0, 1])
    seen = [{key: value for key, value in chunk.items() if key not in ("choices", "usage")} for chunk in merged]
    assert seen == [identity | {"object": "chat.completion.chunk"}] * len(merged)


def test_each_choice_has_one_finish_and_its_own_fields():
    finishes = [("length", 5, None), ("stop", 0, 7), ("stop", 50, "x")]
    branches = [
        chat(ROLE, *[{"content": "w"}] * words, finish=finish, matched_stop=matched)
        for finish, words, matched in finishes
    ]
    merged = merge(branches, total=3, order=[0, 1, 2] * 60)
    for index, (finish, words, matched) in enumerate(finishes):
        choices = choices_of(merged, index)
        assert [choice["finish_reason"] for choice in choices] == [None] * (words + 1) + [finish]
        assert choices[-1]["matched_stop"] == matched


@pytest.mark.parametrize(
    ("late", "passed"),
    [
        pytest.param({"delta": {"content": ""}, "finish_reason": None}, False, id="nothing"),
        pytest.param({"delta": {}, "finish_reason": "stop"}, False, id="a second finish_reason"),
        pytest.param({"delta": {"role": "assistant", "content": None}, "logprobs": None}, False, id="a role and nulls"),
        pytest.param({"delta": {"hidden_states": [1]}, "finish_reason": None}, True, id="hidden states"),
        pytest.param(
            {"delta": {}, "finish_reason": "stop", "meta": 1}, True, id="a field beside a second finish_reason"
        ),
    ],
)
def test_what_comes_after_the_finish_passes_where_it_says_something(late, passed):
    merged = merge([[*chat({"content": "a"}), {"choices": [{"index": 0, **late}]}]], total=1)
    assert [choice["finish_reason"] for choice in choices_of(merged)] == [None, None, "stop"] + [None] * passed


def test_recorded_hidden_states_come_after_the_finish():
    merged = merge([chunks_of("sglang-hidden-states-n2")], [Spread(1)])
    for index in range(2):
        assert [len(choice["delta"].get("hidden_states", ())) for choice in choices_of(merged, index)[-2:]] == [0, 64]
        assert choices_of(merged, index)[-2]["finish_reason"] == "length"


USAGES = [
    pytest.param({}, {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}, id="the prompt once"),
    pytest.param({"usage": "sum"}, {"prompt_tokens": 30, "completion_tokens": 10, "total_tokens": 40}, id="all summed"),
    pytest.param({"include_usage": False}, None, id="not asked for"),
]


@pytest.mark.parametrize(("options", "usage"), USAGES)
def test_usage_comes_once_and_last(options, usage):
    branches = [[*chat(ROLE, {"content": "a"}), usage_chunk(count)] for count in (2, 3, 5)]
    merged = merge(branches, total=3, order=[0, 1, 2] * 4, **options)
    told = [chunk["usage"] for chunk in merged if chunk.get("usage")]
    assert told == ([usage] if usage else [])
    assert (merged[-1]["choices"] == []) == bool(usage)


def test_cumulative_usage_is_taken_off_the_chunks_and_the_last_counts():
    branches = [
        [chunk | {"usage": usage_chunk(count)["usage"]} for count, chunk in enumerate(chat(*[{"content": "a"}] * 3))]
        for _ in range(2)
    ]
    merged = merge(branches, total=2, order=[0, 1] * 4)
    assert merged[-1]["usage"] == {"prompt_tokens": 10, "completion_tokens": 6, "total_tokens": 16}
    assert not any("usage" in chunk for chunk in merged[:-1])


def test_a_branch_without_usage_is_left_out_of_the_sum():
    merged = merge([[*chat(ROLE), usage_chunk(2)], chat(ROLE)], total=2)
    assert merged[-1]["usage"] == usage_chunk(2)["usage"]
    assert not any("usage" in chunk for chunk in merge([chat(ROLE), chat(ROLE)], total=2))


ASIDE = {"choices": [], "sglext": {"ids": [1]}}
EXTRAS = [
    pytest.param([chat(), ASIDE], {}, [ASIDE["sglext"]], id="on a chunk without choices"),
    pytest.param([chat(), ASIDE | {"usage": None}], {}, [ASIDE["sglext"]], id="beside a null usage"),
    pytest.param([chat(), usage_chunk(1, sglext=1)], {}, [1], id="on the usage chunk"),
    pytest.param(
        [chat(), usage_chunk(1, sglext=1)], {"include_usage": False}, [1], id="on a usage chunk nobody asked for"
    ),
    pytest.param([[chat()[0] | {"sglext": 1}]], {}, [1], id="on a finish chunk"),
    pytest.param([[chat(ROLE)[0] | {"sglext": 1}], chat()], {}, [1], id="on a role chunk"),
    pytest.param([[chat(ROLE)[0] | {"sglext": 1}] * 3, chat()], {}, [1], id="on role chunks that repeat themselves"),
    pytest.param(
        [chat(ROLE)[0], chat(ROLE)[0] | {"sglext": 1}, chat()], {}, [1], id="on a chunk that says nothing else"
    ),
    pytest.param([{"sglext": 1}, chat()], {}, [1], id="on a chunk of its own, first"),
]


@pytest.mark.parametrize(("pieces", "options", "told"), EXTRAS)
def test_further_fields_of_chunks_pass(pieces, options, told):
    branch = list(chain.from_iterable(piece if isinstance(piece, list) else [piece] for piece in pieces))
    merged = merge([branch], total=1, **options)
    assert [chunk["sglext"] for chunk in merged if "sglext" in chunk] == told
    assert len({chunk["id"] for chunk in merged}) == 1
    assert "role" in merged[0]["choices"][0]["delta"]


def test_what_comes_beside_the_usages_of_branches_is_told_with_the_usage_of_all():
    merged = merge([[*chat(), usage_chunk(1, sglext=1)], [*chat(), usage_chunk(2, sglext=None, vendor=None)]], total=2)
    assert (merged[-1]["usage"]["completion_tokens"], merged[-1]["sglext"], merged[-1]["vendor"]) == (3, 1, None)


def test_fields_of_choices_stay_as_they_are():
    choice = {
        "index": 0,
        "delta": {"content": "x", "reasoning_content": None, "vendor": {"index": 9}},
        "logprobs": {"content": [{"token": "x"}]},
        "finish_reason": "stop",
        "token_ids": [1],
    }
    merged = merge([chat(finish="stop"), [{"choices": [choice]}]], total=2)
    assert choices_of(merged, 1)[-1] == choice | {"index": 1}


def test_a_chunk_with_several_choices_stays_one():
    pair = [{"index": index, "delta": {"content": "x"}, "finish_reason": "stop"} for index in range(2)]
    merged = merge([[{"choices": pair}]], [Spread(1, offset=0)])
    assert [choice["index"] for choice in merged[-1]["choices"]] == [0, 1]


def test_a_greedy_answer_is_replicated():
    merged = merge([[*chat(ROLE, {"content": "a"}, {"content": "b"}), usage_chunk(2)]], [Spread(3, copies=3)], 3)
    assert [text_of(merged, index) for index in range(3)] == ["ab"] * 3
    assert [choice["finish_reason"] for choice in choices_of(merged)][-3:] == ["stop"] * 3
    assert {len(chunk["choices"]) for chunk in merged[:-1]} == {1}
    assert merged[-1]["usage"] == usage_chunk(2)["usage"]


def test_texts_have_no_introduction():
    branches = [
        [{"choices": [{"index": i, "text": f"{p}{i}", "finish_reason": "stop"}]} for i in range(2)] for p in "ab"
    ]
    merged = merge(branches, [Spread(1, 0), Spread(1, 2)], kind="text", order=[1, 0, 0, 1])
    assert choices_of(merged) == [
        {"index": index, "text": text, "finish_reason": "stop"}
        for index, text in ((2, "b0"), (0, "a0"), (1, "a1"), (3, "b1"))
    ]
    assert {chunk["object"] for chunk in merged} == {"text_completion"}


FUNCTION = {"name": "f", "arguments": ""}
TOOLS = [
    pytest.param(
        [
            [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": part}}]
            for part in ('{"x"', ":1}")
        ],
        [
            [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x"'}}],
            [{"index": 0, "function": {"arguments": ":1}"}}],
        ],
        id="id, type and name are told once",
    ),
    pytest.param(
        [
            [{"index": 0, "id": "a", "type": ""}],
            [{"index": 0, "id": None, "type": "function", "function": {"name": "f"}}],
            [{"index": 0, "id": "zz", "function": {"name": "", "arguments": "{}"}}],
        ],
        [
            [{"index": 0, "id": "a"}],
            [{"index": 0, "type": "function", "function": {"name": "f"}}],
            [{"index": 0, "function": {"arguments": "{}"}}],
        ],
        id="each at its first value",
    ),
    pytest.param(
        [
            [{"id": "a", "function": FUNCTION}, {"id": "b", "function": FUNCTION}],
            [{"id": "a", "function": {"arguments": "1"}}],
        ],
        [
            [{"index": 0, "id": "a", "function": FUNCTION}, {"index": 1, "id": "b", "function": FUNCTION}],
            [{"index": 0, "function": {"arguments": "1"}}],
        ],
        id="a missing index is found",
    ),
    pytest.param(
        [[{"index": 1, "function": {"name": "f", "arguments": {"x": 1}}, "vendor": 1}]],
        [[{"index": 1, "function": {"name": "f", "arguments": '{"x":1}'}, "vendor": 1}]],
        id="arguments become text",
    ),
    pytest.param(
        [[{"index": 0, "function": {"name": "f", "arguments": None}}]],
        [[{"index": 0, "function": {"name": "f"}}]],
        id="null arguments are none",
    ),
]


@pytest.mark.parametrize(("deltas", "expected"), TOOLS)
def test_tool_calls_tell_themselves_once(deltas, expected):
    branch = chat(*({"role": "", "tool_calls": delta} for delta in deltas), finish="tool_calls")
    before = copy.deepcopy(branch)
    merged = merge([chat(), branch], total=2)
    assert [choice["delta"] for choice in choices_of(merged, 1)[1:-1]] == [{"tool_calls": delta} for delta in expected]
    assert branch == before


def test_a_legacy_function_call_tells_its_name_once():
    branch = chat(
        {"function_call": {"name": "f", "arguments": "{"}}, {"function_call": {"name": "f", "arguments": "}"}}
    )
    deltas = [choice["delta"]["function_call"] for choice in choices_of(merge([branch], total=1))[1:-1]]
    assert deltas == [{"name": "f", "arguments": "{"}, {"arguments": "}"}]


FAULTS = [
    pytest.param([{"error": {"message": "boom", "code": 400}}], (400, 400, "http_protocol_error"), id="an error"),
    pytest.param(
        [{"object": "error", "message": "boom", "code": 503}], (503, 503, "http_protocol_error"), id="a flat one"
    ),
    pytest.param(chat(finish="abort"), (502, "answer_aborted", "http_response_incomplete"), id="an aborted choice"),
    pytest.param(chat(finish="error"), (502, "answer_aborted", "http_response_incomplete"), id="a broken choice"),
    pytest.param(
        chat({"content": "a"})[:1], (502, "answer_incomplete", "http_response_incomplete"), id="no finish_reason"
    ),
    pytest.param(chat(finish=""), (502, "answer_incomplete", "http_response_incomplete"), id="an empty finish_reason"),
    pytest.param([usage_chunk(1)], (502, "answer_incomplete", "http_response_incomplete"), id="no choice"),
    pytest.param(
        [{"choices": {"a": 1}}], (502, "invalid_answer", "http_protocol_error"), id="choices that are no list"
    ),
    pytest.param([{"choices": [1]}], (502, "invalid_answer", "http_protocol_error"), id="a choice that is no object"),
    pytest.param(
        chat({"tool_calls": [1]}), (502, "invalid_answer", "http_protocol_error"), id="a call that is no object"
    ),
    pytest.param(chat(index=10**9), (502, "invalid_answer", "http_protocol_error"), id="an absurd index"),
]


@pytest.mark.parametrize(("branch", "expected"), FAULTS)
def test_a_failure_is_never_an_answer(branch, expected):
    with pytest.raises(BackendFault) as caught:
        merge([branch])
    assert (caught.value.status, caught.value.code, caught.value.token) == expected


def test_an_exploded_answer_without_an_end_is_a_failure():
    answer = {"choices": [{"message": {"content": "a"}, "finish_reason": None}]}
    with pytest.raises(BackendFault, match="choice 1 has no finish_reason"):
        merge([chat(), explode(answer, include_usage=True)], total=2)


def test_a_choice_that_was_promised_and_never_came_is_a_failure():
    with pytest.raises(BackendFault, match="choice 1 never came"):
        merge([chat()], [Spread(1)], 2)


def solo(chunk, index):
    """Return a native chunk as the branch of its choice would have sent it."""
    return copy.deepcopy(chunk) | {
        "choices": [choice | {"index": 0} for choice in chunk["choices"] if choice["index"] == index]
    }


def split(chunks, count):
    """Return the branches that a native stream of several choices is worth."""
    branches = [[solo(chunk, index) for chunk in chunks if choices_of([chunk], index)] for index in range(count)]
    for chunk in chunks:
        if chunk.get("usage") and not chunk["choices"]:
            usage = dict(chunk["usage"])
            usage["completion_tokens"] //= count
            usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
            for branch in branches:
                branch.append(chunk | {"usage": usage})
    return branches


def known(choice):
    """Return a native choice without what repeats or says nothing."""
    choice = copy.deepcopy(choice)
    delta = choice.get("delta", {})
    if delta.get("role") is None:
        delta.pop("role", None)
    for call in delta.get("tool_calls") or ():
        if call["id"] is None:
            del call["id"], call["type"], call["function"]["name"]
    return choice


NATIVE = [
    pytest.param("sglang-n3", 3, "chat", id="chat"),
    pytest.param("sglang-n3-usage", 3, "chat", id="chat with usage"),
    pytest.param("sglang-n3-logprobs", 3, "chat", id="chat with logprobs"),
    pytest.param("sglang-tools-n2", 2, "chat", id="chat with tools"),
    pytest.param("sglang-completion-n3-usage", 3, "text", id="completions with usage"),
]


@pytest.mark.parametrize(("name", "count", "kind"), NATIVE)
def test_a_native_stream_taken_apart_and_merged_is_the_same(name, count, kind):
    native = chunks_of(name)
    merged = merge(split(native, count), total=count, kind=kind, order=[2 % count, 1, 0] * 400)
    for index in range(count):
        assert choices_of(merged, index) == [known(choice) for choice in choices_of(native, index)]
    assert {frozenset(chunk) for chunk in merged} == {frozenset(chunk) for chunk in native}
    assert [chunk["usage"] for chunk in merged if chunk.get("usage")] == [
        chunk["usage"] for chunk in native if chunk.get("usage")
    ]


def shape(choice):
    delta = choice.get("delta", {})
    calls = [(*sorted(call), *sorted(call["function"])) for call in delta.get("tool_calls") or ()]
    ended = choice["finish_reason"] is not None
    return (*sorted(choice), ended, *sorted(delta), *map(str, calls), bool(choice["logprobs"]))


FANNED_OUT = [
    pytest.param("sglang-n1", "sglang-n3", id="chat"),
    pytest.param("sglang-n1-usage", "sglang-n3-usage", id="chat with usage"),
    pytest.param("sglang-completion-n1", "sglang-completion-n3-usage", id="completions"),
]


@pytest.mark.parametrize(("alone", "native"), FANNED_OUT)
def test_three_streams_merged_look_like_the_native_one(alone, native):
    kind = "text" if "completion" in alone else "chat"
    merged, native = merge([chunks_of(alone)] * 3, total=3, kind=kind, order=[1, 2, 0] * 9), chunks_of(native)
    assert {shape(choice) for choice in choices_of(merged)} == {shape(choice) for choice in choices_of(native)}
    if "usage" in alone:
        assert merged[-1]["usage"] == native[-1]["usage"]


def test_recorded_tool_streams_give_the_sdk_each_its_calls():
    names = ["llama-cpp-function-call", "transformers-tools", "sglang-tools"]
    branches = [chunks_of(name) for name in names]
    read = read_with_openai(merge(branches, total=3, order=[0, 1, 2] * 20))
    for choice, branch in zip(read["choices"], branches, strict=True):
        expected = collect(branch)["choices"][0]
        assert calls_of(choice) == calls_of(expected) != []
        assert choice["finish_reason"] == expected["finish_reason"]
        assert choice["message"]["role"] == "assistant"


def test_recorded_streams_of_different_backends_give_the_sdk_each_its_text():
    names = ["sglang-n1-usage", "llamafactory-n1", "transformers-n1", "llama-cpp-n1"]
    branches = [chunks_of(name) for name in names]
    read = read_with_openai(merge(branches, total=4, order=[3, 2, 1, 0] * 20))
    for choice, branch in zip(read["choices"], branches, strict=True):
        wanted = collect(branch)["choices"][0]
        assert choice["message"]["content"] == wanted["message"]["content"]
        assert choice["finish_reason"] == wanted["finish_reason"]
    assert read["usage"]["completion_tokens"] == 4 + 10


WORDS = st.lists(st.text(max_size=3), max_size=4)
FRAGMENTS = st.lists(st.sampled_from(['{"a"', ":", "1", "}"]), min_size=1, max_size=4)
DELTAS = st.one_of(
    WORDS.map(lambda words: [{"content": word} for word in words]),
    WORDS.map(lambda words: [{"reasoning_content": word, "content": None} for word in words]),
    st.tuples(FRAGMENTS, FRAGMENTS).map(
        lambda calls: [
            {
                "tool_calls": [
                    {
                        "index": slot,
                        "id": f"call-{slot}",
                        "type": "function",
                        "function": {"name": "f", "arguments": fragment},
                    }
                ]
            }
            for slot, fragments in enumerate(calls)
            for fragment in fragments
        ]
    ),
)
BRANCHES = st.builds(
    lambda role, deltas, finish, usage: [
        chunk | {"id": "x", "created": 1, "model": "m"}
        for chunk in [*chat(*role, *chain.from_iterable(deltas), finish=finish, matched_stop=None), *usage]
    ],
    st.sampled_from([[], [ROLE], [{"role": "assistant"}], [{"role": "assistant", "content": "w"}]]),
    st.lists(DELTAS, max_size=2),
    st.sampled_from(["stop", "length", "tool_calls"]),
    st.integers(1, 9).map(lambda count: [usage_chunk(count)]) | st.just([]),
)


def without_blanks(answer):
    """Return an answer without its ids, and without the nulls and empty texts that introductions may differ in."""
    choices = [
        choice | {"message": {key: value for key, value in choice["message"].items() if value}}
        for choice in answer["choices"]
    ]
    return {"choices": choices, "usage": answer.get("usage")}


@given(st.lists(BRANCHES, min_size=1, max_size=3), st.data())
def test_any_interleaving_is_one_good_stream(branches, draw):
    count = len(branches)
    order = draw.draw(st.permutations([branch for branch in range(count) for _ in branches[branch]]))
    before = copy.deepcopy(branches)
    merged = merge(branches, total=count, order=order)
    assert branches == before
    first = choices_of(merged[:count])
    assert [choice["index"] for choice in first] == list(range(count))
    assert all(choice["delta"]["role"] == "assistant" for choice in first)
    assert not any("role" in choice["delta"] for choice in choices_of(merged[count:]))
    for index, branch in enumerate(branches):
        assert text_of(merged, index) == text_of(branch, None)
        assert sum(choice["finish_reason"] is not None for choice in choices_of(merged, index)) == 1
    expected = merge_answers([collect(branch) for branch in branches], fan(count), "once")
    assert without_blanks(collect(merged)) == without_blanks(expected)
    assert {choice["index"] for choice in read_with_openai(merged)["choices"]} == set(range(count))
    for choice, wanted in zip(read_with_openai(merged)["choices"], expected["choices"], strict=True):
        assert (choice["message"].get("content") or "") == (wanted["message"]["content"] or "")
        assert calls_of(choice) == calls_of(wanted)


NAMES = ["index", "delta", "text", "message", "finish_reason", "logprobs", "role", "content", "tool_calls"]
NAMES += ["function", "id", "name", "arguments", "usage"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(NAMES),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
GARBAGE = st.dictionaries(
    st.sampled_from(["choices", "usage", "id", "object", "error", "x"]), VALUES, max_size=3
) | st.builds(lambda choices: {"choices": choices}, st.lists(VALUES, max_size=2))


def outcome(act):
    try:
        return act()
    except BackendFault as fault:
        return fault


@given(st.lists(GARBAGE, max_size=3), st.sampled_from(["chat", "text"]), st.sampled_from([None, 1]))
def test_garbage_gives_chunks_or_a_named_fault(chunks, kind, total):
    found = [
        outcome(lambda: merge([chunks], total=total, kind=kind)),
        outcome(lambda: collect(chunks, kind)),
        outcome(lambda: [explode(chunk, include_usage=True) for chunk in chunks]),
        outcome(lambda: merge_answers(chunks, [Spread(1)] * len(chunks), "once")),
    ]
    for result in found:
        assert isinstance(result, BackendFault) or json.loads(encode_json(result)) == result
