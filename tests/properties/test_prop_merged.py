"""Branches of any number, form and spread, in any interleaving: merged and collected they are their answers, joined."""

import copy
from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.answers import Collector, explode
from proxy.chunks import encode_json
from proxy.merge import Merger
from proxy.spread import Spread, merge_answers

WORDS = st.text("ab é\n", max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
    max_leaves=4,
)
TOKENS = st.lists(st.fixed_dictionaries({"token": WORDS, "logprob": st.just(-0.5)}), max_size=2)
LOGPROBS = st.none() | st.fixed_dictionaries({"content": TOKENS}, optional={"refusal": st.none()})
# What a backend may add to a choice: lists grow, anything else replaces what came before.
EXTRAS = st.fixed_dictionaries(
    {},
    optional={
        "logprobs": LOGPROBS,
        "token_ids": st.lists(st.integers(0, 9), min_size=1, max_size=2),
        "matched_stop": st.none() | st.integers(0, 9),
        "meta_info": st.dictionaries(st.sampled_from("xyz"), JSON, min_size=1, max_size=2),
    },
)
TEXT_DELTAS = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["assistant", "", None]),
        "content": st.none() | WORDS,
        "reasoning_content": st.none() | WORDS,
        "refusal": st.none() | WORDS,
        "vendor_text": WORDS,
        "vendor_list": st.lists(JSON, min_size=1, max_size=2),
    },
)


@st.composite
def tool_deltas(draw):
    """Return the deltas of one or two calls, told by index; some backends repeat the id and name."""
    deltas = []
    for slot in range(draw(st.integers(1, 2))):
        told = {"id": f"call-{slot}", "type": "function", "function": {"name": f"f{slot}", "arguments": ""}}
        repeats = draw(st.booleans())
        for number, fragment in enumerate(draw(st.lists(st.sampled_from(['{"', "a", '":1}']), min_size=1, max_size=3))):
            call = copy.deepcopy(told) if repeats or not number else {"function": {}}
            call["function"]["arguments"] = fragment
            deltas.append({"tool_calls": [{"index": slot, **call}]})
    return deltas


@st.composite
def choices(draw, kind, index):
    """Return the parts of one choice, in order; the last but perhaps one ends it."""
    if kind == "text":
        bodies = [{"text": text} for text in draw(st.lists(WORDS, max_size=3))]
        last = {"text": draw(WORDS)}
    else:
        deltas = draw(st.lists(TEXT_DELTAS, max_size=3)) + draw(st.just([]) | tool_deltas())
        bodies, last = [{"delta": delta} for delta in deltas], {"delta": draw(st.just({}) | TEXT_DELTAS)}
    parts = [{"index": index, **body, **draw(EXTRAS), "finish_reason": draw(st.none())} for body in bodies]
    parts.append({"index": index, **last, **draw(EXTRAS), "finish_reason": draw(st.sampled_from(["stop", "length"]))})
    if draw(st.booleans()):
        parts.append({"index": index, **({"text": ""} if kind == "text" else {"delta": {}}), **draw(EXTRAS)})
    return parts


USAGE = st.builds(
    lambda prompt, completion: {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "completion_tokens_details": {"reasoning_tokens": completion},
    },
    st.integers(1, 9),
    st.integers(0, 9),
)


