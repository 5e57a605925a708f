"""Bytes may come in any pieces: what is read of an answer, in whatever form, depends on the bytes alone."""

import asyncio
import gzip
import json
import zlib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.allowance import Allowance
from proxy.chunks import decode_chunk, encode_json
from proxy.errors import BackendFault
from proxy.exchange import Refused
from proxy.life import LifeSign
from proxy.policy import Limits, Timeouts
from proxy.reader import Reader
from proxy.sse import Event, Parser, comment, encode

STREAMS = Path(__file__).parent.parent / "data" / "streams"
# The beginnings of recorded answers, so that cutting them byte by byte takes no time; most are cut off in the middle.
RECORDED = [path.read_bytes()[:900] for path in sorted(STREAMS.glob("*.sse"))[::4]]
RECORDED += [path.read_bytes() for path in sorted(STREAMS.glob("*.sse")) if path.stat().st_size < 2000][:3]
ANSWERS = [path.read_bytes() for path in sorted((STREAMS / "answers").glob("*.json"))[::6]]
LIFELESS = [
    b": c\n\ndata: [DONE]\n\n",
    b'data: {"error": "no"}\n\n',
    b"\r\n \n",
    b"",
    b'data: {"usage": {}}\n\ndata: x\n\n',
]
CODINGS = {None: lambda data: data, "gzip": gzip.compress, "deflate": zlib.compress}
LIMITS = Limits(
    body_bytes=1 << 20, response_bytes=1 << 20, event_bytes=1 << 18, branches=4, total_bytes=1 << 30, connections=100
)
TIMEOUTS = Timeouts(connect_s=9.0, first_content_s=9.0, idle_s=9.0)


class Scripted:
    """A reply whose body comes in the given pieces, and ends."""

    def __init__(self, pieces, headers):
        self.status, self.reason, self.headers, self.sent_at_s = 200, "OK", headers, float("inf")
        self._pieces = [piece for piece in pieces if piece]

    async def read(self, _wait_s):
        return self._pieces.pop(0) if self._pieces else b""


def cut(data, places):
    ordered = sorted(place % (len(data) + 1) for place in places)
    return [data[start:end] for start, end in zip([0, *ordered], [*ordered, len(data)], strict=True)]


def fault_of(error):
    fault = error.answer if isinstance(error, Refused) else error
    return type(error).__name__, fault.status, fault.code, fault.message


async def streamed(reader):
    """Return the chunks that were read, and the fault that ended them."""
    chunks = []
    try:
        async for some in reader.pieces(include_usage=True):
            chunks += [piece.chunk for piece in some]
    except (BackendFault, Refused) as error:
        return chunks, fault_of(error), reader.is_alive
    return chunks, None, reader.is_alive


async def collected(reader):
    try:
        return await reader.answer()
    except (BackendFault, Refused) as error:
        return fault_of(error)


def read(pieces, headers, way):
    reader = Reader(Scripted(pieces, headers), LIMITS, TIMEOUTS, Allowance(LIMITS.response_bytes), None)
    return asyncio.run(way(reader))


@pytest.mark.parametrize("way", [streamed, collected])
@settings(max_examples=25)
@given(
    data=st.sampled_from(RECORDED + ANSWERS + LIFELESS),
    coding=st.sampled_from(list(CODINGS)),
    label=st.sampled_from(["text/event-stream", "application/json", None]),
    places=st.lists(st.integers(0, 5000), max_size=8),
    lost=st.integers(0, 300),
)
def test_an_answer_is_read_alike_in_any_pieces(way, data, coding, label, places, lost):
    body = CODINGS[coding](data)
    body = body[: len(body) - lost] if lost % 3 == 0 else body
    headers = [*([("Content-Type", label)] if label else []), *([("Content-Encoding", coding)] if coding else [])]
    whole = read([body], headers, way)
    assert read(cut(body, places), headers, way) == whole
    assert read([body[place : place + 1] for place in range(len(body))], headers, way) == whole


def watched(pieces):
    life = LifeSign()
    for piece in pieces:
        life.feed(piece)
    life.close()
    return life.is_alive, life.events, life.error, life.fault and life.fault.message


@settings(max_examples=40)
@given(st.sampled_from(RECORDED + LIFELESS), st.lists(st.integers(0, 5000), max_size=8), st.integers(0, 300))
def test_life_is_seen_alike_in_any_pieces(data, places, lost):
    data = data[: len(data) - lost] if lost % 3 == 0 else data
    whole = watched([data])
    assert watched(cut(data, places)) == whole
    assert watched([data[place : place + 1] for place in range(len(data))]) == whole


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=5).filter(
    lambda name: name[:1] != " "
)
PAYLOADS = st.binary(min_size=1, max_size=12).filter(lambda data: b"\r" not in data and data.strip(b"\n"))


@given(st.lists(st.tuples(PAYLOADS, NAMES)), st.lists(st.integers(0, 500), max_size=5), st.text(max_size=9))
def test_events_are_read_as_they_were_written(events, places, said):
    data = b"".join(comment(said.encode()) + encode(payload, name) for payload, name in events)
    parser = Parser(1 << 16)
    found = [event for piece in cut(data, places) for event in parser.feed(piece)]
    assert found + parser.close() == [Event(payload, name) for payload, name in events]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4))
def test_a_chunk_is_read_as_it_was_written(chunk):
    written = encode_json(chunk)
    assert b"\n" not in written
    assert decode_chunk(written) == chunk == json.loads(written)


@given(st.binary(max_size=30) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_data_is_a_chunk_that_can_be_written_or_a_named_fault(data):
    with suppress(BackendFault):
        chunk = decode_chunk(data)
        assert decode_chunk(encode_json(chunk)) == chunk
