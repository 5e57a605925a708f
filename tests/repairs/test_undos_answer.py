"""The answer halves of response, recode_embeddings and enforce_stop: what a client gets of an answer and its chunks."""

import base64
import copy
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.answers import Collector
from proxy.body import Body
from proxy.repairs import enforce_stop, recode_embeddings, response
from proxy.repairs.card import Draft, Fan, Split
from proxy.repairs.stop_strings import Needle, StopSearch

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def undo_of(card, options, request=None, path=CHAT, **given):
    """Return the answer half, at work on one branch of a request."""
    act = card.build(card.options.model_validate(options))
    change = act(Draft(Body.of({"model": "m"} | (request or {})), path=path, **given))
    assert change is not None, "the repair found nothing to do"
    (make,) = change.draft.undos
    return make()


def untouched(edit, value):
    """Return what `edit` makes of a value, which it must not change."""
    before = copy.deepcopy(value)
    after = edit(value)
    assert value == before, "what the undo was handed was changed"
    return after


# response


def choice(finish_reason=None, **delta):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def whole(finish_reason="stop", **message):
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]}


def call(index, **more):
    return {"index": index, "id": f"c{index}", "function": {"name": "f", "arguments": "{}"}} | more


RENAMED = [{"move": {"choices[*].message.reasoning": "choices[*].message.reasoning_content"}}]
FIRST_CALL = {
    "answer": [{"clamp": {"choices[*].message.tool_calls": {"max_length": 1}}}],
    "chunk": [{"keep": {"choices[*].delta.tool_calls": {"where": {"index": 0}}}}],
}
LEGACY = {
    "answer": [
        {"move": {"choices[*].message.tool_calls[0].function": "choices[*].message.function_call"}},
        {"drop": ["choices[*].message.tool_calls"]},
        {"map": {"choices[*].finish_reason": {"tool_calls": "function_call"}}},
    ],
    "chunk": [
        {"keep": {"choices[*].delta.tool_calls": {"where": {"index": 0}}}},
        {"move": {"choices[*].delta.tool_calls[0].function": "choices[*].delta.function_call"}},
        {"drop": ["choices[*].delta.tool_calls"]},
        {"map": {"choices[*].finish_reason": {"tool_calls": "function_call"}}},
    ],
}
WORDS = [{"map": {"choices[*].finish_reason": {"parse_error": "stop", "abort": "length"}}}]
PARTS = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}, {"type": "text", "text": "m"}]},
    {"type": "text", "text": "a"},
    "b",
]
ECHO = {"prompt": ["one ", "two "], "n": 2, "echo": True}

