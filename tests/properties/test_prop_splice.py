"""Events merged by their bytes are the bytes that come of decoding, merging and encoding, whatever came between."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import sse
from proxy.chunks import decode_chunk, encode_json
from proxy.errors import BackendFault
from proxy.merge import Merger
from proxy.splice import Spliced, Splicer
from proxy.spread import Spread

TEXTS = st.text('ab"\\/\n\t\x7f é中😀\u2028', max_size=4) | st.sampled_from(
    ["", "Hel", "lo", "null", "9d3c41f2-the-text-goes-here"]
)


def chat(text, **more):
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None} | more
    return {"id": "b", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def delta(**fields):
    return lambda text: chat("", delta={name: text if value is ... else value for name, value in fields.items()})


# What events are made of: a text goes into each.
SHAPES = {
    "chat": {
        "plain": chat,
        "reasoning": delta(role="assistant", reasoning_content=..., content=None),
        "role each time": delta(role="assistant", content=..., tool_calls=None),
        "two texts": delta(content=..., refusal="no"),
        "a content elsewhere too": delta(content=..., audio={"content": "x"}),
        "finish first": lambda text: chat(text, finish_reason=None) | {"usage": None},
        "further field": lambda text: chat(text) | {"provider": "p"},
        "another further field": lambda text: chat(text) | {"provider": text},
        "later": lambda text: chat(text) | {"created": 2},
        "another index": lambda text: chat(text, index=1),
        "no index": lambda text: {"id": "b", "choices": [{"delta": {"content": text}}]},
        "end": lambda text: chat(text, finish_reason="stop"),
        "broken off": lambda text: chat(text, finish_reason="abort"),
        "usage": lambda text: chat(text) | {"usage": {"completion_tokens": len(text)}},
        "usage alone": lambda _text: chat("") | {"choices": [], "usage": {"completion_tokens": 3}},
        "further field alone": lambda text: chat("") | {"choices": [], "provider": text},
        "two choices": lambda text: chat(text) | {"choices": chat(text)["choices"] + chat("x", index=1)["choices"]},
        "call": delta(content=None, tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{"}}]),
        "error": lambda text: {"error": {"message": text}},
        "message": lambda text: chat(text, message={"content": "whole"}),
    },
    "text": {
        "plain": lambda text: {"id": "b", "choices": [{"index": 0, "text": text, "finish_reason": None}]},
        "usage null": lambda text: {"usage": None, "choices": [{"text": text, "index": 0}], "id": "b"},
        "logprobs": lambda text: {"id": "b", "choices": [{"index": 0, "text": text, "logprobs": {"tokens": [text]}}]},
        "end": lambda text: {"id": "b", "choices": [{"index": 0, "text": text, "finish_reason": "stop"}]},
    },
}
SPELLINGS = {
    "compact": lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False),
    "python": json.dumps,
    "wide": lambda value: " " + json.dumps(value, separators=(" ,\t", " : ")),
    "hidden name": lambda value: json.dumps(value).replace('"content"', '"c\\u006fntent"'),
    "other order": lambda value: json.dumps(dict(reversed(value.items()))),
    "lone surrogate": lambda value: json.dumps(value).replace('"Hel"', '"\\ud800"'),
    "no UTF-8": lambda value: json.dumps(value).replace("Hel", "\udcff"),
    "not a number": lambda value: json.dumps(value).replace('"created": 1', '"created": NaN'),
}


@st.composite
def reads(draw, kind):
    """Return what is read: of which branch, and the events' data. Most are of one shape and spelling."""
    usual = draw(st.sampled_from(sorted(SHAPES[kind]))), draw(st.sampled_from(sorted(SPELLINGS)))
    odd = st.tuples(st.sampled_from(sorted(SHAPES[kind])), st.sampled_from(sorted(SPELLINGS)))
    event = st.tuples(st.one_of(*[st.just(usual)] * 4, odd), TEXTS)
    made = draw(st.lists(st.tuples(st.integers(0, 2), st.lists(event, min_size=1, max_size=4)), min_size=3, max_size=9))
    return [(branch, [spelt(kind, *each) for each in events]) for branch, events in made]


def spelt(kind, how, text):
    shape, spelling = how
    return SPELLINGS[spelling](SHAPES[kind][shape](text)).encode("utf-8", "surrogateescape")


def merger(kind, spreads):
    given = {"fallback_id": "x", "created": 9, "model": "asked"}
    return Merger(spreads=spreads, total=None, kind=kind, include_usage=True, usage="once", **given)


def written(kind, spreads, some, *, splices):
    """Return what is written for each read, how much of it was spliced, and the fault that ended it."""
    merging, splicers = merger(kind, spreads), [Splicer(kind) for _ in spreads]
    out, count = [], 0
    try:
        for branch, events in some:
            # A read is spliced before any of it is merged.
            ready = [splicers[branch].splice(sse.Event(data)) if splices else None for data in events]
            for data, piece in zip(events, ready, strict=True):
                if isinstance(piece, Spliced):
                    merging.retell(piece.rest)
                    out.append(piece.data)
                    count += 1
                    continue
                chunk = decode_chunk(data)
                merged = merging.feed(branch, chunk)
                out += [sse.encode(encode_json(one)) for one in merged]
                splicers[branch].learn(data, chunk, merged)
    except BackendFault as fault:
        return b"".join(out), fault.message, count
    return b"".join(out), None, count


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("copies", [1, 2])
@given(data=st.data())
def test_what_is_spliced_is_what_is_merged(kind, copies, data):
    spreads = [Spread(3, offset, copies) for offset in range(3)]
    some = data.draw(reads(kind))
    fast, slow = (written(kind, spreads, some, splices=splices) for splices in (True, False))
    # A fault in a read is met before what stands behind it, so no more may be told than the slow way tells.
    assert fast[:2] == slow[:2]


SPLICED = [("chat", "plain"), ("chat", "reasoning"), ("chat", "role each time"), ("chat", "finish first"),
           ("chat", "further field"), ("chat", "no index"), ("text", "plain"), ("text", "usage null")]  # fmt: skip


@pytest.mark.parametrize(("kind", "shape"), SPLICED)
@pytest.mark.parametrize("spelling", ["compact", "python", "wide", "other order"])
def test_a_usual_stream_is_spliced_once_it_was_merged_without_a_role(kind, shape, spelling):
    some = [(0, [spelt(kind, (shape, spelling), text)]) for text in ("a", "Hel", 'lo "\n', "中", "z")]
    data, fault, count = written(kind, [Spread(4, 3)], some, splices=True)
    assert (data, fault) == written(kind, [Spread(4, 3)], some, splices=False)[:2]
    assert count == (3 if kind == "chat" else 4)