@st.composite
def streams(draw, kind, own):
    """Return the chunks of a branch of `own` choices, with usage in any of the ways that backends have."""
    parts = [draw(choices(kind, index)) for index in range(own)]
    turns = draw(st.permutations([index for index, part in enumerate(parts) for _ in part]))
    left = [list(part) for part in parts]
    chunks = [[left[index].pop(0)] for index in turns]
    head = {"id": draw(WORDS), "created": draw(st.integers(0, 9)), "model": draw(WORDS)}
    head["object"] = "text_completion" if kind == "text" else "chat.completion.chunk"
    # A further field says the same in all branches: which of two values counts is nobody's business here.
    rest = draw(st.fixed_dictionaries({}, optional={"service_tier": st.just("t"), "metadata": st.just({"k": [1]})}))
    way = draw(st.sampled_from(["none", "null", "continuous", "last", "final"]))
    usage = draw(USAGE)
    beside = {"null": {"usage": None}, "final": {"usage": None}, "continuous": {"usage": usage}}.get(way, {})
    made = [{**head, **rest, **beside, "choices": chunk} for chunk in chunks]
    if way == "last":
        made[-1]["usage"] = usage
    if way in ("final", "continuous"):
        made.append({**head, "choices": [], "usage": usage})
    return made


@st.composite
def plans(draw):
    """Return (kind, the spreads of a plan, how many choices each branch has, the total)."""
    kind = draw(st.sampled_from(["chat", "text"]))
    groups, n, own = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    is_copied = n > 1 and draw(st.booleans())
    spreads = []
    for group in range(groups):
        start = group * own * n
        copied = [Spread(n, start, n, group)]
        spreads += copied if is_copied else [Spread(n, start + offset, 1, group) for offset in range(n)]
    return kind, spreads, own, groups * own * n


def collect(chunks, kind):
    collector = Collector(kind)
    for chunk in chunks:
        collector.feed(chunk)
    return collector.result()


def merger(kind, spreads, total, usage="once"):
    return Merger(
        spreads=spreads,
        total=total if kind == "chat" else None,
        kind=kind,
        include_usage=True,
        usage=usage,
        fallback_id="made",
        created=5,
        model="m",
    )


def weave(merging, branches, order, before_end=lambda _branch: None):
    """Return the chunks of the branches, fed in the order given, each ended at its last."""
    left, merged = {branch: list(chunks) for branch, chunks in branches.items()}, []
    for branch in order:
        merged += merging.feed(branch, left[branch].pop(0))
        if not left[branch]:
            before_end(branch)
            merged += merging.end(branch)
    return merged


def plain(choice):
    """Return a choice without what says nothing: introductions and finish chunks may differ in that."""
    return {key: said(value) for key, value in choice.items() if not says_nothing(value)}


def said(value):
    return {key: item for key, item in value.items() if not says_nothing(item)} if isinstance(value, dict) else value


def says_nothing(value):
    return value is None or value in ("", [], {}, {"content": []}, {"content": [], "refusal": None})


def further(answer):
    return {key: value for key, value in answer.items() if key not in ("id", "object", "created", "model", "choices")}


def assert_same(found, expected):
    assert [plain(choice) for choice in found["choices"]] == [plain(choice) for choice in expected["choices"]]
    assert further(found).get("usage") == further(expected).get("usage")
    for key in ("service_tier", "metadata"):
        assert found.get(key) == expected.get(key)


@settings(max_examples=60)
@given(plans(), st.sampled_from(["once", "sum"]), st.data())
def test_any_branches_in_any_interleaving_are_their_answers_joined(plan, usage, data):
    kind, spreads, own, total = plan
    branches = {branch: data.draw(streams(kind, own)) for branch in range(len(spreads))}
    answers = [collect(branches[branch], kind) for branch in branches]
    for branch in branches:
        if data.draw(st.booleans()):  # a backend that answered with JSON
            branches[branch] = explode(answers[branch], include_usage=True)
    before = copy.deepcopy(branches)
    order = data.draw(st.permutations([branch for branch, chunks in branches.items() for _ in chunks]))
    merged = weave(merger(kind, spreads, total, usage), branches, order)
    assert branches == before
    assert_same(collect(merged, kind), merge_answers(answers, spreads, usage))
    assert_well_formed(merged, kind, total)