ANSWERS = [
    ("reasoning by its other name", RENAMED, {}, whole(reasoning="a"), whole(reasoning_content="a")),
    ("no reasoning at all", RENAMED, {}, whole(content="a"), whole(content="a")),
    (
        "an answer of no choices",
        [{"set": {"model": "m"}}],
        {},
        {"object": "list", "model": "/disk/m"},
        {"object": "list", "model": "m"},
    ),
    ("the first call only", FIRST_CALL, {}, whole(tool_calls=[call(0), call(1)]), whole(tool_calls=[call(0)])),
    (
        "a call as OpenAI used to have it",
        LEGACY,
        {},
        whole("tool_calls", tool_calls=[call(0), call(1)]),
        whole("function_call", function_call=call(0)["function"]),
    ),
    ("a finish_reason of its own", WORDS, {}, whole("parse_error", content="a"), whole("stop", content="a")),
    (
        "a call that says stop",
        [{"finish_with_calls": "tool_calls"}],
        {},
        whole("stop", tool_calls=[call(0)]),
        whole("tool_calls", tool_calls=[call(0)]),
    ),
    (
        "a call that says length",
        [{"finish_with_calls": "tool_calls"}],
        {},
        whole("length", tool_calls=[call(0)]),
        whole("length", tool_calls=[call(0)]),
    ),
    (
        "no call, and null in its place",
        [{"finish_with_calls": "tool_calls"}],
        {},
        whole("stop", content="a", tool_calls=None),
        whole("stop", content="a", tool_calls=None),
    ),
    (
        "parts that think and speak",
        [{"join_parts": {}}],
        {},
        whole(content=PARTS),
        whole(content="ab", reasoning_content="hmm"),
    ),
    (
        "parts beside reasoning, by another name",
        [{"join_parts": {"reasoning": "reasoning"}}],
        {},
        whole(content=PARTS, reasoning="o "),
        whole(content="ab", reasoning="o hmm"),
    ),
    (
        "parts that can't be text",
        [{"join_parts": {}}],
        {},
        whole(content=[{"type": "image_url"}]),
        whole(content=[{"type": "image_url"}]),
    ),
    ("content that is text", [{"join_parts": {}}], {}, whole(content="a"), whole(content="a")),
    (
        "a JSON answer is never skipped",
        [{"skip_chunks": {"choices": {"empty": True}}}],
        {},
        {"choices": []},
        {"choices": []},
    ),
    (
        "prompts are echoed, each in its choices",
        [{"echo_prompt": True}],
        ECHO,
        {"choices": [{"index": i, "text": str(i)} for i in (3, 0, 1, 2)]},
        {"choices": [{"index": i, "text": f"{'one' if i < 2 else 'two'} {i}"} for i in (3, 0, 1, 2)]},
    ),
    ("more choices than prompts", [{"echo_prompt": True}], ECHO, {"choices": [{"index": 4, "text": "a"}]}, None),
    ("choices that are none", [*RENAMED, {"finish_with_calls": "tool_calls"}], {}, {"choices": [5, None]}, None),
    ("no list of choices", [*RENAMED, {"join_parts": {}}], {}, {"choices": {"a": 1}}, None),
    (
        "both come before those of the shape",
        {"answer": [{"move": {"b": "c"}}], "both": [{"move": {"a": "b"}}]},
        {},
        {"a": 1},
        {"c": 1},
    ),
    ("what is for chunks only", {"chunk": [{"drop": ["a"]}]}, {}, {"a": 1}, None),
]


@pytest.mark.parametrize(
    ("options", "request_", "before", "after"), [case[1:] for case in ANSWERS], ids=[c[0] for c in ANSWERS]
)
def test_a_json_answer_is_repaired(options, request_, before, after):
    assert untouched(undo_of(response.CARD, options, request_).answer, before) == (before if after is None else after)


