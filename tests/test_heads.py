"""Heads that are known by their bytes: what is left out of them, and around what others are made."""

import re

import pytest

from proxy.headers import of_wire
from proxy.heads import (
    Heads,
    answer_head_of,
    around_answer,
    around_request,
    around_stream,
    head_of,
    is_usual_stream,
    request_head_of,
    stream_head_of,
)

HEAD = b"POST / HTTP/1.1\r\nHost: p\r\nContent-Length: 12\r\nA: b"
KEY = HEAD.replace(b"12", b"")
READ = [
    pytest.param(HEAD + b"\r\n\r\nbody", (KEY, b"12", len(HEAD) + 4), id="a head"),
    pytest.param(HEAD.lower() + b"\r\n\r\n", (KEY.lower(), b"12", len(HEAD) + 4), id="in small letters"),
    pytest.param(HEAD[:-6] + b"\r\n\r\n", (KEY[:-6], b"12", len(HEAD) - 2), id="the length at its end"),
    pytest.param(HEAD.replace(b"-Length", b"-LENGTH") + b"\r\n\r\n", None, id="in odd letters"),
    pytest.param(HEAD.replace(b"12", b"012") + b"\r\n\r\n", None, id="a length with a zero before it"),
    pytest.param(HEAD.replace(b"12", b"0") + b"\r\n\r\n", None, id="no body"),
    pytest.param(HEAD.replace(b"12", b"") + b"\r\n\r\n", None, id="no length"),
    pytest.param(HEAD.replace(b"12", b"+1") + b"\r\n\r\n", None, id="a signed length"),
    pytest.param(HEAD.replace(b"12", b"1_2") + b"\r\n\r\n", None, id="a length as Python writes it"),
    pytest.param(HEAD.replace(b"12", b"12345678") + b"\r\n\r\n", None, id="a length of many digits"),
    pytest.param(HEAD.replace(b"12", b"1 2") + b"\r\n\r\n", None, id="a blank in it"),
    pytest.param(HEAD + b"a" * 5000 + b"\r\n\r\n", None, id="a long head"),
    pytest.param(b"POST / HTTP/1.1\r\nHost: p\r\n\r\n\r\nContent-Length: 1\r\n\r\n", None, id="a length in the body"),
]


@pytest.mark.parametrize(("data", "expected"), READ)
def test_a_head_is_read_where_it_is_as_usual(data, expected):
    assert head_of(data) == expected


@pytest.mark.parametrize("read", [head_of, request_head_of, answer_head_of])
def test_a_head_that_is_not_all_there_is_none(read):
    whole = HEAD + b"\r\nX-Request-Id: a\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n"
    assert read(whole) is not None
    assert [end for end in range(len(whole)) if read(whole[:end]) is not None] == []


IDS = [
    pytest.param(b"X-Request-Id: abc", (b"", b"abc"), (b"", b""), id="an id"),
    pytest.param(b"x-request-id: a b", None, (b"", b""), id="an id with a blank"),
    pytest.param(b"X-Request-ID: ", None, (b"", b""), id="an empty id"),
    pytest.param(b"X-Request-ID: " + b"a" * 129, None, (b"", b""), id="a long id"),
    pytest.param(b"X-Request-Id: \xff", None, None, id="an id in other letters"),
    pytest.param(b"X-REQUEST-ID: a", (b"X-REQUEST-ID: a", b""), (b"X-REQUEST-ID: a", b""), id="an id oddly spelt"),
]


@pytest.mark.parametrize(("line", "of_request", "of_answer"), IDS)
def test_an_id_is_left_out_where_it_is_one(line, of_request, of_answer):
    data = HEAD + b"\r\n" + line + b"\r\n\r\n"
    read = request_head_of(data)
    if of_request is None:
        assert read is None
    else:
        left = of_request[0] or line[: line.index(b": ") + 2]
        assert (read[0], read[2]) == (KEY + b"\r\n" + left, of_request[1])
    read = answer_head_of(data)
    if of_answer is None:
        assert read is None
    else:
        assert (read[0], read[2]) == (KEY + (b"\r\n" + of_answer[0] if of_answer[0] else b""), of_answer[1])


DATE = b"Sun, 06 Nov 1994 08:49:37 GMT"
TOLD = b"HTTP/1.1 200 OK\r\n%bContent-Length: 7\r\nx-request-id: me\r\n%b\r\n"


@pytest.mark.parametrize(
    ("head", "date"),
    [
        pytest.param(TOLD % (b"", b"Date: %b\r\n" % DATE), b"", id="a date of ours"),
        pytest.param(TOLD % (b"date: %b\r\n" % DATE, b""), DATE, id="a date of theirs"),
        pytest.param(TOLD % (b"", b"A: b\r\nDate: %b\r\n" % DATE), DATE, id="a date at the end"),
    ],
)
def test_an_answer_is_told_with_other_values(head, date):
    known = around_answer(200, head, b"7", b"me", date)
    now = b"Mon, 07 Nov 1994 09:50:38 GMT"
    assert known.told(b"you", None, b"body", now) == (
        head.replace(b": 7", b": 4").replace(b": me", b": you").replace(DATE, now) + b"body"
    )
    assert b": you\r\nMendproxy-Repairs: r\r\n" in known.told(b"you", "r", b"body", now)


