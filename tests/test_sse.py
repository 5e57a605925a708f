"""The event parser and writer: every line ending, every cut, every bound."""

import json
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import BackendFault
from proxy.sse import DONE, Event, Parser, comment, encode

STREAMS = Path(__file__).parent / "data" / "streams"
RECORDED = sorted(STREAMS.glob("*.sse"))


def parse(pieces, limit=1 << 20):
    parser = Parser(limit)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.close(), parser.comments


def outcome(pieces, limit):
    """Return the events that come before a fault, and the fault's code."""
    parser, events = Parser(limit), []
    try:
        for piece in pieces:
            events += parser.feed(piece)
        while more := parser.close():
            events += more
    except BackendFault as fault:
        return events, fault.code
    return events, None


def cut(data, places):
    bounds = [0, *sorted(places), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


CASES = [
    pytest.param(b"data: x\n\n", [Event(b"x")], id="LF"),
    pytest.param(b"data: x\r\n\r\n", [Event(b"x")], id="CRLF"),
    pytest.param(b"data: x\r\r", [Event(b"x")], id="CR"),
    pytest.param(b"data: x\r\n\ndata: y\n\r\n", [Event(b"x"), Event(b"y")], id="endings mixed"),
    pytest.param(b"data:x\n\ndata:[DONE]\n\n", [Event(b"x"), Event(b"[DONE]")], id="no space after the colon"),
    pytest.param(b"data:  x\n\n", [Event(b" x")], id="only one space is taken off"),
    pytest.param(b"data: x\ndata: y\ndata\ndata: z\n\n", [Event(b"x\ny\n\nz")], id="data lines are joined by LF"),
    pytest.param(b"\xef\xbb\xbfdata: x\n\n", [Event(b"x")], id="a byte order mark at the start is no part of the name"),
    pytest.param(b"data: x\n\n\xef\xbb\xbfdata: y\n\n", [Event(b"x")], id="a byte order mark later on is"),
    pytest.param(
        b"event: error\ndata: x\n\ndata: y\n\n", [Event(b"x", "error"), Event(b"y")], id="a name is of one event"
    ),
    pytest.param(
        b"event: ping\n\ndata: x\n\n", [Event(b"x")], id="an event without data is not one, nor leaves its name"
    ),
    pytest.param(b"data\n\ndata:\ndata\n\ndata: x\n\n", [Event(b"x")], id="an event whose data is empty is dropped"),
    pytest.param(b": a\n:\ndata: x\n: b\ndata: y\n\n", [Event(b"x\ny")], id="a comment glued to data hides nothing"),
    pytest.param(
        b"id: a\x00b\nretry: 5\nid\nwhat: ever\nDATA: no\ndata: x\n\n", [Event(b"x")], id="other fields are let be"
    ),
    pytest.param(b"data: a: b\n\n", [Event(b"a: b")], id="only the first colon parts"),
    pytest.param(b"datax: a\n\n data: b\n\n", [], id="a name is compared whole"),
    pytest.param(b"data: \xe4\xbd\xa0\xff\n\n", [Event(b"\xe4\xbd\xa0\xff")], id="bytes are not decoded"),
    pytest.param(b'data: {"a":1}', [Event(b'{"a":1}')], id="a last event without its line end counts when it is whole"),
    pytest.param(b'data: {"a":1}\n', [Event(b'{"a":1}')], id="a last event without its blank line counts"),
    pytest.param(b'data: {"a":NaN}\n', [Event(b'{"a":NaN}')], id="NaN is no sign of a cut"),
    pytest.param(b"data: [DONE]", [Event(b"[DONE]")], id="a last sentinel counts"),
    pytest.param(b'event: error\ndata: {"a":1}', [Event(b'{"a":1}', "error")], id="a last event has its name"),
    pytest.param(b'data: {"a":1', [], id="a cut event is dropped"),
    pytest.param(b'data: {"a":{}\n', [], id="an event cut between its lines is dropped"),
    pytest.param(b"data: 12", [], id="a number may be cut, so it is dropped"),
    pytest.param(b"data: [DON", [], id="a cut sentinel is dropped"),
    pytest.param(b"data: " + b"[" * 20000, [], id="a cut event that is nested deeply is dropped"),
    pytest.param(b"", [], id="nothing"),
    pytest.param(b"\xef\xbb", [], id="half a byte order mark"),
]


@pytest.mark.parametrize(("data", "events"), CASES)
def test_events_of_bytes(data, events):
    assert parse([data])[0] == events


@pytest.mark.parametrize(("data", "events"), [case for case in CASES if len(case.values[0]) < 1000])
def test_events_do_not_depend_on_any_cut(data, events):
    assert parse([data[place : place + 1] for place in range(len(data))])[0] == events
    for place in range(len(data)):
        assert parse([data[:place], b"", data[place:]])[0] == events


@pytest.mark.parametrize(
    ("data", "count"),
    [
        pytest.param(b": OPENROUTER PROCESSING\n:\n\n", 2, id="texts and bare ones"),
        pytest.param(b": ping\r\n\r\n: ping\r\n\r\n", 2, id="on their own"),
        pytest.param(b"data: : no\n\n", 0, id="a colon within data is none"),
        pytest.param(b"data: x\n: x-cost=1\n\n", 1, id="inside an event"),
    ],
)
def test_comments_are_counted(data, count):
    assert parse([data])[1] == count


def test_an_event_is_given_at_its_blank_line_and_not_before():
    parser = Parser(100)
    assert parser.feed(b"data: x\r\n") == []
    assert parser.feed(b"\r") == [Event(b"x")]
    assert parser.feed(b"\ndata: y\n\n") == [Event(b"y")]


LIMITED = [
    pytest.param(b"data: 0123456789\n\n", 16, [Event(b"0123456789")], None, id="a line as long as the limit"),
    pytest.param(b"data: 0123456789\n\n", 15, [], "event_too_large", id="a line longer than the limit"),
    pytest.param(b"data: x\n\ndata: 0123456789", 15, [Event(b"x")], "event_too_large", id="what came before is given"),
    pytest.param(b"data: 01\ndata: 23\n\n", 16, [], "event_too_large", id="an event of many lines"),
    pytest.param(
        b"data: 01\n\ndata: 23\n\n", 16, [Event(b"01"), Event(b"23")], None, id="each event has the whole limit"
    ),
    pytest.param(b": 0123456789\n\n", 10, [], "event_too_large", id="a comment"),
    pytest.param(b": 01\n: 02\n: 03\n: 04\n\n", 5, [], None, id="comments don't add up"),
    pytest.param(b"event: 0123456789\n\n", 10, [], "event_too_large", id="a name"),
]


@pytest.mark.parametrize(("data", "limit", "events", "code"), LIMITED)
def test_no_event_grows_beyond_the_limit(data, limit, events, code):
    assert outcome([data], limit) == (events, code)
    assert outcome([data[place : place + 1] for place in range(len(data))], limit) == (events, code)


def test_a_line_without_end_is_stopped_at_the_limit():
    parser = Parser(100)
    assert parser.feed(b"data: ") == []
    with pytest.raises(BackendFault):
        parser.feed(b"x" * 95)


def test_the_fault_says_the_limit_and_comes_again():
    parser = Parser(7)
    for _ in range(2):
        with pytest.raises(BackendFault, match="more than 7 bytes") as caught:
            parser.feed(b"data: 012345\n\ndata: x\n\n")
        assert (caught.value.status, caught.value.code) == (502, "event_too_large")


def test_an_event_of_8_mib_takes_well_under_a_second():
    data = encode(b'{"a":"' + b"x" * (8 << 20) + b'"}')
    parser = Parser(len(data))
    begun_s = time.process_time()
    events = [event for place in range(0, len(data), 16384) for event in parser.feed(data[place : place + 16384])]
    assert time.process_time() - begun_s < 0.5
    assert encode(events[0].data) == data


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_streams_are_json_and_come_back_as_they_were(path):
    events, _ = parse([path.read_bytes()])
    assert [type(json.loads(event.data)) for event in events if not event.is_done] == [dict] * (
        len(events) - sum(event.is_done for event in events)
    )
    framed = b"".join(
        (b"event: " + event.event.encode() + b"\n") * bool(event.event) + encode(event.data) for event in events
    )
    assert framed == path.read_bytes()


LINES = st.sampled_from(
    [b"data: ", b"data:", b"data", b"event: e", b": c", b":", b"id: 1", b"{}", b"x", b" ", b"\xef\xbb\xbf"]
)
STREAM = st.lists(LINES | st.sampled_from([b"\n", b"\r", b"\r\n", b"\n\n", b"\r\n\r\n"]) | st.binary(max_size=4)).map(
    b"".join
)


@given(STREAM, st.data(), st.sampled_from([8, 20, 1000]))
def test_any_split_gives_the_same_events(data, draw, limit):
    places = draw.draw(st.lists(st.integers(0, len(data)), max_size=8))
    whole = outcome([data], limit)
    assert outcome(cut(data, places), limit) == whole
    assert outcome([data[place : place + 1] for place in range(len(data))], limit) == whole


@given(st.lists(st.binary(min_size=1).filter(lambda data: b"\r" not in data and data.strip(b"\n"))))
def test_what_is_encoded_is_read_again(payloads):
    assert [event.data for event in parse([b"".join(map(encode, payloads))])[0]] == payloads


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param(encode(b"{}"), b"data: {}\n\n", id="an event"),
        pytest.param(DONE, encode(b"[DONE]"), id="the sentinel"),
        pytest.param(comment(), b":\n\n", id="an empty comment"),
        pytest.param(comment(b"waiting"), b": waiting\n\n", id="a comment"),
        pytest.param(comment(b"a\ndata: b"), b": a\n: data: b\n\n", id="no line leaves a comment"),
    ],
)
def test_what_is_written(written, expected):
    assert written == expected