STREAMS = [
    (
        "delta stands for message, in its place",
        RENAMED,
        {},
        [choice(role="assistant", reasoning="a"), choice("stop")],
        [choice(role="assistant", reasoning_content="a"), choice("stop")],
    ),
    (
        "the first call only, wherever it stands",
        FIRST_CALL,
        {},
        [choice(tool_calls=[call(1), call(0)]), choice(tool_calls=[call(1)])],
        [choice(tool_calls=[call(0)]), choice(tool_calls=[])],
    ),
    (
        "calls as OpenAI used to have them",
        LEGACY,
        {},
        [choice(tool_calls=[call(0)]), choice(tool_calls=[call(1)]), choice("tool_calls")],
        [choice(function_call=call(0)["function"]), choice(), choice("function_call")],
    ),
    (
        "the calls came before the finish",
        [{"finish_with_calls": "tool_calls"}],
        {},
        [choice(tool_calls=[call(0)]), choice(), choice("stop")],
        [choice(tool_calls=[call(0)]), choice(), choice("tool_calls")],
    ),
    (
        "the calls came in another choice",
        [{"finish_with_calls": "tool_calls"}],
        {},
        [choice(tool_calls=[call(0)]), {"choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]}],
        None,
    ),
    (
        "a finish_reason of its own",
        WORDS,
        {},
        [choice(content="a"), choice("abort")],
        [choice(content="a"), choice("length")],
    ),
    (
        "parts that think, then parts that speak",
        [{"join_parts": {}}],
        {},
        [choice(content=PARTS[:1]), choice(content=PARTS[1:])],
        [choice(content="", reasoning_content="hmm"), choice(content="ab")],
    ),
    (
        "chunks that hold no choice, but usage",
        [{"skip_chunks": {"choices": {"empty": True}, "usage": {"exists": False}}}],
        {},
        [{"choices": [], "prompt_filter_results": []}, choice(content="a"), {"choices": [], "usage": {}}],
        [{}, choice(content="a"), {"choices": [], "usage": {}}],
    ),
    (
        "a prompt is echoed once",
        [{"echo_prompt": True}],
        ECHO | {"n": 1},
        [{"choices": [{"index": i, "text": "x"}]} for i in (1, 0, 1)],
        [{"choices": [{"index": i, "text": text}]} for i, text in ((1, "two x"), (0, "one x"), (1, "x"))],
    ),
    (
        "events of another path are edited as they stand",
        {"chunk": [{"set": {"response.model": "m"}}, {"drop": ["sequence_number"]}]},
        {},
        [{"type": "response.created", "response": {"model": "/disk"}, "sequence_number": 1}],
        [{"type": "response.created", "response": {"model": "m"}}],
    ),
    ("what is for JSON answers only", {"answer": [{"drop": ["choices"]}]}, {}, [choice(content="a")], None),
    ("a chunk that has a message already", RENAMED, {}, [{"choices": [{"delta": {}, "message": {}}]}], None),
    (
        "chunks that are odd",
        RENAMED,
        {},
        [{}, {"choices": None}, {"choices": [None]}, {"choices": [{"delta": None}]}],
        None,
    ),
]


@pytest.mark.parametrize(
    ("options", "request_", "before", "after"), [case[1:] for case in STREAMS], ids=[c[0] for c in STREAMS]
)
def test_a_stream_is_repaired(options, request_, before, after):
    undo = undo_of(response.CARD, options, request_)
    assert [untouched(undo.chunk, chunk) for chunk in before] == (before if after is None else after)
    assert not undo.is_done


def test_a_renamed_field_keeps_the_order_of_the_chunks_fields():
    undo = undo_of(response.CARD, [{"map": {"choices[*].finish_reason": {"eos": "stop"}}}])
    chunk = {"id": "a", "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "eos"}], "model": "m"}
    assert json.dumps(undo.chunk(chunk)) == json.dumps(chunk).replace("eos", "stop")


def test_branches_of_one_request_do_not_know_of_each_other():
    act = response.build(response.CARD.options.model_validate([{"finish_with_calls": "tool_calls"}]))
    (make,) = act(Draft(Body.of({}))).draft.undos
    one, two = make(), make()
    one.chunk(choice(tool_calls=[call(0)]))
    assert two.chunk(choice("stop")) == choice("stop")
    assert one.chunk(choice("stop")) == choice("tool_calls")


# recode_embeddings


def floats(*numbers):
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def data(*embeddings):
    elements = [{"object": "embedding", "index": i, "embedding": e} for i, e in enumerate(embeddings)]
    return {"object": "list", "data": elements, "model": "m", "usage": {"prompt_tokens": 1, "total_tokens": 1}}


AS_BASE64, AS_FLOATS = {"encoding_format": "base64"}, {"encoding_format": "float"}
CUT = {"dimensions": "cut"}

VECTORS = [
    ("floats for a client of base64", {}, AS_BASE64, [[1.0, -0.5], [0, 2]], [floats(1, -0.5), floats(0, 2)]),
    ("base64 that a backend sends of itself", {}, AS_BASE64, [floats(1, 2)], None),
    ("base64 for a client of floats", {"ask": "base64"}, AS_FLOATS, [floats(1, -0.5)], [[1.0, -0.5]]),
    ("base64 for a client that says nothing", {"ask": "base64"}, {}, [floats(0.25)], [[0.25]]),
    ("floats that a backend sends of itself", {"ask": "base64"}, {}, [[0.1, 1]], None),
    ("floats unasked", {"ask": "nothing"}, AS_BASE64, [[0.5]], [floats(0.5)]),
    ("no vector of numbers", {}, AS_BASE64, [[[1.0]], [None], ["a"], None, 5, {"a": 1}], None),
    ("numbers beyond 32 bits", {}, AS_BASE64, [[1e300], [10**400]], None),
    ("an empty vector", {}, AS_BASE64, [[]], [""]),
    ("text that is no base64", {"ask": "base64"}, {}, ["a", "AAA*AAA==", "AAA=", "é"], None),
    ("a vector that is cut", CUT, {"dimensions": 2}, [[3.0, 4.0, 0.0, 12.0]], [[3 * 13 / 5, 4 * 13 / 5]]),
    ("a unit vector that is cut", CUT, {"dimensions": 1}, [[0.6, 0.8]], [[1.0]]),
    ("a vector that is short enough", CUT, {"dimensions": 2}, [[3.0, 4.0]], None),
    ("a vector that begins with nothing", CUT, {"dimensions": 1}, [[0.0, 1.0]], [[0.0]]),
    ("a vector that is none", CUT, {"dimensions": 1}, [[None, 1.0], "AAA="], None),
    ("a cut vector as base64", CUT, {"dimensions": 1} | AS_BASE64, [[0.6, 0.8], floats(0, 1)], [floats(1), floats(0)]),
    ("a vector too long to be measured", CUT, {"dimensions": 1}, [[10**400, 1]], [[10**400]]),
]


@pytest.mark.parametrize(
    ("options", "asked", "before", "after"), [case[1:] for case in VECTORS], ids=[c[0] for c in VECTORS]
)
def test_a_vector_comes_as_the_client_asked(options, asked, before, after):
    undo = undo_of(recode_embeddings.CARD, options, asked, "/v1/embeddings")
    got = untouched(undo.answer, data(*before))
    want = data(*before) if after is None else data(*after)
    assert got == {
        **want,
        "data": [e | {"embedding": pytest.approx(e["embedding"])} if after else e for e in want["data"]],
    }
    assert json.dumps(got).count("index") == len(before)
    assert not undo.is_done


@pytest.mark.parametrize("answer", [{}, {"data": None}, {"data": [5, {}, {"index": 0}]}, {"data": {"embedding": [1]}}])
def test_an_answer_without_vectors_stays(answer):
    undo = undo_of(recode_embeddings.CARD, {}, AS_BASE64)
    assert untouched(undo.answer, answer) == answer
    assert untouched(undo.chunk, answer) == answer


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_base64_there_and_back_is_the_same_vector(numbers):
    assert recode_embeddings.decode(recode_embeddings.encode(numbers)) == numbers


# enforce_stop


def pieces(*texts, finish_reason="length", key="content", index=0):
    """Return the chunks of a chat stream: a role, the texts one by one, the finish."""
    chunks = [choice(role="assistant", content="")] + [choice(**{key: text}) for text in texts]
    chunks.append(choice(finish_reason))
    for chunk in chunks:
        chunk["choices"][0]["index"] = index
    return chunks


def streamed(undo, chunks):
    """Return the chunks that a client gets, up to where the branch would be closed."""
    got = []
    for chunk in chunks:
        got.append(untouched(undo.chunk, chunk))
        if undo.is_done:
            break
    return got


def told(chunks, index=0, key="content"):
    """Return a choice's text and its finish_reasons."""
    own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    text = "".join(c.get("delta", c).get(key) or "" for c in own)
    return text, [c["finish_reason"] for c in own if c["finish_reason"]]


CUTS = [
    ("a stop string in one piece", ["END"], ["a END b", "c"], "a ", True),
    ("a stop string over pieces", ["END"], ["a E", "N", "D", "c"], "a ", True),
    ("a beginning that comes to nothing", ["END"], ["a EN", "x", "E"], "a ENxE", False),
    ("a beginning within a beginning", ["aab"], ["a", "a", "a", "b"], "a", True),
    ("the first of two", ["Y", "X"], ["1X2Y"], "1", True),
    ("the one that begins first, though another ends first", ["bcde", "cd"], ["abcd", "ex"], "a", True),
    ("the other, where the one that began first comes to nothing", ["bcde", "cd"], ["abcd", "x"], "ab", True),
    ("the other, where the text ends", ["bcde", "cd"], ["abcd"], "ab", True),
    ("at the very beginning", ["\n"], ["\nabc"], "", True),
    ("none at all", ["x"], ["abc", "def"], "abcdef", False),
    ("a character of two code units", ["🦉"], ["a", "🦉b"], "a", True),
    ("no text at all", ["x"], [], "", False),
]


@pytest.mark.parametrize(("stop", "texts", "want", "is_cut"), [case[1:] for case in CUTS], ids=[c[0] for c in CUTS])
def test_a_stream_ends_at_the_first_stop_string(stop, texts, want, is_cut):
    got = streamed(undo_of(enforce_stop.CARD, {}, {"stop": stop}), pieces(*texts))
    assert told(got) == (want, ["stop" if is_cut else "length"])


@pytest.mark.parametrize(("stop", "texts", "want", "is_cut"), [case[1:] for case in CUTS], ids=[c[0] for c in CUTS])
def test_a_json_answer_ends_at_the_first_stop_string(stop, texts, want, is_cut):
    undo = undo_of(enforce_stop.CARD, {}, {"stop": stop})
    answer = whole("length", content="".join(texts)) | {"usage": {"completion_tokens": 9}}
    wanted = whole("stop" if is_cut else "length", content=want) | {"usage": {"completion_tokens": 9}}
    assert untouched(undo.answer, answer) == wanted
    assert not undo.is_done


TEXTS = st.text("ab", max_size=12) | st.text("aébX", max_size=12)
STOPS = st.lists(st.text("abX", min_size=1, max_size=4), min_size=1, max_size=4)


@given(text=TEXTS, stops=STOPS, data=st.data())
def test_any_cut_of_any_text_gives_what_stands_before_the_first_stop_string(text, stops, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5), label="cuts"))
    texts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    first = min((text.find(stop) for stop in stops if stop in text), default=None)
    undo = undo_of(enforce_stop.CARD, {}, {"stop": stops})
    got = streamed(undo, pieces(*texts))
    assert told(got) == (text[:first], ["length" if first is None else "stop"])
    answer = undo_of(enforce_stop.CARD, {}, {"stop": stops}).answer(whole("length", content=text))
    assert answer["choices"][0]["message"]["content"] == text[:first]


@given(text=TEXTS, stops=STOPS)
def test_no_more_is_held_back_than_may_become_a_stop_string(text, stops):
    search = StopSearch([Needle.of(stop) for stop in stops])
    released = ""
    for end, character in enumerate(text, 1):
        released += search.feed(character)
        if search.is_stopped:
            return
        held = text[len(released) : end]
        assert text[:end] == released + held
        assert not held or any(stop in held or stop.startswith(held) for stop in stops)
    assert released + search.flush() == text or search.is_stopped


def test_a_stop_string_made_to_be_slow_is_not():
    search = StopSearch([Needle.of("a" * 20_000 + "b")])
    sent = sum(len(search.feed("a" * 10)) for _ in range(20_000))
    assert sent == 200_000 - 20_000


def test_what_comes_after_the_cut_is_silent_but_for_fields_of_its_own():
    undo = undo_of(enforce_stop.CARD, {"close": False}, {"stop": "X"})
    assert undo.chunk(choice(content="aX")) == choice("stop", content="a")
    late = choice("length", content="b", tool_calls=[call(0)])
    late["choices"][0] |= {"logprobs": {"content": []}, "matched_stop": None}
    silent = choice()
    silent["choices"][0] |= {"logprobs": None, "matched_stop": None}
    assert undo.chunk(late) == silent
    assert undo.chunk({"choices": [], "usage": {"total_tokens": 1}}) == {"choices": [], "usage": {"total_tokens": 1}}
    assert not undo.is_done


def test_tool_calls_after_a_stop_string_are_left_out():
    undo = undo_of(enforce_stop.CARD, {}, {"stop": "X"})
    answer = whole("tool_calls", content="aXb", tool_calls=[call(0)])
    assert undo.answer(answer) == whole("stop", content="a")
    null = whole("stop", content="aXb", tool_calls=None)
    assert undo.answer(null) == whole("stop", content="a", tool_calls=None)


def test_tool_calls_and_reasoning_are_not_searched():
    undo = undo_of(enforce_stop.CARD, {}, {"stop": "X"})
    answer = whole("tool_calls", content=None, reasoning_content="aXb", tool_calls=[call(0, id="X")])
    assert undo.answer(answer) == answer
    chunk = choice(reasoning_content="aXb", tool_calls=[call(0, id="X")])
    assert undo.chunk(chunk) == chunk


def test_reasoning_is_searched_where_that_is_asked_for():
    asked = {"reasoning": True}, {"stop": "XY"}
    assert undo_of(enforce_stop.CARD, *asked).answer(whole(reasoning="aXYb", content="c")) == whole(
        reasoning="a", content=""
    )
    undo = undo_of(enforce_stop.CARD, *asked)
    chunks = [choice(reasoning_content="aX"), choice(content="Yb"), choice(content="XY"), choice(reasoning_content="c")]
    got = streamed(undo, chunks)
    assert told(got, key="reasoning_content") == ("aX", ["stop"])
    assert told(got)[0] == "Yb"
    assert got[1]["choices"][0]["delta"] == {"content": "Yb", "reasoning_content": "X"}


def test_a_completion_is_cut_with_its_finish():
    undo = undo_of(enforce_stop.CARD, {}, {"stop": "X", "prompt": "p"}, TEXT)
    chunk = {"choices": [{"index": 0, "text": "aXb", "logprobs": None, "finish_reason": "length"}], "usage": None}
    want = {"choices": [{"index": 0, "text": "a", "logprobs": None, "finish_reason": "stop"}], "usage": None}
    assert untouched(undo.chunk, chunk) == want
    assert untouched(undo.answer, chunk) == want
    assert not undo.is_done, "the backend ended of itself, and its usage is still to come"


def test_what_is_held_back_goes_out_with_the_finish():
    undo = undo_of(enforce_stop.CARD, {}, {"stop": "XY"})
    got = streamed(undo, pieces("aX", finish_reason="stop"))
    assert got[1:] == [choice(content="a"), choice("stop", content="X")]
    assert not undo.is_done


@pytest.mark.parametrize("texts", [["a X b", "c X"], ["a ", "X", " b", "c ", "X"]])
def test_an_echoed_prompt_is_not_searched(texts):
    undo = undo_of(enforce_stop.CARD, {}, {"stop": "X", "prompt": ["q", "a X b"], "echo": True}, TEXT)
    chunks = [{"choices": [{"index": 1, "text": text, "finish_reason": None}]} for text in texts]
    assert told(streamed(undo, chunks), 1, "text") == ("a X bc ", ["stop"])


DONE = [
    ("one choice", {}, {}, CHAT, [0], True),
    ("two choices, of which one is cut", {"n": 2}, {}, CHAT, [0], False),
    ("two choices that are cut", {"n": 2}, {}, CHAT, [1, 0], True),
    ("a fan-out's branch", {}, {"fan": Fan(2)}, CHAT, [0], True),
    ("two prompts of two choices, three cut", {"prompt": ["a", "b"], "n": 2}, {}, TEXT, [0, 1, 2], False),
    ("two prompts of two choices", {"prompt": ["a", "b"], "n": 2}, {}, TEXT, [0, 1, 2, 3], True),
    ("token ids are one prompt", {"prompt": [1, 2]}, {}, TEXT, [0], True),
    ("a group of prompts", {"prompt": ["a", "b", "c"]}, {"split": Split("prompt", 2)}, TEXT, [0, 1], True),
    ("a number that the backend may read otherwise", {"n": "2"}, {}, CHAT, [0, 1], False),
    ("no number of choices", {"n": None}, {}, CHAT, [0], True),
]


@pytest.mark.parametrize(
    ("request_", "given_", "path", "cut", "is_done"), [case[1:] for case in DONE], ids=[c[0] for c in DONE]
)
def test_a_stream_is_over_when_every_choice_is(request_, given_, path, cut, is_done):
    undo = undo_of(enforce_stop.CARD, {}, {"stop": "X"} | request_, path, **given_)
    for index in cut:
        assert not undo.is_done
        undo.chunk({"choices": [{"index": index, "delta": {"content": "X"}, "text": "X", "finish_reason": None}]})
    assert undo.is_done == is_done


def test_a_stream_whose_choices_end_by_themselves_is_waited_for():
    undo = undo_of(enforce_stop.CARD, {}, {"stop": "X", "n": 2})
    for index in (0, 1):
        for chunk in pieces("a", index=index):
            undo.chunk(chunk)
    assert not undo.is_done


def test_a_stream_is_over_when_the_last_choice_ends_of_itself():
    undo = undo_of(enforce_stop.CARD, {}, {"stop": "X", "n": 2})
    undo.chunk(choice(content="X"))
    *_, finish = pieces("a", index=1)
    assert not undo.is_done
    undo.chunk(finish)
    assert undo.is_done


@pytest.mark.parametrize(
    "odd", [{}, {"choices": None}, {"choices": [5, None]}, {"choices": [{"delta": 5}, {"text": 5}]}]
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_odd_answers_pass(odd, path):
    undo = undo_of(enforce_stop.CARD, {}, {"stop": "X"}, path)
    assert untouched(undo.chunk, odd) == odd
    assert untouched(undo.answer, odd) == odd


# The log probabilities go with the text.


def chat_logprobs(*tokens):
    return {"content": [{"token": token, "logprob": -1.0} for token in tokens], "refusal": None}


def text_logprobs(*tokens):
    sides = {"tokens": list(tokens), "token_logprobs": [-1.0] * len(tokens), "top_logprobs": [{}] * len(tokens)}
    return sides | {"text_offset": list(range(len(tokens)))}


LOGPROBS = [
    ("tokens that spell the text", "abXYcd", ["a", "bX", "Y", "cd"], ["a", "bX"]),
    ("a cut between two tokens", "abXYcd", ["ab", "XY", "cd"], ["ab"]),
    ("a text that begins with the stop string", "XYc", ["XY", "c"], []),
    ("tokens that go on after the text", "aXY", ["a", "XY", "<end>"], ["a"]),
    ("tokens that spell something else", "aXY", ["a", "?", "XY"], ["a", "?", "XY"]),
    ("no stop string", "abc", ["ab", "c"], ["ab", "c"]),
]


@pytest.mark.parametrize("logprobs", [chat_logprobs, text_logprobs])
@pytest.mark.parametrize(("text", "tokens", "kept"), [case[1:] for case in LOGPROBS], ids=[c[0] for c in LOGPROBS])
def test_log_probabilities_of_a_json_answer_are_cut_with_it(text, tokens, kept, logprobs):
    is_chat = logprobs is chat_logprobs
    undo = undo_of(enforce_stop.CARD, {}, {"stop": "XY"}, CHAT if is_chat else TEXT)
    body = {"message": {"content": text}} if is_chat else {"text": text}
    answer = {"choices": [{"index": 0, **body, "logprobs": logprobs(*tokens), "finish_reason": "length"}]}
    assert untouched(undo.answer, answer)["choices"][0]["logprobs"] == logprobs(*kept)


@pytest.mark.parametrize("odd", [None, 5, {}, {"content": [5]}, {"content": [{"token": None}]}, {"tokens": 5}])
def test_log_probabilities_that_are_none_stay(odd):
    undo = undo_of(enforce_stop.CARD, {}, {"stop": "X"})
    answer = whole(content="aXb")
    answer["choices"][0]["logprobs"] = odd
    assert undo.answer(answer)["choices"][0]["logprobs"] == odd
    chunk = choice(content="aXb")
    chunk["choices"][0]["logprobs"] = odd
    assert undo.chunk(chunk)["choices"][0]["logprobs"] == odd


@given(tokens=st.lists(st.text("abX", min_size=1, max_size=3), max_size=8), data=st.data())
def test_log_probabilities_of_a_stream_are_those_of_the_tokens_it_shows(tokens, data):
    text = "".join(tokens)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=3), label="cuts"))
    groups = [tokens[a:b] for a, b in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]
    chunks = pieces(*("".join(group) for group in groups))
    for chunk, group in zip(chunks[1:-1], groups, strict=True):
        chunk["choices"][0]["logprobs"] = chat_logprobs(*group)
    collector = Collector()
    for chunk in streamed(undo_of(enforce_stop.CARD, {}, {"stop": "abX"}), chunks):
        collector.feed(chunk)
    (got,) = collector.result()["choices"]
    kept = len(text.partition("abX")[0])
    shown = [token for index, token in enumerate(tokens) if len("".join(tokens[:index])) < kept]
    assert got["message"]["content"] == text[:kept]
    assert [entry["token"] for entry in (got.get("logprobs") or chat_logprobs())["content"]] == shown