def assert_well_formed(merged, kind, total):
    """One identity, each role once and first, one finish a choice, usage once and last."""
    identity = {(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in merged}
    assert len(identity) == 1
    shown = [choice for chunk in merged for choice in chunk["choices"]]
    ends = [choice["index"] for choice in shown if choice["finish_reason"]]
    assert sorted(ends) == list(range(total))
    if kind == "chat":
        assert [choice["index"] for choice in shown if "role" in choice["delta"]] == list(range(total))
        assert [choice["index"] for choice in shown[:total]] == list(range(total))
    assert all(chunk.get("usage") is None for chunk in merged[:-1])
    assert all(encode_json(chunk) for chunk in merged)


@settings(max_examples=40)
@given(st.sampled_from(["chat", "text"]), st.integers(1, 3), st.integers(1, 2), st.data())
def test_what_a_branch_did_not_give_is_topped_up(kind, have, missing, data):
    n = have + missing
    branches = {0: data.draw(streams(kind, have))}
    more = {branch: data.draw(streams(kind, 1)) for branch in range(1, missing + 1)}
    spreads = [Spread(1), *(Spread(n, offset) for offset in range(have, n))]
    answers = [collect(chunks, kind) for chunks in (branches | more).values()]
    merging = merger(kind, spreads[:1], None)
    order = [0] * len(branches[0]) + data.draw(st.permutations([b for b, chunks in more.items() for _ in chunks]))
    merged = weave(merging, branches | more, order, lambda branch: merging.add(spreads[1:]) if not branch else None)
    assert merging.count(0) == have
    assert_same(collect(merged, kind), merge_answers(answers, spreads, "once"))
    assert len({choice["index"] for choice in chain(*(chunk["choices"] for chunk in merged))}) == n


FREE = st.dictionaries(st.sampled_from(["vendor", "x", "audio", "annotations"]), JSON, max_size=2)
CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.sampled_from(["c1", "c2", "c3"]),
            "type": st.just("function"),
            "function": st.fixed_dictionaries(
                {"name": st.just("f"), "arguments": WORDS}, optional={"strict": st.booleans()}
            ),
        },
        optional={"vendor": JSON},
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda call: call["id"],
)
MESSAGES = st.builds(
    lambda free, told: free | told,
    FREE,
    st.fixed_dictionaries(
        {"role": st.sampled_from(["assistant", "model"]), "content": st.none() | WORDS},
        optional={
            "reasoning_content": st.none() | WORDS,
            "refusal": st.none() | WORDS,
            "tool_calls": CALLS | st.none() | st.just([]),
            "function_call": st.fixed_dictionaries({"name": st.just("f"), "arguments": WORDS}),
        },
    ),
)


@st.composite
def whole_answers(draw):
    """Return an answer as a backend may give it, further fields anywhere."""
    kind = draw(st.sampled_from(["chat", "text"]))
    told = []
    for index in range(draw(st.integers(1, 3))):
        body = {"text": draw(WORDS)} if kind == "text" else {"message": draw(MESSAGES)}
        some = draw(st.fixed_dictionaries({}, optional={"logprobs": LOGPROBS, "matched_stop": JSON}))
        told.append(
            {"index": index, **body, **draw(FREE), **some, "finish_reason": draw(st.sampled_from(["stop", "x"]))}
        )
    head = {"id": draw(WORDS), "object": "text_completion" if kind == "text" else "chat.completion"}
    head |= draw(
        st.fixed_dictionaries({}, optional={"created": st.integers(), "system_fingerprint": st.none() | WORDS})
    )
    usage = draw(st.fixed_dictionaries({}, optional={"usage": st.none() | USAGE}))
    return {**head, "model": draw(WORDS), "choices": told, **usage, **draw(FREE)}


@given(whole_answers())
def test_an_exploded_answer_is_collected_to_itself(answer):
    before = copy.deepcopy(answer)
    chunks = explode(answer, include_usage=True)
    assert answer == before
    assert collect(chunks, None) == answer
    found = collect(explode(answer, include_usage=False), None)
    assert found.pop("usage", None) is None
    assert found == {key: value for key, value in answer.items() if key != "usage"}
