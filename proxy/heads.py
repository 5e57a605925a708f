"""What is remembered of heads: who speaks HTTP sends the same bytes again and again, but for the length of a body.

    a client's head − its length ──► KnownRequest: target, headers, and around what its backend's head is made
    a backend's head − its length ─► KnownAnswer: around what its client's head is made; KnownStream of a stream

All of it is cut out of what was made of the same bytes before, so heads are read, judged and changed by one piece of
code; this one only knows where the length, the id and the date stand in it. Bounded, since clients choose their heads.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from proxy.headers import HeaderList, get

# One that is longer is not worth its memory; 20 headers of 100 bytes are usual.
_LONGEST = 4096
_MOST_REQUESTS, _MOST_ANSWERS, _MOST_SEEN, _MOST_OF_ONE = 256, 64, 1024, 64
_LENGTHS = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")
_LENGTH_BYTES = len(_LENGTHS[0])
_MOST_DIGITS = 7
_ZERO = ord("0")
_IDS = (b"\r\nx-request-id: ", b"\r\nX-Request-Id: ", b"\r\nX-Request-ID: ")
_OWN_ID = frozenset({"x-request-id"})
_OF_STREAM = frozenset({"x-request-id", "transfer-encoding"})
_VISIBLE = re.compile(rb"[\x20-\x7e]*")
_SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}")  # as headers.sane_request_id
_DATES = (b"\r\nDate: ", b"\r\ndate: ")
_DATE_BYTES = len("Sun, 06 Nov 1994 08:49:37 GMT")


Head = tuple[bytes, bytes, int]
"""The bytes of a head without the digits of its length, those, and where its body begins."""


def head_of(data: bytes) -> Head | None:
    """Return the head that the bytes begin with, None where it is not all there, or tells no length in a usual way."""
    end = data.find(b"\r\n\r\n")
    if end < 0 or end > _LONGEST:
        return None
    at = data.find(_LENGTHS[0], 0, end)
    if at < 0:
        at = data.find(_LENGTHS[1], 0, end)
        if at < 0:
            return None
    at += _LENGTH_BYTES
    after = data.find(b"\r\n", at)
    length = data[at:after]
    if not length.isdigit() or length[0] == _ZERO or after - at > _MOST_DIGITS:
        return None
    return data[:at] + data[after:end], length, end + 4


RequestHead = tuple[bytes, bytes, bytes, int]
"""The same of a client's head, also without the id that it gave its request; that comes after the length, b"" where
there is none.
"""


def request_head_of(data: bytes) -> RequestHead | None:
    """Return the head that a request begins with, None where it is not all there, or is not as usual."""
    head = head_of(data)
    if head is None:
        return None
    key, length, end = head
    for name in _IDS:
        at = key.find(name)
        if at >= 0:
            at += len(name)
            after = key.find(b"\r\n", at)
            after = after if after >= 0 else len(key)
            given = key[at:after]
            return (key[:at] + key[after:], length, given, end) if _SANE_ID.fullmatch(given) else None
    return key, length, b"", end


AnswerHead = tuple[bytes, bytes, bytes, int]
"""The same of an answer's head, also without its id, for which the client is told ours, and without its date; the date
comes after the length, b"" where there is none."""


def answer_head_of(data: bytes) -> AnswerHead | None:
    """Return the head that an answer begins with, None where it is not all there, or is not as usual."""
    head = head_of(data)
    own = _without_own(head[0]) if head is not None else None
    return (own[0], head[1], own[1], head[2]) if head is not None and own is not None else None


StreamHead = tuple[bytes, bytes, int]
"""The bytes of a stream's head without id and date, the date, b"" where there is none, and where its body begins."""


def stream_head_of(data: bytes) -> StreamHead | None:
    """Return the head that a stream begins with, None where it is not all there, or is not as usual."""
    end = data.find(b"\r\n\r\n")
    if end < 0 or end > _LONGEST:
        return None
    own = _without_own(data[:end])
    return (own[0], own[1], end + 4) if own is not None else None


def _without_own(key: bytes) -> tuple[bytes, bytes] | None:
    """Return an answer's head without its id and its date, and the date; None where they are not as usual."""
    for name in _IDS:
        at = key.find(name)
        if at >= 0:
            after = key.find(b"\r\n", at + len(name))
            after = after if after >= 0 else len(key)
            if _VISIBLE.fullmatch(key, at + len(name), after) is None:
                return None
            key = key[:at] + key[after:]
            break
    for name in _DATES:
        at = key.find(name)
        if at >= 0:
            at += len(name)
            date = key[at : at + _DATE_BYTES]
            if _VISIBLE.fullmatch(date) is None or len(date) < _DATE_BYTES:
                return None
            return key[:at] + key[at + _DATE_BYTES :], date
    return key, b""