# Whatever a backend says, an answer half neither raises nor changes what it was handed.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(allow_nan=False) | st.sampled_from(["", "a", "aX", "X"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "type", "text"]), inner, max_size=2)
    ),
    max_leaves=5,
)
BODIES = JSON | st.fixed_dictionaries(
    {}, optional={"content": JSON, "reasoning": JSON, "tool_calls": JSON, "reasoning_content": JSON, "role": JSON}
)
CHOICES = JSON | st.fixed_dictionaries(
    {},
    optional={"index": JSON, "delta": BODIES, "message": BODIES, "text": JSON, "finish_reason": JSON, "logprobs": JSON},
)
ELEMENTS = JSON | st.fixed_dictionaries({"embedding": JSON})
ODD = st.fixed_dictionaries(
    {},
    optional={"choices": JSON | st.lists(CHOICES, max_size=3), "data": st.lists(ELEMENTS, max_size=2), "usage": JSON},
)
UNDOS = [
    pytest.param(
        response.CARD, [*RENAMED, *WORDS, {"join_parts": {}}, {"finish_with_calls": "tool_calls"}], id="response"
    ),
    pytest.param(response.CARD, [{"skip_chunks": {"choices": {"empty": True}}}, {"echo_prompt": True}], id="chunks"),
    pytest.param(recode_embeddings.CARD, {"dimensions": "cut"}, id="recode_embeddings"),
    pytest.param(recode_embeddings.CARD, {"ask": "nothing"}, id="base64"),
    pytest.param(enforce_stop.CARD, {"reasoning": True}, id="enforce_stop"),
]


@pytest.mark.parametrize(("card", "options"), UNDOS)
@given(answers=st.lists(ODD, min_size=1, max_size=4), is_chat=st.booleans())
def test_odd_answers_neither_raise_nor_are_changed(card, options, answers, is_chat):
    request = ECHO | AS_BASE64 | {"dimensions": 1, "stop": "X"}
    undo = undo_of(card, options, request, CHAT if is_chat else TEXT)
    for answer in answers:
        assert isinstance(untouched(undo.chunk, answer), dict)
        assert isinstance(untouched(undo.answer, answer), dict)
