"""The SSE parser against a reader that is as plain as the specification, whatever the bytes and their split."""

import json
from pathlib import Path

from proxy.errors import BackendFault
from proxy.sse import DONE_DATA, Event, Parser

STREAMS = Path(__file__).parent.parent / "data" / "streams"
LIMITS = (4, 16, 60, 1 << 20)
HEAD_BYTES = 4  # the limit, and three splits
# The first events and the last of each recorded stream: what differs among backends stands there.
SEEDS = [
    b"\3\1\7\x50" + raw[:600] + raw[-200:] for raw in (path.read_bytes() for path in sorted(STREAMS.glob("*.sse")))
]
WORDS = [b"data: ", b"data:", b"event: e", b": c", b"\r\n", b"\n", b"\r", b"\n\n", b"\xef\xbb\xbf", b"[DONE]", b"{}"]


class TooLarge(Exception):
    """The reader's own word for an event beyond the limit; what was read before it has been given."""


def read_plainly(stream, limit):
    """Yield the events of a stream. Source: WHATWG HTML §9.2.6, and the departures that proxy.sse names."""
    text = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    *lines, rest = text.split(b"\n")
    data, name, size = [], b"", 0
    for line in [*lines, *([rest] if rest else [])]:
        if not line:
            if any(data):
                yield Event(b"\n".join(data), name.decode("utf-8", "replace"))
            data, name, size = [], b"", 0
            continue
        if size + len(line) > limit:
            raise TooLarge
        if line.startswith(b":"):
            continue
        size += len(line) + 1
        field, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    if is_whole(b"\n".join(data)):
        yield Event(b"\n".join(data), name.decode("utf-8", "replace"))


def is_whole(data):
    try:
        return data.strip() == DONE_DATA or isinstance(json.loads(data), dict)
    except (ValueError, RecursionError):
        return False


def expected(stream, limit):
    events = []
    try:
        for event in read_plainly(stream, limit):
            events.append(event)  # noqa: PERF402 what was given before a fault counts
    except TooLarge:
        return events, "event_too_large"
    return events, None


def found(parts, limit):
    parser, events = Parser(limit), []
    try:
        for part in parts:
            events += parser.feed(part)
        events += parser.close()
        parser.feed(b"")
    except BackendFault as fault:
        return events, fault.code
    return events, None


def check(data):
    head, stream = data[:HEAD_BYTES].ljust(HEAD_BYTES, b"\0"), data[HEAD_BYTES:]
    limit = LIMITS[head[0] % len(LIMITS)]
    places = sorted(place % (len(stream) + 1) for place in head[1:])
    wanted = expected(stream, limit)
    assert found([stream], limit) == wanted
    pieces = [stream[start:end] for start, end in zip([0, *places], [*places, len(stream)], strict=True)]
    assert found(pieces, limit) == wanted
    assert found([stream[place : place + 1] for place in range(len(stream))], limit) == wanted


def test_any_bytes_are_read_as_the_specification_reads_them(fuzz):
    fuzz(check, SEEDS, WORDS)