class Around(NamedTuple):
    """A head that goes to a backend, cut at its length and at the request's id: the length comes first, or last."""

    first: bytes
    second: bytes
    third: bytes


Way = tuple[str | None, str, str, str, bool, bool]
"""The client's address and scheme, the backend's name and address, whether the body is not the client's, and whether
the answer will be made another."""


class KnownRequest:
    """A client's head, which asks by POST for something that may be asked for."""

    __slots__ = ("_at", "_id_at", "_names", "_said", "_values", "goes", "message", "path", "query")

    def __init__(self, message: Any, path: str, query: str, said: HeaderList) -> None:
        """Know it by its target and its headers, which tell a length; `message` is what the parser made of it."""
        self.message = message
        self.path = path
        self.query = query
        self._values = [value for _, value in said]
        self._names = said.names
        self._at = said.names.at["content-length"]
        self._id_at = said.names.at.get("x-request-id")
        self._said: dict[bytes, HeaderList] = {}
        self.goes: dict[Way, Around] = {}

    def said(self, length: bytes, given_id: bytes) -> HeaderList:
        """Return the headers, with this length, and with the id that the client gave."""
        if self._id_at is not None:
            return self._made(length, given_id)
        said = self._said.get(length)
        if said is None:
            if len(self._said) >= _MOST_OF_ONE:
                self._said.clear()
            said = self._said[length] = self._made(length, b"")
        return said

    def _made(self, length: bytes, given_id: bytes) -> HeaderList:
        values = list(self._values)
        values[self._at] = length.decode()
        if self._id_at is not None:
            values[self._id_at] = given_id.decode()
        return HeaderList(self._names, values)

    def keep(self, key: Way, around: Around) -> None:
        """Keep around what a head that goes to a backend is made."""
        if len(self.goes) >= _MOST_OF_ONE:
            self.goes.clear()
        self.goes[key] = around


class KnownAnswer(NamedTuple):
    """A backend's head, and around what a client's is made: `order` tells which of length, id and date come when."""

    status: int
    parts: tuple[bytes, ...]
    order: tuple[int, ...]

    def told(self, request_id: bytes, repairs: str | None, body: bytes, date: bytes) -> bytes:
        """Return what the client is told: the head, with our id, and the body."""
        return _filled(self.parts, self.order, (b"%d" % len(body), _with_repairs(request_id, repairs), date), body)


class KnownStream(NamedTuple):
    """A backend's head, of a stream or of JSON that one is made of, and around what a client is told of the stream."""

    status: int
    parts: tuple[bytes, ...]
    order: tuple[int, ...]

    def told(self, request_id: bytes, repairs: str | None, body: bytes, date: bytes) -> bytes:
        """Return what the client is told: the head, with our id, and the events as one chunk, the last one."""
        return self.begun(request_id, repairs, b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), date)

    def begun(self, request_id: bytes, repairs: str | None, chunks: bytes, date: bytes) -> bytes:
        """Return what the client is told first: the head, with our id, and some chunks as they go on the wire."""
        return _filled(self.parts, self.order, (_with_repairs(request_id, repairs), date), chunks)


def _with_repairs(request_id: bytes, repairs: str | None) -> bytes:
    return request_id if repairs is None else b"%b\r\nMendproxy-Repairs: %b" % (request_id, repairs.encode())


def _filled(parts: tuple[bytes, ...], order: tuple[int, ...], values: tuple[bytes, ...], rest: bytes) -> bytes:
    told = [parts[0]]
    for at, part in zip(order, parts[1:], strict=True):
        told += values[at], part
    told.append(rest)
    return b"".join(told)