def test_a_stream_is_told_as_one_chunk():
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nx-request-id: me\r\nDate: %b\r\n\r\n" % DATE
    known = around_stream(200, head, b"me", b"")
    assert known.told(b"you", None, b"data", DATE) == head.replace(b"me", b"you") + b"4\r\ndata\r\n0\r\n\r\n"


REFUSED = [
    pytest.param(TOLD % (b"", b""), b"7", b"me", b"", id="no date"),
    pytest.param(TOLD % (b"", b"Date: %b\r\n" % DATE), b"8", b"me", b"", id="another length"),
    pytest.param(TOLD % (b"", b"Date: %b\r\n" % DATE), b"7", b"you", b"", id="another id"),
    pytest.param(
        TOLD % (b"x-request-id: me\r\n", b"Date: %b\r\n" % DATE), b"7", b"me", b"", id="an id that stands twice"
    ),
]


@pytest.mark.parametrize(("head", "length", "own", "date"), REFUSED)
def test_what_can_not_be_told_apart_is_not_known(head, length, own, date):
    assert around_answer(200, head, length, own, date) is None


def test_a_request_tells_its_length_before_or_after_its_id():
    plain = b"POST / HTTP/1.1\r\nContent-Length: 3\r\nX-Request-Id: 3\r\n\r\n"
    edited = b"POST / HTTP/1.1\r\nX-Request-Id: 3\r\nContent-Length: 3\r\n\r\n"
    for head, is_edited in ((plain, False), (edited, True)):
        first, second, third = around_request(head, b"3", b"3", is_edited=is_edited)
        assert first + b"3" + second + b"3" + third == head
        assert around_request(head, b"3", b"3", is_edited=not is_edited) is None


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n%btransfer-encoding: chunked"
STREAMS = [
    pytest.param(STREAM % b"", (STREAM % b"", b""), id="neither id nor date"),
    pytest.param(STREAM % b"x-request-id: a, b\r\n", (STREAM % b"", b""), id="an id"),
    pytest.param(STREAM % b"date: %b\r\n" % DATE, (STREAM % b"date: \r\n", DATE), id="a date"),
    pytest.param(STREAM % b"x-request-id: \x01\r\n", None, id="an id with a control character"),
    pytest.param(STREAM % b"date: today\r\n", None, id="a date of another length"),
]


@pytest.mark.parametrize(("head", "expected"), STREAMS)
def test_a_stream_s_head_is_told_without_what_changes(head, expected):
    found = stream_head_of(head + b"\r\n\r\nbody")
    assert found == ((*expected, len(head) + 4) if expected is not None else None)
    assert stream_head_of(head + b"\r\n\r") is None


OF_STREAMS = [
    pytest.param([], True, id="as most are"),
    pytest.param([(b"X-Request-Id", b"a"), (b"Cache-Control", b"no-cache")], True, id="with more"),
    pytest.param([(b"Content-Length", b"3")], False, id="a length as well"),
    pytest.param([(b"Content-Encoding", b"gzip")], False, id="a coding"),
    pytest.param([(b"Cache-Control", b"a"), (b"cache-control", b"b")], False, id="a header twice"),
    pytest.param([(b"X-Odd", b"\xff")], False, id="a byte that is no text"),
]


@pytest.mark.parametrize(("more", "expected"), OF_STREAMS)
def test_which_streams_heads_may_be_known(more, expected):
    usual = [(b"Content-Type", b"Text/Event-Stream"), (b"Transfer-Encoding", b"chunked")]
    assert is_usual_stream(of_wire([*usual, *more])) is expected
    assert not is_usual_stream(of_wire([(b"Content-Type", b"text/plain"), usual[1], *more]))
    assert not is_usual_stream(of_wire([usual[0], (b"Transfer-Encoding", b"gzip, chunked"), *more]))
    assert not is_usual_stream(of_wire([usual[0], *more]))


def test_what_is_remembered_is_bounded():
    heads = Heads()
    for number in range(5000):
        key = b"%d" % number
        assert not heads.comes_again(key)
        assert heads.comes_again(key)
        heads.keep_request(key, None)
        heads.keep_answer(key, None)
        heads.keep_stream(key, None)
        heads.keep_flow(key, None)
    assert max(map(len, (heads.requests, heads.answers, heads.streams, heads.flows))) <= 256
    assert re.fullmatch(rb"\d+", next(iter(heads.requests)))