class Heads:
    """The heads that are known."""

    __slots__ = ("_seen", "answers", "flows", "requests", "streams")

    def __init__(self) -> None:
        """Know none."""
        self.requests: dict[bytes, KnownRequest] = {}
        self.answers: dict[bytes, KnownAnswer] = {}
        self.streams: dict[bytes, KnownStream] = {}
        self.flows: dict[bytes, KnownStream] = {}
        self._seen: set[int] = set()

    def clear(self) -> None:
        """Know none any more."""
        self.requests.clear()
        self.answers.clear()
        self.streams.clear()
        self.flows.clear()
        self._seen.clear()

    def comes_again(self, key: bytes) -> bool:
        """Return whether a client's head came before: one that holds an id or a time would only fill the memory."""
        seen = hash(key)
        if seen in self._seen:
            return True
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen.add(seen)
        return False

    def keep_request(self, key: bytes, known: KnownRequest) -> None:
        """Know a client's head."""
        if len(self.requests) >= _MOST_REQUESTS:
            self.requests.clear()
        self.requests[key] = known

    def keep_answer(self, key: bytes, known: KnownAnswer) -> None:
        """Know a backend's head."""
        if len(self.answers) >= _MOST_ANSWERS:
            self.answers.clear()
        self.answers[key] = known

    def keep_stream(self, key: bytes, known: KnownStream) -> None:
        """Know a backend's head of a JSON answer of which a stream was made."""
        if len(self.streams) >= _MOST_ANSWERS:
            self.streams.clear()
        self.streams[key] = known

    def keep_flow(self, key: bytes, known: KnownStream) -> None:
        """Know a backend's head of a stream that passes as it comes."""
        if len(self.flows) >= _MOST_ANSWERS:
            self.flows.clear()
        self.flows[key] = known


def is_usual_stream(said: HeaderList) -> bool:
    """Return whether a stream's head can be known: it comes in chunks, and nothing else changes how it is served."""
    names = said.names
    is_usual_else = names.are_usual_but(_OF_STREAM) and names.are_plain and said.values_are_plain
    if not is_usual_else or "content-length" in names.at or "transfer-encoding" not in names.at:
        return False
    content_type = get(said, "content-type") or ""
    return get(said, "transfer-encoding") == "chunked" and content_type.lower().startswith("text/event-stream")


def is_usual(said: HeaderList) -> bool:
    """Return whether a head with a length can be known: nothing in it changes how the message is served."""
    names = said.names
    return names.are_usual_but(_OWN_ID) and names.are_plain and said.values_are_plain and "content-length" in names.at


def around_request(head: bytes, length: bytes, request_id: bytes, *, is_edited: bool) -> Around | None:
    """Return around what a head for a backend was made; an edited one tells its length last."""
    own_id = _place_in_line(head, b"\r\nX-Request-Id: ", request_id)
    lengths = [_place_in_line(head, name, length) for name in _LENGTHS]
    around = _around(head, [own_id, next((place for place in lengths if place is not None), None)])
    if around is None or around[1] != ((0, 1) if is_edited else (1, 0)):
        return None
    return Around(*around[0])


def around_answer(status: int, head: bytes, length: bytes, request_id: bytes, date: bytes) -> KnownAnswer | None:
    """Return around what a client's head was made; `date` is the backend's, b"" where it told none and we did."""
    own_id = _place_in_line(head, b"\r\nx-request-id: ", request_id)
    lengths = [_place_in_line(head, name, length) for name in _LENGTHS]
    place = next((place for place in lengths if place is not None), None)
    around = _around(head, [place, own_id, _place_of_date(head, date)])
    return KnownAnswer(status, *around) if around is not None else None


def around_stream(status: int, head: bytes, request_id: bytes, date: bytes) -> KnownStream | None:
    """Return around what the head of a stream was made; `date` as of an answer."""
    own_id = _place_in_line(head, b"\r\nx-request-id: ", request_id)
    is_chunked = head.count(b"\r\nTransfer-Encoding: chunked\r\n") == 1
    around = _around(head, [own_id, _place_of_date(head, date)]) if is_chunked else None
    return KnownStream(status, *around) if around is not None else None


Place = tuple[int, int]


def _place_in_line(head: bytes, name: bytes, value: bytes) -> Place | None:
    """Return where a value stands in a head, after the end of a line and its name; None where it is not there once."""
    line = name + value + b"\r\n"
    at = head.find(line)
    return (at + len(name), at + len(line) - 2) if at >= 0 and head.count(line) == 1 else None


def _place_of_date(head: bytes, date: bytes) -> Place | None:
    """Return where the date stands; without one of the backend's, it is ours."""
    if date:
        return next((place for name in _DATES if (place := _place_in_line(head, name, date)) is not None), None)
    at = head.find(_DATES[0])
    return (at + len(_DATES[0]), at + len(_DATES[0]) + _DATE_BYTES) if at >= 0 else None


def _around(head: bytes, places: list[Place | None]) -> tuple[tuple[bytes, ...], tuple[int, ...]] | None:
    """Return what stands around some places of a head, and which of them comes when; None where one is not there."""
    known = [place for place in places if place is not None]
    if len(known) < len(places):
        return None
    order = sorted(range(len(known)), key=known.__getitem__)
    ends = [0, *(known[at][1] for at in order)]
    starts = [*(known[at][0] for at in order), len(head)]
    return tuple(head[end:start] for end, start in zip(ends, starts, strict=True)), tuple(order)
